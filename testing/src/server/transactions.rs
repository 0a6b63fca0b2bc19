//! Transactions.

use super::call::Call;
use super::client::Queue;
use super::commands;
use super::reply::{Answer, OK, Refusal, Reply};
use super::version::ServerVersion;

use ServerVersion::{V2_2, V2_6};

/// Returns true if the command is executed, not queued, between MULTI and EXEC. Measured: 2.0.5 queues a nested MULTI.
pub(super) fn is_executed_at_once(version: ServerVersion, name: &str) -> bool {
    match name {
        "EXEC" | "DISCARD" | "QUIT" | "RESET" => true,
        "MULTI" | "WATCH" => version >= V2_2,
        _ => false,
    }
}

pub(super) fn multi(call: &mut Call<'_>) -> Answer {
    if call.in_exec {
        // A nested MULTI that was queued: its reply, and nothing else. Inferred for 2.0.5.
        return Ok(OK);
    }
    let queue = &mut call.client().queue;
    if queue.is_some() {
        return Err(Refusal::new("ERR MULTI calls can not be nested"));
    }
    *queue = Some(Queue::default());
    Ok(OK)
}

pub(super) fn discard(call: &mut Call<'_>) -> Answer {
    let client = call.client();
    if client.queue.take().is_none() {
        return Err(Refusal::new("ERR DISCARD without MULTI"));
    }
    client.watches_nothing();
    Ok(OK)
}

pub(super) fn watch(call: &mut Call<'_>) -> Answer {
    let keys = call.arguments();
    if call.client().queue.is_some() {
        return Err(Refusal::new("ERR WATCH inside MULTI is not allowed"));
    }
    // One that has expired by now counts as missing.
    for key in keys {
        call.exists(key);
    }
    let client = call.client();
    let database = client.database;
    client.watched.extend(keys.iter().map(|key| (database, key.clone())));
    Ok(OK)
}

pub(super) fn unwatch(call: &mut Call<'_>) -> Answer {
    call.client().watches_nothing();
    Ok(OK)
}

/// Before 2.6.5, what was refused between MULTI and EXEC does not keep EXEC from executing the rest.
pub(super) fn exec(call: &mut Call<'_>) -> Answer {
    let (id, version) = (call.id, call.version());
    let Some(queue) = call.client().queue.take() else { return Err(Refusal::new("ERR EXEC without MULTI")) };
    let watched = call.client().watched.clone();
    for (database, key) in &watched {
        call.server.expire_if_due(*database, key);
    }
    let is_dirty = call.client().is_dirty;
    call.client().watches_nothing();
    if queue.is_spoiled && version >= V2_6 {
        return Err(Refusal::new("EXECABORT Transaction discarded because of previous errors."));
    }
    if is_dirty {
        return Ok(Reply::NilArray);
    }
    let table = commands::of(version);
    let replies = queue.commands.iter().filter_map(|words| {
        let spec = table.get(super::upper(&words[0]).as_str())?;
        Some(call.server.execute(id, spec, words, true))
    });
    Ok(Reply::Array(replies.collect()))
}
