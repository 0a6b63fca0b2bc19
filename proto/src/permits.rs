//! The rules of several locks of which any one will do: which is asked for, given what all of them hold. A permit is
//! acquired by the rules of one lock.

use alloc::vec::Vec;
use core::time::Duration;

use super::acquire::{free_at, may_take_over};
use crate::values::{Protocol, State, Wall};

/// How many locks that looked free are tried in a row before a
/// pause: if all were taken meanwhile, they are under contention.
pub const TRIES: usize = 3;

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
