//! The tests that talk to real servers. `cargo test` runs them; `cargo test contract` runs those whose name contains that.
//!
//! | part | what it proves |
//! |---|---|
//! | `contract` | what a lock does, on every server there is: a private one, and those in `SETNX_LOCK_TEST_URLS` |
//! | `error_texts` | texts that quote a server at length are cut, and quote no password |
//! | `errors` | the errors of real failures: their causes, their classes, and what their texts never contain |
//! | `events` | what an observer gets to know |
//! | `faults` | what a lock does when the server or the network does not |
//! | `unreachable` | how long calls retry while the server is unreachable or loses their replies |
//! | `proxy_versions`, `proxy_lists` | the gate before a server plays old versions as it should |
//! | `proxy_faults`, `proxy_blocking` | it does harm as it should, and connections that wait for a list may come and go |
//! | `golden` | the files in `compat/golden` are what Ruby makes, and keys are built as the gem builds them |
//! | `handoffs`, `handoff_faults`, `handoff_contention` | a held lock passes from thread to thread, what happens when that comes to harm, and when many want it |
//! | `under_load` | tests that are to be in a crowd share trips with it, and those that are to be apart do not |
//! | `interop` | Ruby and Rust on the same keys, every family of the gem with every protocol |
//! | `matrix` | who takes whose lock, of the gem's and ours |
//! | `refusals` | what the server, or the library itself, says no to |
//! | `connections` | addresses, passwords, sockets, TLS, and when a connection is opened, used again or replaced |
//! | `pools` | addresses, passwords, sockets, TLS, pools of somebody else's, and too few connections |
//! | `processes` | no lost update among processes, and takeover after a kill |
//! | `boundaries` | whatever happens to whichever command, the call ends in time, rightly, and the key is ours or free |
//! | `cancellation` | waits that are ended from outside |
//! | `clocks` | clocks that differ, and clocks that are set while a lock is held |
//! | `pipelining` | threads that share trips to the server each get what they would get alone |
//! | `pipelining_faults`, `pipelining_leaders` | what becomes of the commands of a trip that comes to harm, on its way or by the thread that leads it |
//! | `inspection` | what a locker finds out about its server |
//! | `server_check` | the check of the server's role and version on each new connection |
//! | `stress` | two leases are never valid at once in Watched, whatever is killed and delayed; and the checker sees it where they are |
//! | `transactions`, `transaction_faults` | what the protocols with WATCH do that Classic cannot, and what happens when that comes to harm |
//! | `queueing` | the line before a key, among the threads of a process |
//! | `notifications`, `notification_ends` | tokens that wake the next process, and what becomes of them if it does not wait |
//! | `notification_faults` | what happens when wake-ups come to harm |
//! | `wire` | what goes over the wire, as the server's MONITOR sees it |
//! | `observers` | one event for each call that asks for a lock, beside the log |
//! | `public_types` | every public type implements `Debug`, `Send` and `Sync` |
//! | `package` | what the package promises: its dependencies, and the oldest Rust |

mod boundaries;
mod cancellation;
mod clocks;
mod connections;
mod contract;
mod error_texts;
mod errors;
mod events;
mod faults;
mod golden;
mod handoff_contention;
mod handoff_faults;
mod handoffs;
mod inspection;
mod interop;
mod links;
mod matrix;
mod notification_ends;
mod notification_faults;
mod notifications;
mod observers;
mod package;
mod pipelining;
mod pipelining_faults;
mod pipelining_leaders;
mod pools;
mod processes;
mod proxy_blocking;
mod proxy_faults;
mod proxy_lists;
mod proxy_versions;
mod public_types;
mod queueing;
mod refusals;
mod server_check;
mod stress;
mod support;
mod transaction_faults;
mod transactions;
mod under_load;
mod unreachable;
mod wire;

#[path = "../compat/servers/mod.rs"]
mod servers;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

/// How many tests run at a time unless the command line says otherwise.
const TEST_THREADS: usize = 6;

fn main() -> ExitCode {
    if let Some(outcome) = processes::as_worker().or_else(stress::as_worker) {
        return outcome;
    }
    let mut arguments = Arguments::from_args();
    // Most tests wait for a time to pass.
    arguments.test_threads.get_or_insert(TEST_THREADS);
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
        boundaries::trials(),
        cancellation::trials(),
        clocks::trials(),
        connections::trials(),
        pipelining::trials(),
        pipelining_faults::trials(),
        pipelining_leaders::trials(),
        error_texts::trials(),
        errors::trials(),
        events::trials(),
        faults::trials(),
        unreachable::trials(),
        proxy_faults::trials(),
        proxy_lists::trials(),
        proxy_versions::trials(),
        proxy_blocking::trials(),
        golden::trials(),
        handoff_contention::trials(),
        handoff_faults::trials(),
        handoffs::trials(),
        links::trials(),
        under_load::trials(),
        matrix::trials(),
        observers::trials(),
        package::trials(),
        pools::trials(),
        public_types::trials(),
        processes::trials(),
        refusals::trials(),
        stress::trials(),
        inspection::trials(),
        server_check::trials(),
        transaction_faults::trials(),
        transactions::trials(),
        queueing::trials(),
        notification_ends::trials(),
        notification_faults::trials(),
        notifications::trials(),
        wire::trials(),
    ] {
        trials.extend(part);
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    support::record::print();
    conclusion.exit_code()
}
