//! Random numbers for maps, by the name of [`std::hash`].

use std::hash::{BuildHasher, DefaultHasher, Hasher as _};

use crate::scheduler::scheduler;

/// Makes hashes that differ from map to map, by numbers of the seed.
#[derive(Clone, Debug)]
pub struct RandomState(u64);

impl RandomState {
    /// Returns one with numbers of its own.
    #[must_use]
    pub fn new() -> Self {
        Self(scheduler().lock().random.u64(..))
    }
}

impl Default for RandomState {
    fn default() -> Self {
        Self::new()
    }
}

impl BuildHasher for RandomState {
    type Hasher = DefaultHasher;

    fn build_hasher(&self) -> DefaultHasher {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.0);
        hasher
    }
}
