//! What keys hold, read in few trips, and in words and JSON. Pure but for the reading.

mod read;

use std::time::{Duration, SystemTime};

use serde::Serialize;
use setnx_lock::chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use setnx_lock::{Holder, Key, LockState};

pub(crate) use read::{detail, details, details_of_each, locks, may_be_a_locks, value};

/// How much of a value is shown that is no lock's, in bytes.
const SHOWN: usize = 60;

/// What a key held when it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyReport {
    pub(crate) key: Key,
    pub(crate) found: Found,
    pub(crate) holder: Option<HeldBy>,
    /// After which time the server deletes the key.
    pub(crate) time_to_live: Option<Duration>,
    /// When that is.
    pub(crate) removed_at: Option<DateTime<Utc>>,
    /// How many waiters are listed for notifications.
    pub(crate) waiters: u64,
    /// The last fencing token, where one was taken.
    pub(crate) fence: Option<i64>,
}

/// Who holds a lock, or held it until it expired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldBy {
    name: String,
    /// `None` if the name is in a side key, where the versions before this one wrote it.
    since: Option<DateTime<Utc>>,
}

impl From<&Holder> for HeldBy {
    fn from(holder: &Holder) -> Self {
        Self { name: holder.name().to_owned(), since: Some(holder.since()) }
    }
}

impl HeldBy {
    /// Who holds the lock and for how long it has held it.
    pub(crate) fn words(&self, now: DateTime<Utc>) -> String {
        // It is known to the second.
        let held_for = self.since.map(|since| match (now - since).num_seconds() {
            seconds @ ..60 => format!(" for {}s", seconds.max(0)),
            _ => format!(" for {}", span(now - since)),
        });
        shown(&self.name) + &held_for.unwrap_or_default()
    }
}

/// What a key holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    State(LockState),
    /// A list, a set, a hash and so on.
    Other(String),
}

/// The states of a key, as JSON names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    Free,
    Held,
    Expired,
    NoExpiration,
    GemTtl,
    NoLock,
}

impl KeyReport {
    /// What a key holds, where no more is known.
    pub(crate) fn of(key: Key, found: Found) -> Self {
        let holder = if let Found::State(state) = &found { state.holder().map(HeldBy::from) } else { None };
        Self { key, found, holder, time_to_live: None, removed_at: None, waiters: 0, fence: None }
    }

    /// Who holds the lock and for how long; of an expired one, whose it was. `None` if it is not known.
    pub(crate) fn held_by(&self, now: DateTime<Utc>) -> Option<String> {
        let holder = self.holder.as_ref()?;
        Some(if self.state(now) == State::Held { holder.words(now) } else { shown(&holder.name) })
    }

    pub(crate) fn state(&self, now: DateTime<Utc>) -> State {
        match &self.found {
            Found::State(LockState::Absent) => State::Free,
            // What has a time to live is the server's, whatever the clock of its holder has shown.
            Found::State(LockState::Until { .. })
                if self.time_to_live.is_none() && self.until().is_some_and(|until| until < now) =>
            {
                State::Expired
            }
            Found::State(LockState::Until { .. }) => State::Held,
            Found::State(LockState::Unexpiring) => State::NoExpiration,
            Found::State(LockState::Empty) => State::GemTtl,
            Found::State(_) | Found::Other(_) => State::NoLock,
        }
    }

    /// Returns true if the key holds what neither the server nor a
    /// waiter ever removes: a lock without an expiration, or no lock.
    pub(crate) fn is_stuck(&self) -> bool {
        let expires = matches!(self.found, Found::State(LockState::Absent | LockState::Until { .. }));
        !expires && self.time_to_live.is_none()
    }

    /// When others can acquire the lock: in Ttl when the server removes the key, else when its value says.
    pub(crate) fn until(&self) -> Option<DateTime<Utc>> {
        match &self.found {
            Found::State(LockState::Until { expiry, .. }) => self.removed_at.or_else(|| expiry.date()),
            _ => None,
        }
    }

