//! A timer: a thread that does work when it is due. What the work is, it does not know.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;
use std::{fmt, io, mem, process};

use crate::values::clock::{self, Now, Uptime};
use crate::values::contained::contained;

/// How long the thread waits for more before it ends.
const LINGER: Duration = Duration::from_secs(5);

/// How many are worked on together at most.
pub(crate) const MOST: usize = 512;

/// How often the thread looks whether the wall clock was set, or the machine was suspended, and how much counts. Then everything is looked at:
/// a lease may have passed.
const CLOCKS_COMPARED_EVERY: Duration = Duration::from_secs(1);
const SET_BY: Duration = Duration::from_millis(100);

/// Does what is due, and adds what is due later.
pub(crate) type Work<T> = fn(Vec<(u64, T)>);

/// A thread for what is due later. It starts when there is something, and ends when there has been nothing for a while, or when this is
/// dropped.
pub(crate) struct Timer<T> {
    shared: Arc<Schedule<T>>,
    /// The name of its thread.
    name: &'static str,
    work: Work<T>,
    process: u32,
    #[cfg(test)]
    refuses_threads: std::sync::atomic::AtomicBool,
}

struct Schedule<T> {
    state: Mutex<DueWork<T>>,
    changed: Condvar,
}

struct DueWork<T> {
    due: BTreeMap<(Uptime, u64), DueItem<T>>,
    /// When each is due.
    at: HashMap<u64, Uptime>,
    last_id: u64,
    /// When something was last added.
    added: Uptime,
    /// The clocks when they were last compared.
    compared: Option<Now>,
    /// True if there is a thread.
    running: bool,
    /// Until when it sleeps at most, if it does: what is due later need not wake it.
    sleeps_until: Option<Uptime>,
    closed: bool,
}

struct DueItem<T> {
    work: T,
    /// How much earlier it may be done, together with others.
    slack: Duration,
}

impl<T: Send + 'static> Timer<T> {
    pub(crate) fn new(name: &'static str, work: Work<T>) -> Self {
        let state = DueWork {
            due: BTreeMap::new(),
            at: HashMap::new(),
            last_id: 0,
            added: Uptime::default(),
            compared: None,
            running: false,
            sleeps_until: None,
            closed: false,
        };
        Self {
            shared: Arc::new(Schedule { state: Mutex::new(state), changed: Condvar::new() }),
            name,
            work,
            process: process::id(),
            #[cfg(test)]
            refuses_threads: std::sync::atomic::AtomicBool::default(),
        }
    }

    /// Has each start of a thread fail, or none, as the system may.
    #[cfg(test)]
    pub(crate) fn refuse_threads(&self, refuse: bool) {
        self.refuses_threads.store(refuse, std::sync::atomic::Ordering::Relaxed);
    }

    /// Returns a number for what is to be added, which is never 0.
    pub(crate) fn new_id(&self) -> u64 {
        let mut state = self.shared.lock();
        state.last_id += 1;
        state.last_id
    }

    /// Has something done at `due`, or up to `slack` earlier, instead of what has this number.
    ///
    /// # Errors
    ///
    /// Why no thread could be started, if there is none, with the work.
    pub(crate) fn add(&self, id: u64, due: Uptime, slack: Duration, work: T) -> Result<(), (io::Error, T)> {
        let mut state = self.shared.lock();
        // A thread that is still there does what is left.
        if state.closed && !state.running {
            return Err((io::Error::other("its locker was shut down"), work));
        }
        let replaced = state.remove(id);
        state.at.insert(id, due);
        state.due.insert((due, id), DueItem { work, slack });
        let now = clock::now();
        state.added = now.uptime;
        // The thread may begin late, and a clock that is set before is to be noticed as well.
        state.compared.get_or_insert(now);
        let wakes = state.sleeps_until.is_some_and(|until| due < until);
        let started = if state.running { Ok(()) } else { self.start() };
        let refused = started.err().and_then(|error| Some((error, state.remove(id)?.work)));
        state.running = state.running || refused.is_none();
        drop(state);
        // What the program may have put in is dropped without the mutex.
        drop(replaced);
        if wakes {
            self.shared.changed.notify_one();
        }
        refused.map_or(Ok(()), Err)
    }

    /// Takes out what has this number.
    pub(crate) fn remove(&self, id: u64) {
        let removed = self.shared.lock().remove(id);
        drop(removed);
    }

    fn start(&self) -> Result<(), io::Error> {
        #[cfg(test)]
        if self.refuses_threads.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(io::Error::other("refused on purpose"));
        }
        let (shared, work) = (Arc::clone(&self.shared), self.work);
        let body = move || {
            while let Some(batch) = shared.next() {
                // Whatever it does, the others' work goes on.
                contained(|| work(batch));
            }
        };
        thread::Builder::new().name(self.name.to_owned()).spawn(body).map(drop)
    }
}

