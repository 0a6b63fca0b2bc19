//! How threads spend the time until another's trip takes them along and comes back: they give way to whoever else can run, a few times,
//! and then sleep.
//!
//! Sleeping and being woken costs more than a command does; giving way costs little, as long as those that run instead are threads
//! like this one, with some microseconds' work to do. Among threads that compute it costs a turn of theirs, some milliseconds, in which
//! next to nothing is sent. So it is measured what giving way takes and how many commands got on meanwhile, and while that is too few
//! nobody gives way, except for a try now and then.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::Limits;
use super::combining::Waiting;
use crate::clock::{self, Uptime};

/// So few threads do not share trips: with a connection for each they are faster.
const FEW: usize = 4;
/// So few do not where they have to sleep.
const FEW_THAT_SLEEP: usize = 16;
/// How often one gives way before it sleeps.
const TIMES: u32 = 16;
/// For each command that is taken along meanwhile, giving way may take so long.
const WORTH: Duration = Duration::from_micros(20);
/// So much is lost when one has given way as often as it may and sleeps all the same.
const SLEEP: Duration = Duration::from_micros(10);
/// So much may be lost by it before there is a rest.
const LOSS: Duration = Duration::from_millis(10);
/// So long nobody gives way after it has taken too long; twice as long when that was soon so again, and at most so long.
const REST: Duration = Duration::from_millis(10);
const LONGEST_REST: Duration = Duration::from_secs(1);
/// When nobody has been taken along for so long, one goes alone. A trip to a server on the same machine takes less; where the
/// way is longer, this is what a thread with company may lose.
const PATIENCE: Duration = Duration::from_micros(150);
/// For so much longer than the answer may take the thread that sends is waited for.
const GRACE: Duration = Duration::from_millis(50);

/// What the threads of a window know about giving way. All of it is estimates: what is lost when two threads note something at the same
/// time matters to nobody.
#[derive(Debug)]
pub(super) struct Pace {
    /// How many could have a connection each.
    connections: usize,
    /// The longest that an answer takes, where that is known.
    command: Duration,
    /// Nobody gives way before, in microseconds of uptime.
    rests_until: AtomicU64,
    /// How long the last rest was, in microseconds.
    rest: AtomicU64,
    /// What has been lost lately by giving way, in microseconds.
    lost: AtomicU64,
    /// Until when it has been counted what was gained and lost, in microseconds of uptime, and until which command.
    counted_until: AtomicU64,
    counted: AtomicUsize,
}

/// A moment, and how many commands had been taken along by then.
#[derive(Clone, Copy)]
struct Mark {
    at: Uptime,
    moved: usize,
}

impl Pace {
    pub(super) fn new(connections: u32, command: Duration) -> Self {
        Self {
            connections: usize::try_from(connections).unwrap_or(usize::MAX),
            command,
            rests_until: AtomicU64::new(0),
            rest: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            counted_until: AtomicU64::new(0),
            counted: AtomicUsize::new(0),
        }
    }

    /// Whether so many threads had better share trips.
    pub(super) fn is_crowd(&self, threads: usize) -> bool {
        threads > FEW_THAT_SLEEP.min(self.connections)
            || threads > FEW.min(self.connections) && self.gives_way(clock::uptime())
    }

    /// Returns what a thread does with its time, and after how long it has had enough. `moved` says how many have been taken along,
    /// first come, first served.
    pub(super) fn waiting(
        &self,
        limits: &Limits<'_>,
        moved: impl Fn() -> usize,
    ) -> impl FnMut(Waiting) -> bool {
        let (connected_by, answered_by) = (limits.connected_by, limits.answered_by);
        let mark = move || Mark { at: clock::uptime(), moved: moved() };
        let mut times = Some(TIMES);
        let mut queued: Option<(usize, Uptime)> = None;
        let mut aboard = None;
        move |waiting| {
            let before = mark();
            let until = match waiting {
                Waiting::ToGo => match queued {
                    Some((moved, until)) if moved == before.moved => until,
                    _ => queued.insert((before.moved, before.at.after(PATIENCE).min(connected_by))).1,
                },
                // Its leader notices no sooner that time is up, and then comes back with what was answered.
                Waiting::ForTheAnswer => {
                    *aboard.get_or_insert_with(|| before.at.after(self.command).min(answered_by).after(GRACE))
                }
            };
            let left = until.since(before.at);
            if left.is_zero() {
                return false;
            }
            match times {
                Some(left @ 1..) if self.gives_way(before.at) => {
                    times = Some(left - 1);
                    thread::yield_now();
                    self.note(before, mark());
                }
                _ => {
                    if times.take() == Some(0) {
                        self.note_sleep(before.at);
                    }
                    thread::park_timeout(left);
                }
            }
            true
        }
    }

