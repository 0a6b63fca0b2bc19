//! Lanes: threads share a few connections. A lane is a connection with what goes over it together. One thread leads it
//! at a time: it sends what all threads have queued in one write, receives the replies, sends what has queued
//! meanwhile, makes the first of those threads the next leader, and only then wakes the threads whose replies it has.
//! So the server works while threads wake up.
//!
//! A job is what a thread sends together, for one key or for many. One that is to go by itself takes its place in the
//! queue, which is not sent beyond it, and its thread is given the next lane that has nothing to carry. Of jobs in
//! groups, those of one group go in a trip; the others keep their places.
//!
//! Why no thread waits for ever. `shared` holds the idle lanes and the queue, and counts the leaders: the threads that
//! lead a lane, and the attempts to connect.
//!
//! 1. A thread queues only while there are as many leaders as there may be, or after an attempt to connect was begun,
//!    or where none may begin for now: then it looks again after a while. All that happens under the lock of `shared`.
//! 2. A leader stops being one only under that lock. If it has its lane still, the queue is empty; otherwise the first
//!    of the queue is given that lane, or a thread in the lane's batch is. The entry is told by one compare-and-swap,
//!    which fails if its thread has given up. If the connection failed, or none could be opened, the first of the queue
//!    is woken, and has one opened. One that gives up wakes the next.
//! 3. Whatever is taken out of the queue is in the batch of a lane. Its leader tells each thread of the batch when the
//!    replies are there, when the connection fails, or when it panics.
//! 4. A thread is told by a write to its entry's state. It looks at that before each park, says there that it parks,
//!    and is unparked after the write if it had said so; an unpark before a park is kept.
//! 5. A thread that gives up leaves the queue under the lock of `shared`;
//!    in a batch it marks its entry as gone, or finds that it was told.
//!
//! `tests/models` runs this file and `entry.rs` on a model checker's mutexes, atomics and threads.

// Where it is also for the models, which compile this file on its own.
#[path = "entry.rs"]
mod entry;

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use super::sync::{self, Mutex};

pub(crate) use entry::{Entry, Told};

/// A connection, led by one thread at a time.
pub(crate) struct Lane<J, C> {
    /// In a box, since lanes are passed around.
    pub(crate) connection: Box<C>,
    /// Whose jobs are on the wire, in the order of their replies, or go there next.
    pub(crate) batch: Vec<Arc<Entry<J, C>>>,
}

impl<J, C> Lane<J, C> {
    pub(crate) fn over(connection: C) -> Self {
        Self { connection: Box::new(connection), batch: Vec::new() }
    }
}

pub(crate) struct Lanes<J, C> {
    shared: Mutex<Shared<J, C>>,
}

struct Shared<J, C> {
    /// The last used at the back.
    idle: VecDeque<Lane<J, C>>,
    leaders: usize,
    /// Attempts to connect. They are among the leaders.
    opening: usize,
    queue: VecDeque<Queued<J, C>>,
}

struct Queued<J, C> {
    entry: Arc<Entry<J, C>>,
    batching: Batching,
}

/// With which others a job may be in a batch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Batching {
    /// Any others.
    Any,
    /// Any others, but of those in groups only its own.
    Group(u16),
    /// None: it goes by itself.
    Alone,
}

/// How a thread may become a leader.
pub(crate) struct LaneTerms<U, O> {
    /// How many leaders there may be.
    pub(crate) most: usize,
    /// Returns true if an idle connection may be used.
    pub(crate) usable: U,
    /// Returns true if one may be opened now.
    pub(crate) may_open: O,
}

pub(crate) enum Entered<J, C> {
    /// This thread leads, with nothing on the wire. `others`: some are queued that may go with it.
    Leads { lane: Lane<J, C>, others: bool },
    /// It waits, behind so many. `opens`: and has a connection [opened](Lanes::opened).
    Waits { opens: bool, ahead: usize },
}

impl<J, C> Lanes<J, C> {
    pub(crate) fn new() -> Self {
        let (idle, queue) = (VecDeque::new(), VecDeque::new());
        Self { shared: Mutex::new(Shared { idle, leaders: 0, opening: 0, queue }) }
    }

    /// Gives this thread an idle lane, or queues its entry.
    #[inline]
    pub(crate) fn enter(
        &self,
        entry: &Arc<Entry<J, C>>,
        batching: Batching,
        terms: LaneTerms<impl FnMut(&C) -> bool, impl FnOnce() -> bool>,
    ) -> Entered<J, C> {
        // Closing takes a system call each, which is left until the lock is free.
        let mut unusable = Vec::new();
        let mut shared = self.shared.lock();
        if let Some(lane) = shared.take_idle(terms.most, terms.usable, &mut unusable) {
            return Entered::Leads { lane, others: !shared.queue.is_empty() };
        }
        let ahead = shared.queue.len();
        shared.queue.push_back(Queued { entry: Arc::clone(entry), batching });
        Entered::Waits { opens: shared.opens(terms.most, terms.may_open), ahead }
    }

    /// Takes a free lane for a thread that is queued and was woken, or leaves it in its place.
    pub(crate) fn enter_again(
        &self,
        entry: &Arc<Entry<J, C>>,
        terms: LaneTerms<impl FnMut(&C) -> bool, impl FnOnce() -> bool>,
    ) -> Entered<J, C> {
        let mut unusable = Vec::new();
        let mut shared = self.shared.lock();
        let Some(place) = shared.place(entry) else { return Entered::Waits { opens: false, ahead: 0 } };
        if let Some(lane) = shared.take_idle(terms.most, terms.usable, &mut unusable) {
            shared.queue.remove(place);
            return Entered::Leads { lane, others: true };
        }
        Entered::Waits { opens: shared.opens(terms.most, terms.may_open), ahead: place }
    }

