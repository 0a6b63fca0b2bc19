//! The search for lost wake-ups: the real files of the line, the canceller and the trips that threads share, on mutexes, atomics and
//! threads whose schedules a checker chooses. `cargo test --test models` runs it; whoever has time gives more of it:
//! `SETNX_LOCK_MODEL_ITERATIONS=200000` schedules for each scenario of `lines` and `trips`, `SETNX_LOCK_MODEL_PREEMPTIONS=3` for those of
//! `cancels` and `trips::every_schedule`.
//!
//! | part | what it proves |
//! |---|---|
//! | `cancels` | whoever registers is woken, whenever somebody cancels, in a handler of a signal too: in every schedule with few preemptions, and in every order in which memory may become visible |
//! | `lines` | one head at a time, first come first served, nobody sleeps for ever, and no lock is lost between two threads: in many schedules at random |
//! | `trips` | nobody waits for ever, or where there is no crowd; what is wanted is carried once, and its answer comes to whom it belongs or is known to be nobody's; first come first served, no more than there are seats: in many schedules at random, and where three share trips also in all those that `cancels` tries |
//!
//! A thread that sleeps for ever is a deadlock to the checker: nothing here ever wakes by itself.

mod cancels;
mod lines;
mod sync;
mod combiner;
mod weak_sync;

use std::env;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

fn main() -> ExitCode {
    // Has this checker see panics after the other, which ends its threads by some that mean nothing.
    shuttle::check_random(|| {}, 1);
    let mut trials = cancels::trials();
    trials.extend(lines::trials());
    trials.extend(combiner::trials());
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Plays it in many schedules at random, and in such with few preemptions.
fn searched(name: String, play: impl Fn() + Clone + Send + Sync + 'static) -> Trial {
    Trial::test(name, move || {
        let schedules = setting("SETNX_LOCK_MODEL_ITERATIONS", 500).div_ceil(2);
        let mut config = Config::new();
        // It says that it knows of no weak order; the other checker does.
        config.silence_warnings = true;
        Runner::new(RandomScheduler::new(schedules), config.clone()).run(play.clone());
        Runner::new(PctScheduler::new(3, schedules), config).run(play);
        Ok(())
    })
}

/// Plays it in every schedule with few preemptions, with every value that a weakly ordered load may see.
fn exhausted(name: String, play: fn()) -> Trial {
    Trial::test(name, move || {
        let mut builder = loom::model::Builder::new();
        // Every schedule would take hours; few bugs need more than two preemptions.
        builder.preemption_bound = Some(setting("SETNX_LOCK_MODEL_PREEMPTIONS", 2));
        builder.check(play);
        Ok(())
    })
}

/// How much is tried, unless the environment says otherwise.
fn setting(name: &str, otherwise: usize) -> usize {
    env::var(name).map_or(otherwise, |value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}
