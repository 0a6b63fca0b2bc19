//! Commands on lists.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use super::call::{Call, reply_of};
use super::keyspace::Value;
use super::reply::{Answer, OK, Refusal, Reply};
use super::version::ServerVersion;
use super::waiting::{Waiting, What};

use ServerVersion::{V2_0, V2_6};

/// An end of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
}

impl Side {
    pub(super) fn pop(self, list: &mut VecDeque<Vec<u8>>) -> Option<Vec<u8>> {
        if self == Self::Left { list.pop_front() } else { list.pop_back() }
    }

    fn push(self, list: &mut VecDeque<Vec<u8>>, element: Vec<u8>) {
        if self == Self::Left { list.push_front(element) } else { list.push_back(element) }
    }
}

/// The positions from the first to the last one, where negative ones count from the end.
pub(super) fn range(first: i64, last: i64, length: usize) -> Range<usize> {
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let from_start = |at: i64| if at < 0 { at.saturating_add(length) } else { at };
    let first = from_start(first).max(0);
    let end = from_start(last).min(length - 1) + 1;
    if first >= end {
        return 0..0;
    }
    usize::try_from(first).unwrap_or(0)..usize::try_from(end).unwrap_or(0)
}

fn push(call: &mut Call<'_>, side: Side) -> Answer {
    let key = call.word(1);
    let elements = &call.words[2..];
    let list = call.value_or(key, Value::List(VecDeque::new())).list()?;
    for element in elements {
        side.push(list, element.clone());
    }
    let length = list.len();
    call.changed(key);
    // Measured on 1.1.94.
    Ok(if call.version() < V2_0 { OK } else { Reply::count(length) })
}

fn push_if_there(call: &mut Call<'_>, side: Side) -> Answer {
    let key = call.word(1);
    let is_there = call.look_up_to_change(key).map(|entry| entry.value.list().map(drop)).transpose()?;
    if is_there.is_none() { Ok(Reply::Integer(0)) } else { push(call, side) }
}

pub(super) fn lpush(call: &mut Call<'_>) -> Answer {
    push(call, Side::Left)
}

pub(super) fn rpush(call: &mut Call<'_>) -> Answer {
    push(call, Side::Right)
}

pub(super) fn lpushx(call: &mut Call<'_>) -> Answer {
    push_if_there(call, Side::Left)
}

pub(super) fn rpushx(call: &mut Call<'_>) -> Answer {
    push_if_there(call, Side::Right)
}

/// Takes an element from the end of a list, if there is a list.
pub(super) fn popped(call: &mut Call<'_>, key: &[u8], side: Side) -> Result<Option<Vec<u8>>, Refusal> {
    let list = call.look_up_to_change(key).map(|entry| entry.value.list()).transpose()?;
    let element = list.and_then(|list| side.pop(list));
    if element.is_some() {
        call.changed(key);
    }
    Ok(element)
}

fn pop(call: &mut Call<'_>, side: Side) -> Answer {
    let key = call.word(1);
    if call.words.len() == 2 {
        return popped(call, key, side).map(Reply::bulk_or_nil);
    }
    let out_of_range = || Refusal::new("ERR value is out of range, must be positive");
    let count = super::keyspace::as_integer(call.word(2)).ok_or_else(out_of_range)?;
    let count = usize::try_from(count).map_err(|_| out_of_range())?;
    if call.look_up(key).map(|entry| entry.value.list().map(drop)).transpose()?.is_none() {
        return Ok(Reply::NilArray);
    }
    let mut elements = Vec::new();
    while elements.len() < count
        && let Some(element) = popped(call, key, side)?
    {
        elements.push(element);
    }
    Ok(Reply::bulks(elements))
}

pub(super) fn lpop(call: &mut Call<'_>) -> Answer {
    pop(call, Side::Left)
}

pub(super) fn rpop(call: &mut Call<'_>) -> Answer {
    pop(call, Side::Right)
}

/// The list at the key; an empty one if there is none.
fn read(call: &mut Call<'_>) -> Result<Vec<Vec<u8>>, Refusal> {
    let key = call.word(1);
    let list = call.look_up(key).map(|entry| entry.value.list()).transpose()?;
    Ok(list.map(|list| list.iter().cloned().collect()).unwrap_or_default())
}

pub(super) fn llen(call: &mut Call<'_>) -> Answer {
    Ok(Reply::count(read(call)?.len()))
}

/// The position, where negative ones count from the end.
fn position(at: i64, length: usize) -> Option<usize> {
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let at = if at < 0 { at.saturating_add(length) } else { at };
    (0..length).contains(&at).then(|| usize::try_from(at).unwrap_or(0))
}

pub(super) fn lindex(call: &mut Call<'_>) -> Answer {
    let list = read(call)?;
    if list.is_empty() {
        return Ok(Reply::Nil);
    }
    let at = position(call.integer(2)?, list.len());
    Ok(Reply::bulk_or_nil(at.map(|at| list[at].clone())))
}

