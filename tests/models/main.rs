//! The search for lost wake-ups: the real files of the line and the canceller, on mutexes, atomics and threads whose schedules a
//! checker chooses. `cargo test --test models` runs it; whoever has time gives more of it: `SETNX_LOCK_MODEL_ITERATIONS=200000`
//! schedules for each scenario of `lines`, `SETNX_LOCK_MODEL_PREEMPTIONS=3` for those of `cancels`.
//!
//! | part | what it proves |
//! |---|---|
//! | `cancels` | whoever registers is woken, whenever somebody cancels, in a handler of a signal too: in every schedule with few preemptions, and in every order in which memory may become visible |
//! | `lines` | one head at a time, first come first served, nobody sleeps for ever, and no lock is lost between two threads: in many schedules at random |
//!
//! A thread that sleeps for ever is a deadlock to the checker: nothing here ever wakes by itself.

mod cancels;
mod lines;

use std::env;
use std::process::ExitCode;

use libtest_mimic::Arguments;

fn main() -> ExitCode {
    // Has this checker see panics after the other, which ends its threads by some that mean nothing.
    shuttle::check_random(|| {}, 1);
    let mut trials = cancels::trials();
    trials.extend(lines::trials());
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// How much is tried, unless the environment says otherwise.
fn setting(name: &str, otherwise: usize) -> usize {
    env::var(name).map_or(otherwise, |value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}
