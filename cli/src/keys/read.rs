//! Reads what keys hold, and finds the locks among all keys.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use setnx_lock::chrono::TimeDelta;
use setnx_lock::redis::{self, Pipeline, RedisError, ServerError, Value};
use setnx_lock::{Key, LockState, Refusal};
use setnx_lock_proto::values::SideKey;

use super::{Found, HeldBy, KeyReport, now};
use crate::failure::Failure;
use crate::raw::{Raw, accepted};
use crate::server::{Share, Target};

/// A lock's side keys, as docs/internals.md has them; and the suffix of one of earlier versions.
const BESIDE: [SideKey; 3] = [SideKey::Waiters, SideKey::Fence, SideKey::Readers];
const HOLDER: &[u8] = b":setnx-lock:holder";

/// How many keys are read in one trip.
const PER_TRIP: usize = 500;

/// How much of a value is read where the server can return a part. No lock's value is as long.
const ENOUGH: usize = 1024;

/// How many keys SCAN is asked for at a time: few enough not to delay other clients.
const SCANNED_AT_ONCE: usize = 1000;

/// Reads what this key holds, and what stands beside it.
pub(crate) fn detail(raw: &mut Raw, key: &Key) -> Result<KeyReport, Failure> {
    let mut reports = details(raw, std::slice::from_ref(key))?;
    reports.pop().unwrap_or_else(|| Err(Failure::system("cannot read the key", "no reply")))
}

/// Reads what these keys hold, each on the server that has it. One that is not reached costs its keys alone.
pub(crate) fn details_of_each(
    target: &Target,
    keys: &[Key],
) -> Result<Vec<Result<KeyReport, Failure>>, Failure> {
    let mut reports = BTreeMap::new();
    for Share { connected, places } in target.connect_for_each(keys)? {
        let own: Vec<Key> = places.iter().map(|at| keys[*at].clone()).collect();
        match connected.and_then(|mut raw| details(&mut raw, &own)) {
            Ok(found) => reports.extend(places.into_iter().zip(found)),
            Err(failure) if places.len() == keys.len() => return Err(failure),
            Err(failure) => {
                let each = places.into_iter().map(|at| (at, Err(failure.clone().about(&keys[at]))));
                reports.extend(each);
            }
        }
    }
    Ok(reports.into_values().collect())
}

/// Reads what these keys hold, and what stands beside them. The
/// server may refuse each by itself, as the node of a cluster does.
pub(crate) fn details(raw: &mut Raw, keys: &[Key]) -> Result<Vec<Result<KeyReport, Failure>>, Failure> {
    let mut reports = Vec::with_capacity(keys.len());
    for keys in keys.chunks(PER_TRIP) {
        let mut commands = Pipeline::new();
        for key in keys {
            read_value(raw, &mut commands, key.as_bytes());
            let time_to_live = if raw.is_since(2, 6) { "PTTL" } else { "TTL" };
            commands.cmd("TYPE").arg(key.as_bytes());
            commands.cmd(time_to_live).arg(key.as_bytes());
            read_value(raw, &mut commands, &[key.as_bytes(), HOLDER].concat());
            commands.cmd("LLEN").arg(SideKey::Waiters.of(key.as_bytes()));
            read_value(raw, &mut commands, &SideKey::Fence.of(key.as_bytes()));
        }
        let replies = raw.ask_all(&commands)?;
        let is_in_seconds = !raw.is_since(2, 6);
        for (key, replies) in keys.iter().zip(replies.chunks_exact(6)) {
            let [value, kind, time_to_live, holder, waiters, fence] = replies else { continue };
            let report = report(key, value, kind, time_to_live, is_in_seconds, [holder, waiters, fence]);
            reports.push(report.map_err(|failure| failure.about(key)));
        }
    }
    let is_empty = |report: &&mut KeyReport| report.found == Found::State(LockState::Empty);
    for report in reports.iter_mut().flatten().filter(is_empty) {
        // The key may have come between two commands.
        let value = value(raw, &report.key)?;
        let KeyReport { found, holder, .. } =
            KeyReport::of(report.key.clone(), Found::State(LockState::of_value(value.as_deref())));
        (report.found, report.holder) = (found, holder);
    }
    Ok(reports)
}

/// Reads what this key holds: no more of it than a lock's value can
/// have, where the server can return a part. `None` if there is no key.
pub(crate) fn value(raw: &mut Raw, key: &Key) -> Result<Option<Vec<u8>>, Failure> {
    let mut commands = Pipeline::new();
    read_value(raw, &mut commands, key.as_bytes());
    commands.cmd("EXISTS").arg(key.as_bytes());
    let replies = raw.ask_all(&commands)?.into_iter().map(accepted).collect::<Result<_, _>>()?;
    let (value, exists): (Option<Vec<u8>>, bool) =
        redis::from_redis_value(Value::Array(replies)).map_err(RedisError::from)?;
    // A part of a missing value is empty.
    Ok(value.filter(|value| exists || !value.is_empty()))
}

