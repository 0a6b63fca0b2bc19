//! A lease: the time that a holder may rely on, and the value that shows it to other clients.

use std::time::Duration;

use crate::values::clock::{Now, Uptime, Wall};
use crate::values::options::LockOptions;
use crate::values::value::{self, Nonce, ValueBytes};

/// The gem's extra second: the value on the wire names a time this much later than what the holder is promised. It is
/// the guard against clocks that differ and against a DEL in flight.
pub(crate) const GUARD: Duration = Duration::from_secs(1);

/// How much later than the lease the server removes a key by itself, in Ttl. Half of the guard: a gem that waits has seen the key absent
/// before it can read a time in the past, which newer gems take over with a plain SET, several at a time.
pub(super) const TTL_GUARD: Duration = Duration::from_millis(500);

/// How far at most the time that a loser of the classic takeover writes over our value is from our time. Its expiration is equal to ours,
/// and its GETSET follows its GET at once. That GET read the expired value, which was there until ours was: so the loser's time is earlier
/// than ours by as long as its GETSET was on its way, and later by no more than a reply takes. A later one is of a client that found no
/// key, since the server lost ours.
const LOSER_EARLIER: Duration = Duration::from_millis(400);
const LOSER_LATER: Duration = Duration::from_millis(100);

/// The bytes in the key, and until when the holder can rely on them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) value: ValueBytes,
    /// `None` without an expiration.
    pub(crate) end: Option<End>,
    /// Whether it is proven that no other client has had the lock since it was acquired: each extension has replaced our own bytes.
    pub(crate) proven: bool,
    /// What extensions may have written whose outcome is unknown.
    unresolved: Vec<Written>,
    /// The allowance for clocks, in microseconds: it ends this much earlier than the guard before the value's time.
    early: u64,
}

/// A value that the key may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Written {
    value: ValueBytes,
    /// The end that it would have given the lease.
    end: End,
    /// Whether a transaction wrote it: only over our own value.
    proves: bool,
}

/// Whose bytes they are, for the holder of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrote {
    /// This holder's, and the last that were written before another client could have the lock.
    Proven,
    /// This holder's, by a GETSET whose reply was lost: it may have come after another client's value.
    Unproven,
    Not,
}

/// The end of a time that can be relied on, by both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) wall: Wall,
    pub(crate) uptime: Uptime,
}

impl Lease {
    /// Makes the lease that begins now. The command that acquires it is sent after.
    pub(crate) fn beginning(now: Now, expiration: Option<Duration>, nonce: Nonce) -> Self {
        match expiration {
            Some(expiration) => Lease {
                value: ValueBytes::until(now.wall.after(expiration).after(GUARD), nonce),
                end: Some(End::of(now, expiration)),
                proven: true,
                unresolved: Vec::new(),
                early: 0,
            },
            // The value names no holder.
            None => Lease {
                value: value::UNEXPIRING.into(),
                end: None,
                proven: false,
                unresolved: Vec::new(),
                early: 0,
            },
        }
    }

    /// Makes the lease of a lock with these options that begins now.
    pub(crate) fn of(options: &LockOptions, nonce: Nonce, now: Now) -> Self {
        Self::beginning(now, options.expiration, nonce).ending_earlier(options.allowance)
    }

    /// Returns the lease with an end that is earlier by an allowance for clocks; the value stays.
    pub(super) fn ending_earlier(mut self, early: Duration) -> Self {
        self.early = u64::try_from(early.as_micros()).unwrap_or(u64::MAX);
        if let Some(end) = &mut self.end {
            end.wall = Wall(end.wall.0.saturating_sub(self.early));
            end.uptime = end.uptime.before(early);
        }
        self
    }

    /// The allowance for clocks.
    pub(super) fn early(&self) -> Duration {
        Duration::from_micros(self.early)
    }

    /// Whether a time in the key is so close to the one in our value that a loser of the classic takeover may have written it.
    pub(super) fn may_be_a_losers(&self, until: Wall) -> bool {
        self.end.is_some_and(|end| End { wall: end.wall.after(self.early()), ..end }.may_be_a_losers(until))
    }

    /// Whether the bytes are this holder's.
    pub(super) fn wrote(&self, found: &[u8]) -> Wrote {
        let unresolved = self.unresolved.iter().find(|written| written.value == *found);
        match unresolved {
            _ if self.value == *found => Wrote::Proven,
            Some(Written { proves: true, .. }) => Wrote::Proven,
            Some(Written { proves: false, .. }) => Wrote::Unproven,
            None => Wrote::Not,
        }
    }

