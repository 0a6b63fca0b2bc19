//! Threads that acquire, hold and release again and again: what W11 and W12 have in common.

use std::thread;
use std::time::Duration;

use crate::Failure;
use crate::moment::{Moment, as_f64, nanos, now};

/// How long each acquisition is held. The threads sleep, so that many can hold at a time on few processors.
pub(super) const HOLD: Duration = Duration::from_millis(1);

/// Acquires, calls what it is given, and releases.
pub(super) type Work<'a> = Box<dyn FnMut(&mut dyn FnMut()) -> Result<(), Failure> + Send + 'a>;

/// The acquisitions of one thread.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Log {
    acquisitions: u64,
    /// The longest wait, in nanoseconds.
    longest: u64,
}

/// The acquisitions of all threads of one kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Summary {
    /// Acquisitions a second, of all threads together.
    pub(super) rate: f64,
    /// The fewest acquisitions of a thread, as a part of an equal share.
    pub(super) smallest_share: f64,
    /// The longest wait of a thread, in milliseconds.
    pub(super) longest: f64,
}

/// Does each work on a thread of its own, again and again for `time`.
/// A failure ends its thread, and is returned once all have ended.
pub(super) fn run_threads(time: Duration, work: Vec<Work<'_>>) -> Result<Vec<Log>, Failure> {
    let end = now() + nanos(time);
    thread::scope(|scope| {
        let threads: Vec<_> = work.into_iter().map(|work| scope.spawn(move || repeat(work, end))).collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| "a thread has panicked")?).collect()
    })
}

fn repeat(mut work: Work<'_>, end: Moment) -> Result<Log, Failure> {
    let mut log = Log::default();
    loop {
        let asked = now();
        if asked >= end {
            return Ok(log);
        }
        work(&mut || {
            let entered = now();
            log.longest = log.longest.max(entered.min(end) - asked);
            // An acquisition after the end does not count, and delays no other.
            if entered < end {
                log.acquisitions += 1;
                thread::sleep(HOLD);
            }
        })?;
    }
}

impl Summary {
    pub(super) fn of(logs: &[Log], time: Duration) -> Self {
        let counts = || logs.iter().map(|log| log.acquisitions);
        let (total, least) = (as_f64(counts().sum()), as_f64(counts().min().unwrap_or(0)));
        Self {
            rate: total / time.as_secs_f64(),
            smallest_share: least * as_f64(logs.len() as u64) / total,
            longest: as_f64(logs.iter().map(|log| log.longest).max().unwrap_or(0)) / 1e6,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_share_is_relative_to_an_equal_one() {
        let log = |acquisitions, longest| Log { acquisitions, longest };
        let summary = Summary::of(&[log(10, 1_000_000), log(5, 3_000_000)], Duration::from_secs(3));
        assert!((summary.rate - 5.0).abs() < 1e-9);
        assert!((summary.smallest_share - 2.0 / 3.0).abs() < 1e-9);
        assert!((summary.longest - 3.0).abs() < 1e-9);
    }
}
