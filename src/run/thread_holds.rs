//! Which locks a thread has acquired and not released, so that a thread that would wait for itself gets an error instead.

use std::cell::RefCell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use crate::run::hold::Hold;
use crate::values::identity::Identity;
use crate::values::key::Key;

/// How a thread holds a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum HoldKind {
    /// As a guard, which may be on another thread by now.
    Movable,
    /// In a `with`, whose guard cannot leave the thread.
    Scoped,
}

struct NotedHold {
    /// The same key on two servers is two locks. Of a locker that is there as long as the hold is.
    locker: *const Identity,
    hold: Weak<Hold>,
    kind: HoldKind,
}

impl NotedHold {
    /// Returns the hold, on whatever thread its guard is, until that is dropped.
    fn hold(&self) -> Option<Arc<Hold>> {
        self.hold.upgrade().filter(|hold| !hold.is_dropped.load(Ordering::Relaxed))
    }
}

thread_local! {
    /// Of this thread alone, so that no mutex is needed. Dead entries are removed before the list would grow.
    static ENTRIES: RefCell<Vec<NotedHold>> = const { RefCell::new(Vec::new()) };
}

/// Notes that this thread has acquired a lock.
pub(crate) fn note(locker: &Arc<Identity>, hold: &Arc<Hold>, kind: HoldKind) {
    let entry = NotedHold { locker: Arc::as_ptr(locker), hold: Arc::downgrade(hold), kind };
    // A thread that is ending has no list any more, and does not wait for itself.
    let _ = ENTRIES.try_with(|entries| {
        let mut entries = entries.borrow_mut();
        if entries.len() == entries.capacity() {
            entries.retain(|entry| entry.hold().is_some());
        }
        entries.push(entry);
    });
}

/// Returns how this thread holds the lock, in a `with` before all, if it has acquired it and it has not been released.
pub(crate) fn by_this_thread(locker: &Arc<Identity>, key: &Key) -> Option<HoldKind> {
    fold(locker, key, |found, entry| found.max(Some(entry.kind)))
}

/// Returns the hold of the `with` that this thread is in, if it is in one.
pub(crate) fn scoped(locker: &Arc<Identity>, key: &Key) -> Option<Arc<Hold>> {
    fold(locker, key, |found, entry| match entry.kind {
        HoldKind::Scoped => found.or_else(|| entry.hold()),
        HoldKind::Movable => found,
    })
}

fn fold<R>(
    locker: &Arc<Identity>,
    key: &Key,
    found: impl Fn(Option<R>, &NotedHold) -> Option<R>,
) -> Option<R> {
    let folded = ENTRIES.try_with(|entries| {
        let entries = entries.borrow();
        let of_this_lock = |entry: &&NotedHold| {
            entry.locker == Arc::as_ptr(locker) && entry.hold().is_some_and(|hold| hold.key == *key)
        };
        entries.iter().filter(of_this_lock).fold(None, found)
    });
    folded.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    use crate::LockOptions;
    use crate::report::sink::EventSink;
    use crate::rules::lease::Lease;
    use crate::values::clock;
    use crate::values::options::Protocol;
    use crate::values::value::Nonce;

    /// What a guard has.
    struct Mark(Arc<Hold>);

    impl Drop for Mark {
        fn drop(&mut self) {
            self.0.is_dropped.store(true, Ordering::Relaxed);
        }
    }

    fn note(locker: &Arc<Identity>, hold: Arc<Hold>, kind: HoldKind) -> Mark {
        super::note(locker, &hold, kind);
        Mark(hold)
    }

    fn hold(key: &Key) -> Arc<Hold> {
        let (now, options) = (clock::now(), LockOptions::without_expiration());
        let lease = Lease::beginning(now, None, Protocol::Classic, Nonce::from_random(1));
        Arc::new(Hold::new(key.clone(), options, now, lease, EventSink::default(), Arc::default()))
    }

    #[test]
    fn a_thread_is_told_of_its_own_locks_only() {
        let (locker, other) = (Arc::new(Identity::new()), Arc::new(Identity::new()));
        let key = Key::from("k");
        let mark = note(&locker, hold(&key), HoldKind::Scoped);
        assert_eq!(by_this_thread(&locker, &key), Some(HoldKind::Scoped));
        assert_eq!(by_this_thread(&locker, &Key::from("other")), None);
        assert_eq!(by_this_thread(&other, &key), None);
        thread::scope(|scope| {
            scope.spawn(|| assert_eq!(by_this_thread(&locker, &key), None));
        });
        drop(mark);
        assert_eq!(by_this_thread(&locker, &key), None);
    }

    #[test]
    fn a_holder_that_overran_does_not_end_the_next_one_s_entry() {
        let (locker, key) = (Arc::new(Identity::new()), Key::from("k"));
        let overran = note(&locker, hold(&key), HoldKind::Movable);
        let next = note(&locker, hold(&key), HoldKind::Scoped);
        assert_eq!(by_this_thread(&locker, &key), Some(HoldKind::Scoped));
        drop(overran);
        assert_eq!(by_this_thread(&locker, &key), Some(HoldKind::Scoped));
        drop(next);
        assert_eq!(by_this_thread(&locker, &key), None);
    }

    #[test]
    fn a_guard_that_ends_on_another_thread_ends_the_entry() {
        let (locker, key) = (Arc::new(Identity::new()), Key::from("k"));
        let mark = note(&locker, hold(&key), HoldKind::Movable);
        thread::spawn(move || drop(mark)).join().unwrap();
        assert_eq!(by_this_thread(&locker, &key), None);
    }

    #[test]
    fn entries_that_are_over_do_not_pile_up() {
        let (locker, key) = (Arc::new(Identity::new()), Key::from("k"));
        let kept = note(&locker, hold(&Key::from("kept")), HoldKind::Movable);
        for _ in 0..10_000 {
            drop(note(&locker, hold(&key), HoldKind::Movable));
        }
        ENTRIES.with_borrow(|entries| assert!(entries.len() < 16, "{}", entries.len()));
        assert!(by_this_thread(&locker, &Key::from("kept")).is_some());
        drop(kept);
    }
}