    /// For how long the lock has been held: by what its holder has written, or since the end of its lease at least.
    pub(crate) fn held_for(&self, now: DateTime<Utc>) -> Option<TimeDelta> {
        let since = self.holder.as_ref().and_then(|holder| holder.since);
        let expired = || self.until().filter(|_| self.state(now) == State::Expired);
        Some(now - since.or_else(expired)?)
    }

    /// In seconds; negative after the lock has expired.
    pub(crate) fn seconds_left(&self, now: DateTime<Utc>) -> Option<f64> {
        match self.until() {
            Some(until) => Some(seconds(until - now)),
            None => self.time_to_live.map(|time| time.as_secs_f64()),
        }
    }

    /// What the key holds, in words.
    pub(crate) fn words(&self, now: DateTime<Utc>) -> String {
        match (self.state(now), &self.found) {
            (State::Free, _) => "free".into(),
            (state @ (State::Held | State::Expired), _) => {
                let until = self.until().unwrap_or_else(|| unreachable!("a lock's time is in the calendar"));
                let (date, span) = (date(until), span(until - now));
                match state {
                    State::Held => format!("held for {span} more, until {date}"),
                    _ => format!("expired {span} ago, at {date}: the next client to try gets it"),
                }
            }
            (State::NoExpiration, _) => {
                format!("held without an expiration{}", self.freed("; if its holder has crashed, clear it"))
            }
            (State::GemTtl, _) => {
                format!(
                    "held by redis-objects 1.4.2 or later{}",
                    self.freed(" with no time to live; if its holder has crashed, clear it")
                )
            }
            (State::NoLock, Found::Other(kind)) => format!("not a lock: it holds a {kind}"),
            (State::NoLock, Found::State(state @ LockState::Unreadable(bytes))) => {
                let (shown, more) =
                    (&bytes[..bytes.len().min(SHOWN)], if bytes.len() > SHOWN { "…" } else { "" });
                let form = state.looks_like().map(|form| format!(", which looks like {form}"));
                format!("not a lock: it holds \"{}{more}\"{}", Key::from(shown), form.unwrap_or_default())
            }
            (State::NoLock, Found::State(state)) => format!("not a lock: {state}"),
        }
    }

    fn freed(&self, else_say: &str) -> String {
        match self.time_to_live {
            Some(time) => format!(", freed by the server in {}", rounded(time)),
            None => else_say.into(),
        }
    }

    pub(crate) fn json(&self, now: DateTime<Utc>) -> KeyJson {
        KeyJson {
            key: KeyText::of(&self.key),
            state: self.state(now),
            until: self.until().map(date),
            seconds_left: self.seconds_left(now),
            holder: self.holder.as_ref().map(|holder| holder.name.clone()),
            held_since: self.holder.as_ref().and_then(|holder| holder.since).map(date),
            ttl_seconds: self.time_to_live.map(|time| time.as_secs_f64()),
            waiters: self.waiters,
            fence: self.fence,
            description: self.words(now),
        }
    }
}

/// A key in JSON: as text with escapes, and its bytes where that is not the same.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct KeyText {
    key: String,
    /// The bytes, if they are no text or have invisible characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    key_hex: Option<String>,
}

impl KeyText {
    pub(crate) fn of(key: &Key) -> Self {
        let text = key.to_string();
        let key_hex = (text.as_bytes() != key.as_bytes()).then(|| hex::encode(key.as_bytes()));
        Self { key: text, key_hex }
    }
}

/// `status` and `list` in JSON: see docs/cli.md.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct KeyJson {
    #[serde(flatten)]
    key: KeyText,
    state: State,
    until: Option<String>,
    seconds_left: Option<f64>,
    pub(crate) holder: Option<String>,
    pub(crate) held_since: Option<String>,
    ttl_seconds: Option<f64>,
    waiters: u64,
    fence: Option<i64>,
    description: String,
}

/// A text that another program has written, with invisible characters escaped.
pub(crate) fn shown(text: &str) -> String {
    Key::from(text).to_string()
}

/// The present time. The calendar of the library has no clock of its own.
pub(crate) fn now() -> DateTime<Utc> {
    SystemTime::now().into()
}

