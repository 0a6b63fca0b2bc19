//! Publishing and subscribing.

use super::call::{Call, syntax_error};
use super::client::Client;
use super::glob;
use super::reply::{Answer, Reply};

/// What a client listens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Channels,
    Patterns,
}

impl Kind {
    fn of(self, client: &mut Client) -> &mut Vec<Vec<u8>> {
        if self == Self::Channels { &mut client.channels } else { &mut client.patterns }
    }
}

pub(super) fn publish(call: &mut Call<'_>) -> Answer {
    let (channel, message) = (call.word(1), call.word(2));
    let mut sent = Vec::new();
    for (id, client) in &call.server.clients {
        if client.channels.iter().any(|one| one == channel) {
            sent.push((*id, message_of(&[b"message", channel, message])));
        }
    }
    for (id, client) in &call.server.clients {
        for pattern in client.patterns.iter().filter(|pattern| glob::matches(pattern, channel)) {
            sent.push((*id, message_of(&[b"pmessage", pattern, channel, message])));
        }
    }
    for (id, message) in &sent {
        call.server.send(*id, message);
    }
    Ok(Reply::count(sent.len()))
}

fn message_of(parts: &[&[u8]]) -> Reply {
    Reply::Push(parts.iter().map(|part| Reply::bulk(*part)).collect())
}

fn listen(call: &mut Call<'_>, name: &str, kind: Kind) -> Answer {
    let channels = call.arguments();
    let client = call.client();
    let replies = channels.iter().map(|channel| {
        if !kind.of(client).contains(channel) {
            kind.of(client).push(channel.clone());
        }
        change(client, name, Reply::bulk(channel.clone()))
    });
    Ok(Reply::Several(replies.collect()))
}

/// Without arguments it ends all of them.
fn ignore(call: &mut Call<'_>, name: &str, kind: Kind) -> Answer {
    let arguments = call.arguments();
    let client = call.client();
    let channels = if arguments.is_empty() { kind.of(client).clone() } else { arguments.to_vec() };
    if channels.is_empty() {
        return Ok(change(client, name, Reply::Nil));
    }
    let replies = channels.into_iter().map(|channel| {
        kind.of(client).retain(|one| *one != channel);
        change(client, name, Reply::bulk(channel))
    });
    Ok(Reply::Several(replies.collect()))
}

fn change(client: &Client, name: &str, channel: Reply) -> Reply {
    let left = client.channels.len() + client.patterns.len();
    Reply::Push(vec![Reply::bulk(name), channel, Reply::count(left)])
}

pub(super) fn subscribe(call: &mut Call<'_>) -> Answer {
    listen(call, "subscribe", Kind::Channels)
}

pub(super) fn psubscribe(call: &mut Call<'_>) -> Answer {
    listen(call, "psubscribe", Kind::Patterns)
}

pub(super) fn unsubscribe(call: &mut Call<'_>) -> Answer {
    ignore(call, "unsubscribe", Kind::Channels)
}

pub(super) fn punsubscribe(call: &mut Call<'_>) -> Answer {
    ignore(call, "punsubscribe", Kind::Patterns)
}

pub(super) fn pubsub(call: &mut Call<'_>) -> Answer {
    let sub = call.upper(1);
    let clients = || call.server.clients.values();
    match sub.as_str() {
        "CHANNELS" => {
            let pattern = call.words.get(2).map_or(&b"*"[..], Vec::as_slice);
            let all = clients().flat_map(|client| &client.channels);
            let mut found: Vec<_> = all.filter(|channel| glob::matches(pattern, channel)).cloned().collect();
            found.sort();
            found.dedup();
            Ok(Reply::bulks(found))
        }
        "NUMSUB" => {
            let count =
                |channel| Reply::count(clients().filter(|client| client.channels.contains(channel)).count());
            let pairs =
                call.words[2..].iter().flat_map(|channel| [Reply::bulk(channel.clone()), count(channel)]);
            Ok(Reply::Array(pairs.collect()))
        }
        "NUMPAT" => {
            let mut all: Vec<_> = clients().flat_map(|client| &client.patterns).collect();
            all.sort();
            all.dedup();
            Ok(Reply::count(all.len()))
        }
        _ => Err(syntax_error()),
    }
}
