//! A waiting thread, as the queue knows it: it waits for its turn, for a hint or a lease, and leaves with the lock or without.
//!
//! And the holders, as the queue knows them: how a release reaches the head, and how a lease is delivered.

use std::iter;
use std::sync::Arc;

use super::super::sync::park_until;
use super::{
    Activity, All, Called, Hint, Key, KeyQueue, Observation, Thread, Uptime, WaitMode, WaitQueue, Waiter,
    unpark,
};

/// A waiting thread's place in the queue of a key. Left when dropped.
pub(crate) struct Ticket<A> {
    queue: Arc<WaitQueue<A>>,
    key: Key,
    id: u64,
    left: bool,
}

impl<A> Ticket<A> {
    pub(super) fn new(queue: &Arc<WaitQueue<A>>, key: &Key, id: u64) -> Self {
        Self { queue: Arc::clone(queue), key: key.clone(), id, left: false }
    }

    /// Parks until the thread is called: at first when it is a head; once it `saw` who has the lock, which it leaves for the threads behind
    /// it, by a hint. A lease may be delivered at any time, unless the thread is in doubt: it might have the lock twice. `park` puts the
    /// thread to sleep for a while, and returns true to go on waiting.
    pub(crate) fn wait(
        &mut self,
        saw: Option<Observation>,
        in_doubt: bool,
        park: impl FnMut() -> bool,
    ) -> Called<A> {
        let needs_hint = saw.is_some();
        if let Some(observation) = saw {
            self.leave_to_others(observation);
        }
        let look = |is_over: bool| {
            let mut all = self.queue.0.lock();
            let closed = all.closed;
            let Some((queue, position)) =
                all.keys.get_mut(&self.key).map(|queue| &mut **queue).and_then(|queue| {
                    let position = queue.position(self.id)?;
                    Some((queue, position))
                })
            else {
                unreachable!("a ticket is in its queue until it is left")
            };
            let is_called =
                if needs_hint { queue.waiters[position].hint.is_some() } else { queue.is_head(position) };
            let KeyQueue { waiters, observation, .. } = queue;
            let (waiter, seen) = (&mut waiters[position], || observation.clone());
            let called = match waiter.lease.take() {
                Some(lease) => Some(Called::Lease(lease)),
                None if is_called && !closed => Some(Called::Head { seen: seen(), hint: waiter.hint.take() }),
                None if is_over || closed => Some(Called::Over { seen: seen(), ahead: position }),
                None => None,
            };
            waiter.asleep = called.is_none() && !in_doubt;
            called
        };
        park_until(look, park)
    }

    /// Leaves what a head saw last to the threads behind it, unless that is no longer true.
    fn leave_to_others(&self, observation: Observation) {
        let mut all = self.queue.0.lock();
        let Some(queue) = all.keys.get_mut(&self.key) else { return };
        queue.activity.get_or_insert_with(|| Activity::since(observation.at));
        if queue.waiters.front().is_some_and(|waiter| waiter.hint.is_none()) {
            queue.observation = Some(observation);
        }
    }

    /// Leaves the queue with a lock, and with what others may know of it. The next thread becomes a head. `shared`: if the lock is a permit, the
    /// queue of its semaphore. If this is that queue, and not the lock's own, the next also learns of a release that this thread has not acted upon, and of another
    /// permit that is free.
    pub(crate) fn enter(
        mut self,
        key: &Key,
        shared: Option<&Key>,
        observation: &Observation,
        another_is_free: bool,
    ) -> HolderTicket<A> {
        let mut all = self.queue.0.lock();
        all.hold(key, shared, observation);
        let woken = all.keys.get_mut(&self.key).and_then(|queue| {
            let (waiter, next) = queue.remove(self.id)?;
            if *key == self.key {
                return Some([next, None]);
            }
            // It has seen all permits, or learns here of what it has not seen.
            queue.observation = Some(observation.clone());
            let hint = waiter.hint.max(another_is_free.then_some(Hint::Freed));
            Some([next, hint.and_then(|hint| queue.notify(hint))])
        });
        drop(all);
        self.left = true;
        woken.iter().flatten().for_each(|thread| unpark(thread.as_ref()));
        HolderTicket::new(&self.queue, key, shared)
    }

    /// Leaves the queue without the lock. The next thread gets the hint that was not acted upon; if there is none, it is returned.
    pub(crate) fn leave(mut self) -> Option<Hint> {
        self.go()
    }

