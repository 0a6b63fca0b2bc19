//! What a lock's key holds, who holds the lock, and why it was lost, as
//! users see it: in types and in words, which may name the present time.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use proto::ownership::Loss;
use proto::values::{Cut, LONGEST_READ, Named, State, Wall, looks_like};

use crate::system::clock;

/// What a lock's key holds.
///
/// Of these values, only a [time](Self::Until) that has passed is taken over.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockState {
    /// No key: the lock is free.
    Absent,
    /// A point in time: the lock is held until then at the latest, unless it is extended. Afterwards it can be
    /// taken over.
    ///
    /// The value has the form `SECONDS` or `SECONDS.DECIMALS`, with seconds since 1970 from 10⁹ to 10¹⁰. After 16
    /// decimals, `:SINCE:NAME` may follow, or a colon and any other text.
    ///
    /// In [`Ttl`](crate::Protocol::Ttl) the server frees the lock of
    /// a crashed holder up to 9.5 s before the time in the value.
    #[non_exhaustive]
    Until {
        /// The time in the value.
        expiry: Expiry,
        /// Who holds the lock, or held it until then; `None` if the value does not say so.
        holder: Option<Arc<Holder>>,
    },
    /// A small number, usually `1`: the lock is held without an expiration. It names no holder.
    Unexpiring,
    /// An empty value: redis-objects 1.4.2 or later holds the lock, and the server frees it.
    Empty,
    /// Bytes that no lock writes, for example a time in milliseconds. The lock counts as held.
    ///
    /// Of a longer value a lock keeps the first 4096 bytes (all of it over TLS and on your own pool), and it polls such
    /// a key once a second at most.
    Unreadable(Arc<[u8]>),
}

impl LockState {
    /// Returns what the rules have seen.
    pub(crate) fn of(state: State) -> Self {
        match state {
            State::Absent => LockState::Absent,
            State::Until { until, holder } => {
                let holder = holder.map(|named| Arc::new(Holder(Named::clone(&named))));
                LockState::Until { expiry: Expiry(until), holder }
            }
            State::Unexpiring => LockState::Unexpiring,
            State::Empty => LockState::Empty,
            State::Unreadable(bytes) => LockState::Unreadable(bytes),
        }
    }

    /// Returns the state that a lock's value stands for, given the reply to `GET`; `None` if there is no such key.
    ///
    /// For programs that read many keys at once. For one lock, use [`Lock::state`](crate::Lock::state).
    ///
    /// ```
    /// use setnx_lock::LockState;
    ///
    /// assert_eq!(LockState::of_value(None), LockState::Absent);
    /// assert!(matches!(LockState::of_value(Some(b"1795153464.2949657")), LockState::Until { .. }));
    ///
    /// let named = LockState::of_value(Some(b"1795157376.4923038374650192:1795157361:worker:7"));
    /// assert_eq!(named.holder().map(|holder| holder.name()), Some("worker:7"));
    /// ```
    #[must_use]
    pub fn of_value(value: Option<&[u8]>) -> LockState {
        Self::of(State::of_value(value))
    }

    /// Returns true if the lock is held, according to the value
    /// and this machine's wall clock. An expired lock is not held.
    #[must_use]
    pub fn is_held(&self) -> bool {
        match self {
            LockState::Absent => false,
            LockState::Until { expiry: Expiry(until), .. } => *until >= clock::now().wall,
            LockState::Unexpiring | LockState::Empty | LockState::Unreadable(_) => true,
        }
    }

    /// Returns who holds the lock, or held it until it expired; `None` if the value does not say so, or there is none.
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        if let LockState::Until { holder, .. } = self { holder.as_deref() } else { None }
    }

    /// Returns in words what a value that no lock writes looks like, if it begins with as many digits as a time, for
    /// example "a time in milliseconds".
    #[must_use]
    pub fn looks_like(&self) -> Option<&'static str> {
        if let LockState::Unreadable(bytes) = self { looks_like(bytes) } else { None }
    }

    /// Returns what to do about a value that never expires; `None` if waiting helps.
    pub(crate) fn advice(&self) -> Option<&'static str> {
        match self {
            LockState::Absent | LockState::Until { .. } => None,
            LockState::Empty => Some(
                "which is not taken over: the server frees it when its time to live ends; if it has none, clear it by hand",
            ),
            LockState::Unexpiring | LockState::Unreadable(_) => {
                Some("which is not taken over: if its holder has crashed, clear it by hand")
            }
        }
    }
}

impl fmt::Debug for LockState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LockState::Absent => f.write_str("Absent"),
            LockState::Until { expiry, holder: None } => write!(f, "Until({expiry})"),
            LockState::Until { expiry, holder: Some(holder) } => write!(f, "Until({expiry}, {holder:?})"),
            LockState::Unexpiring => f.write_str("Unexpiring"),
            LockState::Empty => f.write_str("Empty"),
            LockState::Unreadable(bytes) => write!(f, "Unreadable(\"{}\")", Cut(bytes)),
        }
    }
}

