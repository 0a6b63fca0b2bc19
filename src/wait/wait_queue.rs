//! The wait queue of each key: first come, first served among the threads of a process. A thread that finds none asks
//! for the lock before it is queued. Of the queue only the head talks to the server; the others sleep until it is their
//! turn. Where threads wait in different modes, the first of each mode is a head: it looks for all that wait as it
//! does, at its own pace and by its own rules; hints are for the very first.
//!
//! The whole queue is under one mutex, and a waiting thread parks outside of it. Why no wake-up is lost:
//!
//! - Whatever a waiter waits for (that it is a head, a hint, a lease, the end of all waiting) is written under the
//!   mutex, and the thread that writes it unparks the waiter's thread afterwards.
//! - A waiter looks at all of that under the mutex, then parks. A write after the look is followed by an unpark, and
//!   an unpark before the park makes that return at once.
//! - A waiter that leaves, for whatever reason, a panic included, removes itself under
//!   the mutex; if it was a head, the next of its mode becomes one, and is unparked;
//!   the first of the queue gets the hint that was not acted upon, and is unparked.
//!
//! Parking may also return for no reason, or because of an unpark that was meant for something else in the thread:
//! every return is followed by another look. An entry lives as long as a thread waits for the key or holds it.
//!
//! A hint also makes the queue forget what was last seen of the key. A new head looks there first: where
//! nothing was seen it asks the server, and where something was, a holder will notify it or its sleep has an end.
//!
//! A holder that releases stores a new lease in the key instead of deleting it, for the first thread
//! that sleeps. When the reply is there, it delivers the lease to the thread that is the first sleeper
//! by then and waits in a mode that fits. If there is none, the holder releases that lease. A thread
//! in the middle of a command gets none: it might have the lock twice. A lease that was delivered is
//! found at the next look, before a hint, the end of the sleep and the end of all waiting.
//!
//! Threads of which each wants one of several locks, whichever is free, have a queue by the name of these. What a
//! thread holds of such a name is a place: the lock has its own queue besides. A thread that leaves with one of the
//! locks tells the next what it knows of others: the hint that it has not acted upon, and that one is free.
//!
//! `tests/models` searches this file for lost wake-ups, with threads whose schedules a model checker chooses.

// The models compile this file under another name.
#[path = "wait_queue/holder.rs"]
mod holder;
#[path = "wait_queue/ticket.rs"]
mod ticket;

use std::any::Any;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use super::sync::{Mutex, Thread, current};
use super::{Activity, HashMap, Key, KeyHash, Observation, Uptime, WaitMode};
pub(crate) use holder::{HolderTicket, Place, Wake};
pub(crate) use ticket::Ticket;

/// The wait queues of a locker. `A` is a lease that a holder delivers.
pub(crate) struct WaitQueue<A>(Mutex<All<A>>);

/// What the program has of a lock that is held, which the queue
/// only keeps. It is no more once the program has dropped it.
pub(crate) type AnyHold = Weak<dyn Any + Send + Sync>;

/// Stands for a lock that the program does not know of.
pub(crate) fn no_hold() -> AnyHold {
    Weak::<()>::new()
}

struct All<A> {
    /// In boxes, since keys come and go.
    keys: HashMap<Key, Box<KeyQueue<A>>, KeyHash>,
    /// No thread waits any more.
    closed: bool,
    next_id: u64,
}

struct KeyQueue<A> {
    /// How many threads of this process have the lock: more than one if a holder outlived its lease.
    holders: usize,
    /// The last of them, and others that may still have it.
    hold: AnyHold,
    earlier: Vec<AnyHold>,
    /// Since when it has passed among them in the turn of this process.
    slice_since: Option<Uptime>,
    /// Since the first thread of this process that had it or slept for it.
    activity: Option<Activity>,
    /// What was last seen of the key, since the last hint.
    observation: Option<Observation>,
    waiters: VecDeque<Waiter<A>>,
}

struct Waiter<A> {
    id: u64,
    thread: Thread,
    mode: WaitMode,
    /// True if it sleeps, and a lease may be delivered to it.
    asleep: bool,
    /// True if others are to get the lock before it and those behind it.
    holds_back: bool,
    hint: Option<Hint>,
    lease: Option<A>,
    /// What ends with the lock of the lease.
    place: Option<Box<dyn Place>>,
}

/// What a head is told of its key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Hint {
    /// Something happened to it: look.
    Changed,
    /// It was released: ask for it.
    Freed,
}

/// Why a thread that has waited goes on.
pub(crate) enum Called<A> {
    /// A holder has delivered a lease.
    Lease(A),
    /// It is a head, and talks to the server. With what was last
    /// seen, unless that is no longer true, and the hint that it got.
    Head { seen: Option<Observation>, hint: Option<Hint> },
    /// The parking function has ended the wait, or all waiting has
    /// ended. With what was last seen, and how many threads are ahead.
    Over { seen: Option<Observation>, ahead: usize },
}

