//! When a process that never leaves a key idle leaves it to others that poll, such as gems. All such processes do so in the same windows of
//! the wall clock: if each chose its own, the others would use them. A key's hash places its windows, so that a program does not pause on all
//! keys at a time. Nothing depends on the clocks but fairness: where they differ, each process leaves windows of its own.
//!
//! A window is a little longer than the gem's poll interval, so every gem that waits polls in it. The first that does takes the lock again
//! and again, so the process that had the lock before the window takes it back after some milliseconds, and leaves it once more. Pollers
//! that met another have a second chance: a window in which another process had the lock goes on for one poll interval more. After a window
//! the process that has been without the lock for longest asks first.

use std::time::Duration;

use crate::clock::{Now, Uptime};
use crate::key::Key;

/// How long a window is: the gem's poll interval, and time for its commands.
const WINDOW: Duration = Duration::from_millis(110);
/// How much longer a window is in which another process has had the lock.
const SECOND_CHANCE: Duration = Duration::from_millis(100);
/// How much later than others the process asks that had the lock before the window. One that has been without it for `n` windows asks after
/// this time divided by `n + 1`.
const ASKS_LATER: Duration = Duration::from_millis(8);

/// How often a thread looks whether another process has taken the lock that it leaves to others: one of the process that had it before,
/// and one of another.
const GLANCE: Duration = Duration::from_millis(2);
const OTHERS_GLANCE: Duration = Duration::from_millis(5);
/// How long another process may have the lock in a window, again and again, before it is asked for; up to as much longer at random.
/// Pollers that are served at the same distance would meet each other for ever.
const LEFT_ALONE: Duration = Duration::from_millis(5);
/// How long it is asked for then without a pause, to meet the moment between two holds of a process that asks again at once. If that
/// fails the process is left alone once more, and so on, unless it holds the lock for longer than `LONG_HOLD`.
const INSISTS: Duration = Duration::from_millis(5);
const LONG_HOLD: Duration = Duration::from_millis(50);

/// What a process knows of a key that its threads have had or waited for without a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Busy {
    /// Since when.
    since: Uptime,
    /// When one of them last had it outside of a window; `None` if they have only waited for it.
    had: Option<Uptime>,
    /// The last window in which another process had it.
    used: Option<u64>,
}

/// A window of a key, as one process leaves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// Counted from 1970.
    number: u64,
    until: Uptime,
    /// Whether another process is known to have had the lock in it.
    is_used: bool,
    role: Role,
}

/// What a process does in a window besides leaving the lock to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// It had the lock before: it looks often whether others have it, and takes it back.
    TakesBack,
    /// It had the lock earlier: it looks whether others have it, to know how long the window is.
    Looks,
    /// It has only waited: it polls as usual.
    Waits,
}

impl Busy {
    pub(crate) fn since(now: Uptime) -> Self {
        Self { since: now, had: None, used: None }
    }

    /// Returns the window in which the key is left to others now, if it is. `every` is the time from window to window, after which a process
    /// is busy.
    pub(crate) fn window(&self, key: &Key, every: Duration, now: Now) -> Option<Window> {
        if every == Duration::MAX || now.uptime.since(self.since) < every {
            return None;
        }
        // Windows do not overlap.
        let period = micros(every.max(2 * (WINDOW + SECOND_CHANCE)));
        let at = now.wall.0.wrapping_add(spread(key));
        let (number, position) = (at / period, Duration::from_micros(at % period));
        let is_used = self.used == Some(number);
        let without = self.had.map(|had| now.uptime.since(had));
        let (role, later) = match without.map(|without| (without, (micros(without) + period / 2) / period)) {
            None => (Role::Waits, Duration::ZERO),
            // It had the lock since the window began, and goes on where that is over.
            Some((without, _)) if without < position => (Role::TakesBack, Duration::ZERO),
            Some((_, 0)) => (Role::TakesBack, ASKS_LATER),
            Some((_, windows)) => (Role::Looks, ASKS_LATER / u32::try_from(windows + 1).unwrap_or(u32::MAX)),
        };
        let length = WINDOW + if is_used { SECOND_CHANCE } else { Duration::ZERO } + later;
        let left = length.checked_sub(position).filter(|left| !left.is_zero())?;
        Some(Window { number, until: now.uptime.after(left), is_used, role })
    }

