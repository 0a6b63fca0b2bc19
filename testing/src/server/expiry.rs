//! Commands on the time at which a key expires.

use super::call::Call;
use super::keyspace::Entry;
use super::reply::{Answer, Refusal, Reply};
use super::version::ServerVersion;

use ServerVersion::{V2_0, V2_2, V2_6};

/// How a time is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Seconds,
    Millis,
    SecondsSince1970,
    MillisSince1970,
}

impl Unit {
    /// The option of SET that says so.
    pub(super) fn of_option(name: &str) -> Option<Self> {
        Some(match name {
            "EX" => Self::Seconds,
            "PX" => Self::Millis,
            "EXAT" => Self::SecondsSince1970,
            "PXAT" => Self::MillisSince1970,
            _ => return None,
        })
    }

    pub(super) fn is_absolute(self) -> bool {
        matches!(self, Self::SecondsSince1970 | Self::MillisSince1970)
    }

    fn in_millis(self) -> i64 {
        if matches!(self, Self::Seconds | Self::SecondsSince1970) { 1000 } else { 1 }
    }
}

/// When a key expires, in milliseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(super) struct End(pub(super) u64);

impl End {
    /// Reads the time of a command that sets a value.
    pub(super) fn parse(call: &mut Call<'_>, at: usize, unit: Unit, name: &str) -> Result<Self, Refusal> {
        let given = call.integer(at)?;
        let invalid = match call.version() {
            old if old <= V2_6 => format!("ERR invalid expire time in {}", name.to_uppercase()),
            _ => format!("ERR invalid expire time in '{name}' command"),
        };
        let end = (given > 0).then(|| millis(call, given, unit)).flatten();
        end.filter(|end| *end > 0).and_then(|end| u64::try_from(end).ok()).map(Self).ok_or(Refusal(invalid))
    }
}

/// The point in time, in milliseconds since 1970; `None` if that is out of range. Before 2.6 clocks had whole seconds.
fn millis(call: &Call<'_>, given: i64, unit: Unit) -> Option<i64> {
    let end = given.checked_mul(unit.in_millis())?;
    if unit.is_absolute() {
        return Some(end);
    }
    let now = i64::try_from(call.now()).ok()?;
    let now = if call.server.version < V2_6 { now / 1000 * 1000 } else { now };
    end.checked_add(now)
}

pub(super) fn expire(call: &mut Call<'_>) -> Answer {
    set_end(call, Unit::Seconds)
}

pub(super) fn expireat(call: &mut Call<'_>) -> Answer {
    set_end(call, Unit::SecondsSince1970)
}

pub(super) fn pexpire(call: &mut Call<'_>) -> Answer {
    set_end(call, Unit::Millis)
}

pub(super) fn pexpireat(call: &mut Call<'_>) -> Answer {
    set_end(call, Unit::MillisSince1970)
}

fn set_end(call: &mut Call<'_>, unit: Unit) -> Answer {
    let key = call.word(1);
    let given = call.integer(2)?;
    let condition = call.words.get(3).map(|word| String::from_utf8_lossy(word).into_owned());
    let end = millis(call, given, unit);
    let end = end.ok_or_else(|| {
        Refusal(format!("ERR invalid expire time in '{}' command", call.upper(0).to_lowercase()))
    })?;
    let (now, version) = (i64::try_from(call.now()).unwrap_or(i64::MAX), call.version());
    let Some(entry) = call.look_up(key) else {
        return checked(condition.as_deref()).map(|()| Reply::flag(false));
    };
    let before = entry.expires;
    // Before 2.2 an existing time to live stays. A time that has passed deletes the key all the same; measured on
    // 1.1.94: there not a time of zero seconds.
    let seconds = end.div_euclid(1000) - now.div_euclid(1000);
    let passed = if version < V2_0 { seconds < 0 } else { seconds <= 0 };
    if version < V2_2 && before.is_some() && !passed {
        return Ok(Reply::flag(false));
    }
    checked(condition.as_deref())?;
    if !is_met(condition.as_deref(), before, end) {
        return Ok(Reply::flag(false));
    }
    if end <= now {
        call.remove(key);
    } else {
        if let Some(entry) = call.look_up(key) {
            entry.expires = u64::try_from(end).ok();
        }
        call.changed(key);
    }
    Ok(Reply::flag(true))
}

fn checked(condition: Option<&str>) -> Result<(), Refusal> {
    let is_known = |other: &str| ["NX", "XX", "GT", "LT"].contains(&other.to_uppercase().as_str());
    match condition {
        Some(other) if !is_known(other) => Err(Refusal(format!("ERR Unsupported option {other}"))),
        _ => Ok(()),
    }
}

/// Returns true if the key's time to live may be replaced. A key without one lives longer than any.
fn is_met(condition: Option<&str>, before: Option<u64>, end: i64) -> bool {
    let end = u64::try_from(end).unwrap_or(0);
    match condition.map(str::to_uppercase).as_deref() {
        Some("NX") => before.is_none(),
        Some("XX") => before.is_some(),
        Some("GT") => before.is_some_and(|before| end > before),
        Some("LT") => before.is_none_or(|before| end < before),
        _ => true,
    }
}

/// What a command says of the key's end: -1 without one, -2 without a key; before 2.8 -1 for both.
fn end_of(call: &mut Call<'_>, told: impl Fn(u64, u64) -> u64) -> Answer {
    let key = call.word(1);
    let (now, is_old) = (call.now(), call.version() <= V2_6);
    let number = match call.look_up(key) {
        None if is_old => -1,
        None => -2,
        Some(Entry { expires: None, .. }) => -1,
        Some(Entry { expires: Some(end), .. }) => told(*end, now).try_into().unwrap_or(i64::MAX),
    };
    Ok(Reply::Integer(number))
}

/// In whole seconds, rounded; before 2.6 clocks had whole seconds.
pub(super) fn ttl(call: &mut Call<'_>) -> Answer {
    if call.version() < V2_6 {
        return end_of(call, |end, now| end.div_ceil(1000).saturating_sub(now / 1000));
    }
    end_of(call, |end, now| (end.saturating_sub(now) + 500) / 1000)
}

pub(super) fn pttl(call: &mut Call<'_>) -> Answer {
    end_of(call, u64::saturating_sub)
}

pub(super) fn expiretime(call: &mut Call<'_>) -> Answer {
    end_of(call, |end, _| (end + 500) / 1000)
}

pub(super) fn pexpiretime(call: &mut Call<'_>) -> Answer {
    end_of(call, |end, _| end)
}

pub(super) fn persist(call: &mut Call<'_>) -> Answer {
    let key = call.word(1);
    let ended = call.look_up(key).and_then(|entry| entry.expires.take()).is_some();
    if ended {
        call.changed(key);
    }
    Ok(Reply::flag(ended))
}
