//! Commands on the connection itself.

use super::call::{Call, syntax_error};
use super::client::Client;
use super::keyspace::as_integer;
use super::reply::{Answer, OK, Refusal, Reply};
use super::users;
use super::version::ServerVersion;
use super::{ClientId, Output};

use ServerVersion::{V2_0, V2_6, Valkey9};

pub(super) fn auth(call: &mut Call<'_>) -> Answer {
    match call.words {
        [_, password] => users::log_in_as_default(call, password),
        [_, name, password] => users::log_in(call, name, password),
        _ => Err(syntax_error()),
    }
}

pub(super) fn echo(call: &mut Call<'_>) -> Answer {
    Ok(Reply::bulk(call.word(1)))
}

pub(super) fn ping(call: &mut Call<'_>) -> Answer {
    let text = call.words.get(1).cloned();
    let client = call.client();
    if client.is_subscribed() && !client.resp3 {
        return Ok(Reply::Array(vec![Reply::bulk("pong"), Reply::bulk(text.unwrap_or_default())]));
    }
    Ok(text.map_or(Reply::Status("PONG"), Reply::Bulk))
}

/// In 1.2 without a reply.
pub(super) fn quit(call: &mut Call<'_>) -> Answer {
    let (id, version) = (call.id, call.version());
    if version >= V2_0 {
        call.server.send(id, &OK);
    }
    call.server.output.push(Output::Close(id));
    Ok(Reply::Later)
}

pub(super) fn select(call: &mut Call<'_>) -> Answer {
    let number = call.integer(1)?;
    let number = usize::try_from(number).ok().filter(|number| *number < super::settings::DATABASES);
    call.client().database = number.ok_or(Refusal::new("ERR DB index is out of range"))?;
    Ok(OK)
}

pub(super) fn reset(call: &mut Call<'_>) -> Answer {
    let user = call.server.users.at_first();
    let client = call.client();
    let fresh = Client::new(client.address.clone(), client.version, user);
    *client = Client { is_privileged: client.is_privileged, ..fresh };
    Ok(Reply::Status("RESET"))
}

pub(super) fn hello(call: &mut Call<'_>) -> Answer {
    let mut resp3 = call.client().resp3;
    if call.words.len() > 1 {
        let number = as_integer(call.word(1));
        let number = number.ok_or(Refusal::new("ERR Protocol version is not an integer or out of range"))?;
        resp3 = match number {
            2 => false,
            3 => true,
            _ => return Err(Refusal::new("NOPROTO unsupported protocol version")),
        };
    }
    let mut at = 2;
    while at < call.words.len() {
        match (call.upper(at).as_str(), call.words.len() - at - 1) {
            ("AUTH", 2..) => {
                users::log_in(call, call.word(at + 1), call.word(at + 2))?;
                at += 3;
            }
            ("SETNAME", 1..) => {
                set_name(call, call.word(at + 1))?;
                at += 2;
            }
            (option, _) => {
                return Err(Refusal(format!("ERR Syntax error in HELLO option '{}'", option.to_lowercase())));
            }
        }
    }
    if call.client().user.is_none() && !call.client().is_privileged {
        return Err(Refusal::new(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be \
             used to authenticate the client and select the RESP protocol version at the same time",
        ));
    }
    call.client().resp3 = resp3;
    let role = if call.server.settings.master.is_some() { "replica" } else { "master" };
    let version = call.server.version;
    let about = [
        ("server", Reply::bulk(if version == Valkey9 { "valkey" } else { "redis" })),
        ("version", Reply::bulk(if version == Valkey9 { "9.0.0" } else { version.number() })),
        ("proto", Reply::Integer(if resp3 { 3 } else { 2 })),
        ("id", Reply::Integer(call.id.try_into().unwrap_or(i64::MAX))),
        ("mode", Reply::bulk("standalone")),
        ("role", Reply::bulk(role)),
        ("modules", Reply::Array(Vec::new())),
    ];
    Ok(Reply::Map(about.map(|(name, value)| (Reply::bulk(name), value)).into()))
}

fn set_name(call: &mut Call<'_>, name: &[u8]) -> Result<(), Refusal> {
    if name.iter().any(|byte| !(b'!'..=b'~').contains(byte)) {
        return Err(Refusal::new("ERR Client names cannot contain spaces, newlines or special characters."));
    }
    call.client().name = name.to_vec();
    Ok(())
}

