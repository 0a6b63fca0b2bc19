//! Tells a forked child from its parent, also if both have the same process id: in a new pid namespace each first
//! process has the id 1, and an id is used again once its process has ended.
//!
//! ```
//! let process = setnx_lock_fork::Process::current();
//! assert!(process.is_current());
//! // In a child that this process forks, `process.is_current()` is false.
//! ```

use std::sync::atomic::{AtomicUsize, Ordering};

/// How many forks lie between the first process that asked for a [`Process`] and this one.
static FORKS: AtomicUsize = AtomicUsize::new(0);

/// A process, which a forked child of it is not.
///
/// What is made by the system call alone, without the C library's `fork`, is known by its process id only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    id: u32,
    forks: usize,
}

impl Process {
    /// Returns this process.
    #[must_use]
    pub fn current() -> Self {
        count_forks();
        Self { id: std::process::id(), forks: FORKS.load(Ordering::Relaxed) }
    }

    /// Returns one that this process is not, for tests of what a forked child does.
    #[must_use]
    pub fn another() -> Self {
        let this = Self::current();
        Self { forks: this.forks.wrapping_add(1), ..this }
    }

    /// Returns true in this very process, and false in every process forked from it.
    #[inline]
    #[must_use]
    pub fn is_current(self) -> bool {
        self.forks == FORKS.load(Ordering::Relaxed) && self.id == std::process::id()
    }
}

/// Has each fork counted in the child from now on. Where the
/// system has no memory for that, the process id alone counts.
#[cfg(unix)]
fn count_forks() {
    use std::sync::Once;

    extern "C" fn in_child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    static COUNTED: Once = Once::new();
    COUNTED.call_once(|| {
        // SAFETY: the function only adds to an atomic number, which is safe between a fork and whatever comes next.
        #[allow(unsafe_code)]
        let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// There are no forks.
#[cfg(not(unix))]
fn count_forks() {}
