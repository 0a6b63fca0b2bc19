//! The clock that all processes of this machine share, whatever language they are in: `CLOCK_MONOTONIC`, in
//! nanoseconds. And exact waits by it.

use std::hint;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// A point in time, in nanoseconds.
pub(crate) type Moment = u64;

/// How much of a hold is slept through; the rest is spun, so that no hold is longer for a sleep that overshoots.
const SLEPT_PART: u32 = 2;

pub(crate) fn now() -> Moment {
    read(ClockId::Monotonic)
}

/// Processor time that this process has used, in nanoseconds.
pub(crate) fn processor_time() -> u64 {
    read(ClockId::ProcessCPUTime)
}

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let [seconds, nanos] = [time.tv_sec, time.tv_nsec].map(|part| u64::try_from(part).unwrap_or(0));
    seconds * 1_000_000_000 + nanos
}

/// Returns when the wall clock will show, or has shown, so many seconds since 1970.
pub(crate) fn of_wall(seconds: f64) -> f64 {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    as_f64(now()) + (seconds - wall) * 1e9
}

pub(crate) fn sleep_until(moment: Moment) {
    thread::sleep(Duration::from_nanos(moment.saturating_sub(now())));
}

/// Returns after `time`, and hardly later.
pub(crate) fn pass(time: Duration) {
    let end = now() + nanos(time);
    thread::sleep(time / SLEPT_PART);
    while now() < end {
        hint::spin_loop();
    }
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Counts and nanoseconds stay far below what a float holds exactly.
#[allow(clippy::cast_precision_loss, reason = "below 2^53")]
pub(crate) fn as_f64(number: u64) -> f64 {
    number as f64
}

/// Milliseconds from one moment to another; negative if it was before.
pub(crate) fn millis_between(from: f64, to: Moment) -> f64 {
    (as_f64(to) - from) / 1e6
}
