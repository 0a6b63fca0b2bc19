//! Wakes threads that wait for a loss.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::system::sync::{Condvar, Mutex, wait_timeout};

/// Wakes the threads that wait for a loss when something has changed of any lock of the locker.
#[derive(Default)]
pub(crate) struct Changes {
    /// How many there have been while threads waited.
    count: Mutex<u64>,
    changed: Condvar,
    /// How many threads wait: waking none takes a system call as well.
    waiting: AtomicUsize,
}

/// A thread that waits for a change.
pub(super) struct WaitingThread<'a> {
    changes: &'a Changes,
    /// How many changes it has seen.
    seen: u64,
}

impl Changes {
    /// Called after the change was written under a hold's mutex, under which a waiting thread reads it: one that has
    /// read it before is counted here.
    pub(super) fn note(&self) {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            *self.count.lock() += 1;
            self.changed.notify_all();
        }
    }

    pub(super) fn wait(&self) -> WaitingThread<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        WaitingThread { changes: self, seen: *self.count.lock() }
    }
}

impl WaitingThread<'_> {
    /// Sleeps until there is a change that it has not seen, and for this time at most.
    pub(super) fn sleep(&mut self, time: Duration) {
        let mut count = self.changes.count.lock();
        if *count == self.seen {
            count = wait_timeout(&self.changes.changed, count, time);
        }
        self.seen = *count;
    }
}

impl Drop for WaitingThread<'_> {
    fn drop(&mut self) {
        self.changes.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
