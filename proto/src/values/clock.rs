//! The time by the two clocks that a lock needs: the wall clock, which other processes share, and the monotonic one,
//! which cannot be set. Nothing here reads them.

use core::time::Duration;

/// One reading of both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Goes into values that other processes read.
    pub wall: Wall,
    /// Measures how long something takes, also while the wall clock is set.
    pub uptime: Uptime,
}

/// A point in time by the wall clock, in whole microseconds since 1970: the resolution of a lock's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wall(pub u64);

/// A point in time by the monotonic clock, in nanoseconds from its first reading in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uptime(u64);

#[inline]
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Clocks show no earlier second (September 2001, before there
/// was Redis): a smaller number is taken for no point in time.
pub(crate) const FIRST_PLAUSIBLE_SECOND: u32 = 1_000_000_000;

/// And none from this one on (in 2255). The times in values are up to ten years later, and may have ten digits.
const LAST_PLAUSIBLE_SECOND: u64 = 9_000_000_000;

impl Now {
    /// Returns true if the wall clock may be right. The clock of a board without a battery begins in 1970 until a
    /// server has told it the time.
    #[inline]
    pub fn is_plausible(self) -> bool {
        (FIRST_PLAUSIBLE_SECOND.into()..LAST_PLAUSIBLE_SECOND).contains(&(self.wall.0 / 1_000_000))
    }
}

impl Wall {
    #[cfg(test)]
    pub(crate) const MAX: Wall = Wall(u64::MAX);

    /// Returns the time `duration` later, at most the latest possible one.
    #[inline]
    pub fn after(self, duration: Duration) -> Wall {
        Wall(self.0.saturating_add(micros(duration)))
    }

    /// Returns the time `duration` earlier, at least 1970.
    #[inline]
    pub fn before(self, duration: Duration) -> Wall {
        Wall(self.0.saturating_sub(micros(duration)))
    }

    /// Returns the time from `earlier` until this one; zero if `earlier` is later.
    #[inline]
    pub fn since(self, earlier: Wall) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl Uptime {
    /// In five centuries.
    pub const MAX: Uptime = Uptime(u64::MAX);

    /// Returns the point this long after the first reading, at most the latest possible one.
    #[inline]
    pub const fn of(duration: Duration) -> Self {
        let seconds = duration.as_secs().saturating_mul(1_000_000_000);
        Self(seconds.saturating_add(duration.subsec_nanos() as u64))
    }

    /// Returns the time `duration` later, at most the latest possible one.
    #[inline]
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(Self::of(duration).0))
    }

    /// Returns the time `duration` earlier, at least that of the first reading.
    #[inline]
    pub fn before(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(Self::of(duration).0))
    }

    /// Returns the time from `earlier` until this one; zero if `earlier` is later.
    #[inline]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns the time since the first reading, in whole microseconds.
    #[inline]
    pub fn micros(self) -> u64 {
        self.0 / 1000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn far_times_saturate() {
        assert_eq!(Wall(5).after(Duration::MAX), Wall::MAX);
        assert_eq!(Uptime::of(Duration::from_secs(1)).after(Duration::MAX), Uptime::MAX);
        assert_eq!(Wall(5).since(Wall(9)), Duration::ZERO);
    }
}
