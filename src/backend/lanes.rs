//! Lanes: threads share a few connections. A lane is a connection with what goes over it together. One thread leads it at a time: it sends
//! what all threads have queued in one write, receives the replies, sends what has queued meanwhile, makes the first of those threads the
//! next leader, and only then wakes the threads whose replies it has. So the server works while threads wake up.
//!
//! Why no thread waits for ever. `shared` holds the queue and counts the leaders.
//!
//! 1. A thread queues only while there are as many leaders as there may be; else it leads. Both happen under the lock of `shared`.
//! 2. A leader stops being one only under that lock, with the queue empty. Otherwise it passes the lead to a thread in its lane's batch or
//!    in the queue, which is waiting, since the same update of the slot's state that tells it fails once it has given up.
//! 3. Whatever is taken out of the queue is in the batch of a lane. Its leader tells each thread of the batch when the replies are there,
//!    when the connection fails, or when it panics.
//! 4. A thread is told by a write to its slot's state. It looks at that before each park, says there that it parks, and is unparked after
//!    the write if it had said so; an unpark before a park is kept.
//! 5. A thread that gives up leaves the queue under the lock of `shared`; in a batch it marks its slot as gone, or finds that it was told.
//!
//! `tests/models` runs this file and `slot.rs` on a model checker's mutexes, atomics and threads.

// Where it is also for the models, which compile this file on its own.
#[path = "slot.rs"]
mod slot;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use super::sync::{self, Mutex, MutexGuard, PoisonError};

pub(crate) use slot::{Slot, Told};

/// A connection, led by one thread at a time.
pub(crate) struct Lane<J, C> {
    pub(crate) connection: C,
    /// Whose jobs are on the wire, in the order of their replies, or go there next.
    pub(crate) batch: Vec<Arc<Slot<J, C>>>,
}

impl<J, C> Lane<J, C> {
    pub(crate) fn over(connection: C, first: &Arc<Slot<J, C>>) -> Self {
        Self { connection, batch: vec![Arc::clone(first)] }
    }
}

pub(crate) struct Lanes<J, C> {
    shared: Mutex<Shared<J, C>>,
}

struct Shared<J, C> {
    /// Threads that lead a lane, or are about to.
    leaders: usize,
    queue: VecDeque<Arc<Slot<J, C>>>,
}

impl<J, C> Lanes<J, C> {
    pub(crate) fn new() -> Self {
        Self { shared: Mutex::new(Shared { leaders: 0, queue: VecDeque::new() }) }
    }

    /// Returns whether this thread leads, on a connection that it has yet to get. If not, its slot is queued.
    pub(crate) fn enter(&self, slot: &Arc<Slot<J, C>>, most: usize) -> bool {
        let mut shared = self.lock();
        if shared.leaders < most {
            shared.leaders += 1;
            return true;
        }
        shared.queue.push_back(Arc::clone(slot));
        false
    }

    /// Takes all that is queued into the lane's batch.
    pub(crate) fn fill(&self, lane: &mut Lane<J, C>) {
        lane.batch.extend(self.lock().queue.drain(..));
    }

    /// Passes the lead on, with the lane, to a thread whose job is on the wire. A lane with nothing on the wire ends. The lane comes back if all
    /// whose jobs are on the wire have given up.
    pub(crate) fn pass_on(&self, mut lane: Lane<J, C>) -> Option<Lane<J, C>> {
        if lane.batch.is_empty() {
            self.end(Some(lane.connection));
            return None;
        }
        let mut at = 0;
        while let Some(slot) = lane.batch.get(at).cloned() {
            // It comes back from a thread that has given up.
            lane = slot.give(Some(lane)).err()??;
            at += 1;
        }
        Some(lane)
    }

    /// Ends a lane. A thread that is queued leads then, on a connection that it has yet to get.
    pub(crate) fn end(&self, connection: Option<C>) {
        let mut shared = self.lock();
        // Before the count: the next leader finds the connection in the pool.
        drop(connection);
        while let Some(next) = shared.queue.pop_front() {
            if next.give(None).is_ok() {
                return;
            }
        }
        shared.leaders -= 1;
    }

    /// Takes the slot out of the queue. Returns `false` if it is not there any more.
    pub(crate) fn leave(&self, slot: &Arc<Slot<J, C>>) -> bool {
        let mut shared = self.lock();
        let position = shared.queue.iter().position(|other| Arc::ptr_eq(other, slot));
        position.is_some_and(|position| shared.queue.remove(position).is_some())
    }

    /// Wakes the threads that queue, so that each looks whether it still has to wait.
    pub(crate) fn wake_queued(&self) {
        self.lock().queue.iter().for_each(|slot| slot.wake());
    }

    fn lock(&self) -> MutexGuard<'_, Shared<J, C>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<J, C> fmt::Debug for Lanes<J, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = self.lock();
        f.debug_struct("Lanes")
            .field("leaders", &shared.leaders)
            .field("queued", &shared.queue.len())
            .finish()
    }
}
