//! A timer: threads that do work when it is due. What the work is, it does not know. Work for one node is done by one
//! thread at a time, and that for several nodes at the same time: a node that hangs holds up no other.
//!
//! At most one thread sleeps until something is due. A thread that takes work starts another to sleep, if there is work
//! for other nodes. One that has done its work takes what is due next, sleeps, or ends if another sleeps already.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use proto::values::{Now, Uptime};

use crate::system::Process;

use crate::net::NodeId;
use crate::system::clock;
use crate::system::sync::{Condvar, Mutex, wait_timeout};
use crate::system::thread;
use crate::values::contained::contained;

/// How long the thread waits for more before it ends.
const LINGER: Duration = Duration::from_secs(5);

/// How many are worked on together at most.
const MOST: usize = 512;

/// How often the thread looks whether the wall clock was set, or the machine was suspended, and how much counts. Then
/// everything is looked at: a lease may have passed.
const CLOCKS_COMPARED_EVERY: Duration = Duration::from_secs(1);
const SET_BY: Duration = Duration::from_millis(100);

thread_local! {
    /// True in a timer's thread.
    static IS_TIMERS: Cell<bool> = const { Cell::new(false) };
}

/// Does what is due, and adds what is due later.
pub(crate) type Work<T> = fn(Vec<T>);

/// When something is due, and which of all that is: by this it is taken out.
pub(crate) type Due = (Uptime, u64);

/// Threads for what is due later. The first starts when there is something. They end when there has been nothing for a
/// while, or when this is dropped.
pub(crate) struct Timer<T> {
    schedule: Arc<Schedule<T>>,
    process: Process,
}

struct Schedule<T> {
    state: Mutex<DueWork<T>>,
    changed: Condvar,
    /// Everything is done.
    done: Condvar,
    /// The name of its threads.
    name: &'static str,
    work: Work<T>,
    #[cfg(test)]
    refuses_threads: std::sync::atomic::AtomicBool,
}

struct DueWork<T> {
    due: BTreeMap<Due, DueItem<T>>,
    /// How many there have been.
    last: u64,
    /// The nodes that threads work for.
    busy: Vec<NodeId>,
    /// True if none could be started for another node.
    lacks_thread: bool,
    /// When something was last added.
    added: Uptime,
    /// The clocks when they were last compared.
    compared: Option<Now>,
    /// How many threads there are.
    threads: usize,
    /// Until when a thread sleeps at most, if one does: what is due later need not wake it.
    sleeps_until: Option<Uptime>,
    closed: bool,
}

struct DueItem<T> {
    node: NodeId,
    work: T,
    /// How much earlier it may be done, together with others.
    slack: Duration,
}

impl<T: Send + 'static> Timer<T> {
    pub(crate) fn new(name: &'static str, work: Work<T>) -> Self {
        let state = DueWork {
            due: BTreeMap::new(),
            last: 0,
            busy: Vec::new(),
            lacks_thread: false,
            added: Uptime::default(),
            compared: None,
            threads: 0,
            sleeps_until: None,
            closed: false,
        };
        let schedule = Schedule {
            state: Mutex::new(state),
            changed: Condvar::default(),
            done: Condvar::default(),
            name,
            work,
            #[cfg(test)]
            refuses_threads: std::sync::atomic::AtomicBool::default(),
        };
        Self { schedule: Arc::new(schedule), process: Process::current() }
    }

    /// Has each start of a thread fail, or none, as the system may.
    #[cfg(test)]
    pub(crate) fn refuse_threads(&self, refuse: bool) {
        self.schedule.refuses_threads.store(refuse, std::sync::atomic::Ordering::Relaxed);
    }

    /// Has something done at `at`, or up to `slack` earlier.
    ///
    /// # Errors
    ///
    /// Why no thread could be started, if there is none, with the work.
    pub(crate) fn add(
        &self,
        node: NodeId,
        at: Uptime,
        slack: Duration,
        work: T,
    ) -> Result<Due, (io::Error, T)> {
        let mut state = self.schedule.state.lock();
        // A thread that is still there does what is left.
        if state.closed && state.threads == 0 {
            return Err((io::Error::other("its locker was shut down"), work));
        }
        let due = state.insert(at, DueItem { node, work, slack });
        let now = clock::now();
        state.added = now.uptime;
        // The thread may begin late, and a clock that is set before is to be noticed as well.
        state.compared.get_or_insert(now);
        let wakes = state.sleeps_until.is_some_and(|until| at < until);
        // The thread that works for the node comes to it.
        let is_busy = state.busy.contains(&node) && !state.lacks_thread;
        let started = if is_busy { Ok(()) } else { self.schedule.start_if_needed(&mut state) };
        let refused = started.err().filter(|_| state.threads == 0);
        let refused = refused.and_then(|error| Some((error, state.due.remove(&due)?.work)));
        drop(state);
        if wakes {
            self.schedule.changed.notify_one();
        }
        refused.map_or(Ok(due), Err)
    }

    /// Takes out what is due then, unless it is being done, or everything is due now.
    pub(crate) fn remove(&self, due: Due) {
        let removed = self.schedule.state.lock().due.remove(&due);
        // What the program may have put in is dropped without the mutex.
        drop(removed);
    }
}

impl<T> Timer<T> {
    pub(crate) fn is_closed(&self) -> bool {
        self.schedule.state.lock().closed
    }

    /// Returns how much waits to be done.
    pub(crate) fn count(&self) -> usize {
        self.schedule.state.lock().due.len()
    }

