//! The identity of a holder: the random digits that name it, and its process.

use std::hash::{BuildHasher, RandomState};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::values::value::Nonce;

/// The source of the nonces of one locker, and the process it belongs to.
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

    /// Returns random digits for the next holder. The process id is mixed in, since a forked child inherits the state that `keys` are
    /// made from: a new locker in the child would have the same `keys` as the parent's next.
    pub(crate) fn next_nonce(&self) -> Nonce {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        Nonce::from_random(self.keys.hash_one((self.process, count)))
    }

    /// Returns true if this is the process that made it, and not a forked child (I10).
    pub(crate) fn is_this_process(&self) -> bool {
        self.process == process::id()
    }

    #[cfg(test)]
    pub(crate) fn in_forked_child() -> Self {
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