pub(super) fn lrange(call: &mut Call<'_>) -> Answer {
    let (first, last) = (call.integer(2)?, call.integer(3)?);
    let elements = read(call)?;
    Ok(reply_of(&elements[range(first, last, elements.len())]))
}

/// Replaces the elements of a list that is there.
fn replace(call: &mut Call<'_>, elements: Vec<Vec<u8>>) {
    let key = call.word(1);
    let expires = call.look_up(key).and_then(|entry| entry.expires);
    call.put(key, Value::List(elements.into()), expires);
}

pub(super) fn lrem(call: &mut Call<'_>) -> Answer {
    let count = call.integer(2)?;
    let (key, element) = (call.word(1), call.word(3));
    call.look_up_to_change(key);
    let mut list = read(call)?;
    let most =
        if count == 0 { usize::MAX } else { usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX) };
    let mut removed = 0;
    let mut stays = |candidate: &Vec<u8>| {
        let goes = candidate == element && removed < most;
        removed += usize::from(goes);
        !goes
    };
    if count < 0 {
        list.reverse();
    }
    list.retain(&mut stays);
    if count < 0 {
        list.reverse();
    }
    if removed > 0 {
        replace(call, list);
    }
    Ok(Reply::count(removed))
}

pub(super) fn lset(call: &mut Call<'_>) -> Answer {
    let key = call.word(1);
    if call.look_up_to_change(key).is_none() {
        return Err(Refusal::new("ERR no such key"));
    }
    let mut list = read(call)?;
    let at = position(call.integer(2)?, list.len()).ok_or(Refusal::new("ERR index out of range"))?;
    list[at] = call.word(3).to_vec();
    replace(call, list);
    Ok(OK)
}

pub(super) fn ltrim(call: &mut Call<'_>) -> Answer {
    let (first, last) = (call.integer(2)?, call.integer(3)?);
    let key = call.word(1);
    call.look_up_to_change(key);
    let elements = read(call)?;
    if !elements.is_empty() {
        replace(call, elements[range(first, last, elements.len())].to_vec());
    }
    Ok(OK)
}

/// Moves the last element of a list to the front of another, if there is one.
pub(super) fn moved(call: &mut Call<'_>, from: &[u8], to: &[u8]) -> Result<Option<Vec<u8>>, Refusal> {
    let is_there = call.look_up_to_change(from).map(|entry| entry.value.list().map(drop)).transpose()?;
    if is_there.is_none() {
        return Ok(None);
    }
    if from != to {
        call.look_up_to_change(to).map(|entry| entry.value.list().map(drop)).transpose()?;
    }
    let element = popped(call, from, Side::Right)?;
    if let Some(element) = &element {
        Side::Left.push(call.value_or(to, Value::List(VecDeque::new())).list()?, element.clone());
        call.changed(to);
    }
    Ok(element)
}

pub(super) fn rpoplpush(call: &mut Call<'_>) -> Answer {
    let (from, to) = (call.word(1), call.word(2));
    moved(call, from, to).map(Reply::bulk_or_nil)
}

pub(super) fn blpop(call: &mut Call<'_>) -> Answer {
    let keys = &call.words[1..call.words.len() - 1];
    wait_for(call, keys, What::Pop(Side::Left))
}

pub(super) fn brpop(call: &mut Call<'_>) -> Answer {
    let keys = &call.words[1..call.words.len() - 1];
    wait_for(call, keys, What::Pop(Side::Right))
}

pub(super) fn brpoplpush(call: &mut Call<'_>) -> Answer {
    let to = call.word(2).to_vec();
    wait_for(call, &call.words[1..2], What::MoveTo(to))
}

fn wait_for(call: &mut Call<'_>, keys: &[Vec<u8>], what: What) -> Answer {
    let limit = limit(call)?;
    let waiting = Waiting {
        client: call.id,
        database: call.client().database,
        keys: keys.to_vec(),
        until: (limit > Duration::ZERO).then(|| call.server.now.saturating_add(limit)),
        what,
    };
    if let Some(reply) = waiting.look(call)? {
        return Ok(reply);
    }
    if call.in_exec {
        return Ok(waiting.ended());
    }
    call.server.waiting.push(waiting);
    Ok(Reply::Later)
}

/// For how long a command waits; zero for ever.
fn limit(call: &mut Call<'_>) -> Result<Duration, Refusal> {
    let last = call.word(call.words.len() - 1);
    let refused = if call.version() <= V2_6 { "an integer" } else { "a float" };
    let refused = Refusal(format!("ERR timeout is not {refused} or out of range"));
    let seconds: f64 = str::from_utf8(last).ok().and_then(|text| text.parse().ok()).ok_or(refused.clone())?;
    if seconds < 0.0 {
        return Err(Refusal::new("ERR timeout is negative"));
    }
    if call.version() <= V2_6 && seconds.fract() != 0.0 {
        return Err(refused);
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| refused)
}
