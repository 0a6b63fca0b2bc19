//! Commands on the server.

use super::call::{Call, syntax_error};
use super::glob;
use super::reply::{Answer, OK, Refusal, Reply};
use super::version::ServerVersion;

use ServerVersion::V2_6;

pub(super) fn info(call: &mut Call<'_>) -> Answer {
    let sections: Vec<String> = (1..call.words.len()).map(|n| call.upper(n).to_lowercase()).collect();
    let version = call.version();
    Ok(Reply::Verbatim(call.server.info(version, &sections)))
}

pub(super) fn time(call: &mut Call<'_>) -> Answer {
    let now = call.server.now;
    Ok(Reply::bulks([now.as_secs().to_string(), now.subsec_micros().to_string()]))
}

/// There is no disk to save to.
pub(super) fn nothing_to_save(_: &mut Call<'_>) -> Answer {
    Ok(OK)
}

pub(super) fn bgsave(_: &mut Call<'_>) -> Answer {
    Ok(Reply::Status("Background saving started"))
}

pub(super) fn lastsave(call: &mut Call<'_>) -> Answer {
    Ok(Reply::Integer(call.server.started.as_secs().try_into().unwrap_or(i64::MAX)))
}

pub(super) fn replicaof(call: &mut Call<'_>) -> Answer {
    if call.upper(1) == "NO" && call.upper(2) == "ONE" {
        call.server.follow(None);
        return Ok(OK);
    }
    let port = call.integer(2)?.try_into().map_err(|_| Refusal::new("ERR Invalid master port"))?;
    let host = String::from_utf8_lossy(call.word(1)).into_owned();
    call.server.follow(Some((host, port)));
    Ok(OK)
}

pub(super) fn role(call: &mut Call<'_>) -> Answer {
    Ok(Reply::Array(match &call.server.settings.master {
        None => vec![Reply::bulk("master"), Reply::Integer(0), Reply::Array(Vec::new())],
        Some((host, port)) => vec![
            Reply::bulk("slave"),
            Reply::bulk(host.as_str()),
            Reply::Integer((*port).into()),
            Reply::bulk("connect"),
            Reply::Integer(-1),
        ],
    }))
}

/// No replica is ever connected.
pub(super) fn wait(call: &mut Call<'_>) -> Answer {
    let timeout = super::keyspace::as_integer(call.word(2));
    call.integer(1)?;
    match timeout {
        None => Err(Refusal::new("ERR timeout is not an integer or out of range")),
        Some(..0) => Err(Refusal::new("ERR timeout is negative")),
        Some(_) => Ok(Reply::Integer(0)),
    }
}

/// What clients ask for when they start; none needs the answer.
pub(super) fn command(call: &mut Call<'_>) -> Answer {
    match call.words.get(1).map(|_| call.upper(1)).as_deref() {
        Some("COUNT") => Ok(Reply::count(super::commands::of(call.version()).len())),
        Some("DOCS") => Ok(Reply::Map(Vec::new())),
        None | Some("INFO" | "LIST") => Ok(Reply::Array(Vec::new())),
        _ => Err(syntax_error()),
    }
}

pub(super) fn config(call: &mut Call<'_>) -> Answer {
    let (sub, given, is_old) = (call.upper(1), call.words.len(), call.version() <= V2_6);
    match sub.as_str() {
        "GET" if !is_old || given == 3 => {
            let patterns: Vec<String> = (2..given).map(|n| call.upper(n).to_lowercase()).collect();
            let is_asked = |name: &str| {
                patterns.iter().any(|pattern| glob::matches(pattern.as_bytes(), name.as_bytes()))
            };
            let all = call.server.settings.all().iter().filter(|(name, _)| is_asked(name));
            Ok(Reply::Map(
                all.map(|(name, value)| (Reply::bulk(name.as_str()), Reply::bulk(value.as_str()))).collect(),
            ))
        }
        "SET" if !is_old || given == 4 => {
            let pairs = &call.words[2..];
            if pairs.len() % 2 == 1 {
                return Err(syntax_error());
            }
            for pair in pairs.chunks(2) {
                call.server.set(&super::upper(&pair[0]).to_lowercase(), &pair[1])?;
            }
            Ok(OK)
        }
        "RESETSTAT" => Ok(OK),
        "REWRITE" if !is_old => Err(Refusal::new("ERR The server is running without a config file")),
        "GET" | "SET" => Err(Refusal(format!("ERR Wrong number of arguments for CONFIG {sub}"))),
        _ => Err(Refusal::new("ERR CONFIG subcommand must be one of GET, SET, RESETSTAT")),
    }
}
