//! The two clocks. Only [`now`] and [`uptime`] read them; everywhere else in the library the time is an argument.

use std::sync::OnceLock;

use proto::values::{Now, Uptime, Wall};

use super::per_process::PerProcess;
use super::source::time::{Instant, SystemTime, UNIX_EPOCH};

/// Reads both clocks. A wall clock set before 1970 reads as 1970.
#[inline]
pub(crate) fn now() -> Now {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now { wall: Wall(0).after(since_1970), uptime: uptime() }
}

/// Reads the monotonic clock alone.
#[inline]
pub(crate) fn uptime() -> Uptime {
    static START: PerProcess<OnceLock<Instant>> = PerProcess::new(OnceLock::new());
    Uptime::of(START.get().get_or_init(Instant::now).elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monotonic_time_never_goes_back_and_wall_time_is_this_century() {
        let first = now();
        let second = now();
        assert!(second.uptime >= first.uptime);
        assert!(first.wall > Wall(1_700_000_000_000_000), "{first:?}");
    }
}
