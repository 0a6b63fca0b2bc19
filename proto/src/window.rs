//! Windows for *pollers*, clients that learn of a release only by looking, such as a Ruby program with the gem. A
//! process whose threads keep a key busy leaves it alone for 110 ms of each second, a little longer than the gem's poll
//! interval, so that each poller looks once. A poller that asks again at once would keep the others out: now and then
//! the process looks whether one has the lock, and takes it back from it. The wall clock and the key's hash place the
//! window, so all hot processes leave the same one. If clocks differ, fairness suffers; exclusion never depends on
//! windows.

use core::time::Duration;

use crate::values::{Key, Now, Uptime};

/// The gem's poll interval, and time for its commands.
pub const WINDOW: Duration = Duration::from_millis(110);
/// How much longer a window is in which a poller had the key: one that met it polls once more.
const SECOND_POLL: Duration = Duration::from_millis(100);
/// From one window to the next, and for how long a process keeps a key busy until it is hot.
const PERIOD: Duration = Duration::from_secs(1);
/// A hot process looks at the key at intervals of 3 to 9 ms. At fixed intervals, pollers that were served one after the
/// other would meet each other in each window.
const LOOKS: Duration = Duration::from_millis(3);
/// For how long a thread asks for a lock that a poller has in a window.
pub const ASKS: Duration = Duration::from_millis(2);

/// Holds that end within this time end together.
const TOGETHER: Duration = Duration::from_micros(500);

/// What the threads of a process have done with a key since one
/// of them has had a lease or waited for one without a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Activity {
    since: Uptime,
    /// When the last two holds ended, the last one first.
    ended: [Option<Uptime>; 2],
    /// When a poller was last seen to have the key in a window.
    met_poller: Option<Uptime>,
}

impl Activity {
    /// Begins with a thread that has a lease, or waits for one, since then.
    pub fn since(now: Uptime) -> Self {
        Self { since: now, ended: [None; 2], met_poller: None }
    }

    /// Notes that a hold has ended. Several permits that are released together are one.
    pub fn ended(&mut self, now: Uptime) {
        if self.ended[0].is_none_or(|last| now.since(last) >= TOGETHER) {
            self.ended = [Some(now), self.ended[0]];
        }
    }

    /// Notes that a poller has the key in a window.
    pub fn met_poller(&mut self, now: Uptime) {
        self.met_poller = Some(now);
    }

    /// Returns the end of the window in which the process leaves the key to pollers now, if it does.
    pub fn window(&self, key: &Key, now: Now) -> Option<Uptime> {
        let is_recent = |at: Uptime| now.uptime.since(at) < PERIOD;
        let is_hot = !is_recent(self.since) && self.ended[1].is_some_and(is_recent);
        let position = position(key, now);
        let is_used = self.met_poller.is_some_and(|at| now.uptime.since(at) < position);
        let length = if is_used { WINDOW + SECOND_POLL } else { WINDOW };
        let left = length.checked_sub(position).filter(|left| is_hot && !left.is_zero())?;
        Some(now.uptime.after(left))
    }
}

/// Returns true if hot processes leave the key now.
pub fn is_open(key: &Key, now: Now) -> bool {
    position(key, now) < WINDOW
}

/// Returns how long ago the last window has begun.
fn position(key: &Key, now: Now) -> Duration {
    Duration::from_micros(now.wall.0.wrapping_add(offset(key)) % 1_000_000)
}

/// Returns how long a process waits in a window until it looks at the key. `random` is any number.
pub fn until_look(random: u64) -> Duration {
    let spread = random.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
    LOOKS + LOOKS / 512 * u32::try_from(spread).unwrap_or(0)
}

/// Spreads the windows of keys over the second: the hash function FNV-1a, the same in each process.
fn offset(key: &Key) -> u64 {
    let hash = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    key.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, hash) >> 16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Wall;

    fn at(millis: u64) -> Now {
        Now { wall: Wall(1_795_000_000_000_000 + millis * 1000), uptime: uptime(millis) }
    }

    fn uptime(millis: u64) -> Uptime {
        Uptime::of(Duration::from_millis(millis))
    }

    /// Returns the milliseconds at which a process leaves the key that
    /// was busy from `since` on, and whose holds ended every `hold`.
    fn spared(key: &Key, since: u64, hold: u64, millis: core::ops::Range<u64>) -> Vec<u64> {
        let mut activity = Activity::since(uptime(since));
        let mut spared = Vec::new();
        for millis in millis {
            if millis > since && (millis - since).is_multiple_of(hold) {
                activity.ended(uptime(millis));
            }
            if let Some(end) = activity.window(key, at(millis)) {
                assert!(uptime(millis) < end && end <= uptime(millis).after(WINDOW));
                spared.push(millis);
            }
        }
        spared
    }

    #[test]
    fn hot_processes_leave_the_same_window() {
        let key = Key::from("k");
        let (one, other) = (spared(&key, 0, 1, 0..6000), spared(&key, 1700, 90, 0..6000));
        assert_eq!(one.len(), 5 * 110);
        assert!(one[0] >= 1000 && one[..110].windows(2).all(|two| two[1] == two[0] + 1));
        assert!(other.iter().all(|millis| *millis >= 2700 && one.contains(millis)));
        assert_eq!(other.len(), one.iter().filter(|millis| **millis >= 2700).count());
    }

    #[test]
    fn a_window_in_which_a_poller_had_the_key_is_longer() {
        let key = Key::from("k");
        let begin = spared(&key, 0, 1, 0..3000)[110];
        let mut activity = Activity::since(uptime(0));
        let mut length = |begin: u64, met: &[u64]| {
            let window = |millis: &u64| {
                activity.ended(uptime(*millis - 1));
                activity.ended(uptime(*millis));
                if met.contains(millis) {
                    activity.met_poller(uptime(*millis));
                }
                activity.window(&key, at(*millis)).is_some()
            };
            (begin..begin + 500).take_while(window).count()
        };
        assert_eq!((length(begin, &[]), length(begin + 1000, &[begin + 1050])), (110, 210));
        assert_eq!(length(begin + 2000, &[]), 110, "not the next one");
    }

    #[test]
    fn a_process_that_only_waits_or_holds_for_long_is_never_hot() {
        let key = Key::from("k");
        assert!(spared(&key, 0, 1_000_000, 0..6000).is_empty());
        assert!(spared(&key, 0, 1200, 0..6000).is_empty());
    }

    #[test]
    fn holds_that_end_together_make_no_process_hot() {
        let key = Key::from("k");
        let is_hot = |apart: Duration| {
            let mut activity = Activity::since(uptime(0));
            activity.ended(uptime(5000));
            activity.ended(uptime(5000).after(apart));
            (5001..6000).any(|millis| activity.window(&key, at(millis)).is_some())
        };
        assert!(!is_hot(Duration::ZERO) && !is_hot(Duration::from_micros(100)));
        assert!(is_hot(Duration::from_millis(1)));
    }

    #[test]
    fn keys_have_different_windows() {
        let begins = |n: u64| spared(&Key::from(format!("k{n}")), 0, 1, 0..2000)[0];
        let mut begins: Vec<u64> = (0..100).map(begins).collect();
        begins.sort_unstable();
        begins.dedup();
        assert!(begins.len() > 50, "{begins:?}");
    }
}