    fn gives_way(&self, now: Uptime) -> bool {
        micros(now.0) >= self.rests_until.load(Ordering::Relaxed)
    }

    /// Learns from when to when somebody gave way. What another has counted already does not count again: many give way at the same time.
    fn note(&self, from: Mark, to: Mark) {
        let until = micros(to.at.0);
        let since = micros(from.at.0).max(self.counted_until.swap(until, Ordering::Relaxed));
        let moved = to.moved.saturating_sub(from.moved.max(self.counted.swap(to.moved, Ordering::Relaxed)));
        let took = self.lost.load(Ordering::Relaxed) + until.saturating_sub(since);
        let worth = micros(WORTH).saturating_mul(u64::try_from(moved).unwrap_or(u64::MAX));
        self.settle(took.saturating_sub(worth), until);
    }

    /// Learns that somebody gave way as often as it may, and sleeps all the same.
    fn note_sleep(&self, at: Uptime) {
        self.settle(self.lost.load(Ordering::Relaxed) + micros(SLEEP), micros(at.0));
    }

    /// Has nobody give way for a while when too much has been lost by it.
    fn settle(&self, lost: u64, now: u64) {
        if lost <= micros(LOSS) {
            self.lost.store(lost, Ordering::Relaxed);
            return;
        }
        let previous = self.rest.load(Ordering::Relaxed);
        let soon = now < self.rests_until.load(Ordering::Relaxed).saturating_add(previous);
        let rest = if soon { (2 * previous).min(micros(LONGEST_REST)) } else { micros(REST) };
        self.rest.store(rest, Ordering::Relaxed);
        self.rests_until.store(now + rest, Ordering::Relaxed);
        // It takes less to learn that nothing has changed.
        self.lost.store(micros(LOSS) / 2, Ordering::Relaxed);
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(connections: u32) -> Pace {
        Pace::new(connections, Duration::from_secs(2))
    }

    fn mark(millis: u64, moved: usize) -> Mark {
        Mark { at: Uptime(Duration::from_millis(millis)), moved }
    }

    /// Gives way for three milliseconds at a time while it may, with so many commands getting on each time; returns when it rested, and for
    /// how long.
    fn rests(pace: &Pace, from: u64, until: u64, moved_each: usize) -> Vec<(u64, u64)> {
        let (mut now, mut moved, mut rests) = (from, 0, Vec::new());
        while now < until {
            pace.note(mark(now, moved), mark(now + 3, moved + moved_each));
            (now, moved) = (now + 3, moved + moved_each);
            let began = now;
            while !pace.gives_way(mark(now, 0).at) {
                now += 1;
            }
            if began < now {
                rests.push((began, now - began));
            }
        }
        rests
    }

    #[test]
    fn giving_way_goes_on_while_it_gets_commands_on() {
        // 3 ms are worth 150 commands.
        assert_eq!(rests(&pace(10), 1000, 3000, 150), []);
        assert_eq!(rests(&pace(10), 1000, 3000, 1000), []);
    }

    #[test]
    fn giving_way_in_vain_is_tried_less_and_less() {
        let pace = pace(10);
        let rests = rests(&pace, 1000, 6000, 5);
        let lengths: Vec<u64> = rests.iter().map(|(_, length)| *length).collect();
        assert_eq!(lengths[..8], [10, 20, 40, 80, 160, 320, 640, 1000], "{rests:?}");
        let (last, length) = rests[rests.len() - 1];
        let given_way = last + length - 1000 - lengths.iter().sum::<u64>();
        assert!(given_way < 100, "{given_way} ms were lost in {}", last + length - 1000);
        // Long after that it is as at first.
        assert_eq!(self::rests(&pace, 60_000, 60_030, 5)[0].1, 10);
    }

    #[test]
    fn sleeping_after_all_is_a_loss_too() {
        let pace = pace(10);
        let at = mark(1000, 0).at;
        for _ in 0..1000 {
            pace.note_sleep(at);
        }
        assert!(pace.gives_way(at), "10 ms");
        pace.note_sleep(at);
        assert!(!pace.gives_way(at));
    }

    #[test]
    fn what_many_lose_at_the_same_time_is_lost_once() {
        let pace = pace(10);
        for _ in 0..200 {
            pace.note(mark(1000, 0), mark(1008, 0));
        }
        assert!(pace.gives_way(mark(1008, 0).at));
    }

    #[test]
    fn a_crowd_is_more_than_have_a_connection_each() {
        let (one, ten) = (pace(1), pace(10));
        assert!(!one.is_crowd(1) && one.is_crowd(2));
        assert!(!ten.is_crowd(4) && ten.is_crowd(5));
        // While threads have to sleep, sharing is for larger ones.
        ten.rests_until.store(u64::MAX, Ordering::Relaxed);
        assert!(!ten.is_crowd(10) && ten.is_crowd(11));
    }
}
