//! The wait queue of each key: first come, first served among the threads of a process. Only the head talks to the server; the
//! others sleep until it is their turn. Where threads wait in different modes, the first of each mode is a head: it looks for
//! all that wait as it does, at its own pace and by its own rules; hints are for the very first.
//!
//! The whole queue is under one mutex, and a waiting thread parks outside of it. Why no wake-up is lost:
//!
//! - Whatever a waiter waits for (that it is a head, a hint, a handoff, the end of all waiting) is written under the mutex, and the thread
//!   that writes it unparks the waiter's thread afterwards.
//! - A waiter looks at all of that under the mutex, then parks. A write after the look is followed by an unpark, and
//!   an unpark before the park makes that return at once.
//! - A waiter that leaves, for whatever reason, a panic included, removes itself under the mutex; if it was a head, the
//!   next of its mode becomes one, and is unparked; the first of the queue gets the hint that was not acted upon, and is unparked.
//!
//! Parking may also return for no reason, or because of an unpark that was meant for something else in the thread: every return is
//! followed by another look. An entry lives as long as a thread waits for the key or holds it.
//!
//! A hint also makes the queue forget what was last seen of the key. A new head looks there first: where
//! nothing was seen it asks the server, and where something was, a holder will notify it or its sleep has an end.
//!
//! `tests/models` searches this file for lost wake-ups, with threads whose schedules a model checker chooses.

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;

use super::sync::{Mutex, MutexGuard, PoisonError, Thread, current, park_until};
use super::{Handoff, Key, Observation, WaitMode};

/// The wait queues of a locker.
#[derive(Debug, Default)]
pub(crate) struct WaitQueue(Mutex<All>);

#[derive(Debug, Default)]
struct All {
    keys: HashMap<Key, KeyQueue>,
    /// No thread waits any more.
    closed: bool,
    next_id: u64,
}

#[derive(Debug, Default)]
struct KeyQueue {
    /// How many threads of this process have the lock: more than one if a holder outlived its lease.
    holders: usize,
    /// What was last seen of the key, since the last hint.
    observation: Option<Observation>,
    waiters: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    id: u64,
    thread: Thread,
    mode: WaitMode,
    /// Whether it is asleep: a waiter in the middle of a command gets no handoff.
    asleep: bool,
    hint: Option<Hint>,
    handoff: Option<Handoff>,
}

/// What a head is told of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Hint {
    /// Something happened to it: look.
    Changed,
    /// It was released: ask for it.
    Freed,
}

/// How waiting for one's turn ended.
#[derive(Debug)]
pub(crate) enum Turn {
    /// The thread is a head, and talks to the server. With what was last seen, unless that is no longer true.
    Head(Option<Observation>),
    HandedOff(Handoff, HolderTicket),
    /// The parking function has ended the wait, or all waiting has ended. With what was last seen, and how many threads are ahead.
    Over {
        seen: Option<Observation>,
        ahead: usize,
    },
}

/// How the sleep of a head ended.
#[derive(Debug)]
pub(crate) enum Woken {
    Hint(Hint),
    HandedOff(Handoff, HolderTicket),
    /// The parking function has ended the sleep, or all waiting has ended.
    Over,
}

impl WaitQueue {
    /// Queues the calling thread as the last.
    pub(crate) fn join(self: &Arc<Self>, key: &Key, mode: WaitMode) -> Ticket {
        let mut all = self.lock();
        let id = all.next_id;
        all.next_id += 1;
        let waiter = Waiter { id, thread: current(), mode, asleep: false, hint: None, handoff: None };
        all.keys.entry(key.clone()).or_default().waiters.push_back(waiter);
        drop(all);
        Ticket { queue: Arc::clone(self), key: key.clone(), id, left: false }
    }

    /// Notes a lock that was acquired without being queued.
    pub(crate) fn hold(self: &Arc<Self>, key: &Key, observation: Observation) -> HolderTicket {
        let mut all = self.lock();
        let queue = all.keys.entry(key.clone()).or_default();
        queue.holders += 1;
        queue.observation = Some(observation);
        drop(all);
        HolderTicket::new(self, key)
    }

    /// Gives the head of a key's queue a hint. Returns whether a thread waits there.
    pub(crate) fn notify(&self, key: &Key, hint: Hint) -> bool {
        let mut all = self.lock();
        let Some(queue) = all.keys.get_mut(key) else { return false };
        let head = queue.notify(hint);
        drop(all);
        unpark(head.as_ref());
        head.is_some()
    }

