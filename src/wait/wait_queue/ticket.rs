//! A waiting thread, as the queue knows it: it waits for its turn, for a hint or a lease, and leaves with the lock or without.

use std::sync::Arc;

use super::super::sync::park_until;
use super::{
    Activity, Hint, HolderTicket, Key, KeyQueue, Observation, Thread, Turn, WaitQueue, Waiter, Woken, unpark,
};

/// A waiting thread's place in the queue of a key. Left when dropped.
pub(crate) struct Ticket<A> {
    queue: Arc<WaitQueue<A>>,
    key: Key,
    id: u64,
    left: bool,
}

/// How a sleep ended.
enum Outcome<A, T> {
    Delivered(A),
    Found(T),
    Over { seen: Option<Observation>, ahead: usize },
}

impl<A> Ticket<A> {
    pub(super) fn new(queue: &Arc<WaitQueue<A>>, key: &Key, id: u64) -> Self {
        Self { queue: Arc::clone(queue), key: key.clone(), id, left: false }
    }

    /// Waits until the thread is a head. `park` puts the thread to sleep for a while, and returns whether to go on waiting.
    pub(crate) fn turn(&mut self, park: impl FnMut() -> bool) -> Turn<A> {
        let outcome = self.sleep_until(true, park, |queue, position| {
            if !queue.is_head(position) {
                return None;
            }
            let hint = queue.waiters[position].hint.take();
            Some((queue.observation.clone(), hint))
        });
        match outcome {
            Outcome::Delivered(lease) => Turn::Delivered(lease),
            Outcome::Found((observation, hint)) => Turn::Head(observation, hint),
            Outcome::Over { seen, ahead } => Turn::Over { seen, ahead },
        }
    }

    /// Sleeps as a head, and leaves what it saw last for the threads behind. If it is in doubt, no lease is delivered to
    /// it: it might have the lock twice.
    pub(crate) fn sleep(
        &mut self,
        observation: Observation,
        in_doubt: bool,
        park: impl FnMut() -> bool,
    ) -> Woken<A> {
        let mut all = self.queue.0.lock();
        if let Some(queue) = all.keys.get_mut(&self.key) {
            queue.activity.get_or_insert_with(|| Activity::since(observation.at));
            if queue.waiters.front().is_some_and(|waiter| waiter.hint.is_none()) {
                queue.observation = Some(observation);
            }
        }
        drop(all);
        match self.sleep_until(!in_doubt, park, |queue, position| queue.waiters[position].hint.take()) {
            Outcome::Delivered(lease) => Woken::Delivered(lease),
            Outcome::Found(hint) => Woken::Hint(hint),
            Outcome::Over { .. } => Woken::Over,
        }
    }

    /// Leaves the queue with the lock, and with what others may know of it. The next becomes a head. If the lock is one of several that
    /// will do, `shared` is the queue of those.
    pub(crate) fn enter(mut self, shared: Option<&Key>, observation: &Observation) -> HolderTicket<A> {
        let mut all = self.queue.0.lock();
        let next = all.hold(&self.key, shared, observation).remove(self.id).and_then(|(_, next)| next);
        drop(all);
        self.left = true;
        unpark(next.as_ref());
        HolderTicket::new(&self.queue, &self.key, shared)
    }

    /// Leaves the queue of a semaphore with one of its permits. The next becomes a head; it learns of a release that this thread has
    /// not acted upon, and of another lock that is free.
    pub(crate) fn enter_one(
        mut self,
        key: &Key,
        observation: &Observation,
        another_is_free: bool,
    ) -> HolderTicket<A> {
        let mut all = self.queue.0.lock();
        all.hold(key, Some(&self.key), observation);
        let woken = all.keys.get_mut(&self.key).and_then(|queue| {
            // It has seen them all, or learns below of what it has not seen.
            queue.observation = Some(observation.clone());
            let (waiter, next) = queue.remove(self.id)?;
            let hint = waiter.hint.max(another_is_free.then_some(Hint::Freed));
            Some([next, hint.and_then(|hint| queue.notify(hint))])
        });
        drop(all);
        self.left = true;
        woken.iter().flatten().for_each(|thread| unpark(thread.as_ref()));
        HolderTicket::new(&self.queue, key, Some(&self.key))
    }

    /// Parks until there is a lease, or what `find` finds under the mutex, or the parking function ends the wait.
    fn sleep_until<T>(
        &mut self,
        takes_leases: bool,
        park: impl FnMut() -> bool,
        mut find: impl FnMut(&mut KeyQueue<A>, usize) -> Option<T>,
    ) -> Outcome<A, T> {
        let look = |over: bool| {
            let mut all = self.queue.0.lock();
            let closed = all.closed;
            let Some((queue, position)) = all.keys.get_mut(&self.key).and_then(|queue| {
                let position = queue.position(self.id)?;
                Some((queue, position))
            }) else {
                unreachable!("a ticket is in its queue until it is left")
            };
            let over = closed || over;
            let waiter = &mut queue.waiters[position];
            let outcome = match waiter.lease.take() {
                Some(lease) => Some(Outcome::Delivered(lease)),
                None if closed => None,
                None => find(queue, position).map(Outcome::Found),
            };
            queue.waiters[position].asleep = takes_leases && outcome.is_none() && !over;
            let ended = || Outcome::Over { seen: queue.observation.clone(), ahead: position };
            outcome.or_else(|| over.then(ended))
        };
        park_until(look, park)
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
