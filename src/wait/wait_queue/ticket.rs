//! A waiting thread, as the queue knows it: it waits for its turn,
//! for a hint or a lease, and leaves with the lock or without.

use std::sync::Arc;

use super::super::sync::park_until;
use super::{
    Activity, AnyHold, Called, Hint, HolderTicket, Key, KeyQueue, Observation, Thread, WaitQueue, Waiter,
    unpark,
};

/// A waiting thread's place in the queue of a key. Left when dropped.
pub(crate) struct Ticket<A> {
    queue: Arc<WaitQueue<A>>,
    key: Key,
    id: u64,
    has_left: bool,
}

impl<A> Ticket<A> {
    pub(super) fn new(queue: &Arc<WaitQueue<A>>, key: &Key, id: u64) -> Self {
        Self { queue: Arc::clone(queue), key: key.clone(), id, has_left: false }
    }

    /// Parks until the thread is called: at first when it is a head; once it `saw` who has the lock, which it leaves
    /// for the threads behind it, by a hint. A lease may be delivered at any time, unless the thread is in doubt: it
    /// might have the lock twice. `park` puts the thread to sleep for a while, and returns true to go on waiting.
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

    /// While it `holds_back`, no lease is delivered to this thread or, if it is the first, to those behind it.
    pub(crate) fn hold_back(&self, holds_back: bool) {
        let mut all = self.queue.0.lock();
        let waiter = all.keys.get_mut(&self.key).and_then(|queue| {
            let position = queue.position(self.id)?;
            queue.waiters.get_mut(position)
        });
        if let Some(waiter) = waiter {
            waiter.holds_back = holds_back;
        }
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

    /// Leaves the queue with the lock. The next thread becomes a head.
    pub(crate) fn enter(mut self, observation: &Observation, hold: AnyHold) -> HolderTicket<A> {
        let mut all = self.queue.0.lock();
        all.hold(&self.key, observation, hold);
        let left = all.keys.get_mut(&self.key).and_then(|queue| queue.remove(self.id));
        drop(all);
        self.has_left = true;
        let (place, next) = left.map(|(waiter, next)| (waiter.place, next)).unwrap_or_default();
        unpark(next.as_ref());
        HolderTicket::ending_with(&self.queue, &self.key, place)
    }

    /// Leaves the queue with one of several locks, and with what it has seen of them. The next thread becomes a head,
    /// and learns of a release that this one has not acted upon, and that `another_is_free`; the hint is returned if
    /// there is no next.
    pub(crate) fn enter_with_one(
        mut self,
        observation: &Observation,
        another_is_free: bool,
    ) -> (HolderTicket<A>, Option<Hint>) {
        let mut all = self.queue.0.lock();
        let left = all.keys.get_mut(&self.key).and_then(|queue| {
            queue.hold(observation.at);
            let (waiter, next) = queue.remove(self.id)?;
            queue.observation = Some(observation.clone());
            let hint = waiter.hint.max(another_is_free.then_some(Hint::Freed));
            let first = hint.and_then(|hint| queue.notify(hint));
            Some((hint.filter(|_| first.is_none()), [next, first]))
        });
        drop(all);
        self.has_left = true;
        let (unused, woken) = left.unwrap_or_default();
        woken.iter().flatten().for_each(Thread::unpark);
        (HolderTicket::new(&self.queue, &self.key), unused)
    }

    /// Leaves the queue without the lock. The next thread gets the
    /// hint that was not acted upon; if there is none, it is returned.
    pub(crate) fn leave(mut self) -> Option<Hint> {
        self.go()
    }

    fn go(&mut self) -> Option<Hint> {
        if self.has_left {
            return None;
        }
        self.has_left = true;
        let mut all = self.queue.0.lock();
        let (next, first, hint, left) = all.leave(&self.key, |queue| {
            let (Waiter { hint, lease, place, .. }, next) = queue.remove(self.id)?;
            // A lease that is left, after a panic, expires, and a guard releases: the next thread looks when.
            let hint = hint.max(lease.as_ref().map(|_| Hint::Changed));
            // A hint that was not acted upon is for the first, which may wait in another mode.
            let first = hint.and_then(|hint| queue.notify(hint));
            let hint = hint.filter(|_| first.is_none());
            Some((next, first, hint, (lease, place)))
        })??;
        drop(all);
        // Without the mutex, which a guard takes as it releases.
        drop(left);
        [next, first].iter().flatten().for_each(Thread::unpark);
        hint
    }
}

impl<A> Drop for Ticket<A> {
    fn drop(&mut self) {
        self.go();
    }
}