pub(crate) fn date(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

pub(crate) fn seconds(time: TimeDelta) -> f64 {
    // Milliseconds of ten years are exact.
    #[expect(clippy::cast_precision_loss)]
    let millis = time.num_milliseconds() as f64;
    millis / 1e3
}

/// How long, whatever the sign.
pub(crate) fn span(time: TimeDelta) -> String {
    rounded(time.abs().to_std().unwrap_or_default())
}

/// A time for people: to 0.1 s below a minute, else in two units at most.
pub(crate) fn rounded(time: Duration) -> String {
    if time < Duration::from_secs(60) {
        return format!("{:.1}s", time.as_secs_f64());
    }
    let whole = humantime::format_duration(Duration::from_secs(time.as_secs())).to_string();
    let spaced = |unit: &str| {
        let (number, name) = unit.split_at(unit.find(char::is_alphabetic).unwrap_or(unit.len()));
        if name.len() > 1 { format!("{number} {name}") } else { unit.to_owned() }
    };
    let units: Vec<_> = whole.split(' ').take(2).map(spaced).collect();
    units.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(value: Option<&str>) -> KeyReport {
        let found = Found::State(LockState::of_value(value.map(str::as_bytes)));
        KeyReport::of("k".into(), found)
    }

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(seconds, 0).unwrap()
    }

    #[test]
    fn each_state_has_words() {
        let words = |value| (report(value).state(at(1_795_157_376)), report(value).words(at(1_795_157_376)));
        assert_eq!(words(None), (State::Free, "free".into()));
        let held = "held for 2m 4s more, until 2026-11-20T06:51:40.500Z";
        assert_eq!(words(Some("1795157500.5")), (State::Held, held.into()));
        let expired = "expired 0.5s ago, at 2026-11-20T06:49:35.500Z: the next client to try gets it";
        assert_eq!(words(Some("1795157375.5")), (State::Expired, expired.into()));
        assert_eq!(words(Some("1")).0, State::NoExpiration);
        assert!(words(Some("1")).1.contains("crashed, clear it"));
        assert_eq!(words(Some("")).0, State::GemTtl);
        let milliseconds = "not a lock: it holds \"1795157500000\", which looks like a time in milliseconds";
        assert_eq!(words(Some("1795157500000")), (State::NoLock, milliseconds.into()));
        assert_eq!(words(Some("a, which looks odd")).1, "not a lock: it holds \"a, which looks odd\"");
        assert_eq!(words(Some("oops")), (State::NoLock, "not a lock: it holds \"oops\"".into()));
        let list = KeyReport { found: Found::Other("list".into()), ..report(None) };
        assert_eq!(list.words(at(0)), "not a lock: it holds a list");
        let removed_at = Some(at(1_795_157_490));
        let ttl = KeyReport { removed_at, ..report(Some("1795157500.5")) };
        assert_eq!(ttl.words(at(1_795_157_376)), "held for 1m 54s more, until 2026-11-20T06:51:30.000Z");
        // The clock of its holder is behind.
        let time_to_live = Some(Duration::from_secs(114));
        let behind = KeyReport { time_to_live, removed_at, ..report(Some("1795157000.4923038374650192")) };
        assert_eq!(behind.state(at(1_795_157_376)), State::Held);
        assert_eq!(behind.words(at(1_795_157_376)), "held for 1m 54s more, until 2026-11-20T06:51:30.000Z");
        let freed = KeyReport { time_to_live: Some(Duration::from_millis(3210)), ..report(Some("")) };
        assert!(freed.words(at(0)).ends_with("freed by the server in 3.2s"));
    }

    #[test]
    fn times_are_short() {
        assert_eq!(rounded(Duration::from_millis(12_345)), "12.3s");
        assert_eq!(rounded(Duration::from_secs(263_418_640)), "8 years 4 months");
    }

    #[test]
    fn a_key_that_is_no_text_has_its_bytes_in_json() {
        let json = |key: &[u8]| serde_json::to_string(&KeyText::of(&Key::from(key))).unwrap();
        assert_eq!(json(b"a b"), r#"{"key":"a b"}"#);
        assert_eq!(json(b"a\xff"), r#"{"key":"a\\xff","key_hex":"61ff"}"#);
    }
}
