//! By how much a server's clock differs from ours, derived from readings
//! of both. Pure: the readings are arguments, as times since 1970.

use std::fmt;
use std::time::Duration;

/// By how much the server's wall clock is ahead of this machine's, or behind it. Known to within the time that the
/// server took to answer, and before Redis 2.6, which reports whole seconds only, some hundredths of a second more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClockDifference {
    /// Microseconds that the server is ahead of us, at least and at most.
    pub(super) least: i64,
    pub(super) most: i64,
}

impl ClockDifference {
    /// Judges by one reading: at some time between our `before` and
    /// `after` the server's clock stood at `server` or up to `unit` later.
    pub(super) fn of(before: Duration, after: Duration, server: Duration, unit: Duration) -> Self {
        Self { least: apart(server, after), most: apart(server.saturating_add(unit), before) }
    }

    /// Judges by another reading as well. Two that contradict each
    /// other say that a clock was set in between: the later counts.
    pub(super) fn and(self, later: Self) -> Self {
        let (least, most) = (self.least.max(later.least), self.most.min(later.most));
        if least <= most { Self { least, most } } else { later }
    }

    /// How far the clocks are apart at least, whichever is ahead.
    pub(super) fn at_least(self) -> Duration {
        if self.least <= 0 && self.most >= 0 {
            return Duration::ZERO;
        }
        Duration::from_micros(self.least.unsigned_abs().min(self.most.unsigned_abs()))
    }

    /// How far the clocks are apart at most, whichever is ahead.
    pub(super) fn at_most(self) -> Duration {
        Duration::from_micros(self.least.unsigned_abs().max(self.most.unsigned_abs()))
    }
}

fn apart(server: Duration, ours: Duration) -> i64 {
    let micros = |time: Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
    micros(server) - micros(ours)
}

impl fmt::Display for ClockDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (least, most) = (self.at_least(), self.at_most());
        match (self.least > 0, self.most < 0) {
            (true, _) => write!(f, "{least:?} to {most:?} ahead of ours"),
            (_, true) => write!(f, "{least:?} to {most:?} behind ours"),
            _ => write!(f, "within {most:?} of ours"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(millis: u64) -> Duration {
        Duration::from_secs(1_795_000_000) + Duration::from_millis(millis)
    }

    #[test]
    fn a_reading_bounds_the_difference_by_the_time_it_took() {
        let difference = ClockDifference::of(at(100), at(104), at(5103), Duration::ZERO);
        assert_eq!((difference.least, difference.most), (4_999_000, 5_003_000));
        assert_eq!(difference.to_string(), "4.999s to 5.003s ahead of ours");
        let behind = ClockDifference::of(at(5100), at(5104), at(103), Duration::ZERO);
        assert_eq!(
            (behind.at_least(), behind.at_most()),
            (Duration::from_millis(4997), Duration::from_millis(5001))
        );
        assert_eq!(behind.to_string(), "4.997s to 5.001s behind ours");
        let none = ClockDifference::of(at(100), at(104), at(103), Duration::ZERO);
        assert_eq!(none.at_least(), Duration::ZERO);
        assert_eq!(none.to_string(), "within 3ms of ours");
    }

    #[test]
    fn whole_seconds_are_narrowed_down_by_seeing_one_begin() {
        // The server is 0.3 s ahead and reports whole seconds: its second 1 begins when our clock says 700.
        let before = ClockDifference::of(at(680), at(681), at(0), SECOND);
        assert_eq!(before.at_most(), Duration::from_millis(681));
        let both = before.and(ClockDifference::of(at(702), at(703), at(1000), SECOND));
        assert_eq!((both.least, both.most), (297_000, 320_000));
    }

    #[test]
    fn of_two_readings_that_contradict_each_other_the_later_counts() {
        let later = ClockDifference::of(at(100), at(101), at(100), Duration::ZERO);
        assert_eq!(ClockDifference::of(at(0), at(1), at(9000), Duration::ZERO).and(later), later);
    }
}
