//! Model checking: the search for lost wake-ups in the wait queue, the cancel token and the lanes. Their source files
//! are compiled here with mutexes, atomics and threads whose schedules a model checker chooses. `cargo test --test
//! models` runs it. To search more: `SETNX_LOCK_MODEL_ITERATIONS=200000` random schedules for each scenario, and
//! `SETNX_LOCK_MODEL_PREEMPTIONS=3` for those of `cancel_token` and all named `every_schedule`.
//!
//! | part | what it checks |
//! |---|---|
//! | `cancel_token` | a registered thread is woken whenever the token is cancelled, also from a signal handler: in every schedule with few preemptions, with every order in which memory may become visible |
//! | `wait_queue` | one head at a time; first come, first served; no thread sleeps for ever; no lock is lost between two threads: in many random schedules |
//! | `waiting_list` | several processes, each with its entries and notifications, and a server: no process sleeps while the lock is free and no other is about to ask for it; in every schedule, with threads that give up at any moment |
//! | `lanes` | no job is lost or carried out twice, none gets another's reply, every thread comes back, and the lead is never lost: with threads that give up or have a lane for themselves, and connections that fail or cannot be opened, in many random schedules, and for three threads also in every schedule with few preemptions |
//!
//! A thread that sleeps for ever is a deadlock to the checker: no wait here has a time limit.

mod cancel_token;
mod lanes;
#[path = "../../src/system/sync/park.rs"]
mod park;
#[path = "../support/part.rs"]
mod part;
mod sync;
mod wait_queue;
mod waiting_list;
mod weak_sync;

use std::env;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

fn main() -> ExitCode {
    // Installs shuttle's panic hook first, so that loom's is called
    // before it: loom ends threads by panics that are no failures.
    shuttle::check_random(|| {}, 1);
    let mut trials = cancel_token::trials();
    trials.extend(wait_queue::trials());
    trials.extend(waiting_list::trials());
    trials.extend(lanes::trials());
    match part::of(trials) {
        Ok(trials) => libtest_mimic::run(&Arguments::from_args(), trials).exit_code(),
        Err(problem) => {
            eprintln!("cannot test: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a scenario in many random schedules, half of them with few preemptions.
fn searched(name: String, run: impl Fn() + Clone + Send + Sync + 'static) -> Trial {
    Trial::test(name, move || {
        let schedules = setting("SETNX_LOCK_MODEL_ITERATIONS", 100).div_ceil(2);
        let mut config = Config::new();
        // It warns that it does not model weak memory orders; loom does.
        config.silence_warnings = true;
        Runner::new(RandomScheduler::new(schedules), config.clone()).run(run.clone());
        Runner::new(PctScheduler::new(3, schedules), config).run(run);
        Ok(())
    })
}

/// Runs a scenario in every schedule with few preemptions, with every value that a weakly ordered load may see.
fn exhausted(name: String, run: fn()) -> Trial {
    Trial::test(name, move || {
        let mut builder = loom::model::Builder::new();
        // Every schedule would take hours; few bugs need more than two preemptions.
        builder.preemption_bound = Some(setting("SETNX_LOCK_MODEL_PREEMPTIONS", 2));
        builder.check(run);
        Ok(())
    })
}

/// Returns a number from the environment, or the default.
fn setting(name: &str, default: usize) -> usize {
    env::var(name).map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}
