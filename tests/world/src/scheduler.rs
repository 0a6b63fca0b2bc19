//! Which thread runs, and what time it is.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::process::ProcessState;
use crate::trace::Trace;

pub(crate) type ThreadId = usize;

/// Nanoseconds of true time, which no simulated clock shows.
pub(crate) type Nanos = u64;

/// How long a step takes at most: from one call of this crate to the next.
const STEP: Nanos = 2000;
/// The system keeps the stack of a thread that has ended until it is waited for.
const SETTLED_EVERY: usize = 256;
/// How long a call takes that lets no other thread run.
const LOOK: Nanos = 50;

/// What a run is made of.
#[derive(Debug)]
pub(crate) struct Scheduler {
    state: Mutex<State>,
    /// The one thread that runs.
    running: AtomicUsize,
}

pub(crate) struct State {
    pub(crate) now: Nanos,
    pub(crate) random: fastrand::Rng,
    pub(crate) threads: Vec<Thread>,
    pub(crate) processes: Vec<ProcessState>,
    pub(crate) trace: Trace,
    /// One in so many calls lets another thread run; none if it is 0.
    pub(crate) preempts: u32,
    /// When the run ends, whatever its threads do.
    pub(crate) ends: Nanos,
    /// Called with what is wrong, if the run can go on no more.
    pub(crate) stuck: fn(&State, &str) -> !,
    runnable: Vec<ThreadId>,
    due: BinaryHeap<Reverse<Due>>,
    /// Events at the same time happen in the order in which they were planned.
    planned: u64,
    pub(crate) switches: u64,
}

#[allow(clippy::struct_excessive_bools, reason = "each is told apart where it is looked at")]
pub(crate) struct Thread {
    pub(crate) name: String,
    pub(crate) process: usize,
    pub(crate) is_finished: bool,
    /// It was unparked, and has not parked since.
    pub(crate) token: bool,
    is_parked: bool,
    is_blocked: bool,
    /// Whether another thread ended its last wait.
    is_woken: bool,
    /// How often it has waited. An event that is to end a wait ends no later one.
    waits: u64,
    pub(crate) joining: Vec<ThreadId>,
    of_system: Option<std::thread::Thread>,
    /// To wait for what the system has of it, once it is finished.
    ends: Option<std::thread::JoinHandle<()>>,
}

struct Due {
    at: Nanos,
    order: u64,
    event: Event,
}

enum Event {
    EndWait(ThreadId, u64),
    Call(Box<dyn FnOnce() + Send>),
}

static SCHEDULER: OnceLock<Scheduler> = OnceLock::new();

/// The thread that this one is in the run. It is dropped after all other thread-locals, which were first used later.
struct Own(Cell<Option<ThreadId>>);

thread_local! {
    static OWN: Own = const { Own(Cell::new(None)) };
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Some(own) = self.0.get() {
            scheduler().finish(own);
        }
    }
}

/// Returns the scheduler of this program's run.
pub(crate) fn scheduler() -> &'static Scheduler {
    SCHEDULER.get().expect("this is called within a run")
}

/// Returns the thread that calls.
pub(crate) fn own() -> ThreadId {
    OWN.with(|own| own.0.get()).expect("this is called by a thread of the run")
}

/// Makes the calling thread the first of a run.
pub(crate) fn begin(state: State) {
    let scheduler = Scheduler { state: Mutex::new(state), running: AtomicUsize::new(0) };
    assert!(SCHEDULER.set(scheduler).is_ok(), "a program has one run");
    let mut state = self::scheduler().lock();
    state.add_thread("director", 0);
    state.runnable.clear();
    state.threads[0].of_system = Some(std::thread::current());
    drop(state);
    OWN.with(|own| own.0.set(Some(0)));
}

/// Ends the run: its first thread is no thread of it any more.
pub(crate) fn end() {
    // It may be the ending of a thread that has found out.
    let _is_over = OWN.try_with(|own| own.0.set(None));
}

