//! How the suite runs: the tests that a busy machine could disturb a few at a time, all others, which mostly wait, many
//! at a time. A test that fails is run once more at the end, alone. If it passes then, the run is green and names it.

use std::collections::BTreeSet;
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Conclusion, Trial};

use super::Outcome;

/// How many tests run at a time, unless the command line says otherwise.
const MANY: usize = 30;
const FEW: usize = 3;

/// The parts, or tests, that compare how long things take.
const DISTURBED: &[&str] = &["windows::"];
/// Those that mostly wait, and for longest. They begin first.
const LONGEST: &[&str] = &["failover", "examples::", "tool_manual::", "tool_recipes::", "tool_run::failover"];

/// With more failures than this the run is red, without a second run.
const MOST_SECOND_RUNS: usize = 3;

type Body = Box<dyn Fn() -> Outcome + Send>;

/// The tests that have failed, for a second run.
static FAILED: Mutex<Vec<(String, Body)>> = Mutex::new(Vec::new());
/// How long each test took.
static TIMES: Mutex<Vec<(Duration, String)>> = Mutex::new(Vec::new());

/// Names a test.
pub(crate) fn trial(name: impl Into<String>, test: impl Fn() -> Outcome + Send + 'static) -> Trial {
    let name = name.into();
    Trial::test(name.clone(), move || run(name, Box::new(test)))
}

fn run(name: String, test: Body) -> Outcome {
    let began = Instant::now();
    let outcome = panic::catch_unwind(AssertUnwindSafe(&test));
    lock(&TIMES).push((began.elapsed(), name.clone()));
    if !matches!(outcome, Ok(Ok(()))) {
        lock(&FAILED).push((name, test));
    }
    outcome.unwrap_or_else(|panicked| panic::resume_unwind(panicked))
}

/// Runs the tests, and those that fail once more.
pub(crate) fn run_all(arguments: &Arguments, trials: Vec<Trial>) -> ExitCode {
    let is_of = |trial: &Trial, names: &[&str]| names.iter().any(|name| trial.name().starts_with(name));
    let (few, mut many): (Vec<_>, Vec<_>) = trials.into_iter().partition(|trial| is_of(trial, DISTURBED));
    many.sort_by_key(|trial| !is_of(trial, LONGEST));
    let first =
        [(few, FEW), (many, MANY)].map(|(trials, at_a_time)| run_at_a_time(arguments, trials, at_a_time));
    let failed = std::mem::take(&mut *lock(&FAILED));
    let names: BTreeSet<String> = failed.iter().map(|(name, _)| name.clone()).collect();
    // Those that were not made by `trial` have no second run.
    let others = first.iter().map(|run| run.num_failed).sum::<u64>() > failed.len() as u64;
    if failed.len() > MOST_SECOND_RUNS {
        println!("{} tests failed: a second run is for {MOST_SECOND_RUNS} at most", failed.len());
        return ExitCode::FAILURE;
    }
    if failed.is_empty() || others {
        return if others { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    println!("failed, and run once more, alone: {}", joined(&names));
    let again = failed.into_iter().map(|(name, test)| Trial::test(name.clone(), move || run(name, test)));
    let second = run_at_a_time(arguments, again.collect(), 1);
    if second.has_failed() {
        return ExitCode::FAILURE;
    }
    println!("passed in a second run: {}", joined(&names));
    ExitCode::SUCCESS
}

fn run_at_a_time(arguments: &Arguments, trials: Vec<Trial>, at_a_time: usize) -> Conclusion {
    let test_threads = arguments.test_threads.or(Some(at_a_time));
    libtest_mimic::run(&Arguments { test_threads, ..arguments.clone() }, trials)
}

/// Prints the tests that took longest.
pub(crate) fn print_times() {
    let mut times = lock(&TIMES);
    times.sort_by(|one, other| other.cmp(one));
    println!("the slowest:");
    for (time, name) in times.iter().take(20) {
        println!("{:7.2} s {name}", time.as_secs_f64());
    }
    let parts: BTreeSet<&str> = times.iter().filter_map(|(_, name)| Some(name.split_once("::")?.0)).collect();
    let of = |part: &str| {
        times
            .iter()
            .filter(|(_, name)| name.starts_with(&format!("{part}::")))
            .map(|(time, _)| *time)
            .collect::<Vec<_>>()
    };
    let mut sums: Vec<_> = parts
        .into_iter()
        .map(|part| {
            let of = of(part);
            (of.iter().sum::<Duration>(), of.len(), part.to_owned())
        })
        .collect();
    sums.sort_by(|one, other| other.cmp(one));
    println!("by part:");
    for (time, count, part) in sums {
        println!("{:7.2} s {count:5} {part}", time.as_secs_f64());
    }
}

fn joined(names: &BTreeSet<String>) -> String {
    names.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