impl<T> Timer<T> {
    /// Ends the thread, once it has done what is left, whenever that is due.
    pub(crate) fn close(&self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_one();
    }
}

impl<T> Schedule<T> {
    fn lock(&self) -> MutexGuard<'_, DueWork<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something is due, and returns it, together with what may be done with it; `None` if the thread is to end.
    fn next(&self) -> Option<Vec<(u64, T)>> {
        let mut state = self.lock();
        loop {
            state.sleeps_until = None;
            if state.closed {
                state.running = !state.due.is_empty();
                return state.running.then(|| state.take_all());
            }
            let both = clock::now();
            let now = both.uptime;
            if state.clock_was_set(both) && !state.due.is_empty() {
                return Some(state.take_all());
            }
            let until = match state.due.first_key_value() {
                Some(((due, _), _)) if *due <= now => return Some(state.take_due(now)),
                Some(((due, _), _)) => (*due).min(now.after(CLOCKS_COMPARED_EVERY)),
                None if now.since(state.added) >= LINGER => {
                    state.running = false;
                    return None;
                }
                None => state.added.after(LINGER),
            };
            state.sleeps_until = Some(until);
            let time = until.since(now);
            state = self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl<T> DueWork<T> {
    fn remove(&mut self, id: u64) -> Option<DueItem<T>> {
        let due = self.at.remove(&id)?;
        self.due.remove(&(due, id))
    }

    /// Returns true if the wall clock differs from the monotonic one by more or less than before.
    fn clock_was_set(&mut self, now: Now) -> bool {
        let Some(last) = self.compared.replace(now) else { return false };
        let [wall, uptime] = [now.wall.since(last.wall), now.uptime.since(last.uptime)];
        wall.abs_diff(uptime) > SET_BY
    }

    fn take_all(&mut self) -> Vec<(u64, T)> {
        self.at.clear();
        mem::take(&mut self.due).into_iter().map(|((_, id), item)| (id, item.work)).collect()
    }

    fn take_due(&mut self, now: Uptime) -> Vec<(u64, T)> {
        let mut taken = Vec::new();
        while taken.len() < MOST
            && let Some(entry) = self.due.first_entry()
            && entry.key().0 <= now.after(entry.get().slack)
        {
            let ((_, id), item) = entry.remove_entry();
            self.at.remove(&id);
            taken.push((id, item.work));
        }
        taken
    }
}

impl<T> Drop for Timer<T> {
    fn drop(&mut self) {
        // I10: in a forked child a thread that is not there may have the mutex.
        if self.process == process::id() {
            self.close();
        }
    }
}

impl<T> fmt::Debug for Timer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.lock();
        f.debug_struct("Timer")
            .field("kept", &state.due.len())
            .field("running", &state.running)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};

    #[expect(clippy::needless_pass_by_value, reason = "it is the timer's")]
    fn send(batch: Vec<(u64, Sender<Vec<u64>>)>) {
        let ids = batch.iter().map(|(id, _)| *id).collect();
        let _ = batch[0].1.send(ids);
    }

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn what_is_due_is_done_and_what_is_nearly_due_with_it() {
        let (timer, (sender, done)) = (Timer::new("timer", send), channel());
        let now = clock::uptime();
        let ids: Vec<u64> = (0..3).map(|_| timer.new_id()).collect();
        timer.add(ids[2], now.after(LONG), Duration::ZERO, sender.clone()).unwrap();
        timer.add(ids[1], now.after(LONG), LONG, sender.clone()).unwrap();
        timer.add(ids[0], now, Duration::ZERO, sender).unwrap();
        assert_eq!(done.recv_timeout(LONG).unwrap(), ids[..2]);
    }

    #[test]
    fn what_was_taken_out_or_replaced_is_not_done() {
        let (timer, (sender, done)) = (Timer::new("timer", send), channel());
        let (one, other) = (timer.new_id(), timer.new_id());
        let soon = clock::uptime().after(Duration::from_millis(20));
        timer.add(one, soon.after(LONG), Duration::ZERO, sender.clone()).unwrap();
        timer.add(one, soon, Duration::ZERO, sender.clone()).unwrap();
        timer.add(other, soon, Duration::ZERO, sender).unwrap();
        timer.remove(other);
        assert_eq!(done.recv_timeout(LONG).unwrap(), [one]);
        assert!(done.recv().is_err(), "nothing is left, and the sender is dropped");
        assert!(timer.shared.lock().at.is_empty());
    }

    #[test]
    fn everything_is_looked_at_when_the_wall_clock_was_set() {
        let timer = Timer::new("timer", send);
        let mut state = timer.shared.lock();
        let now = clock::now();
        let later = |wall, uptime| Now {
            wall: now.wall.after(Duration::from_millis(wall)),
            uptime: now.uptime.after(Duration::from_millis(uptime)),
        };
        assert!(!state.clock_was_set(now) && !state.clock_was_set(later(1000, 1010)));
        assert!(state.clock_was_set(later(5000, 2000)), "forward");
        assert!(state.clock_was_set(later(0, 3000)), "back");
        assert!(!state.clock_was_set(later(1000, 4000)));
        let (sender, _done) = channel();
        state.at.insert(1, now.uptime.after(LONG));
        state.due.insert((now.uptime.after(LONG), 1), DueItem { work: sender, slack: Duration::ZERO });
        assert_eq!(state.take_all().len(), 1);
        assert!(state.due.is_empty() && state.at.is_empty());
    }

    #[test]
    fn work_that_panics_does_not_end_the_thread() {
        fn panic_once(batch: Vec<(u64, Sender<Vec<u64>>)>) {
            if batch[0].0 == 1 {
                std::panic::resume_unwind(Box::new("on purpose"));
            }
            send(batch);
        }
        let (timer, (sender, done)) = (Timer::new("timer", panic_once), channel());
        let now = clock::uptime();
        for _ in 0..2 {
            let due = now.after(Duration::from_millis(1));
            timer.add(timer.new_id(), due, Duration::ZERO, sender.clone()).unwrap();
            // The two are not worked on together.
            while !timer.shared.lock().due.is_empty() {
                thread::sleep(Duration::from_millis(1));
            }
        }
        assert_eq!(done.recv_timeout(LONG).unwrap(), [2]);
    }

    #[test]
    fn the_thread_ends_with_the_timer() {
        let (timer, (sender, _done)) = (Timer::new("timer", send), channel());
        timer.add(timer.new_id(), clock::uptime().after(LONG), Duration::ZERO, sender).unwrap();
        let shared = Arc::downgrade(&timer.shared);
        drop(timer);
        while shared.strong_count() > 0 {
            thread::sleep(Duration::from_millis(1));
        }
    }
}
