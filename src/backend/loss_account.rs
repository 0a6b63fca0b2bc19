//! An account of what is lost by something that mostly gains, so that it stops where it does not.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Uptime;

/// How much may be lost before it pauses.
const LOSS: Duration = Duration::from_millis(10);
/// How long it pauses then; twice as long as before if that is soon so again, up to the longest.
const PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Shared by threads. All figures are estimates, in microseconds: an update lost to a race does not matter.
#[derive(Debug, Default)]
pub(in crate::backend) struct LossAccount {
    /// A pause lasts until then.
    paused_until: AtomicU64,
    /// How long the last pause was.
    pause: AtomicU64,
    /// What has been lost lately.
    lost: AtomicU64,
}

impl LossAccount {
    /// Whether there is no pause now.
    pub(in crate::backend) fn pays(&self, now: Uptime) -> bool {
        micros(now.0) >= self.paused_until.load(Ordering::Relaxed)
    }

    /// Counts what was lost and what that was worth. Begins a pause when too much has been lost.
    pub(in crate::backend) fn note(&self, loss: Duration, worth: Duration, now: Uptime) {
        let before = self.lost.load(Ordering::Relaxed);
        let lost = before.saturating_add(micros(loss)).saturating_sub(micros(worth));
        if lost <= micros(LOSS) {
            // Threads that only gain write nothing that the others read.
            if lost != before {
                self.lost.store(lost, Ordering::Relaxed);
            }
            return;
        }
        let now = micros(now.0);
        let previous = self.pause.load(Ordering::Relaxed);
        let soon = now < self.paused_until.load(Ordering::Relaxed).saturating_add(previous);
        let pause = if soon { (2 * previous).min(micros(LONGEST_PAUSE)) } else { micros(PAUSE) };
        self.pause.store(pause, Ordering::Relaxed);
        self.paused_until.store(now + pause, Ordering::Relaxed);
        // Learning that nothing has changed takes less.
        self.lost.store(micros(LOSS) / 2, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(in crate::backend) fn pause_for_ever(&self) {
        self.paused_until.store(u64::MAX, Ordering::Relaxed);
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
        let account = LossAccount::default();
        for _ in 0..100_000 {
            account.note(Duration::from_millis(1), Duration::from_millis(1), at(1000));
        }
        assert!(account.pays(at(1000)));
    }

    #[test]
    fn what_loses_is_tried_less_and_less() {
        let account = LossAccount::default();
        let pauses = pauses(&account, 1000, 6000);
        let lengths: Vec<u64> = pauses.iter().map(|(_, length)| *length).collect();
        assert_eq!(lengths[..8], [10, 20, 40, 80, 160, 320, 640, 1000], "{pauses:?}");
        let (last, length) = pauses[pauses.len() - 1];
        let tried = last + length - 1000 - lengths.iter().sum::<u64>();
        assert!(tried < 100, "{tried} ms were lost in {}", last + length - 1000);
        // Long after that it pauses as at first.
        assert_eq!(self::pauses(&account, 60_000, 60_030)[0].1, 10);
    }
}