impl<A> Default for WaitQueue<A> {
    fn default() -> Self {
        Self(Mutex::new(All { keys: HashMap::default(), closed: false, next_id: 0 }))
    }
}

impl<A> Default for KeyQueue<A> {
    fn default() -> Self {
        Self {
            holders: 0,
            hold: no_hold(),
            earlier: Vec::new(),
            slice_since: None,
            activity: None,
            observation: None,
            waiters: VecDeque::new(),
        }
    }
}

impl<A> WaitQueue<A> {
    /// Queues the calling thread as the last.
    pub(crate) fn join(self: &Arc<Self>, key: &Key, mode: WaitMode) -> Ticket<A> {
        self.join_at(key, mode, VecDeque::push_back)
    }

    /// Queues it as the first: a command of it may have acquired the lock.
    pub(crate) fn join_ahead(self: &Arc<Self>, key: &Key, mode: WaitMode) -> Ticket<A> {
        self.join_at(key, mode, VecDeque::push_front)
    }

    fn join_at(
        self: &Arc<Self>,
        key: &Key,
        mode: WaitMode,
        join: impl FnOnce(&mut VecDeque<Waiter<A>>, Waiter<A>),
    ) -> Ticket<A> {
        let mut all = self.0.lock();
        let id = all.next_id;
        all.next_id += 1;
        let thread = current();
        let waiter = Waiter {
            id,
            thread,
            mode,
            asleep: false,
            holds_back: false,
            hint: None,
            lease: None,
            place: None,
        };
        join(&mut all.keys.entry(key.clone()).or_default().waiters, waiter);
        drop(all);
        Ticket::new(self, key, id)
    }

    /// Notes a lock that was acquired without being queued.
    pub(crate) fn hold(
        self: &Arc<Self>,
        key: &Key,
        observation: &Observation,
        hold: AnyHold,
    ) -> HolderTicket<A> {
        self.0.lock().hold(key, observation, hold);
        HolderTicket::new(self, key)
    }

    /// Notes that one of several locks was acquired without being queued. That says nothing of the others, so what was
    /// last seen of those stays.
    pub(crate) fn hold_one_of(self: &Arc<Self>, name: &Key, at: Uptime) -> HolderTicket<A> {
        self.0.lock().keys.entry(name.clone()).or_default().hold(at);
        HolderTicket::new(self, name)
    }

    /// Returns how the first thread waits that sleeps and is not among those `taken`, so that a lease can be written
    /// for it; `None` if none does, or if that one cannot take a lease. Notes it as taken.
    pub(crate) fn next(
        &self,
        key: &Key,
        taken: &mut Vec<u64>,
        can_take: impl FnOnce(&WaitMode) -> bool,
    ) -> Option<WaitMode> {
        let all = self.0.lock();
        if all.closed {
            return None;
        }
        let waiters = &all.keys.get(key)?.waiters;
        if waiters.front().is_some_and(|first| first.holds_back) {
            return None;
        }
        let mut waiters = waiters.iter();
        let waiter = waiters.find(|waiter| waiter.is_free() && !taken.contains(&waiter.id))?;
        let mode = Some(waiter.mode).filter(can_take)?;
        taken.push(waiter.id);
        Some(mode)
    }

    /// Delivers the lease of one of several locks to the first thread that sleeps and takes leases of this mode. Returns
    /// it if there is none.
    pub(crate) fn deliver(&self, name: &Key, mode: &WaitMode, lease: A, now: Uptime) -> Result<(), A> {
        let mut all = self.0.lock();
        let Some(queue) = all.keys.get_mut(name) else { return Err(lease) };
        let thread = queue.deliver(mode, lease, &mut None)?;
        // A hold has ended, and another begins.
        if let Some(activity) = &mut queue.activity {
            activity.ended(now);
        }
        drop(all);
        thread.unpark();
        Ok(())
    }

    /// Returns true if no thread of this process has or waits for the key, and waiting has not ended.
    pub(crate) fn is_open_to(&self, key: &Key) -> bool {
        let all = self.0.lock();
        !all.closed && !all.keys.contains_key(key)
    }

    /// Gives the head of a key's queue a hint. Returns whether a thread waits there.
    pub(crate) fn notify(&self, key: &Key, hint: Hint) -> bool {
        let mut all = self.0.lock();
        let Some(queue) = all.keys.get_mut(key) else { return false };
        let head = queue.notify(hint);
        drop(all);
        unpark(head.as_ref());
        head.is_some()
    }

    /// Returns true if a thread waits for the key.
    pub(crate) fn is_waited_for(&self, key: &Key) -> bool {
        self.0.lock().keys.get(key).is_some_and(|queue| !queue.waiters.is_empty())
    }

    /// Returns since when the lock has passed among the threads of this process in its turn; `None` if no thread waits,
    /// or the first that does learns of a release by its holder alone.
    pub(crate) fn slice(&self, key: &Key) -> Option<Uptime> {
        let all = self.0.lock();
        let queue = all.keys.get(key)?;
        queue.waiters.front().filter(|head| head.mode.is_notified())?;
        queue.slice_since
    }

