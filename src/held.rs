//! Which locks of a locker are held in this process, and by which thread: so that a thread that waits for itself is told so
//! instead of waiting.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use crate::key::Key;

/// The locks held through one locker.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held(Arc<Mutex<HashMap<Key, Holder>>>);

#[derive(Clone, Copy, Debug)]
struct Holder {
    thread: ThreadId,
    /// In a `with`, whose guard cannot leave its thread. A guard of its own may be anywhere by now.
    scoped: bool,
    /// Tells a holder from the next, who may come while the first has not noticed that its lease has passed.
    serial: u64,
}

/// A holder's entry, removed when dropped.
#[derive(Debug)]
pub(crate) struct Registration {
    held: Held,
    key: Key,
    serial: u64,
}

impl Held {
    pub(crate) fn register(&self, key: &Key, scoped: bool) -> Registration {
        let mut entries = self.entries();
        let serial = entries.get(key).map_or(0, |earlier| earlier.serial + 1);
        entries.insert(key.clone(), Holder { thread: thread::current().id(), scoped, serial });
        Registration { held: self.clone(), key: key.clone(), serial }
    }

    /// Whether this thread is inside a `with` on the key.
    pub(crate) fn encloses_this_thread(&self, key: &Key) -> bool {
        self.entries().get(key).is_some_and(|holder| holder.scoped && holder.thread == thread::current().id())
    }

    /// Whether this thread took the lock on the key. Its guard may have been moved to another thread since.
    pub(crate) fn taken_by_this_thread(&self, key: &Key) -> bool {
        self.entries().get(key).is_some_and(|holder| holder.thread == thread::current().id())
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<Key, Holder>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut entries = self.held.entries();
        if entries.get(&self.key).is_some_and(|holder| holder.serial == self.serial) {
            entries.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_told_of_its_own_locks_only() {
        let held = Held::default();
        let key = Key::from("k");
        let registration = held.register(&key, true);
        assert!(held.encloses_this_thread(&key) && held.taken_by_this_thread(&key));
        assert!(!held.taken_by_this_thread(&Key::from("other")));
        thread::scope(|scope| {
            scope.spawn(|| assert!(!held.encloses_this_thread(&key) && !held.taken_by_this_thread(&key)));
        });
        drop(registration);
        assert!(!held.taken_by_this_thread(&key));
    }

    #[test]
    fn a_holder_that_overran_does_not_remove_the_next() {
        let held = Held::default();
        let key = Key::from("k");
        let overran = held.register(&key, false);
        let _next = held.register(&key, false);
        drop(overran);
        assert!(held.taken_by_this_thread(&key) && !held.encloses_this_thread(&key));
    }
}
