//! The holders, as the queue knows them: how a release reaches the head, and how a lease is delivered.

use std::iter;
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

/// A lock that a thread of this process holds, as the queue knows it. The waiters are notified when it is dropped.
pub(crate) struct HolderTicket<A> {
    queue: Arc<WaitQueue<A>>,
    key: Key,
    /// If the lock is a permit: the queue of its semaphore.
    shared: Option<Key>,
    over: bool,
}

impl<A> HolderTicket<A> {
    pub(super) fn new(queue: &Arc<WaitQueue<A>>, key: &Key, shared: Option<&Key>) -> Self {
        Self { queue: Arc::clone(queue), key: key.clone(), shared: shared.cloned(), over: false }
    }

    /// Returns the queue whose threads are next: that of the lock, if
    /// one waits there, else the shared one. And whether it is that.
    fn next_queue<'a>(&self, all: &'a mut All<A>) -> Option<(&'a mut KeyQueue<A>, bool)> {
        let is_waited_for = |key: &&Key| all.keys.get(*key).is_some_and(|queue| !queue.waiters.is_empty());
        let key = iter::once(&self.key).chain(&self.shared).find(is_waited_for)?;
        Some((all.keys.get_mut(key)?, *key != self.key))
    }

    /// Returns what `judge` says of the queue whose threads are next; `None` if no thread waits.
    pub(crate) fn of_next<T>(&self, judge: impl FnOnce(&Key, Activity) -> T) -> Option<T> {
        let mut all = self.queue.0.lock();
        let (queue, is_shared) = self.next_queue(&mut all)?;
        let key = if is_shared { self.shared.as_ref()? } else { &self.key };
        Some(judge(key, queue.activity?))
    }

    /// Returns since when the lock has passed among the threads of this process in its turn; `None` if no thread waits,
    /// or the first that does learns of a release by this holder alone.
    pub(crate) fn slice(&self) -> Option<Uptime> {
        let mut all = self.queue.0.lock();
        let (queue, _) = self.next_queue(&mut all)?;
        queue.waiters.front().filter(|head| head.mode.is_notified())?;
        queue.slice_since
    }

    /// Returns how the first thread waits that sleeps and is not among those `taken`, so that a lease can be written
    /// for it; `None` if none does, or if that one cannot take a lease. Notes it as taken.
    pub(crate) fn next(
        &self,
        taken: &mut Vec<u64>,
        can_take: impl FnOnce(&WaitMode) -> bool,
    ) -> Option<WaitMode> {
        let mut all = self.queue.0.lock();
        if all.closed {
            return None;
        }
        let (queue, _) = self.next_queue(&mut all)?;
        let waiter = queue.waiters.iter().find(|waiter| waiter.is_free() && !taken.contains(&waiter.id))?;
        let mode = Some(waiter.mode).filter(can_take)?;
        taken.push(waiter.id);
        Some(mode)
    }

    /// Delivers the lease of this lock that was written for a waiting thread, to the first
    /// that sleeps and takes leases of this mode. Then this holder has the lock no longer.
    /// If there is none, returns the lease with this holder, whose it is to release.
    pub(crate) fn deliver(mut self, mode: &WaitMode, lease: A, now: Uptime) -> Result<(), (Self, A)> {
        let mut all = self.queue.0.lock();
        let waiter = self.next_queue(&mut all).and_then(|(queue, _)| {
            queue.waiters.iter_mut().find(|waiter| waiter.is_free() && waiter.mode.takes_leases_of(mode))
        });
        let Some(waiter) = waiter else {
            drop(all);
            return Err((self, lease));
        };
        waiter.lease = Some(lease);
        let thread = waiter.thread.clone();
        self.over = true;
        self.leave(&mut all, Wake::Delivered, Some(now));
        drop(all);
        thread.unpark();
        Ok(())
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
        let end = |queue: &mut KeyQueue<A>| (!queue.waiters.is_empty(), queue.end_hold(wake, now));
        let (is_waited_for, head) = all.leave(&self.key, end).unwrap_or_default();
        let shared = self.shared.as_ref().and_then(|shared| {
            // One thread learns of it.
            let wake = if is_waited_for { Wake::Delivered } else { wake };
            all.leave(shared, |queue| queue.end_hold(wake, now)).flatten()
        });
        head.or(shared)
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
    fn is_free(&self) -> bool {
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
