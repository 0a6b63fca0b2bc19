//! The tests that talk to real servers. `cargo test` runs them; `cargo test contract` runs those whose name contains that.
//!
//! | part | what it proves |
//! |---|---|
//! | `contract` | what a lock does, on every server there is: a private one, and those in `SETNX_LOCK_TEST_URLS` |
//! | `events` | what an observer gets to know |
//! | `faults` | what a lock does when the server or the network does not |
//! | `gate_versions`, `gate_lists` | the gate before a server plays old versions as it should |
//! | `gate_harm`, `gate_waiting` | it does harm as it should, and connections that wait for a list may come and go |
//! | `golden` | the files in `compat/golden` are what Ruby makes, and keys are built as the gem builds them |
//! | `hand_overs`, `hand_over_faults`, `hand_over_crowds` | a held lock passes from thread to thread, what happens when that comes to harm, and when many want it |
//! | `in_company` | tests that are to be in a crowd share trips with it, and those that are to be apart do not |
//! | `interop` | Ruby and Rust on the same keys, every family of the gem with every protocol |
//! | `matrix` | who takes whose lock, of the gem's and ours |
//! | `refusals` | what the server, or the library itself, says no to |
//! | `pools` | addresses, passwords, sockets, TLS, pools of somebody else's, and too few connections |
//! | `processes` | no lost update among processes, and takeover after a kill |
//! | `boundaries` | whatever happens to whichever command, the call ends in time, rightly, and the key is ours or free |
//! | `cancelling` | waits that are ended from outside |
//! | `clocks` | clocks that differ, and clocks that are set while a lock is held |
//! | `combining` | threads that share trips to the server each get what they would get alone |
//! | `combining_faults`, `combining_leaders` | what becomes of the commands of a trip that comes to harm, on its way or by the thread that leads it |
//! | `surveys` | what a locker finds out about its server |
//! | `stress` | two leases are never valid at once in Watched, whatever is killed and delayed; and the checker sees it where they are |
//! | `transactions`, `transaction_faults` | what the protocols with WATCH do that Classic cannot, and what happens when that comes to harm |
//! | `turns` | the line before a key, among the threads of a process |
//! | `wake_ups`, `wake_up_ends` | tokens that wake the next process, and what becomes of them if it does not wait |
//! | `wake_up_faults` | what happens when wake-ups come to harm |
//! | `wire` | what goes over the wire, as the server's MONITOR sees it |
//! | `package` | what the package promises: its dependencies, and the oldest Rust |

mod boundaries;
mod cancellation;
mod clocks;
mod combining;
mod combining_faults;
mod combining_leaders;
mod contract;
mod events;
mod faults;
mod gate_harm;
mod gate_lists;
mod gate_versions;
mod gate_waiting;
mod golden;
mod hand_over_crowds;
mod hand_over_faults;
mod hand_overs;
mod under_load;
mod interop;
mod matrix;
mod package;
mod pools;
mod processes;
mod refusals;
mod stress;
mod support;
mod surveys;
mod transaction_faults;
mod transactions;
mod turns;
mod wake_up_ends;
mod wake_up_faults;
mod wake_ups;
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
        cancelling::trials(),
        clocks::trials(),
        combining::trials(),
        combining_faults::trials(),
        combining_leaders::trials(),
        events::trials(),
        faults::trials(),
        gate_harm::trials(),
        gate_lists::trials(),
        gate_versions::trials(),
        gate_waiting::trials(),
        golden::trials(),
        hand_over_crowds::trials(),
        hand_over_faults::trials(),
        hand_overs::trials(),
        under_load::trials(),
        matrix::trials(),
        package::trials(),
        pools::trials(),
        processes::trials(),
        refusals::trials(),
        stress::trials(),
        surveys::trials(),
        transaction_faults::trials(),
        transactions::trials(),
        turns::trials(),
        wake_up_ends::trials(),
        wake_up_faults::trials(),
        wake_ups::trials(),
        wire::trials(),
    ] {
        trials.extend(part);
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    support::record::print();
    conclusion.exit_code()
}
