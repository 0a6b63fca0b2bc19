//! Connections that a burst has left are given back: those that were not used for a while are closed, down to one. A
//! thread looks at them, which is there while there are several.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::system::Process;

use super::sharing::Carrier;
use crate::net::jobs::Jobs;
use crate::net::lanes::Lanes;
use crate::system::clock;
use crate::system::sync::{Condvar, Mutex, wait_timeout};
use crate::system::thread;

/// How often they are looked at within the time after which they are closed.
const LOOKS: u32 = 4;

/// The connections of one server are looked at, until this is dropped.
pub(super) struct Spare {
    watcher: Arc<Watcher>,
    process: Process,
}

/// Looks at the connections of one server.
pub(super) struct Watcher {
    /// After how long without use a connection is closed.
    idle_timeout: Duration,
    watch: Mutex<Watch>,
    changed: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Watch {
    /// There is no thread.
    Off,
    On,
    /// The backend is gone.
    Ended,
}

impl Spare {
    pub(super) fn new(idle_timeout: Duration) -> Self {
        let watch = Mutex::new(Watch::Off);
        let watcher = Arc::new(Watcher { idle_timeout, watch, changed: Condvar::default() });
        Self { watcher, process: Process::current() }
    }

    pub(super) fn watcher(&self) -> Arc<Watcher> {
        Arc::clone(&self.watcher)
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        // I10: in a forked child the thread is not there, and may have had the mutex.
        if self.process.is_current() {
            *self.watcher.watch.lock() = Watch::Ended;
            self.watcher.changed.notify_all();
        }
    }
}

impl Watcher {
    /// Has a thread look at the connections, if there are several and none does. If it cannot be started, the next one
    /// that is opened has it started.
    pub(super) fn watch(self: &Arc<Self>, lanes: &Arc<Lanes<Jobs, Carrier>>) {
        if lanes.count() < 2 {
            return;
        }
        let mut watch = self.watch.lock();
        if *watch == Watch::Off {
            let (this, lanes) = (Arc::clone(self), Arc::downgrade(lanes));
            let thread = thread::named("setnx-lock-idle");
            if thread.spawn(move || while this.closes_unused(&lanes) {}).is_ok() {
                *watch = Watch::On;
            }
        }
    }

    /// Waits a while, and closes what was not used. Returns false if there is nothing more to do.
    fn closes_unused(&self, lanes: &Weak<Lanes<Jobs, Carrier>>) -> bool {
        let watch = self.watch.lock();
        if *watch == Watch::Ended {
            return false;
        }
        let mut watch = wait_timeout(&self.changed, watch, self.idle_timeout / LOOKS);
        let Some(lanes) = lanes.upgrade().filter(|_| *watch == Watch::On) else { return false };
        let before = clock::uptime().before(self.idle_timeout);
        let (unused, several) = lanes.take_unused(|carrier| carrier.connection.is_unused_since(before));
        if !several {
            *watch = Watch::Off;
        }
        drop(watch);
        // A system call each.
        drop(unused);
        several
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_child_does_not_wait_for_the_thread_of_its_parent() {
        let minute = Duration::from_secs(60);
        let mut spare = Spare::new(minute);
        spare.process = Process::another();
        let watcher = spare.watcher();
        let locked = watcher.watch.lock();
        // It would wait for ever.
        drop(spare);
        assert!(*locked == Watch::Off);
    }
}
