//! Commands on hashes.

use super::call::{Call, wrong_number};
use super::keyspace::{Fields, Value, as_integer};
use super::reply::{Answer, OK, Refusal, Reply};

/// Sets fields, and returns how many are new.
fn set_fields(call: &mut Call<'_>) -> Result<usize, Refusal> {
    let key = call.word(1);
    let pairs = &call.words[2..];
    if pairs.len() % 2 == 1 {
        return Err(wrong_number(&call.upper(0)));
    }
    let fields = call.value_or(key, Value::Hash(Vec::new())).hash()?;
    let before = fields.len();
    pairs.chunks(2).for_each(|pair| put(fields, &pair[0], &pair[1]));
    let added = fields.len() - before;
    call.changed(key);
    Ok(added)
}

fn put(fields: &mut Fields, name: &[u8], value: &[u8]) {
    match fields.iter_mut().find(|(field, _)| field == name) {
        Some((_, old)) => *old = value.to_vec(),
        None => fields.push((name.to_vec(), value.to_vec())),
    }
}

pub(super) fn hset(call: &mut Call<'_>) -> Answer {
    set_fields(call).map(Reply::count)
}

pub(super) fn hmset(call: &mut Call<'_>) -> Answer {
    set_fields(call).map(|_| OK)
}

pub(super) fn hsetnx(call: &mut Call<'_>) -> Answer {
    call.look_up_to_change(call.word(1));
    let is_free = read(call)?.iter().all(|(field, _)| field != call.word(2));
    if is_free {
        set_fields(call)?;
    }
    Ok(Reply::flag(is_free))
}

/// The fields of the hash at the key; none if there is no hash.
fn read(call: &mut Call<'_>) -> Result<Fields, Refusal> {
    let key = call.word(1);
    Ok(call.look_up(key).map(|entry| entry.value.hash()).transpose()?.cloned().unwrap_or_default())
}

fn value_of(fields: &Fields, name: &[u8]) -> Reply {
    Reply::bulk_or_nil(fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.clone()))
}

pub(super) fn hget(call: &mut Call<'_>) -> Answer {
    Ok(value_of(&read(call)?, call.word(2)))
}

pub(super) fn hmget(call: &mut Call<'_>) -> Answer {
    let fields = read(call)?;
    Ok(Reply::Array(call.words[2..].iter().map(|name| value_of(&fields, name)).collect()))
}

pub(super) fn hgetall(call: &mut Call<'_>) -> Answer {
    let pair = |(field, value)| (Reply::Bulk(field), Reply::Bulk(value));
    Ok(Reply::Map(read(call)?.into_iter().map(pair).collect()))
}

pub(super) fn hkeys(call: &mut Call<'_>) -> Answer {
    Ok(Reply::bulks(read(call)?.into_iter().map(|(field, _)| field)))
}

pub(super) fn hlen(call: &mut Call<'_>) -> Answer {
    Ok(Reply::count(read(call)?.len()))
}

pub(super) fn hexists(call: &mut Call<'_>) -> Answer {
    Ok(Reply::flag(read(call)?.iter().any(|(field, _)| field == call.word(2))))
}

pub(super) fn hdel(call: &mut Call<'_>) -> Answer {
    let key = call.word(1);
    let names = &call.words[2..];
    let Some(entry) = call.look_up_to_change(key) else { return Ok(Reply::Integer(0)) };
    let fields = entry.value.hash()?;
    let before = fields.len();
    fields.retain(|(field, _)| !names.contains(field));
    let removed = before - fields.len();
    if removed > 0 {
        call.changed(key);
    }
    Ok(Reply::count(removed))
}

pub(super) fn hincrby(call: &mut Call<'_>) -> Answer {
    let by = call.integer(3)?;
    let (key, name) = (call.word(1), call.word(2));
    call.look_up_to_change(key);
    let fields = read(call)?;
    let old = match fields.iter().find(|(field, _)| field == name) {
        Some((_, text)) => as_integer(text).ok_or(Refusal::new("ERR hash value is not an integer"))?,
        None => 0,
    };
    let new = old.checked_add(by).ok_or(Refusal::new("ERR increment or decrement would overflow"))?;
    put(call.value_or(key, Value::Hash(Vec::new())).hash()?, name, new.to_string().as_bytes());
    call.changed(key);
    Ok(Reply::Integer(new))
}