impl State {
    pub(crate) fn new(
        seed: u64,
        ends: Nanos,
        preempts: u32,
        trace: Trace,
        stuck: fn(&State, &str) -> !,
    ) -> Self {
        Self {
            now: 0,
            random: fastrand::Rng::with_seed(seed),
            // It never grows in a run that measures memory.
            threads: Vec::with_capacity(1 << 14),
            processes: vec![ProcessState::first()],
            trace,
            preempts,
            ends,
            stuck,
            runnable: Vec::new(),
            due: BinaryHeap::new(),
            planned: 0,
            switches: 0,
        }
    }

    /// Adds a thread that can run.
    pub(crate) fn add_thread(&mut self, name: &str, process: usize) -> ThreadId {
        let id = self.threads.len();
        self.threads.push(Thread {
            name: name.to_owned(),
            process,
            is_finished: false,
            token: false,
            is_parked: false,
            is_blocked: false,
            is_woken: false,
            waits: 0,
            joining: Vec::new(),
            of_system: None,
            ends: None,
        });
        self.runnable.push(id);
        id
    }

    fn plan(&mut self, at: Nanos, event: Event) {
        self.planned += 1;
        self.due.push(Reverse(Due { at, order: self.planned, event }));
    }

    /// Ends a thread's wait. Returns false if it does not wait, or its time is over.
    pub(crate) fn wake(&mut self, id: ThreadId) -> bool {
        let thread = &mut self.threads[id];
        let wakes = thread.is_blocked;
        if wakes {
            thread.is_blocked = false;
            thread.is_woken = true;
            self.runnable.push(id);
        }
        wakes
    }

    /// Returns when a wait until a time ends: now and then early, for no reason.
    pub(crate) fn early(&mut self, until: Option<Nanos>) -> Option<Nanos> {
        if self.preempts == 0 || !self.chance(200) {
            return until;
        }
        let soon = self.now + self.random.u64(0..1_000_000);
        Some(until.map_or(soon, |until| until.min(soon)))
    }

    pub(crate) fn unpark(&mut self, id: ThreadId) {
        self.threads[id].token = true;
        if self.threads[id].is_parked {
            self.wake(id);
        }
    }

    /// Lets the threads run again that would have while their process was stopped.
    pub(crate) fn resume(&mut self, process: usize) {
        let stopped = std::mem::take(&mut self.processes[process].could_run);
        self.runnable.extend(stopped);
    }

    fn chance(&mut self, one_in: u32) -> bool {
        one_in > 0 && self.random.u32(0..one_in) == 0
    }

    /// Takes one of the threads that can run.
    fn take_runnable(&mut self) -> Option<ThreadId> {
        while !self.runnable.is_empty() {
            let at = self.random.usize(0..self.runnable.len());
            let id = self.runnable.swap_remove(at);
            let process = &mut self.processes[self.threads[id].process];
            if process.is_stopped {
                process.could_run.push(id);
            } else if !process.is_dead {
                return Some(id);
            }
        }
        None
    }

    fn take_due(&mut self) -> Option<Event> {
        if self.due.peek().is_some_and(|Reverse(due)| due.at <= self.now) {
            self.due.pop().map(|Reverse(due)| due.event)
        } else {
            None
        }
    }
}

impl Scheduler {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Nanos {
        self.lock().now
    }

    /// Plans what is to happen at a time. It must not wait.
    pub(crate) fn at(&self, at: Nanos, call: impl FnOnce() + Send + 'static) {
        self.lock().plan(at, Event::Call(Box::new(call)));
    }

    /// Starts a thread of the run. It runs once it is chosen.
    pub(crate) fn started(&self, id: ThreadId, of_system: std::thread::Thread) {
        self.lock().threads[id].of_system = Some(of_system);
    }

    /// The same with what waits for its end.
    pub(crate) fn started_alone(&self, id: ThreadId, ends: std::thread::JoinHandle<()>) {
        self.started(id, ends.thread().clone());
        self.lock().threads[id].ends = Some(ends);
        if id.is_multiple_of(SETTLED_EVERY) {
            self.settle();
        }
    }

