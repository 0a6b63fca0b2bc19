//! The tests that talk to real servers. `cargo test` runs them; `cargo test --test suite contract` runs those whose name contains
//! `contract`. Of tests that differ in the variant only (the mode of waiting, the load), both run one, chosen pairwise
//! (`support/sample.rs`). All of them: `cargo test --test suite -- --include-ignored`; the second of four parts of them: the same with
//! `SETNX_LOCK_TEST_PART=2/4`.
//!
//! | part | what it tests |
//! |---|---|
//! | `contract` | what a lock does, by every protocol: on a current server, as each old version, and on those in `SETNX_LOCK_TEST_URLS` |
//! | `interop` | Ruby and Rust on the same keys: each family of the gem with each protocol |
//! | `matrix` | which lock takes over which, of the gem's and of this library's |
//! | `crowds` | Ruby processes that wait for a Rust holder that crashes |
//! | `golden` | the files in `compat/golden` are what Ruby writes, and keys are built as the gem builds them |
//! | `wire` | the commands that a server executes |
//! | `events`, `observers` | the events that an observer receives, and how observers and the log work together |
//! | `errors` | what errors say, their sources, how they are classified, and what they never show |
//! | `public_types` | what every public type implements |
//! | `unreachable` | how long calls retry while the server is unreachable |
//! | `auto` | Auto where the version says more than the server permits |
//! | `extremes` | options and settings at their extremes, in any combination |
//! | `many_threads` | thousands of threads on few connections; connecting, and the library's own threads |
//! | `boundaries` | a fault at every command: the call ends in time with a correct outcome, and the key is held or free |
//! | `faults` | servers and networks that fail |
//! | `refusals` | what the server or the library refuses |
//! | `connections`, `pools` | addresses, passwords, sockets, TLS, reuse; pools of the user's own, too few connections |
//! | `clocks` | clocks that differ, and clocks that are set while a lock is held |
//! | `keeping` | leases that a thread extends: processes that are killed and stopped, failures, the end of it |
//! | `fencing`, `cron` | a storage that checks tokens; a job of two machines that is to run once |
//! | `locked` | functions with the attribute `#[locked]` |
//! | `cancellation` | waits that are ended by a cancel token, a shutdown or a signal |
//! | `queueing` | the wait queue of a key among the threads of a process, and threads that give up or fail in it |
//! | `pipelining` | threads whose commands are pipelined together get the same outcomes as alone |
//! | `pipelining_faults` | faults on a connection that several threads share |
//! | `successors`, `successor_faults` | a release acquires the lock for the next thread: its lease, other clients, faults |
//! | `permits` | semaphores, readers and writers: the commands, many threads, several processes |
//! | `permit_faults` | a fault at every command on permits, and what is refused |
//! | `notifications`, `notification_faults` | release notifications: the rules, their order, waiters that stop waiting, faults |
//! | `transactions`, `transaction_faults` | what the protocols with WATCH do that Classic cannot, and their faults |
//! | `windows` | when a process that keeps a key busy leaves it to pollers |
//! | `inspection` | what a locker reports about its server |
//! | `server_check` | the check of the role and version on each new connection |
//! | `several` | several locks held together: the commands, processes that are killed, Ruby on some of the keys |
//! | `several_faults` | a fault at every command on several keys, and what a server refuses to several keys |
//! | `sockets` | replies that come in pieces, are too long, or are interrupted by a signal |
//! | `stress` | no two leases of Watched are valid at once under kills and delays, and the checker finds overlaps where there are some |
//! | `proxy_versions` | the proxy emulates old versions correctly |
//! | `proxy_faults` | the proxy injects faults correctly |
//! | `tool_run`, `tool_keys` | the command-line tool: commands under a lock; what it shows and clears |
//! | `tool_manual` | the tool's man pages and shell completions |
//! | `links` | the links of the documents lead somewhere |
//! | `package` | the dependencies of the package, and what it contains |

mod auto;
mod boundaries;
mod cancellation;
mod clocks;
mod connections;
mod contract;
mod cron;
mod crowds;
mod errors;
mod events;
mod extremes;
mod faults;
mod fencing;
mod golden;
mod inspection;
mod interop;
mod keeping;
mod links;
mod locked;
mod many_threads;
mod matrix;
mod notification_faults;
mod notifications;
mod observers;
mod package;
mod permit_faults;
mod permits;
mod pipelining;
mod pipelining_faults;
mod pools;
mod processes;
mod proxy_faults;
mod proxy_versions;
mod public_types;
mod queueing;
mod refusals;
mod server_check;
mod several;
mod several_faults;
mod sockets;
mod stress;
mod successor_faults;
mod successors;
mod support;
mod tool_keys;
mod tool_manual;
mod tool_run;
mod transaction_faults;
mod transactions;
mod unreachable;
mod windows;
mod wire;

use support::second_run;
use testkit::servers;

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
    trials.extend(targets.iter().flat_map(interop::trials));
    for part in [
        auto::trials(),
        boundaries::trials(),
        cancellation::trials(),
        clocks::trials(),
        connections::trials(),
        cron::trials(),
        crowds::trials(),
        errors::trials(),
        events::trials(),
        extremes::trials(),
        faults::trials(),
        fencing::trials(),
        golden::trials(),
        successor_faults::trials(),
        successors::trials(),
        inspection::trials(),
        keeping::trials(),
        links::trials(),
        locked::trials(),
        many_threads::trials(),
        matrix::trials(),
        notification_faults::trials(),
        notifications::trials(),
        observers::trials(),
        package::trials(),
        permit_faults::trials(),
        permits::trials(),
        pipelining::trials(),
        pipelining_faults::trials(),
        pools::trials(),
        proxy_faults::trials(),
        proxy_versions::trials(),
        public_types::trials(),
        queueing::trials(),
        refusals::trials(),
        server_check::trials(),
        several::trials(),
        several_faults::trials(),
        sockets::trials(),
        stress::trials(),
        tool_keys::trials(),
        tool_manual::trials(),
        tool_run::trials(),
        transaction_faults::trials(),
        transactions::trials(),
        unreachable::trials(),
        windows::trials(),
        wire::trials(),
    ] {
        trials.extend(part);
    }
    let exclusions = support::load::exclusions_name_tests(&trials);
    trials.push(exclusions);
    let mut trials = support::sample::mark(trials);
    trials.extend(support::sample::trials(&trials, &["contract", "interop"]));
    let selected = match support::sample::selected(&arguments, trials) {
        Ok(selected) => selected,
        Err(problem) => {
            eprintln!("cannot test: {problem}");
            return ExitCode::FAILURE;
        }
    };
    let exit = second_run::run_all(&arguments, selected);
    support::record::print();
    if !times.is_empty() {
        second_run::print_times();
    }
    exit
}
