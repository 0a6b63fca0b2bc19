//! Processes: each has threads, clocks and what it keeps once.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::scheduler::{Nanos, ThreadId, own, scheduler};
use crate::{network, thread};

/// How the clocks of a process differ from true time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Clocks {
    /// How far the wall clock is ahead, in microseconds.
    pub ahead: i64,
    /// How much faster both clocks run, in millionths.
    pub faster: i32,
}

/// What the run knows of a process.
#[derive(Debug)]
pub(crate) struct ProcessState {
    pub(crate) name: String,
    clocks: Clocks,
    /// When it began.
    began: Nanos,
    pub(crate) is_stopped: bool,
    stopped_since: Nanos,
    pub(crate) clock_set: Nanos,
    resumed: Nanos,
    pub(crate) stopped_for: Nanos,
    pub(crate) is_dead: bool,
    /// The threads that would run if it were not stopped.
    pub(crate) could_run: Vec<ThreadId>,
}

impl ProcessState {
    pub(crate) fn first() -> Self {
        Self::new("director", Clocks::default(), 0)
    }

    fn new(name: &str, clocks: Clocks, began: Nanos) -> Self {
        let name = name.to_owned();
        Self {
            name,
            clocks,
            began,
            is_stopped: false,
            stopped_since: 0,
            clock_set: 0,
            resumed: 0,
            stopped_for: 0,
            is_dead: false,
            could_run: Vec::new(),
        }
    }

    /// Returns what its monotonic clock shows.
    pub(crate) fn uptime(&self, now: Nanos) -> Nanos {
        let passed = now - self.began;
        passed.saturating_add_signed(scaled(passed, self.clocks.faster))
    }

    /// Returns what its wall clock shows, in nanoseconds after the run began.
    pub(crate) fn wall(&self, now: Nanos) -> i64 {
        i64::try_from(now).unwrap_or(i64::MAX) + scaled(now, self.clocks.faster) + 1000 * self.clocks.ahead
    }

    /// Returns how long its clocks take for so much time.
    pub(crate) fn true_time(&self, time: Duration) -> Nanos {
        let by_clock = time.as_nanos().min(u128::from(Nanos::MAX / 4));
        let millionths = 1_000_000 + i128::from(self.clocks.faster);
        let true_time = (by_clock * 1_000_000).div_ceil(millionths.unsigned_abs());
        Nanos::try_from(true_time).unwrap_or(Nanos::MAX / 4)
    }
}

fn scaled(time: Nanos, millionths: i32) -> i64 {
    let scaled = i128::from(time) * i128::from(millionths) / 1_000_000;
    i64::try_from(scaled).unwrap_or_default()
}

/// A process of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Process(usize);

impl Process {
    /// Returns the process of the calling thread.
    #[must_use]
    pub fn current() -> Self {
        let own = own();
        Self(scheduler().lock().threads[own].process)
    }

    /// Returns one that this process is not.
    #[must_use]
    pub fn another() -> Self {
        Self(usize::MAX)
    }

    /// Returns true in this very process.
    #[must_use]
    pub fn is_current(self) -> bool {
        self == Self::current()
    }

    /// Starts a process, whose first thread runs `body`.
    pub fn start(name: &str, clocks: Clocks, body: impl FnOnce() + Send + 'static) -> Self {
        let mut state = scheduler().lock();
        let (id, now) = (state.processes.len(), state.now);
        state.processes.push(ProcessState::new(name, clocks, now));
        drop(state);
        thread::start_in(id, "main", body);
        Self(id)
    }

    /// Ends it at once: its threads never run again, and drop nothing. `closes`: its connections are closed, as by an
    /// end of the process alone; otherwise servers learn nothing, as at an end of its machine.
    pub fn kill(self, closes: bool) {
        scheduler().lock().processes[self.0].is_dead = true;
        network::left_by(self, closes);
    }

    /// Returns true if it was killed.
    #[must_use]
    pub fn is_dead(self) -> bool {
        scheduler().lock().processes[self.0].is_dead
    }

    /// Stops its threads, as SIGSTOP does, or lets them go on.
    pub fn stop(self, stops: bool) {
        let mut state = scheduler().lock();
        let now = state.now;
        let process = &mut state.processes[self.0];
        if process.is_stopped == stops {
            return;
        }
        process.is_stopped = stops;
        let name = process.name.clone();
        if stops {
            process.stopped_since = now;
        } else {
            process.stopped_for += now - process.stopped_since;
            process.resumed = now;
            state.resume(self.0);
        }
        crate::run::note_of(&mut state, &name, if stops { "is stopped" } else { "goes on" });
    }

    /// Sets its wall clock forward or back by so many microseconds.
    pub fn set_clock(self, by: i64) {
        let mut state = scheduler().lock();
        let now = state.now;
        let process = &mut state.processes[self.0];
        process.clocks.ahead += by;
        if by > 0 {
            process.clock_set = now;
        }
    }

    /// Returns the names of its threads that have not ended.
    #[must_use]
    pub fn threads(self) -> Vec<String> {
        let state = scheduler().lock();
        let own = state.threads.iter().filter(|thread| thread.process == self.0 && !thread.is_finished);
        own.map(|thread| thread.name.clone()).collect()
    }

    /// Returns when it went on last after it was stopped.
    pub(crate) fn resumed(self) -> Nanos {
        scheduler().lock().processes[self.0].resumed
    }

    pub(crate) fn number(self) -> usize {
        self.0
    }
}

/// A value that all threads of a process share, and no other process.
#[derive(Debug)]
pub struct PerProcess<T: 'static> {
    of_director: T,
    of_others: Mutex<Vec<(Process, &'static T)>>,
}

impl<T: Default> PerProcess<T> {
    /// Returns one that begins as this in the first process, and as the default in others.
    pub const fn new(value: T) -> Self {
        Self { of_director: value, of_others: Mutex::new(Vec::new()) }
    }

    /// Returns the value of the calling thread's process.
    pub fn get(&'static self) -> &'static T {
        let process = Process::current();
        if process.0 == 0 {
            return &self.of_director;
        }
        let mut others = self.of_others.lock().unwrap_or_else(PoisonError::into_inner);
        match others.iter().find(|(owner, _)| *owner == process) {
            Some((_, value)) => value,
            None => {
                let value = Box::leak(Box::<T>::default());
                others.push((process, value));
                value
            }
        }
    }
}
