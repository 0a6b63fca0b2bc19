//! Tests on a machine that stalls. Each test measures times on real servers, and some of them say what happens within a lease: if the
//! machine stands still meanwhile, a failure says nothing about the library. So a thread looks for stalls, and a test that fails in a run
//! with a stall is run again, and says so. Without a stall the first failure counts.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Mutex, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;

use super::{Outcome, millis, tests};

/// How much longer than asked for a sleep must last to count as a stall.
const STALL: Duration = millis(25);

/// How often a test is run, if all of its runs fail and have stalls.
const RUNS: u32 = 4;

/// A run that lasts longer has waited for what does not come, however long the machine stalled.
const LONGEST_RUN: Duration = Duration::from_secs(60);

/// When each stall ended, and how long it lasted.
static STALLS: Mutex<Vec<(Instant, Duration)>> = Mutex::new(Vec::new());

/// Names a test, which is run again if it fails while the machine stalls.
pub(crate) fn trial(name: impl Into<String>, test: impl Fn() -> Outcome + Send + 'static) -> Trial {
    let name = name.into();
    Trial::test(name.clone(), move || {
        watch();
        again_after_stalls(&name, &test, longest_since)
    })
}

/// Runs a test, again if it fails and there was a stall since it began.
fn again_after_stalls(
    name: &str,
    test: &dyn Fn() -> Outcome,
    stall_since: fn(Instant) -> Option<Duration>,
) -> Outcome {
    for run in 1..RUNS {
        let began = Instant::now();
        let outcome = panic::catch_unwind(AssertUnwindSafe(test));
        if matches!(outcome, Ok(Ok(()))) {
            return Ok(());
        }
        let Some(stall) = stall_since(began).filter(|_| began.elapsed() < LONGEST_RUN) else {
            return outcome.unwrap_or_else(|panicked| panic::resume_unwind(panicked));
        };
        let reason = match &outcome {
            Ok(Err(failed)) => failed.message().unwrap_or("it failed"),
            _ => "it panicked, as printed above",
        };
        eprintln!("{name}: run {run} failed while the machine stalled for {stall:?}: {reason}");
    }
    test()
}

/// Starts the thread that looks for stalls, once.
fn watch() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        thread::spawn(|| {
            loop {
                let began = Instant::now();
                thread::sleep(millis(5));
                let stall = began.elapsed().saturating_sub(millis(5));
                if stall >= STALL {
                    STALLS.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), stall));
                }
            }
        });
    });
}

/// The longest stall that ended after this moment.
fn longest_since(began: Instant) -> Option<Duration> {
    // One that has not ended yet is over when this thread and the other have slept.
    thread::sleep(millis(20));
    let stalls = STALLS.lock().unwrap_or_else(PoisonError::into_inner);
    stalls.iter().rev().take_while(|(end, _)| *end > began).map(|(_, stall)| *stall).max()
}

/// The tests of the rule.
pub(crate) fn trials() -> Vec<Trial> {
    super::trials("stalls", tests![only_a_failure_in_a_stall_is_repeated])
}

fn only_a_failure_in_a_stall_is_repeated() -> Outcome {
    // How often a test is run that fails until its `succeeds`th run.
    let runs = |succeeds: u32, stall_since: fn(Instant) -> Option<Duration>| {
        let runs = Cell::new(0);
        let test = || {
            runs.set(runs.get() + 1);
            if runs.get() < succeeds { Err("not yet".into()) } else { Ok(()) }
        };
        let outcome = again_after_stalls("an example that fails on purpose", &test, stall_since);
        (runs.get(), outcome.is_ok())
    };
    assert_eq!(runs(1, |_| None), (1, true));
    assert_eq!(runs(2, |_| None), (1, false), "a failure counts");
    assert_eq!(runs(2, |_| Some(STALL)), (2, true));
    assert_eq!(runs(RUNS + 1, |_| Some(STALL)), (RUNS, false), "at last it counts all the same");
    Ok(())
}
