//! How a thread spends the wait for a reply: it looks and yields its processor in turn for a while, and then sleeps.
//!
//! On one machine, and over a fast network, a thread that sleeps and is woken takes longer than the server needs for a command. Between two
//! looks the thread yields, so that the server and other threads run. That loses where replies take longer than a thread looks for one,
//! and where the threads that run instead compute for milliseconds; then it stops, but for a try now and then.

use std::thread;
use std::time::Duration;

use crate::backend::loss_account::LossAccount;
use crate::clock::{self, Uptime};

/// For how long a thread looks for a reply before it sleeps, unless set.
const DEFAULT_AT_MOST: Duration = Duration::from_micros(100);
/// What a reply is worth that comes before its thread sleeps. Sleeping and being woken takes 5 to 40 µs, and it is better not to spin where
/// that would gain than to spin where it loses.
const WORTH: Duration = Duration::from_micros(10);
/// How long a yield takes at most in which threads of this library and the server run.
const SHORT_YIELD: Duration = Duration::from_micros(50);
/// How much may be lost before spinning pauses.
const LOSS: Duration = Duration::from_millis(2);

/// Shared by the connections of a manager.
#[derive(Debug)]
pub(super) struct ReadSpin {
    at_most: Duration,
    account: LossAccount,
}

impl Default for ReadSpin {
    fn default() -> Self {
        Self::at_most(DEFAULT_AT_MOST)
    }
}

impl ReadSpin {
    /// Spins for so long at most before each sleep; zero for never.
    pub(super) fn at_most(at_most: Duration) -> Self {
        Self { at_most, account: LossAccount::new(LOSS) }
    }

    /// Whether a read that begins now should spin.
    pub(super) fn pays(&self) -> bool {
        !self.at_most.is_zero() && self.account.pays(clock::uptime())
    }

    /// Calls `look` until it returns something, yielding in between; `None` when that took too long, or the deadline has passed.
    pub(super) fn until_some<T>(&self, deadline: Uptime, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        let began = clock::uptime();
        let mut now = began;
        let mut loss = Duration::ZERO;
        loop {
            if now >= deadline {
                return None;
            }
            if let Some(found) = look() {
                self.account.note(loss, WORTH, now);
                return Some(found);
            }
            let spun = now.since(began);
            if spun >= self.at_most {
                self.account.note(loss.max(spun), Duration::ZERO, now);
                return None;
            }
            let before = now;
            thread::yield_now();
            now = clock::uptime();
            loss += now.since(before).saturating_sub(SHORT_YIELD);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_found_at_the_first_look_or_a_later_one() {
        let spin = ReadSpin::at_most(Duration::from_secs(60));
        assert!(spin.pays());
        for wanted in [1, 2, 50] {
            let mut looks = 0;
            let found = spin.until_some(Uptime::MAX, || {
                looks += 1;
                (looks == wanted).then_some(looks)
            });
            assert_eq!(found, Some(wanted));
        }
    }

    #[test]
    fn looking_in_vain_ends_and_is_given_up() {
        let spin = ReadSpin::at_most(Duration::from_micros(200));
        // The pauses are short at first, and this thread may be kept from running during one.
        let paused = (0..10_000).any(|_| {
            assert_eq!(spin.until_some(Uptime::MAX, || None::<()>), None);
            !spin.pays()
        });
        assert!(paused);
        assert!(!ReadSpin::at_most(Duration::ZERO).pays());
    }
}
