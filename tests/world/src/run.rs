//! The run: its time, its random numbers, its trace.

use std::ops::Range;
use std::time::Duration;

use crate::scheduler::{self, State, own, scheduler};
use crate::trace::Trace;

/// What a run is to be.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Determines everything in it.
    pub seed: u64,
    /// How much time may pass in it.
    pub at_most: Duration,
    /// The trace is printed from this time on.
    pub printed_from: Option<Duration>,
}

/// What a run was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    /// How much time has passed.
    pub time: Duration,
    /// A hash of the trace: two runs of one seed have the same.
    pub trace: u64,
    /// How many lines the trace has.
    pub lines: u64,
    /// How often another thread was chosen.
    pub switches: u64,
}

/// Runs this, on the calling thread, which is the first of the run.
///
/// # Panics
///
/// If a program has two runs.
pub fn run(settings: Settings, body: impl FnOnce()) -> Ran {
    let Settings { seed, at_most, printed_from } = settings;
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).expect("centuries");
    // Of several kinds of schedules each finds what others do not.
    let preempts = [0, 4, 32, 256][usize::try_from(seed % 4).unwrap_or_default()];
    scheduler::begin(State::new(seed, nanos(at_most), preempts, Trace::new(printed_from.map(nanos)), stuck));
    body();
    let state = scheduler().lock();
    let (time, switches) = (Duration::from_nanos(state.now), state.switches);
    let ran = Ran { time, trace: state.trace.hash(), lines: state.trace.lines, switches };
    drop(state);
    scheduler::end();
    ran
}

/// Ends the program: a run that is stuck has threads that never return.
fn stuck(state: &State, why: &str) -> ! {
    let now = Duration::from_nanos(state.now);
    println!("broken law at {now:?}: {why}");
    for thread in state.threads.iter().filter(|thread| !thread.is_finished) {
        let process = &state.processes[thread.process];
        if !process.is_dead {
            println!("  {}/{} has not ended", process.name, thread.name);
        }
    }
    fail();
}

/// Ends the program with a failure, whatever its threads do.
pub fn fail() -> ! {
    scheduler::end();
    std::process::exit(1)
}

/// Returns the true time since the run began.
#[must_use]
pub fn now() -> Duration {
    Duration::from_nanos(scheduler().now())
}

/// Returns the true time since 1970.
#[must_use]
pub fn wall_clock() -> Duration {
    crate::time::true_time()
}

/// Returns a random number of the seed.
#[must_use]
pub fn random(range: Range<u64>) -> u64 {
    scheduler().lock().random.u64(range)
}

/// Returns true once in so many times; never if that is 0.
#[must_use]
pub fn chance(one_in: u64) -> bool {
    one_in > 0 && random(0..one_in) == 0
}

/// Returns the true time at which so much time will have passed by the clock of the calling thread's process.
#[must_use]
pub fn later(time: Duration) -> Duration {
    Duration::from_nanos(crate::thread::after(time))
}

/// Returns for how long the process of the calling thread has been stopped so far.
#[must_use]
pub fn stopped() -> Duration {
    let own = own();
    let state = scheduler().lock();
    Duration::from_nanos(state.processes[state.threads[own].process].stopped_for)
}

/// Returns when the wall clock of the calling thread's process was last set forward.
#[must_use]
pub fn clock_set() -> Duration {
    let own = own();
    let state = scheduler().lock();
    Duration::from_nanos(state.processes[state.threads[own].process].clock_set)
}

/// Returns the names of the calling thread and its process.
#[must_use]
pub fn who() -> String {
    let own = own();
    let state = scheduler().lock();
    let thread = &state.threads[own];
    format!("{}/{}", state.processes[thread.process].name, thread.name)
}

/// Adds a line to the trace: what the calling thread does.
pub fn note(what: &str) {
    let who = who();
    note_of(&mut scheduler().lock(), &who, what);
}

pub(crate) fn note_of(state: &mut State, who: &str, what: &str) {
    let now = state.now;
    state.trace.note(now, who, what);
}

/// Returns once the system has nothing left of the threads that have ended: what they had allocated is freed.
pub fn settle() {
    scheduler().settle();
}

/// Plans what is to happen after some time. It must not wait for anything.
pub fn after(time: Duration, call: impl FnOnce() + Send + 'static) {
    let at = scheduler().now() + u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4);
    scheduler().at(at, call);
}