    /// Notes that the key may hold the value of `extended` by now. Of the two leases the one that ends first counts. In the key the value
    /// `proves` that no other client has had the lock, if a transaction was to write it.
    pub(crate) fn may_have_become(&mut self, extended: &Lease, proves: bool, now: Now) {
        self.unresolved.retain(|written| !written.end.has_passed(now));
        if let Some(end) = extended.end {
            self.unresolved.push(Written { value: extended.value, end, proves });
            self.end = self.end.map(|own| own.min(end));
        }
    }

    /// Returns the lease that has replaced this one. A command that is late may still bring an earlier value back.
    pub(super) fn replaced_by(&self, extended: &Lease, now: Now) -> Lease {
        let mut unresolved = self.unresolved.clone();
        unresolved.retain(|written| written.value != extended.value && !written.end.has_passed(now));
        Lease { unresolved, ..extended.clone() }
    }

    /// Stands for the lease of a hold that has ended.
    pub(crate) fn none() -> Self {
        Lease { value: [].as_slice().into(), end: None, proven: false, unresolved: Vec::new(), early: 0 }
    }

    pub(crate) fn has_passed(&self, now: Now) -> bool {
        self.end.is_some_and(|end| end.has_passed(now))
    }
}

impl End {
    /// The end of a time that begins now.
    pub(crate) fn of(now: Now, time: Duration) -> Self {
        End { wall: now.wall.after(time), uptime: now.uptime.after(time) }
    }

    /// Over when either clock says so (I7).
    pub(crate) fn has_passed(self, now: Now) -> bool {
        now.wall >= self.wall || now.uptime >= self.uptime
    }

    /// Returns the end of a time that is over as soon as one of the two is.
    pub(crate) fn min(self, other: Self) -> Self {
        End { wall: self.wall.min(other.wall), uptime: self.uptime.min(other.uptime) }
    }

    /// Whether a time in the key is so close to the one in our value that a loser of the classic takeover may have written it.
    fn may_be_a_losers(self, until: Wall) -> bool {
        let ours = self.wall.after(GUARD);
        until.since(ours) <= LOSER_LATER && ours.since(until) <= LOSER_EARLIER
    }

    /// How long it can still be relied on: by the clock that allows less.
    pub(crate) fn remaining(self, now: Now) -> Duration {
        self.wall.since(now.wall).min(self.uptime.since(now.uptime))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(wall: u64, uptime: u64) -> Now {
        Now { wall: Wall(wall * 1_000_000), uptime: Uptime::of(Duration::from_secs(uptime)) }
    }

    #[test]
    fn the_wire_names_a_second_more_than_is_promised() {
        let lease =
            Lease::beginning(at(2_000_000_000, 50), Some(Duration::from_secs(10)), Nonce::from_random(7));
        assert_eq!(&*lease.value, b"2000000011.0000000000000007");
        assert!(!lease.has_passed(at(2_000_000_009, 59)));
        assert!(lease.has_passed(at(2_000_000_010, 59)), "by the wall clock");
        assert!(lease.has_passed(at(2_000_000_009, 60)), "by the monotonic clock");
    }

    #[test]
    fn what_remains_is_by_the_clock_that_allows_less() {
        let end = End { wall: Wall(10_000_000), uptime: Uptime::of(Duration::from_secs(10)) };
        assert_eq!(end.remaining(at(4, 1)), Duration::from_secs(6));
        assert_eq!(end.remaining(at(1, 4)), Duration::from_secs(6));
        assert_eq!(end.remaining(at(99, 1)), Duration::ZERO);
    }

    #[test]
    fn the_time_of_a_loser_is_earlier_by_more_than_it_is_later() {
        let end = End::of(at(2_000_000_000, 50), Duration::from_secs(10));
        for (millis, may_be) in [
            (11_000, true),
            (10_600, true),
            (10_599, false),
            (11_100, true),
            (11_101, false),
            (11_200, false),
        ] {
            assert_eq!(end.may_be_a_losers(Wall((2_000_000_000_000 + millis) * 1000)), may_be, "{millis}");
        }
    }

    #[test]
    fn without_an_expiration_it_never_passes() {
        let lease = Lease::beginning(at(2_000_000_000, 50), None, Nonce::from_random(7));
        assert_eq!(&*lease.value, b"1");
        assert!(!lease.has_passed(Now { wall: Wall::MAX, uptime: Uptime::MAX }));
    }
}