    /// Notes that a thread of the process has the lock, in a window perhaps.
    pub(crate) fn acquired(&mut self, now: Uptime) {
        self.had.get_or_insert(now);
    }

    /// Notes that a thread of the process has the lock outside of a window.
    pub(crate) fn has_it(&mut self, now: Uptime) {
        self.had = Some(now);
    }

    /// Notes that another process had the lock in this window.
    pub(crate) fn note_used(&mut self, window: Window) {
        self.used = Some(window.number);
    }
}

impl Window {
    pub(crate) fn until(self) -> Uptime {
        self.until
    }

    /// Whether the process polls as usual.
    pub(crate) fn only_waits(self) -> bool {
        self.role == Role::Waits
    }

    #[cfg(test)]
    pub(super) fn ending(until: Uptime) -> Self {
        Self { number: 0, until, is_used: false, role: Role::TakesBack }
    }
}

/// What is known of a process that has a lock which this one leaves to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TakenBy {
    /// Of this library: it leaves the lock in the same windows.
    Busy,
    /// Of a gem.
    Poller,
    /// Of a gem, and another hold than was seen last.
    AgainAndAgain,
}

/// A thread leaves the lock to other processes.
#[derive(Debug)]
pub(crate) struct Yielding {
    /// `None` is to one process that was notified, and not to those that poll.
    window: Option<Window>,
    until: Uptime,
    /// When the lock is asked for without a pause, since another process was seen to have it.
    insists_at: Option<Uptime>,
    /// Since when that process has held it without a pause.
    held_since: Option<Uptime>,
}

impl Yielding {
    /// To each process that polls.
    pub(crate) fn to_pollers(window: Window) -> Self {
        Self { window: Some(window), until: window.until, insists_at: None, held_since: None }
    }

    /// To one that was notified: until then, or until it has it.
    pub(crate) fn to_one(until: Uptime) -> Self {
        Self { window: None, until, insists_at: None, held_since: None }
    }

    /// Another process has it: `by` which kind. Returns how the thread goes on, unless as one that does not yield. `random` is any number.
    pub(super) fn taken(mut self, by: TakenBy, now: Uptime, random: u64) -> Option<Self> {
        let window = self.window.as_mut().filter(|window| !window.only_waits())?;
        if by != TakenBy::Busy && now < self.until && !std::mem::replace(&mut window.is_used, true) {
            self.until = self.until.after(SECOND_CHANCE);
        }
        let later = now.after(LEFT_ALONE + LEFT_ALONE / 1000 * u32::try_from(random % 1000).unwrap_or(0));
        if by == TakenBy::AgainAndAgain {
            self.held_since = Some(now);
        }
        let held_since = *self.held_since.get_or_insert(now);
        let is_busy = by != TakenBy::Busy && now.since(held_since) < LONG_HOLD;
        self.insists_at = match self.insists_at {
            Some(at) if now < at.after(INSISTS) => Some(at),
            // It could not be met between two holds: once more, unless it holds the lock for long, or leaves windows itself.
            Some(_) if now >= self.until && !is_busy => return None,
            Some(_) if now >= self.until => Some(later),
            Some(_) => Some(later.min(self.until)),
            None if now >= self.until => Some(now),
            None if window.role == Role::TakesBack && by != TakenBy::Busy => Some(later.min(self.until)),
            None => None,
        };
        Some(self)
    }

    /// Returns the window in which another process was seen to have the lock.
    pub(crate) fn used(&self) -> Option<Window> {
        self.window.filter(|window| window.is_used)
    }

    /// Whether it is left to others, also if it is free.
    pub(super) fn leaves(&self, now: Uptime) -> bool {
        now < self.asks_at()
    }

    /// Whether the thread goes on as one that does not yield, whatever it finds.
    pub(super) fn is_over(&self, now: Uptime) -> bool {
        self.window.is_none() && now >= self.until
    }

    fn asks_at(&self) -> Uptime {
        self.insists_at.unwrap_or(self.until)
    }

