//! Who is asking: the random digits that name a holder, and the process it lives in.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::value::Nonce;

/// A process as its locks name it. Made with each locker.
#[derive(Debug)]
pub(crate) struct Identity {
    process: u32,
    state: AtomicU64,
}

impl Identity {
    /// Seeds from the standard library's randomness, whose hash keys come from the system. The process number is mixed in
    /// because a forked child inherits those keys.
    pub(crate) fn new() -> Self {
        let process = process::id();
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u32(process);
        Self { process, state: AtomicU64::new(hasher.finish()) }
    }

    /// Returns digits for the next holder: one of a sequence that repeats after 2^64 (`SplitMix64`).
    pub(crate) fn next_nonce(&self) -> Nonce {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut z = self.state.fetch_add(STEP, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Nonce::from_random(z ^ (z >> 31))
    }

    /// Whether this is the process that made it, and not a forked child of that (I10).
    pub(crate) fn is_this_process(&self) -> bool {
        self.process == process::id()
    }

    #[cfg(test)]
    pub(crate) fn of_a_parent() -> Self {
        Self { process: process::id().wrapping_add(1), ..Self::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn nonces_differ_within_a_process_and_among_processes() {
        let (one, other) = (Identity::new(), Identity::new());
        let nonces: HashSet<String> = (0..1000)
            .flat_map(|_| [one.next_nonce(), other.next_nonce()])
            .map(|nonce| format!("{nonce:?}"))
            .collect();
        assert_eq!(nonces.len(), 2000);
    }
}
