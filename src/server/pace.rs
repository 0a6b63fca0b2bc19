//! How threads spend the time until another's trip takes them along and comes back: they give way to whoever else can run, a few times,
//! and then sleep.
//!
//! Sleeping and being woken costs more than a command does; giving way costs little, as long as those that run instead are threads
//! like this one, with some microseconds' work to do. Among threads that compute it costs a turn of theirs, some milliseconds. So it is
//! measured what giving way takes, and while that is too much nobody does, except that it is tried again ten times a second.

use std::sync::atomic::{AtomicU64, Ordering};
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
/// Giving way may take so long on average, and so much longer for each thread that is about: those of a crowd have a few microseconds'
/// work each.
const TURN: Duration = Duration::from_micros(500);
const TURN_OF_EACH: Duration = Duration::from_micros(8);
/// The average is over about so many times.
const MEMORY: u64 = 32;
/// So long nobody gives way after it has taken too long.
const REST: Duration = Duration::from_millis(100);
/// When nobody has been taken along for so long, one goes alone. A trip to a server on the same machine takes less; where the
/// way is longer, this is what a thread with company may lose.
const PATIENCE: Duration = Duration::from_micros(150);

/// What the threads of a window know about giving way.
#[derive(Debug)]
pub(super) struct Pace {
    /// How many could have a connection each.
    connections: usize,
    /// Nobody gives way before, in microseconds of uptime.
    rests_until: AtomicU64,
    /// What giving way has taken lately, in nanoseconds. Nobody minds if threads that note it at the same time lose some.
    takes: AtomicU64,
}

impl Pace {
    pub(super) fn new(connections: u32) -> Self {
        let connections = usize::try_from(connections).unwrap_or(usize::MAX);
        Self { connections, rests_until: AtomicU64::new(0), takes: AtomicU64::new(0) }
    }

    /// Whether so many threads had better share trips.
    pub(super) fn is_crowd(&self, threads: usize) -> bool {
        threads > FEW_THAT_SLEEP.min(self.connections)
            || threads > FEW.min(self.connections) && self.gives_way(clock::uptime())
    }

    /// Returns what a thread does with its time, among as many as `about` says, and after how long it has had enough.
    pub(super) fn waiting(
        &self,
        limits: &Limits<'_>,
        about: impl Fn() -> usize,
    ) -> impl FnMut(Waiting) -> bool {
        let (connected_by, answered_by) = (limits.connected_by, limits.answered_by);
        let mut times = TIMES;
        let mut to_go = (None, Uptime::MAX);
        move |waiting| {
            let now = clock::uptime();
            let until = match waiting {
                Waiting::ToGo { moved } => {
                    if to_go.0 != Some(moved) {
                        to_go = (Some(moved), now.after(PATIENCE).min(connected_by));
                    }
                    to_go.1
                }
                Waiting::ForTheAnswer => answered_by,
            };
            let left = until.since(now);
            if left.is_zero() {
                return false;
            }
            if times > 0 && self.gives_way(now) {
                times -= 1;
                thread::yield_now();
                self.note(now, clock::uptime(), about());
            } else {
                thread::park_timeout(left);
            }
            true
        }
    }

    fn gives_way(&self, now: Uptime) -> bool {
        now >= Uptime(Duration::from_micros(self.rests_until.load(Ordering::Relaxed)))
    }

    fn note(&self, from: Uptime, to: Uptime, about: usize) {
        let took = u64::try_from(to.since(from).as_nanos()).unwrap_or(u64::MAX);
        let takes = self.takes.load(Ordering::Relaxed);
        let takes = takes - takes / MEMORY + took / MEMORY;
        let about = u32::try_from(about).unwrap_or(u32::MAX);
        let is_long = Duration::from_nanos(takes) > TURN + TURN_OF_EACH * about;
        self.takes.store(if is_long { 0 } else { takes }, Ordering::Relaxed);
        if is_long {
            let until = u64::try_from(to.after(REST).0.as_micros()).unwrap_or(u64::MAX);
            self.rests_until.store(until, Ordering::Relaxed);
        }
    }
}