    /// Returns once the system has nothing left of the threads that have finished.
    pub(crate) fn settle(&self) {
        let finished = |thread: &mut Thread| if thread.is_finished { thread.ends.take() } else { None };
        let ends: Vec<_> = self.lock().threads.iter_mut().filter_map(finished).collect();
        for end in ends {
            drop(end.join());
        }
    }

    /// Begins a thread that was added: returns once it is chosen.
    pub(crate) fn enter(&self, id: ThreadId) {
        OWN.with(|own| own.0.set(Some(id)));
        self.until_chosen(id);
    }

    /// The end of a thread, with its thread-locals gone.
    fn finish(&self, own: ThreadId) {
        let mut state = self.lock();
        state.threads[own].is_finished = true;
        state.threads[own].of_system = None;
        for joining in std::mem::take(&mut state.threads[own].joining) {
            state.wake(joining);
        }
        self.choose(state);
    }

    /// Waits until another thread [wakes](State::wake) this one, or until a time. Returns true if it was woken.
    pub(crate) fn block(&self, until: Option<Nanos>) -> bool {
        self.block_from(self.lock(), until)
    }

    /// The same, from a look at the state on.
    pub(crate) fn block_from(&self, mut state: MutexGuard<'_, State>, until: Option<Nanos>) -> bool {
        let own = own();
        let thread = &mut state.threads[own];
        thread.is_blocked = true;
        thread.is_woken = false;
        thread.waits += 1;
        let waits = thread.waits;
        if let Some(until) = until {
            state.plan(until, Event::EndWait(own, waits));
        }
        self.choose(state);
        self.until_chosen(own);
        self.lock().threads[own].is_woken
    }

    /// Waits until this thread is unparked, or until a time; may return for no reason.
    pub(crate) fn park(&self, until: Option<Nanos>) {
        let own = own();
        let mut state = self.lock();
        let until = state.early(until);
        if !state.threads[own].token {
            state.threads[own].is_parked = true;
            self.block_from(state, until);
            state = self.lock();
            state.threads[own].is_parked = false;
        }
        state.threads[own].token = false;
    }

    /// Lets another thread run now, if the seed says so or something is due: a thread that spins gets on.
    pub(crate) fn step(&self) {
        let mut state = self.lock();
        state.now += LOOK;
        let preempts = state.preempts;
        if state.chance(preempts) || state.due.peek().is_some_and(|Reverse(due)| due.at <= state.now) {
            self.yield_from(state);
        }
    }

    /// Lets another thread run.
    pub(crate) fn yield_now(&self) {
        self.yield_from(self.lock());
    }

    fn yield_from(&self, mut state: MutexGuard<'_, State>) {
        let own = own();
        state.runnable.push(own);
        self.choose(state);
        self.until_chosen(own);
    }

    /// Chooses the thread that runs next, which the calling one may be. If none can, the time moves on.
    fn choose<'a>(&'a self, mut state: MutexGuard<'a, State>) {
        state.now += state.random.u64(100..STEP);
        loop {
            if let Some(event) = state.take_due() {
                match event {
                    Event::EndWait(id, waits) => {
                        let thread = &mut state.threads[id];
                        if thread.is_blocked && thread.waits == waits {
                            thread.is_blocked = false;
                            state.runnable.push(id);
                        }
                    }
                    Event::Call(call) => {
                        drop(state);
                        call();
                        state = self.lock();
                    }
                }
                continue;
            }
            if state.now > state.ends {
                (state.stuck)(&state, "the run has not ended in its time");
            }
            if let Some(next) = state.take_runnable() {
                state.switches += 1;
                let of_system = state.threads[next].of_system.clone();
                drop(state);
                self.running.store(next, Ordering::Release);
                if let Some(thread) = of_system {
                    thread.unpark();
                }
                return;
            }
            match state.due.peek() {
                Some(Reverse(due)) => state.now = due.at,
                None => (state.stuck)(&state, "every thread waits for ever"),
            }
        }
    }

    fn until_chosen(&self, id: ThreadId) {
        while self.running.load(Ordering::Acquire) != id {
            std::thread::park();
        }
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("now", &self.now).finish_non_exhaustive()
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}