pub(super) fn client(call: &mut Call<'_>) -> Answer {
    let (sub, version) = (call.upper(1), call.version());
    match (sub.as_str(), call.words.len()) {
        ("LIST", given) if given == 2 || version > V2_6 => {
            let is_chosen = chosen(&call.words[2..])?;
            let some = call.server.ordinary_clients().filter(|(id, client)| is_chosen(**id, client));
            Ok(Reply::Verbatim(some.map(|(id, client)| listed(*id, client)).collect()))
        }
        ("INFO", _) if version > V2_6 => {
            let id = call.id;
            Ok(Reply::Verbatim(listed(id, call.client())))
        }
        ("KILL", 3..) => kill(call),
        // GETNAME and SETNAME: "2.6.9".
        _ if version < V2_6 => Err(Refusal::new("ERR Syntax error, try CLIENT (LIST | KILL ip:port)")),
        ("GETNAME", 2) => {
            let name = call.client().name.clone();
            Ok(Reply::bulk_or_nil((!name.is_empty()).then_some(name)))
        }
        ("SETNAME", 3) => set_name(call, call.word(2)).map(|()| OK),
        ("ID", _) if version > V2_6 => Ok(Reply::Integer(call.id.try_into().unwrap_or(i64::MAX))),
        ("SETINFO", _) if version > V2_6 => Ok(OK),
        _ => Err(Refusal::new(
            "ERR Syntax error, try CLIENT (LIST | KILL ip:port | GETNAME | SETNAME connection-name)",
        )),
    }
}

fn listed(id: ClientId, client: &Client) -> String {
    let queued = client.queue.as_ref().map_or(-1, |queue| i64::try_from(queue.commands.len()).unwrap_or(-1));
    format!(
        "id={id} addr={} name={} age=0 idle=0 flags={} db={} sub={} psub={} multi={queued}\n",
        client.address,
        String::from_utf8_lossy(&client.name),
        flags(client),
        client.database,
        client.channels.len(),
        client.patterns.len()
    )
}

fn flags(client: &Client) -> String {
    let all = [(client.is_subscribed(), 'P'), (client.queue.is_some(), 'x'), (client.is_dirty, 'd')];
    let flags: String = all.into_iter().filter_map(|(is_so, flag)| is_so.then_some(flag)).collect();
    if flags.is_empty() { "N".into() } else { flags }
}

type IsChosen = Box<dyn Fn(ClientId, &Client) -> bool>;

/// Reads which clients to list: all, those of a type, or those with these IDs.
fn chosen(filter: &[Vec<u8>]) -> Result<IsChosen, Refusal> {
    match filter.split_first().map(|(name, values)| (super::upper(name), values)) {
        None => Ok(Box::new(|_, _| true)),
        Some((name, [kind])) if name == "TYPE" => of_type(kind),
        Some((name, ids)) if name == "ID" && !ids.is_empty() => {
            let id = |word: &Vec<u8>| String::from_utf8_lossy(word).parse::<ClientId>().ok();
            let ids = ids.iter().map(id).collect::<Option<Vec<_>>>();
            let ids = ids.ok_or(Refusal::new("ERR Invalid client ID"))?;
            Ok(Box::new(move |id, _| ids.contains(&id)))
        }
        Some(_) => Err(syntax_error()),
    }
}

fn of_type(kind: &[u8]) -> Result<IsChosen, Refusal> {
    match super::upper(kind).as_str() {
        "PUBSUB" => Ok(Box::new(|_, client| client.is_subscribed())),
        "NORMAL" => Ok(Box::new(|_, client| !client.is_subscribed())),
        "MASTER" | "REPLICA" | "SLAVE" => Ok(Box::new(|_, _| false)),
        _ => Err(Refusal(format!("ERR Unknown client type '{}'", String::from_utf8_lossy(kind)))),
    }
}

/// By address, by ID, or all of a type.
fn kill(call: &mut Call<'_>) -> Answer {
    let me = call.id;
    let chosen: Vec<ClientId> = match call.words {
        [_, _, address] => {
            let is_it = |client: &Client| client.address.as_bytes() == address.as_slice();
            call.server.ordinary_clients().filter(|(_, client)| is_it(client)).map(|(id, _)| *id).collect()
        }
        [_, _, filter, value] => {
            let is_chosen: IsChosen = match super::upper(filter).as_str() {
                "TYPE" => of_type(value)?,
                "ID" => chosen(&call.words[2..])?,
                "ADDR" => {
                    let address = super::upper(value);
                    Box::new(move |_, client| client.address.to_uppercase() == address)
                }
                _ => return Err(syntax_error()),
            };
            let others =
                call.server.ordinary_clients().filter(|(id, client)| **id != me && is_chosen(**id, client));
            others.map(|(id, _)| *id).collect()
        }
        _ => return Err(syntax_error()),
    };
    call.server.output.extend(chosen.iter().map(|id| Output::Close(*id)));
    match call.words.len() {
        3 if chosen.is_empty() => Err(Refusal::new("ERR No such client")),
        3 => Ok(OK),
        _ => Ok(Reply::count(chosen.len())),
    }
}