    /// Whether a thread waits for the key.
    pub(crate) fn is_waited_for(&self, key: &Key) -> bool {
        self.lock().keys.get(key).is_some_and(|queue| !queue.waiters.is_empty())
    }

    /// Ends all waiting, for good.
    pub(crate) fn close(&self) {
        let mut all = self.lock();
        all.closed = true;
        let waiters = all.keys.values().flat_map(|queue| &queue.waiters);
        let threads: Vec<Thread> = waiters.map(|waiter| waiter.thread.clone()).collect();
        drop(all);
        for thread in &threads {
            thread.unpark();
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl All {
    /// Takes a thread out of a key's queue, which is removed with its last thread.
    fn leave<T>(&mut self, key: &Key, leave: impl FnOnce(&mut KeyQueue) -> T) -> Option<T> {
        let queue = self.keys.get_mut(key)?;
        let left = leave(queue);
        if queue.holders == 0 && queue.waiters.is_empty() {
            self.keys.remove(key);
        }
        Some(left)
    }
}

impl KeyQueue {
    /// Returns the thread to unpark once the mutex is free.
    fn notify(&mut self, hint: Hint) -> Option<Thread> {
        self.observation = None;
        let head = self.waiters.front_mut()?;
        head.hint = head.hint.max(Some(hint));
        Some(head.thread.clone())
    }

    fn position(&self, id: u64) -> Option<usize> {
        self.waiters.iter().position(|waiter| waiter.id == id)
    }

    /// Whether no thread ahead of it waits as it does.
    fn is_head(&self, position: usize) -> bool {
        let mode = &self.waiters[position].mode;
        !self.waiters.range(..position).any(|before| before.mode.waits_as(mode))
    }

    /// Removes a waiter. Returns it, and the thread of the next if that is a head now.
    fn remove(&mut self, id: u64) -> Option<(Waiter, Option<Thread>)> {
        let position = self.position(id)?;
        let was_head = self.is_head(position);
        let waiter = self.waiters.remove(position)?;
        let mut behind = self.waiters.range(position..);
        let next = behind.find(|next| was_head && next.mode.waits_as(&waiter.mode));
        let next = next.map(|next| next.thread.clone());
        Some((waiter, next))
    }
}

/// A waiting thread's place in the queue of a key. Left when dropped.
#[derive(Debug)]
pub(crate) struct Ticket {
    queue: Arc<WaitQueue>,
    key: Key,
    id: u64,
    left: bool,
}

/// How a sleep ended.
enum Outcome<T> {
    HandedOff(Handoff, HolderTicket),
    Found(T),
    Over { seen: Option<Observation>, ahead: usize },
}

impl Ticket {
    /// Waits until the thread is a head. `park` puts the thread to sleep for a while, and returns whether to go on waiting.
    pub(crate) fn turn(&mut self, park: impl FnMut() -> bool) -> Turn {
        let outcome = self.sleep_until(park, |queue, position| {
            if !queue.is_head(position) {
                return None;
            }
            queue.waiters[position].hint = None;
            Some(queue.observation.clone())
        });
        match outcome {
            Outcome::HandedOff(handoff, holder) => Turn::HandedOff(handoff, holder),
            Outcome::Found(observation) => Turn::Head(observation),
            Outcome::Over { seen, ahead } => Turn::Over { seen, ahead },
        }
    }

    /// Sleeps as a head, and leaves what it saw last for the threads behind.
    pub(crate) fn sleep(&mut self, observation: Observation, park: impl FnMut() -> bool) -> Woken {
        let mut all = self.queue.lock();
        if let Some(queue) = all.keys.get_mut(&self.key)
            && queue.waiters.front().is_some_and(|waiter| waiter.hint.is_none())
        {
            queue.observation = Some(observation);
        }
        drop(all);
        match self.sleep_until(park, |queue, position| queue.waiters[position].hint.take()) {
            Outcome::HandedOff(handoff, holder) => Woken::HandedOff(handoff, holder),
            Outcome::Found(hint) => Woken::Hint(hint),
            Outcome::Over { .. } => Woken::Over,
        }
    }

    /// Leaves the queue with the lock, and with what others may know of it. The next becomes a head.
    pub(crate) fn enter(mut self, observation: Observation) -> HolderTicket {
        let mut all = self.queue.lock();
        let next = all.keys.get_mut(&self.key).and_then(|queue| {
            queue.holders += 1;
            queue.observation = Some(observation);
            queue.remove(self.id)?.1
        });
        drop(all);
        self.left = true;
        unpark(next.as_ref());
        HolderTicket::new(&self.queue, &self.key)
    }

    /// Parks until there is a handoff, or what `find` finds under the mutex, or the parking function ends the wait.
    fn sleep_until<T>(
        &mut self,
        mut park: impl FnMut() -> bool,
        mut find: impl FnMut(&mut KeyQueue, usize) -> Option<T>,
    ) -> Outcome<T> {
        let look = |given_up: Option<()>| {
            let mut all = self.queue.lock();
            let closed = all.closed;
            let over = closed || given_up.is_some();
            let Some((queue, position)) = all.keys.get_mut(&self.key).and_then(|queue| {
                let position = queue.position(self.id)?;
                Some((queue, position))
            }) else {
                unreachable!("a ticket is in its queue until it is left")
            };
            if let Some(handoff) = queue.waiters[position].handoff.take() {
                queue.observation = Some(handoff.observation.clone());
                let next = queue.remove(self.id).and_then(|(_, next)| next);
                drop(all);
                self.left = true;
                unpark(next.as_ref());
                let holder = HolderTicket::new(&self.queue, &self.key);
                return ControlFlow::Break(Outcome::HandedOff(handoff, holder));
            }
            let found = if closed { None } else { find(queue, position) };
            queue.waiters[position].asleep = found.is_none() && !over;
            match found {
                Some(found) => ControlFlow::Break(Outcome::Found(found)),
                None if over => {
                    ControlFlow::Break(Outcome::Over { seen: queue.observation.clone(), ahead: position })
                }
                None => ControlFlow::Continue(()),
            }
        };
        park_until(look, |()| park())
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
        let mut all = self.queue.lock();
        let (woken, hint) = all.leave(&self.key, |queue| {
            let (waiter, next) = queue.remove(self.id)?;
            let unclaimed = waiter.handoff.map(|_| {
                queue.holders -= 1;
                Hint::Changed
            });
            // A hint that was not acted upon is for the first, which may wait in another mode.
            let hint = waiter.hint.max(unclaimed);
            let first = hint.and_then(|hint| queue.notify(hint));
            Some(([next, first.clone()], hint.filter(|_| first.is_none())))
        })??;
        drop(all);
        woken.iter().flatten().for_each(Thread::unpark);
        hint
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.go();
    }
}

/// A lock that a thread of this process holds, as the queue knows it. The waiters are notified when it is dropped.
#[derive(Debug)]
pub(crate) struct HolderTicket {
    queue: Arc<WaitQueue>,
    key: Key,
    over: bool,
}

impl HolderTicket {
    fn new(queue: &Arc<WaitQueue>, key: &Key) -> Self {
        Self { queue: Arc::clone(queue), key: key.clone(), over: false }
    }

    /// Returns the thread that the lock could be handed off to now, and how it waits.
    pub(crate) fn successor(&self) -> Option<(u64, WaitMode)> {
        let all = self.queue.lock();
        if all.closed {
            return None;
        }
        let head = all.keys.get(&self.key)?.waiters.front()?;
        (head.asleep && head.handoff.is_none()).then_some((head.id, head.mode))
    }

    /// Hands the lock off, if the successor still waits; else returns itself.
    pub(crate) fn hand_off(mut self, successor: u64, handoff: &Handoff) -> Option<Self> {
        let mut all = self.queue.lock();
        let head = all.keys.get_mut(&self.key).and_then(|queue| queue.waiters.front_mut());
        let Some(head) = head.filter(|head| head.id == successor && head.asleep && head.handoff.is_none())
        else {
            drop(all);
            return Some(self);
        };
        head.handoff = Some(handoff.clone());
        let thread = head.thread.clone();
        drop(all);
        self.over = true;
        thread.unpark();
        None
    }

    /// The lock is released: gives the head a hint, unless a notification will.
    pub(crate) fn end(mut self, hint: Hint, by_notification: bool) {
        self.give_up(hint, by_notification);
    }

    fn give_up(&mut self, hint: Hint, by_notification: bool) {
        self.over = true;
        let mut all = self.queue.lock();
        let head = all.leave(&self.key, |queue| {
            queue.holders -= 1;
            let notified =
                by_notification && queue.waiters.front().is_some_and(|head| head.mode.is_notified());
            if notified { None } else { queue.notify(hint) }
        });
        drop(all);
        unpark(head.flatten().as_ref());
    }
}

impl Drop for HolderTicket {
    fn drop(&mut self) {
        if !self.over {
            self.give_up(Hint::Changed, false);
        }
    }
}

fn unpark(thread: Option<&Thread>) {
    if let Some(thread) = thread {
        thread.unpark();
    }
}