    /// Ends the threads, once they have done what is left, whenever that is due.
    pub(crate) fn close(&self) {
        self.schedule.state.lock().closed = true;
        self.schedule.changed.notify_one();
    }

    /// Ends the threads, and waits until they have done what is left, for at most this time.
    pub(crate) fn finish(&self, at_most: Duration) {
        if self.process.is_current() {
            self.close();
            self.wait(at_most);
        }
    }

    /// Waits until everything is done, for at most this time.
    pub(crate) fn wait(&self, at_most: Duration) {
        self.wait_for(at_most, |_| true);
    }

    /// Waits until everything is done that `matters`, for at most
    /// this time. In a forked child there are no threads (I10).
    pub(crate) fn wait_for(&self, at_most: Duration, matters: impl Fn(&T) -> bool) {
        // A timer's thread would wait for itself, or for one that waits for it.
        if !self.process.is_current() || IS_TIMERS.get() {
            return;
        }
        let until = clock::uptime().after(at_most);
        let mut state = self.schedule.state.lock();
        while !state.busy.is_empty() || state.due.values().any(|item| matters(&item.work)) {
            let left = until.since(clock::uptime());
            if left.is_zero() {
                return;
            }
            state = wait_timeout(&self.schedule.done, state, left);
        }
    }
}

impl<T: Send + 'static> Schedule<T> {
    /// Starts a thread if none will come to what may be worked on.
    fn start_if_needed(self: &Arc<Self>, state: &mut DueWork<T>) -> Result<(), io::Error> {
        // One that has just been started is no sleeper yet; it works for no node either.
        if state.threads > state.busy.len() || state.first().is_none() {
            return Ok(());
        }
        #[cfg(test)]
        if self.refuses_threads.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(io::Error::other("refused on purpose"));
        }
        let this = Arc::clone(self);
        let body = move || {
            IS_TIMERS.set(true);
            let mut done = None;
            while let Some((node, batch)) = this.next(done) {
                // Whatever it does, the others' work goes on.
                contained(|| (this.work)(batch));
                done = Some(node);
            }
        };
        thread::named(self.name).spawn(body)?;
        state.threads += 1;
        Ok(())
    }

    /// Waits until something is due, and returns it, together with what may be done with it, and for which node; `None`
    /// if the thread is to end. `done`: the node that this thread has worked for.
    fn next(self: &Arc<Self>, done: Option<NodeId>) -> Option<(NodeId, Vec<T>)> {
        let mut state = self.state.lock();
        if let Some(done) = done {
            state.busy.retain(|node| *node != done);
            if state.busy.is_empty() {
                self.done.notify_all();
            }
        }
        loop {
            let both = clock::now();
            let now = both.uptime;
            if state.clock_was_set(both) || state.closed {
                state.make_due(now);
            }
            let until = match state.first() {
                Some((due, node)) if due <= now => {
                    let taken = state.take_due(now, node);
                    // Then the others wait for this one.
                    state.lacks_thread = self.start_if_needed(&mut state).is_err();
                    return Some((node, taken));
                }
                Some((due, _)) => due.min(now.after(CLOCKS_COMPARED_EVERY)),
                None if now.since(state.added) >= LINGER || state.closed => {
                    state.threads -= 1;
                    return None;
                }
                None => state.added.after(LINGER),
            };
            if let Some(sleeps_until) = state.sleeps_until {
                if until < sleeps_until {
                    self.changed.notify_one();
                }
                state.threads -= 1;
                return None;
            }
            state.sleeps_until = Some(until);
            let time = until.since(now);
            state = wait_timeout(&self.changed, state, time);
            state.sleeps_until = None;
        }
    }
}

impl<T> DueWork<T> {
    fn insert(&mut self, at: Uptime, item: DueItem<T>) -> Due {
        self.last += 1;
        self.due.insert((at, self.last), item);
        (at, self.last)
    }

    /// Returns when something is due first for a node that no thread works for, and the node.
    fn first(&self) -> Option<(Uptime, NodeId)> {
        let (due, item) = self.due.iter().find(|(_, item)| !self.busy.contains(&item.node))?;
        Some((due.0, item.node))
    }

    /// Returns true if the wall clock differs from the monotonic one by more or less than before.
    fn clock_was_set(&mut self, now: Now) -> bool {
        let Some(last) = self.compared.replace(now) else { return false };
        let [wall, uptime] = [now.wall.since(last.wall), now.uptime.since(last.uptime)];
        wall.abs_diff(uptime) > SET_BY
    }

    /// Makes everything due now at the latest.
    fn make_due(&mut self, now: Uptime) {
        for ((_, number), item) in self.due.split_off(&(now, u64::MAX)) {
            self.due.insert((now, number), item);
        }
    }

    /// Takes what is due for a node, which the thread works for from now on.
    fn take_due(&mut self, now: Uptime, node: NodeId) -> Vec<T> {
        self.busy.push(node);
        let of_node = self.due.iter().filter(|(_, item)| item.node == node);
        let due = of_node.take_while(|(due, item)| due.0 <= now.after(item.slack));
        let due: Vec<Due> = due.take(MOST).map(|(due, _)| *due).collect();
        due.iter().filter_map(|due| Some(self.due.remove(due)?.work)).collect()
    }
}

impl<T> Drop for Timer<T> {
    fn drop(&mut self) {
        // I10: in a forked child a thread that is not there may have the mutex.
        if self.process.is_current() {
            self.close();
        }
    }
}

#[cfg(test)]
mod tests;
