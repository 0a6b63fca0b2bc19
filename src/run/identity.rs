//! The identity of a holder: the random digits that name it, and its process.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use proto::values::Nonce;

use crate::system::random::RandomState;
use crate::system::{Process, thread};

/// The source of the nonces of one locker, and the process it belongs to.
#[derive(Debug)]
pub(crate) struct Identity {
    process: Process,
    seed: u64,
    count: AtomicU64,
}

impl Identity {
    pub(crate) fn new() -> Self {
        Self { process: Process::current(), seed: seed(), count: AtomicU64::new(0) }
    }

    /// Returns random digits for the next holder.
    pub(crate) fn next_nonce(&self) -> Nonce {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        Nonce::from_random(mixed(self.seed.wrapping_add(count.wrapping_mul(0x9e37_79b9_7f4a_7c15))))
    }

    /// Returns true if this is the process that made it, and not a forked child (I10).
    pub(crate) fn is_this_process(&self) -> bool {
        self.process.is_current()
    }

    #[cfg(test)]
    pub(crate) fn in_forked_child() -> Self {
        Self { process: Process::another(), ..Self::new() }
    }
}

/// Returns random digits of the system. The standard library asks it once for each
/// thread, and a forked child inherits what its own was given: a new locker in the
/// child would have the same as the parent's next, or as that of another child.
fn seed() -> u64 {
    let of_system = || RandomState::new().hash_one(Process::current());
    let of_thread = thread::named("setnx-lock-seed").spawn(of_system);
    of_thread.ok().and_then(|thread| thread.join().ok()).unwrap_or_else(of_system)
}

/// The last step of splitmix64, Steele, Lea and Flood's generator: each bit of the number changes about half of these.
fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
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
