//! The rules of several locks of which any one will do: which is asked for, given what all of them hold. A permit is
//! acquired by the rules of one lock.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use super::acquire::{free_at, may_take_over};
use crate::values::{Named, Protocol, State, Wall};

/// How many locks that looked free are tried in a row before a
/// pause: if all were taken meanwhile, they are under contention.
pub const TRIES: usize = 3;

/// The writer that a reader leaves the locks to: the one that was next when the reader came. One that is next after that
/// came later, so that neither readers nor writers starve.
#[derive(Clone, Debug, Default)]
pub struct WriterAhead {
    has_looked: bool,
    /// Who was next when the reader came.
    first: Option<Arc<Named>>,
    /// What its key held, if the reader leaves the locks to it.
    next: Option<State>,
}

impl WriterAhead {
    /// Notes what the key of the next writer holds.
    pub fn saw(&mut self, found: Option<&[u8]>, now: Wall) {
        let next = State::of_value(found);
        let holder = match &next {
            State::Until { until, holder } if *until >= now => holder.clone(),
            _ => None,
        };
        if !mem::replace(&mut self.has_looked, true) {
            self.first.clone_from(&holder);
        }
        let is_first = holder.is_some() && self.first == holder;
        self.next = is_first.then_some(next);
    }

    /// Returns true if the reader leaves the locks to that writer.
    pub fn is_next(&self, now: Wall) -> bool {
        matches!(self.next, Some(State::Until { until, .. }) if until >= now)
    }

    /// Returns how long it is at least until the writer is known to be gone, if it is killed.
    pub fn until_gone(&self, protocol: Protocol, now: Wall) -> Duration {
        until_free(self.next.as_ref(), protocol, now)
    }
}

/// What all locks hold, in their order.
pub type Values = [Option<Vec<u8>>];

/// Returns which of so many locks is asked for first, by random bits.
pub fn first(random: u64, locks: usize) -> usize {
    usize::try_from(random % locks.max(1) as u64).unwrap_or(0)
}

/// Returns the locks that may be acquired: first those that are absent, beginning with the one behind `asked`. That one
/// itself is last: SETNX does not acquire what has expired. What is not a string looks absent.
pub fn free(values: &Values, asked: usize, expires: bool, now: Wall) -> Vec<usize> {
    let count = values.len();
    let slots = (asked + 1..count).chain(0..count.min(asked + 1));
    let free = slots.filter_map(|slot| {
        let state = State::of_value(values[slot].as_deref());
        let is_absent = state == State::Absent;
        (is_absent || expires && may_take_over(&state, now)).then_some((slot, is_absent))
    });
    let (absent, others): (Vec<_>, Vec<_>) = free.partition(|(_, is_absent)| *is_absent);
    absent.into_iter().chain(others).map(|(slot, _)| slot).collect()
}

/// Returns what the lock holds that frees itself first.
pub fn first_to_end(values: &Values) -> Option<State> {
    let states = values.iter().map(|value| State::of_value(value.as_deref()));
    states.min_by_key(|state| match state {
        State::Until { until, .. } => (false, Some(*until)),
        _ => (true, None),
    })
}

/// Returns how long the lock that frees itself first cannot be taken over, as far as is known.
pub fn until_free(first: Option<&State>, protocol: Protocol, now: Wall) -> Duration {
    match first {
        Some(State::Until { until, .. }) if *until >= now => free_at(*until, protocol, now).since(now),
        _ => Duration::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::borrow::ToOwned;

    const NOW: Wall = Wall(1_795_000_000_000_000);

    fn values(of: &[Option<&str>]) -> Vec<Option<Vec<u8>>> {
        of.iter().map(|value| value.map(|value| value.as_bytes().to_owned())).collect()
    }

    #[test]
    fn what_is_absent_comes_before_what_has_expired_and_what_was_asked_for_last() {
        let past = Some("1794999999.5");
        for (held, asked, expires, expected) in [
            (&[None, None, None][..], 1, true, &[2, 0, 1][..]),
            (&[None, past, Some("1")], 2, true, &[0, 1]),
            (&[past, Some("1795000005.25"), None], 0, true, &[2, 0]),
            (&[past, Some("rubbish"), None], 0, false, &[2]),
            (&[Some("1"), Some("")], 0, true, &[]),
        ] {
            assert_eq!(free(&values(held), asked, expires, NOW), expected, "{held:?}");
        }
    }

    #[test]
    fn a_reader_leaves_the_locks_to_the_writer_that_was_next_when_it_came() {
        let next = |until: &'static str| Some(until.as_bytes());
        let one = next("1795000001.5000000000000001:1794999999:a");
        let (extended, other) = (
            next("1795000002.5000000000000002:1794999999:a"),
            next("1795000001.5000000000000003:1795000000:b"),
        );
        let ends = |millis: u64| Duration::from_micros(millis * 1000 + 1);
        let mut came_second = WriterAhead::default();
        for (found, waits) in
            [(one, Some(1500)), (extended, Some(2500)), (other, None), (None, None), (one, Some(1500))]
        {
            came_second.saw(found, NOW);
            assert_eq!(came_second.is_next(NOW), waits.is_some(), "{found:?}");
            let until_gone = came_second.until_gone(Protocol::Classic, NOW);
            assert_eq!(until_gone, waits.map_or(Duration::MAX, ends), "{found:?}");
        }
        assert!(came_second.until_gone(Protocol::Ttl, NOW) <= ends(1500));
        assert!(!came_second.is_next(Wall(NOW.0 + 1_500_001)), "it may be killed");
        for before in
            [None, next("1794999999.5000000000000001:1794999990:a"), next("1"), next("1795000001.5")]
        {
            let mut came_first = WriterAhead::default();
            came_first.saw(before, NOW);
            came_first.saw(one, NOW);
            assert!(!came_first.is_next(NOW), "{before:?}");
        }
    }

    #[test]
    fn the_first_to_end_is_waited_for() {
        let found = values(&[Some("1"), Some("1795000005.25"), Some("1795000002.5")]);
        let soonest = first_to_end(&found);
        let left = |protocol| until_free(soonest.as_ref(), protocol, NOW);
        assert_eq!(left(Protocol::Classic), Duration::from_micros(2_500_001));
        // By its bytes a lock of Ttl may be gone earlier.
        assert!(left(Protocol::Ttl) <= left(Protocol::Classic));
        assert_eq!(
            until_free(first_to_end(&values(&[Some("1")])).as_ref(), Protocol::Classic, NOW),
            Duration::MAX
        );
        assert!((0..100).all(|random| first(random, 3) < 3));
    }
}
