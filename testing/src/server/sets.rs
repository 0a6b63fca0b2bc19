//! Commands on sets.

use super::call::Call;
use super::keyspace::{Value, as_integer};
use super::reply::{Answer, Refusal, Reply};

pub(super) fn sadd(call: &mut Call<'_>) -> Answer {
    let key = call.word(1);
    let members = &call.words[2..];
    let set = call.value_or(key, Value::Set(Vec::new())).set()?;
    let before = set.len();
    for member in members {
        if !set.contains(member) {
            set.push(member.clone());
        }
    }
    // A set of numbers only is sorted.
    if set.iter().all(|member| as_integer(member).is_some()) {
        set.sort_by_key(|member| as_integer(member));
    }
    let added = set.len() - before;
    if added > 0 {
        call.changed(key);
    }
    Ok(Reply::count(added))
}

pub(super) fn srem(call: &mut Call<'_>) -> Answer {
    let key = call.word(1);
    let members = &call.words[2..];
    let Some(entry) = call.look_up_to_change(key) else { return Ok(Reply::Integer(0)) };
    let set = entry.value.set()?;
    let before = set.len();
    set.retain(|member| !members.contains(member));
    let removed = before - set.len();
    if removed > 0 {
        call.changed(key);
    }
    Ok(Reply::count(removed))
}

/// The members of the set at the key; none if there is no set.
fn read(call: &mut Call<'_>) -> Result<Vec<Vec<u8>>, Refusal> {
    let key = call.word(1);
    Ok(call.look_up(key).map(|entry| entry.value.set()).transpose()?.cloned().unwrap_or_default())
}

pub(super) fn scard(call: &mut Call<'_>) -> Answer {
    Ok(Reply::count(read(call)?.len()))
}

pub(super) fn sismember(call: &mut Call<'_>) -> Answer {
    let member = call.word(2);
    Ok(Reply::flag(read(call)?.iter().any(|one| one == member)))
}

pub(super) fn smembers(call: &mut Call<'_>) -> Answer {
    Ok(Reply::Set(read(call)?.into_iter().map(Reply::Bulk).collect()))
}