    /// Limits a pause.
    pub(super) fn limit(&self, pause: Duration, now: Uptime) -> Duration {
        match self.asks_at().since(now) {
            Duration::ZERO if self.insists_at.is_some() => Duration::ZERO,
            Duration::ZERO => pause,
            left if self.insists_at.is_some() => left.min(pause),
            left => left.min(pause).min(match self.window.map(|window| window.role) {
                None | Some(Role::TakesBack) => GLANCE,
                Some(Role::Looks) => OTHERS_GLANCE,
                Some(Role::Waits) => Duration::MAX,
            }),
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Returns a number that is the same for a key in each process: the hash function FNV-1a.
fn spread(key: &Key) -> u64 {
    let hash = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    key.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, hash) >> 16
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Wall;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(millis: u64) -> Now {
        Now { wall: Wall(1_795_000_000_000_000 + millis * 1000), uptime: uptime(millis) }
    }

    fn uptime(millis: u64) -> Uptime {
        Uptime(Duration::from_millis(millis))
    }

    /// Returns the milliseconds of these seconds at which a process that is busy from the beginning leaves the key to others.
    fn left(busy: &Busy, key: &Key, every: Duration, seconds: std::ops::Range<u64>) -> Vec<u64> {
        (seconds.start * 1000..seconds.end * 1000)
            .filter(|millis| busy.window(key, every, at(*millis)).is_some())
            .collect()
    }

    #[test]
    fn all_processes_leave_a_key_in_the_same_windows() {
        let key = Key::from("k");
        // One has the lock all the time, the other waits for it.
        let (mut one, other) = (Busy::since(uptime(0)), Busy::since(uptime(2000)));
        assert!(left(&one, &key, SECOND, 0..1).is_empty(), "not in the first second");
        let theirs = left(&other, &key, SECOND, 5..6);
        one.has_it(uptime(theirs[0] - 1));
        let ours = left(&one, &key, SECOND, 5..6);
        assert_eq!((theirs.len(), ours.len()), (110, 118), "the one that had it last asks last");
        assert_eq!(ours[..110], theirs);
        // It has asked, and goes on with the lock.
        one.has_it(uptime(ours[117] + 1));
        assert_eq!(one.window(&key, SECOND, at(ours[117] + 2)), None);
        assert!(left(&one, &key, Duration::MAX, 5..9).is_empty(), "never");
    }

    #[test]
    fn keys_have_different_windows() {
        let busy = Busy::since(uptime(0));
        let begins = |n: u64| left(&busy, &Key::from(format!("k{n}")), SECOND, 5..6)[0];
        let mut begins: Vec<u64> = (0..100).map(begins).collect();
        begins.sort_unstable();
        begins.dedup();
        assert!(begins.len() > 50, "{begins:?}");
    }

    #[test]
    fn a_window_in_which_another_process_had_the_lock_is_longer() {
        let (key, mut busy) = (Key::from("k"), Busy::since(uptime(0)));
        let begin = left(&busy, &key, SECOND, 5..6)[0];
        busy.has_it(uptime(begin - 1));
        let window = busy.window(&key, SECOND, at(begin + 5)).unwrap();
        let mut yielding = Yielding::to_pollers(window);
        assert!(yielding.used().is_none() && yielding.leaves(uptime(begin + 90)));
        // For as long as the gem's second poll, but the lock is taken back in between.
        yielding = yielding.taken(TakenBy::Poller, uptime(begin + 20), 500).unwrap();
        assert!(yielding.leaves(uptime(begin + 25)) && !yielding.leaves(uptime(begin + 28)));
        // If it could not be taken back, it is left alone once more.
        yielding = yielding.taken(TakenBy::AgainAndAgain, uptime(begin + 29), 500).unwrap();
        assert!(!yielding.leaves(uptime(begin + 29)));
        yielding = yielding.taken(TakenBy::AgainAndAgain, uptime(begin + 33), 500).unwrap();
        assert!(yielding.leaves(uptime(begin + 40)) && !yielding.leaves(uptime(begin + 41)));
        busy.note_used(yielding.used().unwrap());
        assert!(busy.window(&key, SECOND, at(begin + 205)).is_some());
        assert!(busy.window(&key, SECOND, at(begin + 230)).is_none());
        assert!(busy.window(&key, SECOND, at(begin + 1150)).is_none(), "not the next one");
        // After the window it is asked for as long as a gem takes it again and again, but a long hold is waited for.
        yielding = yielding.taken(TakenBy::AgainAndAgain, uptime(begin + 230), 500).unwrap();
        yielding = yielding.taken(TakenBy::Poller, uptime(begin + 260), 500).unwrap();
        assert!(yielding.taken(TakenBy::Poller, uptime(begin + 281), 500).is_none());
    }
}