    /// Returns true if a thread of this process has the lock, or had it when its lease ended.
    pub(crate) fn is_held(&self, key: &Key) -> bool {
        self.0.lock().keys.get(key).is_some_and(|queue| queue.holders > 0)
    }

    /// Returns the locks that are held, as far as the program has not dropped them.
    pub(crate) fn held(&self) -> Vec<Arc<dyn Any + Send + Sync>> {
        self.0.lock().held().collect()
    }

    /// Returns what the threads of this process do with the key, if one has it or waits for it.
    pub(crate) fn activity(&self, key: &Key) -> Option<Activity> {
        self.0.lock().keys.get(key)?.activity
    }

    /// Notes that a poller has the key.
    pub(crate) fn met_poller(&self, key: &Key, now: Uptime) {
        if let Some(activity) = self.0.lock().keys.get_mut(key).and_then(|queue| queue.activity.as_mut()) {
            activity.met_poller(now);
        }
    }

    /// Ends all waiting, for good.
    pub(crate) fn close(&self) {
        let mut all = self.0.lock();
        all.closed = true;
        let waiters = all.keys.values().flat_map(|queue| &queue.waiters);
        let threads: Vec<Thread> = waiters.map(|waiter| waiter.thread.clone()).collect();
        drop(all);
        for thread in &threads {
            thread.unpark();
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.lock().closed
    }
}

impl<A> All<A> {
    fn hold(&mut self, key: &Key, observation: &Observation, hold: AnyHold) {
        let queue = self.keys.entry(key.clone()).or_default();
        if queue.holders > 0 {
            queue.earlier.retain(|earlier| earlier.strong_count() > 0);
            queue.earlier.push(queue.hold.clone());
        }
        queue.hold = hold;
        queue.hold(observation.at);
        queue.observation = Some(observation.clone());
    }

    fn held(&self) -> impl Iterator<Item = Arc<dyn Any + Send + Sync>> {
        let holding = self.keys.values().filter(|queue| queue.holders > 0);
        let holds = holding.flat_map(|queue| queue.earlier.iter().chain([&queue.hold]));
        holds.filter_map(Weak::upgrade)
    }

    /// Takes a thread out of a key's queue, which is removed with its last thread.
    fn leave<T>(&mut self, key: &Key, leave: impl FnOnce(&mut KeyQueue<A>) -> T) -> Option<T> {
        let queue = self.keys.get_mut(key)?;
        let outcome = leave(queue);
        if queue.holders == 0 && queue.waiters.is_empty() {
            self.keys.remove(key);
        }
        Some(outcome)
    }
}

impl<A> KeyQueue<A> {
    fn hold(&mut self, at: Uptime) {
        self.holders += 1;
        self.slice_since.get_or_insert(at);
        self.activity.get_or_insert_with(|| Activity::since(at));
    }

    /// Returns the thread to unpark once the mutex is free.
    fn notify(&mut self, hint: Hint) -> Option<Thread> {
        self.observation = None;
        let head = self.waiters.front_mut()?;
        head.hint = head.hint.max(Some(hint));
        Some(head.thread.clone())
    }

    /// Delivers a lease to the first thread that sleeps and takes leases of this mode. Returns its thread, to unpark
    /// once the mutex is free; the lease if there is none. The place goes with it.
    fn deliver(
        &mut self,
        mode: &WaitMode,
        lease: A,
        place: &mut Option<Box<dyn Place>>,
    ) -> Result<Thread, A> {
        if self.waiters.front().is_some_and(|first| first.holds_back) {
            return Err(lease);
        }
        let takes = |waiter: &&mut Waiter<A>| waiter.is_free() && waiter.mode.takes_leases_of(mode);
        let Some(waiter) = self.waiters.iter_mut().find(takes) else { return Err(lease) };
        (waiter.lease, waiter.place) = (Some(lease), place.take());
        Ok(waiter.thread.clone())
    }

    fn position(&self, id: u64) -> Option<usize> {
        self.waiters.iter().position(|waiter| waiter.id == id)
    }

    /// Returns true if no thread ahead of it waits as it does.
    fn is_head(&self, position: usize) -> bool {
        let mode = &self.waiters[position].mode;
        !self.waiters.range(..position).any(|before| before.mode.waits_as(mode))
    }

    /// Removes a waiter. Returns it, and the thread of the next if that is a head now.
    fn remove(&mut self, id: u64) -> Option<(Waiter<A>, Option<Thread>)> {
        let position = self.position(id)?;
        let was_head = self.is_head(position);
        let waiter = self.waiters.remove(position)?;
        let mut behind = self.waiters.range(position..);
        let next = behind.find(|next| was_head && next.mode.waits_as(&waiter.mode));
        let next = next.map(|next| next.thread.clone());
        Some((waiter, next))
    }
}

fn unpark(thread: Option<&Thread>) {
    if let Some(thread) = thread {
        thread.unpark();
    }
}