    /// Takes what is queued and may go with this job into the lane's batch, up to one that goes by itself.
    pub(crate) fn fill(&self, lane: &mut Lane<J, C>, with: Batching) {
        self.shared.lock().fill(lane, with);
    }

    /// Fills the lane of a leader whose job is done. If nothing is queued, the lane ends.
    #[inline]
    pub(crate) fn fill_or_end(&self, mut lane: Lane<J, C>) -> Option<Lane<J, C>> {
        let mut shared = self.shared.lock();
        shared.fill(&mut lane, Batching::Any);
        if lane.batch.is_empty() {
            shared.give_back(Some(lane));
            return None;
        }
        Some(lane)
    }

    /// Passes the lead on, with the lane, to a thread whose job is on the wire. A lane with nothing on the wire ends.
    /// The lane comes back if all whose jobs are on the wire have given up.
    pub(crate) fn pass_on(&self, mut lane: Lane<J, C>) -> Option<Lane<J, C>> {
        if lane.batch.is_empty() {
            self.give_back(Some(lane));
            return None;
        }
        let mut at = 0;
        while let Some(entry) = lane.batch.get(at).cloned() {
            // It comes back from a thread that has given up.
            lane = entry.give(lane).err()?;
            at += 1;
        }
        Some(lane)
    }

    /// Ends the lead of a lane that has nothing on the wire: the first
    /// of the queue has it then, or none. `None`: the connection failed.
    pub(crate) fn give_back(&self, lane: Option<Lane<J, C>>) {
        self.shared.lock().give_back(lane);
    }

    /// Ends an attempt to connect: its lane is one whose lead ends. `None`: it failed.
    pub(crate) fn opened(&self, lane: Option<Lane<J, C>>) {
        let mut shared = self.shared.lock();
        shared.opening -= 1;
        shared.give_back(lane);
    }

    /// Takes out the idle lanes, which are to be closed.
    pub(crate) fn take_idle(&self) -> VecDeque<Lane<J, C>> {
        mem::take(&mut self.shared.lock().idle)
    }

    /// Takes out the idle lanes that are unused, which are to be closed,
    /// but not the last lane. Returns true as well if several are left.
    pub(crate) fn take_unused(&self, is_unused: impl Fn(&C) -> bool) -> (Vec<Lane<J, C>>, bool) {
        let (mut shared, mut unused) = (self.shared.lock(), Vec::new());
        while shared.count() > 1 && shared.idle.front().is_some_and(|lane| is_unused(&lane.connection)) {
            unused.extend(shared.idle.pop_front());
        }
        (unused, shared.count() > 1)
    }

    /// Returns how many lanes there are.
    pub(crate) fn count(&self) -> usize {
        self.shared.lock().count()
    }

    /// Takes the entry out of the queue. Returns `false` if it is not there any more.
    pub(crate) fn leave(&self, entry: &Arc<Entry<J, C>>) -> bool {
        let mut shared = self.shared.lock();
        let Some(place) = shared.place(entry) else { return false };
        shared.queue.remove(place);
        if place == 0 {
            shared.wake_first();
        }
        true
    }

    /// Wakes the threads that queue, so that each looks whether it still has to wait.
    pub(crate) fn wake_queued(&self) {
        self.shared.lock().queue.iter().for_each(|queued| queued.entry.wake());
    }
}

impl<J, C> Shared<J, C> {
    /// Returns how many lanes there are, led or idle.
    fn count(&self) -> usize {
        self.idle.len() + self.leaders - self.opening
    }

    fn take_idle(
        &mut self,
        most: usize,
        mut usable: impl FnMut(&C) -> bool,
        unusable: &mut Vec<Lane<J, C>>,
    ) -> Option<Lane<J, C>> {
        if self.leaders >= most {
            return None;
        }
        // Of several the oldest is looked at as well, so that none stays that will not be used.
        if self.idle.len() > 1 && !usable(&self.idle[0].connection) {
            unusable.extend(self.idle.pop_front());
        }
        while let Some(lane) = self.idle.pop_back() {
            if usable(&lane.connection) {
                self.leaders += 1;
                return Some(lane);
            }
            unusable.push(lane);
        }
        None
    }

    fn fill(&mut self, lane: &mut Lane<J, C>, with: Batching) {
        let (mut goes, mut at) = (with, 0);
        while let Some(Queued { batching, .. }) = self.queue.get(at) {
            match (*batching, goes) {
                (Batching::Alone, _) => break,
                (Batching::Group(group), Batching::Group(going)) if group != going => {
                    at += 1;
                    continue;
                }
                (Batching::Group(_), _) => goes = *batching,
                (Batching::Any, _) => {}
            }
            lane.batch.extend(self.queue.remove(at).map(|queued| queued.entry));
        }
    }

    fn give_back(&mut self, lane: Option<Lane<J, C>>) {
        if let Some(mut lane) = lane {
            while let Some(next) = self.queue.pop_front() {
                match next.entry.give(lane) {
                    Ok(()) => return,
                    Err(back) => lane = back,
                }
            }
            self.idle.push_back(lane);
        }
        self.leaders -= 1;
        self.wake_first();
    }

    fn opens(&mut self, most: usize, may_open: impl FnOnce() -> bool) -> bool {
        let opens = self.leaders < most && self.opening < self.queue.len() && may_open();
        self.leaders += usize::from(opens);
        self.opening += usize::from(opens);
        opens
    }

    fn place(&self, entry: &Arc<Entry<J, C>>) -> Option<usize> {
        self.queue.iter().position(|queued| Arc::ptr_eq(&queued.entry, entry))
    }

    fn wake_first(&self) {
        if let Some(first) = self.queue.front() {
            first.entry.wake();
        }
    }
}