fn read_value(raw: &Raw, commands: &mut Pipeline, key: &[u8]) {
    if raw.is_since(2, 4) {
        commands.cmd("GETRANGE").arg(key).arg(0).arg(ENOUGH - 1);
    } else {
        commands.cmd("GET").arg(key);
    }
}

fn report(
    key: &Key,
    value: &Value,
    kind: &Value,
    time_to_live: &Value,
    is_in_seconds: bool,
    [holder, waiters, fence]: [&Value; 3],
) -> Result<KeyReport, Failure> {
    let kind: String = redis::from_redis_value(accepted(kind.clone())?).unwrap_or_default();
    let value: Option<Vec<u8>> = match kind.as_str() {
        "none" => None,
        "string" => redis::from_redis_value(accepted(value.clone())?).ok(),
        _ => None,
    };
    let found = match kind.as_str() {
        "none" | "string" => Found::State(LockState::of_value(value.as_deref())),
        _ => Found::Other(kind),
    };
    let number = |value: &Value| match value {
        Value::Int(number) => Some(*number),
        Value::BulkString(bytes) => str::from_utf8(bytes).ok()?.parse().ok(),
        _ => None,
    };
    let time_to_live = number(time_to_live).and_then(|time| u64::try_from(time).ok());
    let time_to_live = time_to_live.filter(|_| value.is_some());
    let unit = if is_in_seconds { Duration::from_secs } else { Duration::from_millis };
    let time_to_live = time_to_live.map(unit);
    let report = KeyReport::of(key.clone(), found);
    let in_side_key = || in_side_key(value.as_deref()?, holder);
    Ok(KeyReport {
        holder: report.holder.clone().or_else(in_side_key),
        time_to_live,
        removed_at: time_to_live.and_then(|time| now().checked_add_signed(TimeDelta::from_std(time).ok()?)),
        waiters: number(waiters).and_then(|count| u64::try_from(count).ok()).unwrap_or_default(),
        fence: number(fence),
        ..report
    })
}

/// The holder that has written its name to the side key of the lock, behind the value that it has written, so that a
/// name that was left behind counts for no other.
fn in_side_key(value: &[u8], written: &Value) -> Option<HeldBy> {
    let Value::BulkString(written) = written else { return None };
    let name = written.strip_prefix(value)?.strip_prefix(b" ")?;
    Some(HeldBy { name: String::from_utf8_lossy(name).into_owned(), since: None })
}