    fn go(&mut self) -> Option<Hint> {
        if self.left {
            return None;
        }
        self.left = true;
        let mut all = self.queue.0.lock();
        let (mut woken, hint, shared) = all.leave(&self.key, |queue| {
            let (Waiter { hint, lease, .. }, next) = queue.remove(self.id)?;
            // A lease that is left, after a panic, expires: the next thread looks when.
            let hint = hint.max(lease.map(|_| Hint::Changed));
            // A hint that was not acted upon is for the first, which may wait in another mode.
            let first = hint.and_then(|hint| queue.notify(hint));
            // A release that this queue alone was told of, and that no thread has looked at since.
            let is_unseen = queue.waiters.is_empty() && queue.observation.is_none();
            let shared = queue.shared.clone().filter(|_| is_unseen);
            Some((vec![next, first.clone()], hint.filter(|_| first.is_none()), shared))
        })??;
        let shared = shared.and_then(|shared| all.keys.get_mut(&shared));
        woken.push(shared.and_then(|queue| queue.notify(hint.unwrap_or(Hint::Changed))));
        drop(all);
        woken.iter().flatten().for_each(Thread::unpark);
        hint
    }
}

impl<A> Drop for Ticket<A> {
    fn drop(&mut self) {
        self.go();
    }
}

/// How the head of a queue learns that a holder has released the lock, or has it no longer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
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

    /// Returns the queue whose threads are next: that of the lock, if one waits there, else the shared one. And whether it is that.
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

    /// Returns since when the lock has passed among the threads of this process in its turn; `None` if no thread waits, or the first that
    /// does learns of a release by this holder alone.
    pub(crate) fn slice(&self) -> Option<Uptime> {
        let mut all = self.queue.0.lock();
        let (queue, _) = self.next_queue(&mut all)?;
        queue.waiters.front().filter(|head| head.mode.is_notified())?;
        queue.slice_since
    }

    /// Returns how the first thread waits that sleeps and is not among those `taken`, so that a lease can be written for it; `None` if none
    /// does, or if that one cannot take a lease. Notes it as taken.
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

    /// Delivers the lease of this lock that was written for a waiting thread, to the first that sleeps and takes leases of this mode. Then this
    /// holder has the lock no longer. If there is none, returns the lease with this holder, whose it is to release.
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
        self.leave(&mut all, Ending::Delivered, Some(now));
        drop(all);
        thread.unpark();
        Ok(())
    }

    /// The lock is released.
    pub(crate) fn end(mut self, ending: Ending, now: Uptime) {
        self.give_up(ending, Some(now));
    }

    fn give_up(&mut self, ending: Ending, now: Option<Uptime>) {
        self.over = true;
        let mut all = self.queue.0.lock();
        let told = self.leave(&mut all, ending, now);
        drop(all);
        unpark(told.as_ref());
    }

    /// Returns the thread to unpark once the mutex is free.
    fn leave(&self, all: &mut All<A>, ending: Ending, now: Option<Uptime>) -> Option<Thread> {
        let end = |queue: &mut KeyQueue<A>| (!queue.waiters.is_empty(), queue.end(ending, now));
        let (is_waited_for, head) = all.leave(&self.key, end).unwrap_or_default();
        let shared = self.shared.as_ref().and_then(|shared| {
            // One thread learns of it.
            let ending = if is_waited_for { Ending::Delivered } else { ending };
            all.leave(shared, |queue| queue.end(ending, now)).flatten()
        });
        head.or(shared)
    }
}

impl<A> KeyQueue<A> {
    /// A holder has the lock no longer. Returns the thread to unpark once the mutex is free.
    fn end(&mut self, ending: Ending, now: Option<Uptime>) -> Option<Thread> {
        self.holders -= 1;
        if let (Some(activity), Some(now)) = (&mut self.activity, now) {
            activity.ended(now);
        }
        if matches!(ending, Ending::NextSlice(_) | Ending::Notification(_)) || self.waiters.is_empty() {
            self.slice_since = None;
        }
        let is_notified = || self.waiters.front().is_some_and(|head| head.mode.is_notified());
        match ending {
            Ending::Delivered => None,
            Ending::Notification(_) if is_notified() => None,
            Ending::Hint(hint) | Ending::NextSlice(hint) | Ending::Notification(hint) => self.notify(hint),
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
            self.give_up(Ending::Hint(Hint::Changed), None);
        }
    }
}
