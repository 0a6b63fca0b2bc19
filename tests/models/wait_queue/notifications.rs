//! The release notifications of the first key, as a list on a server.

use shuttle::sync::Condvar;

use super::sync::{Mutex, wait_while};

#[derive(Default)]
pub(super) struct Notifications {
    list: Mutex<List>,
    changed: Condvar,
}

#[derive(Default)]
struct List {
    length: usize,
    /// Whether this process waits for notifications.
    wanted: bool,
    stopped: bool,
}

impl Notifications {
    pub(super) fn send(&self) {
        self.list.lock().length += 1;
        self.changed.notify_all();
    }

    pub(super) fn want(&self) {
        self.list.lock().wanted = true;
        self.changed.notify_all();
    }

    /// Takes a notification. Returns `false` once stopped.
    pub(super) fn next(&self) -> bool {
        let list = self.list.lock();
        let silent = |list: &mut List| !list.stopped && (list.length == 0 || !list.wanted);
        let mut list = wait_while(&self.changed, list, silent);
        if list.stopped {
            return false;
        }
        list.length -= 1;
        true
    }

    pub(super) fn put_back(&self, still_wanted: impl FnOnce() -> bool) {
        let mut list = self.list.lock();
        list.length += 1;
        list.wanted = still_wanted();
    }

    pub(super) fn stop(&self) {
        self.list.lock().stopped = true;
        self.changed.notify_all();
    }
}
