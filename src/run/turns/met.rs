//! Whom the threads of this process have met at keys: other clients, and Ruby programs among them, which only poll. What
//! is known of a key lasts for ten minutes. Until then a process that keeps the key busy leaves windows there also if it
//! has one thread, which nothing else in it waits for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proto::values::{Key, Now, Uptime, classic_time};
use proto::window::Activity;

use crate::system::random::HashMap;
use crate::system::sync::Mutex;

/// For how long it is known that others use a key.
const REMEMBERED: Duration = Duration::from_secs(600);

/// How often it is noted that another was met at one of several locks.
const JUST: Duration = Duration::from_secs(1);

/// At how many keys others are known at most.
const MANY: usize = 1000;

/// Whom the threads of a process have met, by key or by the name of several locks.
#[derive(Default)]
pub(super) struct Met {
    /// When another was last met anywhere, in microseconds of uptime; 0 is never.
    last: AtomicU64,
    keys: Mutex<HashMap<Key, MetAt>>,
}

struct MetAt {
    /// When another client was last met.
    another: Uptime,
    /// When one was that only polls, by this process or by one that has said so.
    poller: Option<Uptime>,
    /// What this process, or one of those that notify each other, has done with the key since.
    activity: Activity,
}

/// Returns true if a value is one of a gem.
pub(super) fn is_gems(found: &[u8]) -> bool {
    found.is_empty() || classic_time(found).is_some()
}

impl Met {
    /// Notes that another client was met at a key. `polls`: it is one that only polls.
    pub(super) fn note(&self, key: &Key, polls: bool, now: Uptime) {
        let mut keys = self.keys.lock();
        if keys.len() >= MANY && !keys.contains_key(key) {
            keys.retain(|_, met| now.since(met.another) < REMEMBERED);
            if keys.len() >= MANY {
                return;
            }
        }
        let met = match keys.get_mut(key) {
            Some(met) => met,
            None => {
                let activity = Activity::since(now);
                keys.entry(key.clone()).or_insert(MetAt { another: now, poller: None, activity })
            }
        };
        met.another = now;
        if polls {
            met.poller = Some(now);
        }
        drop(keys);
        self.last.store(now.micros(), Ordering::Relaxed);
    }

    /// Notes that a hold has ended: one of this process, or one of another that has notified it.
    #[inline]
    pub(super) fn ended(&self, key: &Key, now: Uptime) {
        self.change(key, now, |met| met.activity.ended(now));
    }

    /// Notes that a poller has the key in a window.
    pub(super) fn met_poller(&self, key: &Key, now: Uptime) {
        self.change(key, now, |met| met.activity.met_poller(now));
    }

    /// Returns the end of the window in which the key is left to others now, or only to those known to poll.
    #[inline]
    pub(super) fn window(&self, key: &Key, only_to_pollers: bool, now: Now) -> Option<Uptime> {
        let window = |met: &mut MetAt| {
            met.knows(only_to_pollers, now.uptime).then(|| met.activity.window(key, now)).flatten()
        };
        self.change(key, now.uptime, window)?
    }

    /// Returns true if another was met at the key within the last second.
    pub(super) fn has_just_met(&self, key: &Key, now: Uptime) -> bool {
        self.change(key, now, |met| now.since(met.another) < JUST).unwrap_or_default()
    }

    /// Returns true if others are known at the key, or one that only polls.
    pub(super) fn knows(&self, key: &Key, only_pollers: bool, now: Uptime) -> bool {
        self.change(key, now, |met| met.knows(only_pollers, now)).unwrap_or_default()
    }

    #[inline]
    fn change<T>(&self, key: &Key, now: Uptime, change: impl FnOnce(&mut MetAt) -> T) -> Option<T> {
        let last = self.last.load(Ordering::Relaxed);
        if last == 0 || now.since(Uptime::of(Duration::from_micros(last))) >= REMEMBERED {
            return None;
        }
        self.keys.lock().get_mut(key).map(change)
    }
}

impl MetAt {
    fn knows(&self, only_pollers: bool, now: Uptime) -> bool {
        let last = if only_pollers { self.poller } else { Some(self.another) };
        last.is_some_and(|at| now.since(at) < REMEMBERED)
    }
}

#[cfg(test)]
mod tests {
    use proto::values::Wall;

    use super::*;

    fn at(millis: u64) -> Now {
        Now { wall: Wall(1_795_000_000_000_000 + millis * 1000), uptime: uptime(millis) }
    }

    fn uptime(millis: u64) -> Uptime {
        Uptime::of(Duration::from_millis(millis))
    }

    /// How many of 1,000 milliseconds are in a window, for one that leaves the key to others, and only to pollers.
    fn left(met: &Met, from: u64) -> [usize; 2] {
        [false, true].map(|only_to_pollers| {
            let key = Key::from("k");
            let in_window = |millis: &u64| {
                met.ended(&key, uptime(*millis));
                met.window(&key, only_to_pollers, at(*millis)).is_some()
            };
            (from..from + 1000).filter(in_window).count()
        })
    }

    #[test]
    fn a_busy_key_at_which_another_was_met_is_left_in_windows_for_ten_minutes() {
        let (met, key) = (Met::default(), Key::from("k"));
        assert_eq!(left(&met, 1000), [0, 0], "no other was met");
        met.note(&key, false, uptime(1000));
        assert_eq!(left(&met, 1000), [0, 0], "it was not busy for long enough");
        assert_eq!(left(&met, 3000), [110, 0]);
        assert_eq!(left(&met, 602_000), [0, 0]);
        met.note(&key, true, uptime(700_000));
        assert_eq!(left(&met, 702_000), [110, 110]);
        met.note(&key, false, uptime(1_200_000));
        assert_eq!(left(&met, 1_400_000), [110, 0], "the one that polls was last met longer ago");
        assert_eq!(left(&met, 1_401_000)[1], 0);
        assert_eq!(met.window(&Key::from("other"), false, at(1_402_000)), None);
    }

    #[test]
    fn keys_are_forgotten() {
        let met = Met::default();
        for n in 0..2 * MANY {
            met.note(&Key::from(format!("k{n}")), true, uptime(n as u64));
        }
        assert_eq!(met.keys.lock().len(), MANY);
        assert!(
            met.knows(&Key::from("k0"), true, uptime(5000))
                && !met.knows(&Key::from("k1500"), true, uptime(5000))
        );
        met.note(&Key::from("late"), true, uptime(700_000));
        assert_eq!(met.keys.lock().len(), 1);
    }

    #[test]
    fn values_of_gems_are_known_by_their_form() {
        for (found, gems) in
            [("1795153464.2949657", true), ("", true), ("1795153464.2949650123456789", false), ("1", false)]
        {
            assert_eq!(is_gems(found.as_bytes()), gems, "{found}");
        }
    }
}