/// Finds the locks whose keys match the pattern, and calls `progress`
/// with how many keys have been looked at, and how many locks found.
pub(crate) fn locks(
    raw: &mut Raw,
    pattern: &[u8],
    keys_allowed: bool,
    mut progress: impl FnMut(usize, usize),
) -> Result<Vec<Key>, Failure> {
    let mut found = BTreeSet::new();
    let mut looked_at = 0;
    let mut select = |raw: &mut Raw, keys: Vec<Vec<u8>>| -> Result<(), Failure> {
        for keys in keys.chunks(PER_TRIP) {
            let keys: Vec<Key> =
                keys.iter().filter(|key| !is_beside(key)).map(|key| Key::from(key.as_slice())).collect();
            let mut commands = Pipeline::new();
            for key in &keys {
                read_value(raw, &mut commands, key.as_bytes());
            }
            let replies = if keys.is_empty() { Vec::new() } else { raw.ask_all(&commands)? };
            for (key, reply) in keys.into_iter().zip(replies) {
                match reply {
                    Value::BulkString(value) if is_lock(&key, &value) => _ = found.insert(key),
                    Value::ServerError(error) if !is_of_another_type(&error) => {
                        let failure = Failure::from(Refusal::from(error));
                        // The other node lists it, once it has moved.
                        if !(raw.has_slots() && failure.is_elsewhere()) {
                            return Err(failure);
                        }
                    }
                    _ => {}
                }
            }
            looked_at += commands.len();
            progress(looked_at, found.len());
        }
        Ok(())
    };
    if raw.is_since(2, 8) {
        let mut cursor = 0_u64;
        loop {
            let command = redis::cmd("SCAN")
                .arg(cursor)
                .arg("MATCH")
                .arg(pattern)
                .arg("COUNT")
                .arg(SCANNED_AT_ONCE)
                .to_owned();
            let (next, keys): (u64, Vec<Vec<u8>>) = raw.ask(&command)?;
            select(raw, keys)?;
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
    } else if keys_allowed {
        let command = redis::cmd("KEYS").arg(pattern).to_owned();
        let keys: Listed = raw.ask(&command)?;
        select(raw, keys.0)?;
    } else {
        return Err(Failure::usage(
            "the server has no SCAN (Redis 2.8); of list, --keys uses KEYS, which blocks the server meanwhile",
        ));
    }
    Ok(found.into_iter().collect())
}

/// The reply to KEYS: before 1.3 one string with the keys in it.
struct Listed(Vec<Vec<u8>>);

impl redis::FromRedisValue for Listed {
    fn from_redis_value(value: Value) -> Result<Self, redis::ParsingError> {
        match value {
            Value::BulkString(keys) => Ok(Self(
                keys.split(|byte| *byte == b' ').filter(|key| !key.is_empty()).map(<[u8]>::to_vec).collect(),
            )),
            other => redis::from_redis_value(other).map(Self),
        }
    }
}

/// Returns true if a key holds a list, a set and so on. Up to 2.6 the code is ERR.
fn is_of_another_type(error: &ServerError) -> bool {
    error.code() == "WRONGTYPE" || error.details().is_some_and(|text| text.contains("wrong kind of value"))
}

fn is_beside(key: &[u8]) -> bool {
    // A key without a tag follows in braces.
    let name = key.strip_suffix(b"}").and_then(|tagged| {
        let tag = tagged.windows(2).rposition(|two| two == b":{")?;
        Some(&tagged[..tag])
    });
    let names = || BESIDE.iter().map(|side| side.suffix().as_bytes()).chain([HOLDER]);
    let is_beside = |key: &[u8]| names().any(|name| key.ends_with(name));
    is_beside(key) || name.is_some_and(is_beside)
}

/// Returns true if a key looks like a lock's: it holds a time with a fraction, as locks with an expiration have it, so
/// that plain timestamps are left out; or it has the name that the gem gives to locks, and a value that the gem writes
/// into those without an expiration.
fn is_lock(key: &Key, value: &[u8]) -> bool {
    match LockState::of_value(Some(value)) {
        LockState::Until { .. } => value.contains(&b'.'),
        LockState::Unexpiring | LockState::Empty => key.as_bytes().ends_with(b"_lock"),
        _ => false,
    }
}

/// Returns true if a lock may have written the value: a time, a decimal number, or nothing.
pub(crate) fn may_be_a_locks(value: &[u8]) -> bool {
    let is_digits = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
    match LockState::of_value(Some(value)) {
        _ if value.len() >= ENOUGH => false,
        LockState::Until { .. } | LockState::Empty => true,
        LockState::Unexpiring => value.splitn(2, |byte| *byte == b'.').all(is_digits),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_told_from_counters_and_timestamps() {
        let is_lock = |key: &str, value: &str| is_lock(&Key::from(key), value.as_bytes());
        assert!(is_lock("a", "1795157376.4923038374650192") && is_lock("a", "1532000016.0"));
        assert!(!is_lock("last_seen", "1795157376"));
        assert!(!is_lock("note", "1532000016 items. Thanks.") && !is_lock("a", "1234567890|x|3.5"));
        assert!(is_lock("team:7:draft_lock", "1") && is_lock("team:7:draft_lock", ""));
        assert!(!is_lock("visits", "1") && !is_lock("text", "") && !is_lock("a_lock", "text"));
    }

    #[test]
    fn texts_are_not_what_a_lock_writes() {
        for value in [
            "",
            "1",
            "1795157376",
            "1795157376.4923038374650192:1795157361:web 7",
            "1795157376.4923038374650192",
        ] {
            assert!(may_be_a_locks(value.as_bytes()), "{value}");
        }
        assert!(!may_be_a_locks(format!("1795157376.{:0>1024}", 5).as_bytes()));
        for value in
            [".5", "5.", "1.2.3", "1:2", "1795157376.5: sold", "1795157376.5 sold", "1795157376000", "hello"]
        {
            assert!(!may_be_a_locks(value.as_bytes()), "{value}");
        }
    }

    #[test]
    fn a_name_counts_for_the_value_it_was_written_with() {
        let written = |text: &str| Value::BulkString(text.into());
        let holder = Some(HeldBy { name: "web:7".into(), since: None });
        assert_eq!(in_side_key(b"1.5", &written("1.5 web:7")), holder);
        assert_eq!(in_side_key(b"1.6", &written("1.5 web:7")), None);
        assert_eq!(in_side_key(b"1.5", &Value::Nil), None);
    }
}
