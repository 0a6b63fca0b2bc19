//! Random numbers, shared by any number of threads without a lock.

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// `SplitMix64`, whose state is a mere counter.
#[derive(Debug)]
pub(crate) struct Random(AtomicU64);

impl Random {
    /// Seeded differently each time.
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(RandomState::new().hash_one(())))
    }

    fn next(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut n = self.0.fetch_add(STEP, Ordering::Relaxed);
        n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        n ^ (n >> 31)
    }

    /// A number from 0 on below `n`, which is not 0.
    pub(crate) fn below(&self, n: u64) -> u64 {
        self.next() % n
    }

    /// True so many times in a thousand.
    pub(crate) fn in_a_thousand(&self, times: u64) -> bool {
        self.below(1000) < times
    }

    /// A time within a range of milliseconds, to the microsecond.
    pub(crate) fn millis(&self, range: &Range<u64>) -> Duration {
        let micros = (range.end - range.start) * 1000;
        Duration::from_micros(range.start * 1000 + self.below(micros.max(1)))
    }

    /// A time from half of this to one and a half of it.
    pub(crate) fn about(&self, time: Duration) -> Duration {
        let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX / 4000);
        self.millis(&(millis / 2..millis + millis / 2))
    }
}
