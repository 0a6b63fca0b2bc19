//! The holders, as the queue knows them: how a release reaches the head, and how a lease is delivered.

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

use super::{
    Activity, All, AnyHold, Hint, Key, KeyQueue, Thread, Uptime, WaitMode, WaitQueue, Waiter, unpark,
};

/// How the head of a queue learns that a holder has released the lock, or has it no longer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wake {
    Hint(Hint),
    /// By this hint, since it is its turn among the processes.
    NextSlice(Hint),
    /// By a notification when it is the turn of this process again, if it waits for one; else by this hint.
    Notification(Hint),
    /// Another thread does, by the lease that was delivered to it.
    Delivered,
}

/// What ends with a lock, at the latest when it is dropped: a place in another queue.
pub(crate) trait Place: Send + Sync + UnwindSafe + RefUnwindSafe {
    /// Returns the name of that queue, and whether other processes that wait for it are notified; `None` once it has
    /// ended.
    fn name(&self) -> Option<(&Key, bool)>;

    /// Ends it: the head of that queue learns in this way.
    fn end(self: Box<Self>, wake: Wake);
}

/// A lock that a thread of this process holds, as the queue knows it. The waiters are notified when it is dropped.
pub(crate) struct HolderTicket<A> {
    queue: Arc<WaitQueue<A>>,
    key: Key,
    over: bool,
    place: Option<Box<dyn Place>>,
}

impl<A> HolderTicket<A> {
    pub(super) fn new(queue: &Arc<WaitQueue<A>>, key: &Key) -> Self {
        Self::ending_with(queue, key, None)
    }

    pub(super) fn ending_with(queue: &Arc<WaitQueue<A>>, key: &Key, place: Option<Box<dyn Place>>) -> Self {
        Self { queue: Arc::clone(queue), key: key.clone(), over: false, place }
    }

    /// Has this dropped when it ends, unless something is already.
    pub(crate) fn ends_with(&mut self, place: impl FnOnce() -> Box<dyn Place>) {
        self.place.get_or_insert_with(place);
    }

    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    /// Returns what ends with the lock.
    pub(crate) fn place(&self) -> Option<&dyn Place> {
        self.place.as_deref()
    }

    /// Ends what ends with the lock, before the lock itself.
    pub(crate) fn end_place(&mut self, wake: Wake) {
        if let Some(place) = self.place.take() {
            place.end(wake);
        }
    }

    /// Returns what `judge` says of the key; `None` if no thread waits.
    pub(crate) fn of_next<T>(&self, judge: impl FnOnce(Activity) -> T) -> Option<T> {
        let all = self.queue.0.lock();
        let queue = all.keys.get(&self.key).filter(|queue| !queue.waiters.is_empty())?;
        Some(judge(queue.activity?))
    }

    /// Returns since when the lock has passed among the threads of this process in its turn; `None` if no thread waits,
    /// or the first that does learns of a release by this holder alone.
    pub(crate) fn slice(&self) -> Option<Uptime> {
        self.queue.slice(&self.key)
    }

    /// Returns how the thread waits that comes next: see [`WaitQueue::next`].
    pub(crate) fn next(
        &self,
        taken: &mut Vec<u64>,
        can_take: impl FnOnce(&WaitMode) -> bool,
    ) -> Option<WaitMode> {
        self.queue.next(&self.key, taken, can_take)
    }

    /// Delivers the lease of this lock that was written for a waiting thread, to the first
    /// that sleeps and takes leases of this mode. Then this holder has the lock no longer.
    /// If there is none, returns the lease with this holder, whose it is to release.
    pub(crate) fn deliver(mut self, mode: &WaitMode, lease: A, now: Uptime) -> Result<(), (Self, A)> {
        let mut all = self.queue.0.lock();
        let delivered = match all.keys.get_mut(&self.key) {
            Some(queue) => queue.deliver(mode, lease, &mut self.place),
            None => Err(lease),
        };
        match delivered {
            Ok(thread) => {
                self.over = true;
                self.leave(&mut all, Wake::Delivered, Some(now));
                drop(all);
                thread.unpark();
                Ok(())
            }
            Err(lease) => {
                drop(all);
                Err((self, lease))
            }
        }
    }

    /// Notes another hold in place of the one that the lock was acquired with.
    pub(crate) fn now_as(&self, hold: AnyHold) {
        if let Some(queue) = self.queue.0.lock().keys.get_mut(&self.key) {
            queue.hold = hold;
        }
    }

    /// The lock is released.
    pub(crate) fn finish(mut self, wake: Wake, now: Uptime) {
        self.give_up(wake, Some(now));
    }

    fn give_up(&mut self, wake: Wake, now: Option<Uptime>) {
        self.over = true;
        let mut all = self.queue.0.lock();
        let told = self.leave(&mut all, wake, now);
        drop(all);
        unpark(told.as_ref());
    }

    /// Returns the thread to unpark once the mutex is free.
    fn leave(&self, all: &mut All<A>, wake: Wake, now: Option<Uptime>) -> Option<Thread> {
        all.leave(&self.key, |queue| queue.end_hold(wake, now)).flatten()
    }
}

impl<A> KeyQueue<A> {
    /// A holder has the lock no longer. Returns the thread to unpark once the mutex is free.
    fn end_hold(&mut self, wake: Wake, now: Option<Uptime>) -> Option<Thread> {
        self.holders -= 1;
        if let (Some(activity), Some(now)) = (&mut self.activity, now) {
            activity.ended(now);
        }
        if matches!(wake, Wake::NextSlice(_) | Wake::Notification(_)) || self.waiters.is_empty() {
            self.slice_since = None;
        }
        let is_notified = || self.waiters.front().is_some_and(|head| head.mode.is_notified());
        match wake {
            Wake::Delivered => None,
            Wake::Notification(_) if is_notified() => None,
            Wake::Hint(hint) | Wake::NextSlice(hint) | Wake::Notification(hint) => self.notify(hint),
        }
    }
}

impl<A> Waiter<A> {
    /// Returns true if a lease may be delivered to it. A hint that it has not seen yet has it ask for the lock.
    pub(super) fn is_free(&self) -> bool {
        self.asleep && self.hint.is_none() && self.lease.is_none()
    }
}

impl<A> Drop for HolderTicket<A> {
    fn drop(&mut self) {
        if !self.over {
            self.give_up(Wake::Hint(Hint::Changed), None);
        }
    }
}
