//! The tests that talk to servers. `cargo test` runs them; `cargo test --test suite contract` runs those whose name
//! contains `contract`. Of tests that differ in the variant only (the mode of waiting, the load), both run one, chosen
//! pairwise (`support/sample.rs`). All of them: `cargo test --test suite -- --include-ignored`; the second of four
//! parts of them: the same with `SETNX_LOCK_TEST_PART=2/4`.
//!
//! | folder | what it tests |
//! |---|---|
//! | `contract` | what a lock does, by every protocol: on a current server, as each old version, and on those in `SETNX_LOCK_TEST_URLS` |
//! | `threads` | who gets the lock next, among threads and processes |
//! | `faults` | servers, networks, clocks and processes that fail |
//! | `quorum` | a lock on several servers |
//! | `wire` | the commands that go to the server, and the connections they use |
//! | `interop` | Ruby and Rust on the same keys |
//! | `tool` | the command-line tool |
//! | `api` | errors, events, the log, the attribute, the package |
//! | `attribute` | a package of its own: what `#[locked]` accepts and refuses |
//! | `models` | a package of its own: the model checkers |
//! | `search` | a package of its own: random searches over the rules |
//! | `scripts` | the scenarios of the rules, which the library's unit tests run |
//! | `support` | what the parts share |

mod api;
mod contract;
mod faults;
mod interop;
mod quorum;
mod support;
mod threads;
mod tool;
mod wire;

use faults::stress;
use support::{processes, second_run};
use threads::many_threads;

use std::env;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// Names further arguments: `cargo test` passes its own to programs that know other ones, too.
const ARGUMENTS: &str = "SETNX_LOCK_TEST_ARGS";

fn main() -> ExitCode {
    if let Some(outcome) = processes::as_worker().or_else(stress::as_worker).or_else(many_threads::as_worker)
    {
        return outcome;
    }
    let further = env::var(ARGUMENTS).unwrap_or_default();
    let given = env::args().chain(further.split_whitespace().map(str::to_owned));
    let (times, given): (Vec<_>, Vec<_>) = given.partition(|argument| argument == "--times");
    let arguments = Arguments::from_iter(given);
    let targets = match support::target::targets(arguments.list) {
        Ok(targets) => targets,
        Err(problem) => {
            eprintln!("cannot test: {problem}");
            return ExitCode::FAILURE;
        }
    };
    let mut trials: Vec<Trial> = targets.iter().flat_map(contract::trials).collect();
    trials.extend(targets.iter().flat_map(interop::families::trials));
    for part in [
        threads::trials(),
        faults::trials(),
        quorum::trials(),
        wire::trials(),
        interop::trials(),
        tool::trials(),
        api::trials(),
    ] {
        trials.extend(part);
    }
    let exclusions = support::load::exclusions_name_tests(&trials);
    trials.push(exclusions);
    let mut trials = support::sample::mark(trials);
    trials.push(support::sample::trial(&trials));
    let selected = match support::sample::selected(&arguments, trials) {
        Ok(selected) => selected,
        Err(problem) => {
            eprintln!("cannot test: {problem}");
            return ExitCode::FAILURE;
        }
    };
    if !arguments.list {
        support::tool::build_for(selected.iter().map(Trial::name));
    }
    let exit = second_run::run_all(&arguments, selected);
    support::record::print();
    if !times.is_empty() {
        second_run::print_times();
    }
    exit
}
