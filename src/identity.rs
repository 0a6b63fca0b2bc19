//! Who is asking: the random digits that name a holder, and the process it lives in.

use std::hash::{BuildHasher, RandomState};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::value::Nonce;

/// A process as its locks name it. Made with each locker.
#[derive(Debug)]
pub(crate) struct Identity {
    process: u32,
    /// The standard library's randomness, seeded by the system.
    keys: RandomState,
    count: AtomicU64,
}

impl Identity {
    pub(crate) fn new() -> Self {
        Self { process: process::id(), keys: RandomState::new(), count: AtomicU64::new(0) }
    }

    /// Returns random digits for the next holder. The process number is mixed in because a forked child inherits the state
    /// that keys are made from, and makes the same for a locker of its own as its parent for its next.
    pub(crate) fn next_nonce(&self) -> Nonce {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        Nonce::from_random(self.keys.hash_one((self.process, count)))
    }

    /// Whether this is the process that made it, and not a forked child of that (I10).
    pub(crate) fn is_this_process(&self) -> bool {
        self.process == process::id()
    }

    #[cfg(test)]
    pub(crate) fn as_forked_child() -> Self {
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
