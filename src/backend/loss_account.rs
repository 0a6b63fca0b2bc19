//! An account of what is lost by something that mostly gains, so that it stops where it does not.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Uptime;

/// How long it pauses when too much has been lost; twice as long as before, up to the longest, unless much has been gained since.
const PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How many times as much as may be lost is much.
const MUCH: u64 = 10;

/// Shared by threads. All figures are estimates, in microseconds: an update lost to a race does not matter.
#[derive(Debug)]
pub(in crate::backend) struct LossAccount {
    /// How much may be lost before it pauses.
    at_most: u64,
    /// A pause lasts until then.
    paused_until: AtomicU64,
    /// How long the last pause was.
    pause: AtomicU64,
    /// What has been lost lately.
    lost: AtomicU64,
    /// What has been gained since the last pause began, up to what is much.
    gained: AtomicU64,
}

impl LossAccount {
    pub(in crate::backend) fn new(at_most: Duration) -> Self {
        let zero = || AtomicU64::new(0);
        Self { at_most: micros(at_most), paused_until: zero(), pause: zero(), lost: zero(), gained: zero() }
    }

    /// Whether there is no pause now.
    pub(in crate::backend) fn pays(&self, now: Uptime) -> bool {
        micros(now.0) >= self.paused_until.load(Ordering::Relaxed)
    }

    /// Counts what was lost and what that was worth. Begins a pause when too much has been lost.
    pub(in crate::backend) fn note(&self, loss: Duration, worth: Duration, now: Uptime) {
        let (loss, worth) = (micros(loss), micros(worth));
        let before = self.lost.load(Ordering::Relaxed);
        let after = before.saturating_add(loss).saturating_sub(worth);
        let (gained, much) = (self.gained.load(Ordering::Relaxed), MUCH * self.at_most);
        if after <= self.at_most {
            // Threads that only gain write nothing that the others read.
            if after != before {
                self.lost.store(after, Ordering::Relaxed);
            }
            if gained < much && worth > loss {
                self.gained.store(gained + worth - loss, Ordering::Relaxed);
            }
            return;
        }
        let previous = if gained < much { self.pause.load(Ordering::Relaxed) } else { 0 };
        let pause = (2 * previous).clamp(micros(PAUSE), micros(LONGEST_PAUSE));
        self.pause.store(pause, Ordering::Relaxed);
        self.paused_until.store(micros(now.0) + pause, Ordering::Relaxed);
        self.gained.store(0, Ordering::Relaxed);
        // Learning that nothing has changed takes less.
        self.lost.store(self.at_most / 2, Ordering::Relaxed);
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Uptime {
        Uptime(Duration::from_millis(millis))
    }

    /// Loses a millisecond in each that is no pause; returns when the pauses began, and how long they were.
    fn pauses(account: &LossAccount, from: u64, until: u64) -> Vec<(u64, u64)> {
        let (mut now, mut pauses) = (from, Vec::new());
        while now < until {
            account.note(Duration::from_millis(1), Duration::ZERO, at(now));
            let began = now;
            now += 1;
            while !account.pays(at(now)) {
                now += 1;
            }
            if began + 1 < now {
                pauses.push((began, now - began));
            }
        }
        pauses
    }

    #[test]
    fn what_is_worth_its_loss_goes_on() {
        let account = LossAccount::new(Duration::from_millis(10));
        for _ in 0..100_000 {
            account.note(Duration::from_millis(1), Duration::from_millis(1), at(1000));
        }
        assert!(account.pays(at(1000)));
    }

    #[test]
    fn what_loses_is_tried_less_and_less() {
        let account = LossAccount::new(Duration::from_millis(10));
        let pauses = pauses(&account, 1000, 6000);
        let lengths: Vec<u64> = pauses.iter().map(|(_, length)| *length).collect();
        assert_eq!(lengths[..8], [10, 20, 40, 80, 160, 320, 640, 1000], "{pauses:?}");
        let (last, length) = pauses[pauses.len() - 1];
        let tried = last + length - 1000 - lengths.iter().sum::<u64>();
        assert!(tried < 100, "{tried} ms were lost in {}", last + length - 1000);
        assert_eq!(self::pauses(&account, 60_000, 60_030)[0].1, 1000, "time alone changes nothing");
        for _ in 0..100 {
            account.note(Duration::ZERO, Duration::from_millis(1), at(70_000));
        }
        assert_eq!(self::pauses(&account, 70_000, 70_030)[0].1, 10, "as at first");
    }
}
