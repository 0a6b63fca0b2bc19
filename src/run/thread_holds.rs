//! Which locks a thread has acquired and not released, so that
//! a thread that would wait for itself gets an error instead.

use std::cell::RefCell;
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use proto::values::Key;

use crate::run::hold::Hold;
use crate::run::identity::Identity;
use crate::system::random::HashMap;
use crate::wait::KeyHash;

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

/// How many are looked through one by one.
const FEW: usize = 16;

/// The holds that a thread has noted. A call costs the same however many others there are.
struct Entries {
    few: Vec<NotedHold>,
    /// Where there are more.
    many: Option<Box<Many>>,
}

/// Holds by their keys.
#[derive(Default)]
struct Many {
    keys: HashMap<Key, Vec<NotedHold>, KeyHash>,
    /// How many keys there may be until those whose holds have ended on other threads are removed.
    most: usize,
}

thread_local! {
    /// Of this thread alone, so that no mutex is needed.
    static ENTRIES: RefCell<Entries> = const { RefCell::new(Entries { few: Vec::new(), many: None }) };
}

impl Entries {
    fn add(&mut self, entry: NotedHold) {
        if self.few.len() == self.few.capacity() || self.few.len() == FEW {
            // Those that have ended are removed before the list would grow.
            self.few.retain(|entry| entry.hold().is_some());
            if self.few.len() == FEW {
                self.many.get_or_insert_default().take(&mut self.few);
                self.few = Vec::new();
            }
        }
        self.few.push(entry);
    }

    fn of_key(&self, key: &Key) -> impl Iterator<Item = &NotedHold> {
        let of_many = self.many.as_ref().and_then(|many| many.keys.get(key));
        self.few.iter().chain(of_many.into_iter().flatten())
    }
}

impl Many {
    fn take(&mut self, few: &mut Vec<NotedHold>) {
        for entry in few.drain(..) {
            if let Some(hold) = entry.hold() {
                self.keys.entry(hold.key.clone()).or_default().push(entry);
            }
        }
        if self.keys.len() > self.most {
            self.keys.retain(|_, entries| {
                entries.retain(|entry| entry.hold().is_some());
                !entries.is_empty()
            });
            self.keys.shrink_to_fit();
            self.most = self.keys.len() * 2;
        }
    }

    fn remove(&mut self, hold: &Hold) {
        if let Some(entries) = self.keys.get_mut(&hold.key) {
            entries.retain(|entry| !ptr::eq(entry.hold.as_ptr(), hold));
            if entries.is_empty() {
                self.keys.remove(&hold.key);
            }
        }
    }
}

/// Notes that this thread has acquired a lock.
pub(crate) fn note(locker: &Arc<Identity>, hold: &Arc<Hold>, kind: HoldKind) {
    let entry = NotedHold { locker: Arc::as_ptr(locker), hold: Arc::downgrade(hold), kind };
    // A thread that is ending has no list any more, and does not wait for itself.
    let _ = ENTRIES.try_with(|entries| entries.borrow_mut().add(entry));
}

/// Notes that the guard of a hold is gone, on the thread that has acquired it or another.
pub(crate) fn forget(hold: &Hold) {
    hold.is_dropped.store(true, Ordering::Relaxed);
    // Few are removed before their list would grow.
    let _ = ENTRIES.try_with(|entries| {
        if let Ok(mut entries) = entries.try_borrow_mut()
            && let Some(many) = &mut entries.many
        {
            many.remove(hold);
            entries.many.take_if(|many| many.keys.is_empty());
        }
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
        entries.of_key(key).filter(of_this_lock).fold(None, found)
    });
    folded.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    use crate::LockOptions;
    use crate::run::sink::EventSink;
    use crate::system::clock;
    use proto::lease::Lease;
    use proto::values::{Nonce, Protocol};

    /// What a guard has.
    struct Mark(Arc<Hold>);

    impl Drop for Mark {
        fn drop(&mut self) {
            super::forget(&self.0);
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

    fn counts() -> [usize; 3] {
        ENTRIES.with_borrow(|entries| {
            let many = entries.many.as_ref().map(|many| [many.keys.len(), many.keys.capacity()]);
            let [keys, room] = many.unwrap_or_default();
            [entries.few.len(), keys, room]
        })
    }

    #[test]
    fn entries_that_are_over_do_not_pile_up() {
        let (locker, key) = (Arc::new(Identity::new()), Key::from("k"));
        let kept = note(&locker, hold(&Key::from("kept")), HoldKind::Movable);
        for _ in 0..10_000 {
            drop(note(&locker, hold(&key), HoldKind::Movable));
        }
        let [few, many, _] = counts();
        assert!(few <= FEW && many == 0, "{few} {many}");
        assert!(by_this_thread(&locker, &Key::from("kept")).is_some());
        drop(kept);
    }

    #[test]
    fn many_are_found_by_their_keys_and_leave_nothing() {
        let locker = Arc::new(Identity::new());
        let key = |n: usize| Key::from(format!("k{n}"));
        let note = |n| note(&locker, hold(&key(n)), HoldKind::Movable);
        let mut marks: Vec<Mark> = (0..1000).map(note).collect();
        let again = note(7);
        // What is looked through one by one does not grow.
        let looked_at = |n| ENTRIES.with_borrow(|entries| entries.of_key(&key(n)).count());
        assert!(looked_at(7) <= FEW + 2 && looked_at(5000) <= FEW, "{}", looked_at(7));
        assert!((0..1000).all(|n| by_this_thread(&locker, &key(n)).is_some()));
        assert_eq!(by_this_thread(&locker, &key(1000)), None);
        drop(marks.remove(7));
        assert!(by_this_thread(&locker, &key(7)).is_some(), "it holds it once more");
        drop(again);
        assert_eq!(by_this_thread(&locker, &key(7)), None);
        drop(marks);
        assert_eq!(counts()[1..], [0, 0]);

        // Their guards end on another thread.
        let marks: Vec<Mark> = (0..1000).map(note).collect();
        thread::spawn(move || drop(marks)).join().unwrap();
        for n in 0..3 * FEW {
            drop(note(n));
        }
        let kept: Vec<Mark> = (2000..2000 + 3 * FEW).map(note).collect();
        assert!(counts()[1] <= 1000 + 3 * FEW);
        let more: Vec<Mark> = (5000..8000).map(note).collect();
        assert!(counts()[1] < 3000 + 4 * FEW, "the first thousand is gone: {:?}", counts());
        drop((kept, more));
        assert_eq!(counts()[1], 0);
    }
}
