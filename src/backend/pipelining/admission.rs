//! Restricting concurrency: of very many threads that send commands, some do so at a time, and the others sleep for longer.
//!
//! A few dozen threads keep a connection busy. With thousands, each reply would find its thread asleep, and its memory in no cache: waking
//! threads would cost more than anything else. So up to a number of threads are not restricted. Of more, some are admitted, and one that
//! comes back soon is admitted again at once; the others queue, first in, first out. A thread that leaves lets the first of the queue in if
//! few are inside, and so does one of several that leave, room or not; the next newcomer queues instead. (Dice, Kogan: "Avoiding
//! scalability collapse by restricting concurrency", 2019.) A thread that falls asleep inside leaves its place to another: where replies
//! take long, all are admitted.
//!
//! Why no thread waits for ever. `inside` counts the threads that have a place, those that were let in and are about to wake among them.
//!
//! 1. A thread queues, says so in `queued`, and looks at `inside` then; a thread that leaves lowers `inside`, and looks at `queued` then.
//!    By the fences one of them at least sees what the other has done: the first lets one in if there is room, the second if few are
//!    inside.
//! 2. So while threads queue, at least `fewest` are inside, which is at most `most`, or one is about to let another in. What is inside
//!    leaves by itself.
//! 3. A thread is let in under the lock of the queue, which takes it out, and is unparked then. It looks before each park, and an unpark
//!    before a park is kept. One that gives up leaves the queue under the same lock, unless it was let in meanwhile.
//!
//! `tests/models` runs this file on a model checker's mutexes, atomics and threads.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use super::sync::{Mutex, MutexGuard, PoisonError, Thread, current, park_until};

pub(crate) struct Admission {
    bounds: Bounds,
    inside: AtomicUsize,
    left: AtomicUsize,
    /// How many threads are in the queue.
    queued: AtomicUsize,
    queue: Mutex<VecDeque<Arc<Waiter>>>,
}

/// Which threads are admitted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Up to so many threads, inside and in the queue together, none queues.
    pub(crate) unrestricted: usize,
    /// Of more, a newcomer enters while fewer are inside.
    pub(crate) most: usize,
    /// While fewer are inside, each that leaves lets one in. At most `most`.
    pub(crate) fewest: usize,
    /// One of so many that leave lets one in anyway.
    pub(crate) share: usize,
}

struct Waiter {
    thread: Thread,
    let_in: AtomicBool,
}

impl Admission {
    pub(crate) fn new(bounds: Bounds) -> Self {
        debug_assert!(bounds.fewest <= bounds.most);
        Self {
            bounds,
            inside: AtomicUsize::new(0),
            left: AtomicUsize::new(0),
            queued: AtomicUsize::new(0),
            queue: Mutex::new(VecDeque::new()),
        }
    }

    /// Enters without waiting, however many are inside.
    pub(crate) fn enter(&self) -> Admitted<'_> {
        self.inside.fetch_add(1, Ordering::Relaxed);
        Admitted::to(self, false)
    }

    /// Enters when there is room, or in turn. `park` spends some time, ended by an unpark, and returns whether to go on waiting; it must not
    /// panic. A thread that gives up enters then.
    pub(crate) fn enter_in_turn(&self, mut park: impl FnMut() -> bool) -> Admitted<'_> {
        let Bounds { unrestricted, most, .. } = self.bounds;
        let room = |inside: usize| {
            let has_room = inside < most || inside + self.queued.load(Ordering::Relaxed) < unrestricted;
            has_room.then_some(inside + 1)
        };
        if self.inside.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_ok() {
            return Admitted::to(self, false);
        }
        let waiter = Arc::new(Waiter { thread: current(), let_in: AtomicBool::new(false) });
        let mut queue = self.lock();
        queue.push_back(Arc::clone(&waiter));
        self.queued.store(queue.len(), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.inside.load(Ordering::Relaxed) < most {
            self.let_in(queue);
        } else {
            drop(queue);
        }
        let look = |given_up: Option<()>| {
            if waiter.let_in.load(Ordering::Acquire) {
                return ControlFlow::Break(());
            }
            if given_up.is_none() {
                return ControlFlow::Continue(());
            }
            let mut queue = self.lock();
            if !waiter.let_in.load(Ordering::Relaxed) {
                queue.retain(|other| !Arc::ptr_eq(other, &waiter));
                self.queued.store(queue.len(), Ordering::Relaxed);
                self.inside.fetch_add(1, Ordering::Relaxed);
            }
            ControlFlow::Break(())
        };
        park_until(look, |()| park());
        Admitted::to(self, true)
    }

    /// Wakes the threads that queue, so that each looks whether it still has to wait.
    pub(crate) fn wake_queued(&self) {
        self.lock().iter().for_each(|waiter| waiter.thread.unpark());
    }

    fn leave(&self) {
        let others = self.inside.fetch_sub(1, Ordering::Relaxed) - 1;
        fence(Ordering::SeqCst);
        if self.queued.load(Ordering::Relaxed) == 0 {
            return;
        }
        let left = self.left.fetch_add(1, Ordering::Relaxed);
        if others < self.bounds.fewest || left.is_multiple_of(self.bounds.share) {
            self.let_in(self.lock());
        }
    }

    fn let_in(&self, mut queue: MutexGuard<'_, VecDeque<Arc<Waiter>>>) {
        let Some(first) = queue.pop_front() else { return };
        self.queued.store(queue.len(), Ordering::Relaxed);
        self.inside.fetch_add(1, Ordering::Relaxed);
        first.let_in.store(true, Ordering::Release);
        drop(queue);
        first.thread.unpark();
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Waiter>>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inside = self.inside.load(Ordering::Relaxed);
        f.debug_struct("Admission")
            .field("inside", &inside)
            .field("queued", &self.lock().len())
            .finish_non_exhaustive()
    }
}

/// A thread inside. Dropped, it leaves.
#[derive(Debug)]
pub(crate) struct Admitted<'a> {
    admission: &'a Admission,
    pub(crate) waited: bool,
    has_place: Cell<bool>,
}

impl<'a> Admitted<'a> {
    fn to(admission: &'a Admission, waited: bool) -> Self {
        Self { admission, waited, has_place: Cell::new(true) }
    }

    /// Whether threads queue outside.
    pub(crate) fn others_queue(&self) -> bool {
        self.admission.queued.load(Ordering::Relaxed) > 0
    }

    /// Leaves its place to another thread: this one is about to sleep, and needs none when it wakes.
    pub(crate) fn give_up_place(&self) {
        if self.has_place.replace(false) {
            self.admission.leave();
        }
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.give_up_place();
    }
}
