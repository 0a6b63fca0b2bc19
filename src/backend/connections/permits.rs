//! Permits to use a connection: a counting semaphore, first come, first served.
//!
//! A thread that has found no connection with its permit, and has to wait for one, does not want a free permit, which is no better than
//! its own. It waits for the next that is returned, ahead of the threads that have none. Of these, threads that release a lock go first.
//!
//! Why no thread waits for ever, and none is overtaken by one of its class. `all` holds the free permits and the queue.
//!
//! 1. While a permit is free, only threads wait that want one that is returned: a permit that is returned goes to the first of the queue,
//!    and is free only if there is none.
//! 2. A waiter is granted its permit under the lock of `all`, which takes it out of the queue, and is unparked then. It looks before each
//!    park, and an unpark before a park is kept.
//! 3. A waiter that gives up leaves the queue under the same lock, unless it was granted a permit meanwhile, which it takes then.
//! 4. A thread that wants a permit that is returned says how many were when it looked for a connection. If there were more since, it does
//!    not wait.
//!
//! `tests/models` runs this file on a model checker's mutexes and threads.

use std::collections::VecDeque;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use super::sync::{Mutex, MutexGuard, PoisonError, Thread, current, park_until};

pub(crate) struct Permits {
    all: Mutex<All>,
    /// How many permits were retired since that was last asked.
    newly_retired: AtomicUsize,
}

struct All {
    free: usize,
    /// In the order of their classes, each first in, first out.
    queue: VecDeque<Arc<Waiter>>,
    /// How many permits were returned.
    returned: usize,
}

struct Waiter {
    thread: Thread,
    class: Class,
    granted: AtomicBool,
}

/// Which threads are granted a permit before others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// It has a permit, and waits for the connection of another.
    HasPermit,
    /// It releases a lock, which others wait for.
    Releases,
    Other,
}

impl Permits {
    pub(crate) fn new(free: usize) -> Arc<Self> {
        let all = All { free, queue: VecDeque::new(), returned: 0 };
        Arc::new(Self { all: Mutex::new(all), newly_retired: AtomicUsize::new(0) })
    }

    /// Returns a permit, if one is free. It overtakes no waiter.
    pub(crate) fn try_acquire(self: &Arc<Self>) -> Option<Permit> {
        let mut all = self.lock();
        all.free = all.free.checked_sub(1)?;
        Some(Permit(Some(Arc::clone(self))))
    }

    /// Returns how many permits were retired since this was last called.
    pub(crate) fn newly_retired(&self) -> usize {
        // Nearly always there are none, and this is called for each command.
        if self.newly_retired.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        self.newly_retired.swap(0, Ordering::Relaxed)
    }

    /// Returns how many permits were returned so far.
    pub(crate) fn returned(&self) -> usize {
        self.lock().returned
    }

    /// Waits for a permit. `park` spends some time, ended by an unpark, and returns whether to go on; it must not panic.
    pub(crate) fn acquire(self: &Arc<Self>, class: Class, park: impl FnMut() -> bool) -> Option<Permit> {
        let mut all = self.lock();
        if all.free > 0 {
            all.free -= 1;
            return Some(Permit(Some(Arc::clone(self))));
        }
        self.wait(all, class, park)
    }

    /// Waits for the next permit that is returned, after so many were.
    pub(crate) fn next_returned(
        self: &Arc<Self>,
        returned: usize,
        park: impl FnMut() -> bool,
    ) -> Option<Permit> {
        let mut all = self.lock();
        if all.free > 0 && all.returned != returned {
            all.free -= 1;
            return Some(Permit(Some(Arc::clone(self))));
        }
        self.wait(all, Class::HasPermit, park)
    }

    fn wait(
        self: &Arc<Self>,
        mut all: MutexGuard<'_, All>,
        class: Class,
        mut park: impl FnMut() -> bool,
    ) -> Option<Permit> {
        let waiter = Arc::new(Waiter { thread: current(), class, granted: AtomicBool::new(false) });
        let position = all.queue.partition_point(|other| other.class <= class);
        all.queue.insert(position, Arc::clone(&waiter));
        drop(all);
        let granted = || waiter.granted.load(Ordering::Acquire);
        let look = |given_up: Option<()>| {
            if granted() {
                return ControlFlow::Break(true);
            }
            if given_up.is_none() {
                return ControlFlow::Continue(());
            }
            let mut all = self.lock();
            if !granted() {
                all.queue.retain(|other| !Arc::ptr_eq(other, &waiter));
            }
            ControlFlow::Break(granted())
        };
        park_until(look, |()| park()).then(|| Permit(Some(Arc::clone(self))))
    }

    /// Whether threads wait for a permit.
    pub(crate) fn has_waiters(&self) -> bool {
        !self.lock().queue.is_empty()
    }

    /// Wakes all waiters, so that each looks whether it still has to wait.
    pub(crate) fn wake_all(&self) {
        let all = self.lock();
        all.queue.iter().for_each(|waiter| waiter.thread.unpark());
    }

    fn release(&self) {
        let mut all = self.lock();
        all.returned = all.returned.wrapping_add(1);
        let Some(first) = all.queue.pop_front() else {
            all.free += 1;
            return;
        };
        first.granted.store(true, Ordering::Release);
        drop(all);
        first.thread.unpark();
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Permits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.lock();
        f.debug_struct("Permits").field("free", &all.free).field("queued", &all.queue.len()).finish()
    }
}

/// A permit. Returned when it is dropped.
#[derive(Debug)]
pub(crate) struct Permit(Option<Arc<Permits>>);

impl Permit {
    /// Returns a permit without a connection: to the first thread that has none.
    pub(crate) fn give_away(mut self) {
        let Some(permits) = self.0.take() else { return };
        let mut all = permits.lock();
        let position = all.queue.partition_point(|waiter| waiter.class == Class::HasPermit);
        let Some(first) = all.queue.remove(position) else {
            all.free += 1;
            return;
        };
        first.granted.store(true, Ordering::Release);
        drop(all);
        first.thread.unpark();
    }

    /// Takes the permit out of use: there is one less.
    pub(crate) fn retire(mut self) {
        if let Some(permits) = self.0.take() {
            permits.newly_retired.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(permits) = self.0.take() {
            permits.release();
        }
    }
}
