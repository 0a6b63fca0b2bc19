//! The holders, as the queue knows them: how a release reaches the head, and how a holder asks for the lock on its behalf.

use std::iter;
use std::sync::Arc;

use super::{Activity, All, Hint, Key, KeyQueue, Thread, Uptime, WaitMode, WaitQueue, Waiter, unpark};

/// How the head of a queue learns that a holder has released the lock, or has it no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Hint(Hint),
    /// By this hint, since it is its turn among the processes.
    NextSlice(Hint),
    /// By a notification when it is the turn of this process again, if it waits for one; else by this hint.
    Notification(Hint),
    /// By the answer that it has.
    Answer,
}

/// A lock that a thread of this process holds, as the queue knows it. The waiters are notified when it is dropped.
#[derive(Debug)]
pub(crate) struct HolderTicket<A> {
    queue: Arc<WaitQueue<A>>,
    key: Key,
    /// The queue of the threads for which this lock is one of several that will do.
    shared: Option<Key>,
    over: bool,
}

impl<A> HolderTicket<A> {
    pub(super) fn new(queue: &Arc<WaitQueue<A>>, key: &Key, shared: Option<&Key>) -> Self {
        Self { queue: Arc::clone(queue), key: key.clone(), shared: shared.cloned(), over: false }
    }

    /// Returns the queue whose threads are next: that of the lock, if one waits there, else the shared one. And whether it is that.
    fn next<'a>(&self, all: &'a mut All<A>) -> Option<(&'a mut KeyQueue<A>, bool)> {
        let is_waited_for = |key: &&Key| all.keys.get(*key).is_some_and(|queue| !queue.waiters.is_empty());
        let key = iter::once(&self.key).chain(&self.shared).find(is_waited_for)?;
        Some((all.keys.get_mut(key)?, *key != self.key))
    }

    /// Returns what `judge` says of the queue whose threads are next; `None` if no thread waits.
    pub(crate) fn of_next<T>(&self, judge: impl FnOnce(&Key, Activity) -> T) -> Option<T> {
        let mut all = self.queue.lock();
        let (queue, is_shared) = self.next(&mut all)?;
        let key = if is_shared { self.shared.as_ref()? } else { &self.key };
        Some(judge(key, queue.activity?))
    }

    /// Returns since when the lock has passed among the threads of this process in its turn; `None` if no thread waits, or the first that
    /// does learns of a release by this holder alone.
    pub(crate) fn slice(&self) -> Option<Uptime> {
        let mut all = self.queue.lock();
        let (queue, _) = self.next(&mut all)?;
        queue.waiters.front().filter(|head| head.mode.is_notified())?;
        queue.slice_since
    }

    /// Claims the head of the queue, in a shared one the first that sleeps, if it sleeps and `lost` makes the answer that stands for a lost
    /// reply.
    pub(crate) fn claim(&self, lost: impl FnOnce(WaitMode) -> Option<A>) -> Option<Claim<A>> {
        let mut all = self.queue.lock();
        if all.closed {
            return None;
        }
        let (queue, is_shared) = self.next(&mut all)?;
        let among = if is_shared { usize::MAX } else { 1 };
        let head = queue.waiters.iter_mut().take(among).find(|waiter| waiter.is_claimable())?;
        head.claim = Some(lost(head.mode)?);
        let id = head.id;
        drop(all);
        let key = if is_shared { self.shared.as_ref() } else { None };
        let key = key.unwrap_or(&self.key).clone();
        Some(Claim { queue: Arc::clone(&self.queue), key, id, over: false })
    }

    /// The lock is released.
    pub(crate) fn end(mut self, ending: Ending, now: Uptime) {
        self.give_up(ending, Some(now));
    }

    fn give_up(&mut self, ending: Ending, now: Option<Uptime>) {
        self.over = true;
        let mut all = self.queue.lock();
        let is_waited_for = all.keys.get(&self.key).is_some_and(|queue| !queue.waiters.is_empty());
        let head = all.leave(&self.key, |queue| queue.end(ending, now)).flatten();
        let shared = self.shared.as_ref().and_then(|shared| {
            // One thread learns of it.
            let ending = if is_waited_for { Ending::Answer } else { ending };
            all.leave(shared, |queue| queue.end(ending, now)).flatten()
        });
        drop(all);
        unpark(head.or(shared).as_ref());
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
            Ending::Answer => None,
            Ending::Notification(_) if is_notified() => None,
            Ending::Hint(hint) | Ending::NextSlice(hint) | Ending::Notification(hint) => self.notify(hint),
        }
    }
}

impl<A> Waiter<A> {
    fn is_claimable(&self) -> bool {
        self.asleep && self.hint.is_none() && self.claim.is_none() && self.answer.is_none()
    }
}

impl<A> Drop for HolderTicket<A> {
    fn drop(&mut self) {
        if !self.over {
            self.give_up(Ending::Hint(Hint::Changed), None);
        }
    }
}

/// That a holder asks for the head of a queue. Dropped, it leaves the answer that stands for a lost reply.
#[derive(Debug)]
pub(crate) struct Claim<A> {
    queue: Arc<WaitQueue<A>>,
    key: Key,
    id: u64,
    over: bool,
}

impl<A> Claim<A> {
    /// Gives the head its answer. Returns `false` if it waits for none any more.
    pub(crate) fn answer(mut self, answer: A) -> bool {
        self.end(|waiter, _| waiter.answer = Some(answer))
    }

    /// The command was not sent.
    pub(crate) fn withdraw(mut self) {
        self.end(|_, _| ());
    }

    fn end(&mut self, end: impl FnOnce(&mut Waiter<A>, A)) -> bool {
        self.over = true;
        let mut all = self.queue.lock();
        let thread = all.keys.get_mut(&self.key).and_then(|queue| {
            let waiter = queue.waiter(self.id)?;
            let lost = waiter.claim.take()?;
            end(waiter, lost);
            Some(waiter.thread.clone())
        });
        drop(all);
        unpark(thread.as_ref());
        thread.is_some()
    }
}

impl<A> Drop for Claim<A> {
    fn drop(&mut self) {
        if !self.over {
            self.end(|waiter, lost| waiter.answer = Some(lost));
        }
    }
}
