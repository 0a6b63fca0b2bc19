//! Runs the searches: `cargo test --test search`.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    let trial = |(name, search): (String, fn())| {
        Trial::test(name, move || {
            search();
            Ok(())
        })
    };
    let trials = setnx_lock_search::searches().into_iter().map(trial).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