impl fmt::Display for LockState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LockState::Absent => f.write_str("free"),
            LockState::Until { expiry, holder } if self.is_held() => {
                f.write_str("held")?;
                holder.iter().try_for_each(|holder| write!(f, " by {holder},"))?;
                write!(f, " until {expiry} at the latest")
            }
            LockState::Until { expiry, holder } => {
                write!(f, "expired at {expiry}")?;
                holder.iter().try_for_each(|holder| write!(f, ", last held by {}", holder.name()))
            }
            LockState::Unexpiring => f.write_str("held without an expiration"),
            LockState::Empty => {
                f.write_str("held with an empty value, as redis-objects from 1.4.2 on writes it")
            }
            LockState::Unreadable(bytes) => {
                write!(f, "held with a value that no lock writes: \"{}\"", Cut(bytes))?;
                if bytes.len() >= LONGEST_READ {
                    f.write_str(" or more")?;
                }
                self.looks_like().map_or(Ok(()), |form| write!(f, ", which looks like {form}"))
            }
        }
    }
}

/// The point in time that a lock's value names, by the wall clock, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Expiry(Wall);

impl Expiry {
    /// Returns the time as a date in UTC; `None` if it is beyond the calendar's end.
    #[must_use]
    pub fn date(self) -> Option<DateTime<Utc>> {
        date(self.0)
    }
}

impl fmt::Debug for Expiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Expiry({self})")
    }
}

impl fmt::Display for Expiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&in_words(self.0))
    }
}

/// Returns a time by the calendar; `None` past its end (year 262142).
pub(crate) fn date(at: Wall) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp_micros(i64::try_from(at.0).ok()?)
}

/// Returns a time in words.
pub(crate) fn in_words(at: Wall) -> String {
    match date(at) {
        Some(date) => date.to_rfc3339_opts(SecondsFormat::Millis, true),
        None => "after the year 262142".into(),
    }
}

/// The holder of a lock: the [name](crate::LockerBuilder::holder_name)
/// that its locker has, and since when it holds the lock.
///
/// Displayed as `worker:7 for 12 min`.
#[derive(Clone, PartialEq, Eq)]
pub struct Holder(Named);

impl Holder {
    /// Returns the holder's name, 1 to 64 bytes of printable characters.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns since when it holds the lock, in whole seconds by the holder's clock.
    #[must_use]
    pub fn since(&self) -> DateTime<Utc> {
        // Ten digits are within the calendar.
        date(self.0.since).unwrap_or_default()
    }

    /// Returns for how long it has held the lock, by this machine's clock; zero if the holder's is ahead.
    #[must_use]
    pub fn held_for(&self) -> Duration {
        clock::now().wall.since(self.0.since)
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Holder({:?} since {})", self.name(), in_words(self.0.since))
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.held_for().as_secs();
        write!(f, "{} for ", self.name())?;
        match seconds {
            0..60 => write!(f, "{seconds} s"),
            60..3600 => write!(f, "{} min", seconds / 60),
            3600..86_400 => write!(f, "{} h {} min", seconds / 3600, seconds / 60 % 60),
            _ => write!(f, "{} d {} h", seconds / 86_400, seconds / 3600 % 24),
        }
    }
}

/// Why a lock was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossReason {
    /// The lease has ended according to the wall clock or the monotonic clock, and the server did not prove that no
    /// other client has had the lock since.
    Expired,
    /// The wall clock of this machine was set to a time that cannot be
    /// right, such as 1970: the end of the lease cannot be told by it.
    ClockUnset,
    /// The key is missing: it was cleared, or the server lost it (eviction, a failover, a restart without persistence).
    Gone,
    /// The key holds this value of another client.
    Taken(LockState),
}

impl LossReason {
    /// Returns what the rules have found.
    pub(crate) fn of(loss: Loss) -> Self {
        match loss {
            Loss::Expired => LossReason::Expired,
            Loss::ClockUnset => LossReason::ClockUnset,
            Loss::Gone => LossReason::Gone,
            Loss::Taken(state) => LossReason::Taken(LockState::of(state)),
        }
    }
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LossReason::Expired => f.write_str("its lease has ended"),
            LossReason::ClockUnset => {
                f.write_str("the clock of this machine shows a time that cannot be right, such as 1970")
            }
            LossReason::Gone => {
                f.write_str("its key is missing (cleared, evicted, or lost in a failover or restart)")
            }
            LossReason::Taken(state) => write!(f, "its key holds another client's value ({state})"),
        }
    }
}

#[cfg(test)]
mod tests;
