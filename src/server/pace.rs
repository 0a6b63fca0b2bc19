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
/// So much may be lost by it before there is a rest.
const LOSS: Duration = Duration::from_millis(10);
/// So long nobody gives way after it has taken too long; twice as long when that was soon so again, and at most so long.
const REST: Duration = Duration::from_millis(10);
const LONGEST_REST: Duration = Duration::from_secs(1);
/// When nobody has been taken along for so long, one goes alone. A trip to a server on the same machine takes less; where the
/// way is longer, this is what a thread with company may lose.
const PATIENCE: Duration = Duration::from_micros(150);
/// For so much longer than the answer may take its leader is waited for.
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
        let mut times = TIMES;
        let mut queued: Option<(usize, Uptime)> = None;
        let mut aboard = None;
        move |waiting| {
            let before = mark();
            let until = match waiting {
                Waiting::ToGo => match queued {
                    Some((moved, until)) if moved == before.moved => until,
                    _ => queued.insert((before.moved, before.at.after(PATIENCE).min(connected_by))).1,
                },
                Waiting::ForTheAnswer => {
                    *aboard.get_or_insert_with(|| before.at.after(self.command).after(GRACE).min(answered_by))
                }
            };
            let left = until.since(before.at);
            if left.is_zero() {
                return false;
            }
            if times > 0 && self.gives_way(before.at) {
                times -= 1;
                thread::yield_now();
                self.note(before, mark());
            } else {
                thread::park_timeout(left);
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
        let lost = took.saturating_sub(worth);
        if lost <= micros(LOSS) {
            self.lost.store(lost, Ordering::Relaxed);
            return;
        }
        let previous = self.rest.load(Ordering::Relaxed);
        let soon = until < self.rests_until.load(Ordering::Relaxed) + previous;
        let rest = if soon { (2 * previous).min(micros(LONGEST_REST)) } else { micros(REST) };
        self.rest.store(rest, Ordering::Relaxed);
        self.rests_until.store(until + rest, Ordering::Relaxed);
        // It takes less to learn that nothing has changed.
        self.lost.store(micros(LOSS) / 2, Ordering::Relaxed);
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
