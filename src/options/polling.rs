//! How often a waiter looks at the lock: a policy value, and the arithmetic of its pauses.

use std::time::Duration;

use super::LONGEST_EXPIRATION;

/// The shortest pause between two looks, whatever is taken off for jitter.
const SHORTEST: Duration = Duration::from_millis(1);

/// How long a waiter pauses between two looks at the lock. Whatever the policy, a pause ends at the expiry that the waiter has seen
/// and at its deadline, and at once when another thread of the process releases the lock.
///
/// ```
/// use setnx_lock::{LockOptions, Polling};
/// use std::time::Duration;
///
/// // Begins at 50 ms, doubles up to a second while nothing changes, and takes up to a fifth off each pause at random.
/// const PATIENT: Polling =
///     Polling::every(Duration::from_millis(50)).backing_off_to(Duration::from_secs(1)).jittered_by(20);
/// const OPTIONS: LockOptions = LockOptions::expiring_after(Duration::from_secs(60)).polling(PATIENT);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Polling {
    pub(super) interval: Duration,
    /// `None` does not back off.
    pub(super) longest: Option<Duration>,
    /// In percent.
    pub(super) jitter: u8,
}

impl Polling {
    /// Returns the policy of pauses that are all the same, as in the gem, where they are 0.1 s. At least a millisecond.
    pub const fn every(interval: Duration) -> Self {
        Self { interval, longest: None, jitter: 0 }
    }

    /// Returns the policy with pauses that double while nothing changes, up to `longest`; when another holder is seen, they begin anew.
    /// For locks that are held for minutes: fewer commands, but the release of a gem or of a process without notifications is noticed
    /// later.
    pub const fn backing_off_to(self, longest: Duration) -> Self {
        Self { longest: Some(longest), ..self }
    }

    /// Returns the policy with a random part of each pause taken off, up to `percent` of it: waiters that began together do not stay
    /// in step. At most 100.
    pub const fn jittered_by(self, percent: u8) -> Self {
        Self { jitter: percent, ..self }
    }

    /// Returns the pause between two looks, before back-off and jitter.
    #[must_use]
    pub const fn get_interval(&self) -> Duration {
        self.interval
    }

    /// Returns the longest pause; `None` without back-off.
    #[must_use]
    pub const fn get_longest(&self) -> Option<Duration> {
        self.longest
    }

    /// Returns how much of a pause jitter may take off, in percent.
    #[must_use]
    pub const fn get_jitter(&self) -> u8 {
        self.jitter
    }

    /// Returns the pause after `before` others in which nothing changed. `random` decides what is taken off.
    pub(crate) fn pause(&self, before: u32, random: u64) -> Duration {
        let longest = self.longest.unwrap_or(self.interval);
        let factor = 1_u32.checked_shl(before).unwrap_or(u32::MAX);
        let full = self.interval.saturating_mul(factor).min(longest.max(self.interval));
        let share = f64::from(self.jitter) / 100.0 * f64::from(mixed(random, before)) / f64::from(u32::MAX);
        full.mul_f64(1.0 - share).max(SHORTEST)
    }

    /// Returns what is wrong with the policy, in words for the user.
    pub(super) fn problem(&self) -> Option<&'static str> {
        if self.interval < SHORTEST {
            return Some(
                "the poll interval is below a millisecond, which would keep the server busy; the gem's is 100 ms",
            );
        }
        if self.longest.unwrap_or(self.interval) > LONGEST_EXPIRATION {
            return Some("a pause of more than ten years looks at nothing; give some seconds at most");
        }
        if self.longest.is_some_and(|longest| longest < self.interval) {
            return Some(
                "polling backs off to less than its interval; give the longest pause that is wanted",
            );
        }
        (self.jitter > 100).then_some(
            "polling is jittered by more than a hundred percent; say how much of a pause may be taken off",
        )
    }
}

/// Spreads close numbers over the whole range: the finishing step of the generator splitmix64.
fn mixed(random: u64, n: u32) -> u32 {
    let mut z = random.wrapping_add(u64::from(n).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    u32::try_from((z ^ (z >> 31)) >> 32).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn millis(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn pauses_are_all_the_same_unless_told_otherwise() {
        let polling = Polling::every(millis(100));
        assert!([0, 1, 31, 32, u32::MAX].into_iter().all(|n| polling.pause(n, 7) == millis(100)));
    }

    #[test]
    fn pauses_double_up_to_the_longest() {
        let polling = Polling::every(millis(50)).backing_off_to(millis(300));
        let pauses: Vec<_> = (0..5).map(|n| polling.pause(n, 7).as_millis()).collect();
        assert_eq!(pauses, [50, 100, 200, 300, 300]);
        assert_eq!(polling.pause(u32::MAX, 7), millis(300));
    }

    #[test]
    fn jitter_spreads_pauses_and_takes_off_no_more_than_it_says() {
        let polling = Polling::every(millis(100)).jittered_by(40);
        let mut pauses: Vec<_> = (0..200).map(|waiter| polling.pause(0, waiter)).collect();
        pauses.sort();
        assert!(pauses[0] >= millis(60) && pauses[199] <= millis(100), "{pauses:?}");
        assert!(pauses[0] < millis(65) && pauses[199] > millis(95), "{pauses:?}");
        assert_ne!(polling.pause(0, 7), polling.pause(1, 7), "each pause differs");
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let problem = |polling: Polling| polling.problem().unwrap_or_default();
        assert!(problem(Polling::every(Duration::ZERO)).contains("poll interval"));
        assert!(
            problem(Polling::every(millis(100)).backing_off_to(millis(99)))
                .contains("less than its interval")
        );
        assert!(problem(Polling::every(millis(100)).jittered_by(101)).contains("hundred percent"));
        assert!(problem(Polling::every(Duration::MAX)).contains("ten years"));
        assert!(problem(Polling::every(millis(1)).backing_off_to(Duration::MAX)).contains("ten years"));
        assert_eq!(Polling::every(millis(100)).backing_off_to(millis(100)).jittered_by(100).problem(), None);
        let longest = Polling::every(LONGEST_EXPIRATION).jittered_by(0);
        assert_eq!((longest.problem(), longest.pause(u32::MAX, 7)), (None, LONGEST_EXPIRATION));
    }

    proptest! {
        #[test]
        fn no_pause_is_longer_than_the_longest_or_nothing(
            interval in 1..100_000_u64, longest in 0..1_000_000_u64, percent in 0..=100_u8, n: u32, random: u64
        ) {
            let longest = longest.max(interval);
            let pause = Polling::every(millis(interval)).backing_off_to(millis(longest)).jittered_by(percent).pause(n, random);
            prop_assert!(pause >= SHORTEST && pause <= millis(longest), "{pause:?}");
        }
    }
}
