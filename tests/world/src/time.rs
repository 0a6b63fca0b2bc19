//! The clocks of a process, by the names of [`std::time`].

use std::time::Duration;

use crate::scheduler::{own, scheduler};

/// When every run begins, in seconds after 1970.
const BEGINS: i64 = 1_795_000_000;

/// A point in time by the monotonic clock of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(u64);

impl Instant {
    /// Reads the clock. Lets no other thread run: what a process keeps once may begin with it.
    #[must_use]
    pub fn now() -> Self {
        let own = own();
        let state = scheduler().lock();
        Self(state.processes[state.threads[own].process].uptime(state.now))
    }

    /// Returns how much time has passed since.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        scheduler().step();
        Self::now().duration_since(*self)
    }

    /// Returns how much time has passed since `earlier`; zero if that is later.
    #[must_use]
    pub fn duration_since(&self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A point in time by the wall clock of the process, in nanoseconds after 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SystemTime(i64);

/// 1970.
pub const UNIX_EPOCH: SystemTime = SystemTime(0);

impl SystemTime {
    /// Reads the clock.
    #[must_use]
    pub fn now() -> Self {
        scheduler().step();
        let own = own();
        let state = scheduler().lock();
        Self(BEGINS * 1_000_000_000 + state.processes[state.threads[own].process].wall(state.now))
    }

    /// Returns how much time has passed since.
    ///
    /// # Errors
    ///
    /// If `earlier` is later: by how much.
    pub fn duration_since(&self, earlier: Self) -> Result<Duration, Duration> {
        let apart = Duration::from_nanos(self.0.abs_diff(earlier.0));
        if self >= &earlier { Ok(apart) } else { Err(apart) }
    }
}

/// Returns the true time since 1970.
pub(crate) fn true_time() -> Duration {
    Duration::from_secs(BEGINS.unsigned_abs()) + Duration::from_nanos(scheduler().now())
}
