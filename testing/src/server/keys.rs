//! Commands on keys of any type.

use super::call::{Call, syntax_error};
use super::glob;
use super::keyspace::{Database, Entry};
use super::reply::{Answer, OK, Refusal, Reply};
use super::version::ServerVersion;

use ServerVersion::V2_0;

pub(super) fn del(call: &mut Call<'_>) -> Answer {
    Ok(Reply::count(call.arguments().iter().filter(|key| call.remove(key)).count()))
}

pub(super) fn exists(call: &mut Call<'_>) -> Answer {
    Ok(Reply::count(call.arguments().iter().filter(|key| call.exists(key)).count()))
}

pub(super) fn type_of(call: &mut Call<'_>) -> Answer {
    let key = call.word(1);
    Ok(Reply::Status(call.look_up(key).map_or("none", |entry| entry.value.type_name())))
}

/// Removes the keys whose time has come, so that those that are left are there.
fn swept<'c>(call: &'c mut Call<'_>) -> &'c mut Database {
    let all: Vec<Vec<u8>> = call.database().keys().map(|(key, _)| key.to_vec()).collect();
    for key in &all {
        call.exists(key);
    }
    call.database()
}

/// Measured on 1.1.94: one text, with the names separated by blanks.
pub(super) fn keys(call: &mut Call<'_>) -> Answer {
    let pattern = call.word(1);
    let version = call.version();
    let matching = swept(call).keys().map(|(key, _)| key).filter(|key| glob::matches(pattern, key));
    let matching: Vec<Vec<u8>> = matching.map(<[u8]>::to_vec).collect();
    Ok(if version < V2_0 { Reply::bulk(matching.join(&b' ')) } else { Reply::bulks(matching) })
}

pub(super) fn scan(call: &mut Call<'_>) -> Answer {
    let cursor = str::from_utf8(call.word(1)).ok().and_then(|text| text.parse().ok());
    let cursor = cursor.ok_or(Refusal::new("ERR invalid cursor"))?;
    let (mut pattern, mut kind, mut count) = (None, None, 10);
    for at in (2..call.words.len()).step_by(2) {
        if at + 1 >= call.words.len() {
            return Err(syntax_error());
        }
        match call.upper(at).as_str() {
            "MATCH" => pattern = Some(call.word(at + 1)),
            "TYPE" => kind = Some(call.upper(at + 1).to_lowercase()),
            "COUNT" => {
                let given = call.integer(at + 1)?;
                count = usize::try_from(given).ok().filter(|count| *count > 0).ok_or_else(syntax_error)?;
            }
            _ => return Err(syntax_error()),
        }
    }
    let (next, found) = call.database().scan(cursor, count);
    let found = found.into_iter().filter(|key| {
        let of_kind = |entry: &mut Entry| kind.as_deref().is_none_or(|kind| kind == entry.value.type_name());
        pattern.is_none_or(|pattern| glob::matches(pattern, key)) && call.look_up(key).is_some_and(of_kind)
    });
    let found = Reply::bulks(found.collect::<Vec<_>>());
    Ok(Reply::Array(vec![Reply::bulk(next.to_string()), found]))
}

/// Measured on 1.1.94: in a status line.
pub(super) fn randomkey(call: &mut Call<'_>) -> Answer {
    let version = call.version();
    let first = swept(call).keys().next().map(|(key, _)| key.to_vec());
    Ok(match first {
        first if version < V2_0 => {
            Reply::Text(String::from_utf8_lossy(&first.unwrap_or_default()).into_owned())
        }
        first => Reply::bulk_or_nil(first),
    })
}

fn renamed(call: &mut Call<'_>, replaces: bool) -> Result<bool, Refusal> {
    let (from, to) = (call.word(1), call.word(2));
    let entry = call.look_up(from).map(|entry| entry.clone()).ok_or(Refusal::new("ERR no such key"))?;
    if !replaces && call.exists(to) {
        return Ok(false);
    }
    call.remove(from);
    call.put(to, entry.value, entry.expires);
    Ok(true)
}

pub(super) fn rename(call: &mut Call<'_>) -> Answer {
    renamed(call, true).map(|_| OK)
}

pub(super) fn renamenx(call: &mut Call<'_>) -> Answer {
    renamed(call, false).map(Reply::flag)
}

pub(super) fn dbsize(call: &mut Call<'_>) -> Answer {
    Ok(Reply::count(call.database().len()))
}

fn flush(call: &mut Call<'_>, databases: Vec<usize>) -> Answer {
    if call.words.len() > 1 && !["SYNC", "ASYNC"].contains(&call.upper(1).as_str()) {
        return Err(syntax_error());
    }
    for number in databases {
        let keys: Vec<Vec<u8>> = call.server.databases[number].keys().map(|(key, _)| key.to_vec()).collect();
        call.server.databases[number].clear();
        // Those who watch a key that was not there notice nothing.
        for key in &keys {
            call.server.touch(number, key);
        }
    }
    Ok(OK)
}

pub(super) fn flushall(call: &mut Call<'_>) -> Answer {
    let all = call.server.databases.len();
    flush(call, (0..all).collect())
}

pub(super) fn flushdb(call: &mut Call<'_>) -> Answer {
    let number = call.client().database;
    flush(call, vec![number])
}
