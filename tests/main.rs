//! The tests that talk to real servers. `cargo test` runs them; `cargo test contract` runs those whose name contains that.
//!
//! | part | what it proves |
//! |---|---|
//! | `contract` | what a lock does, on every server there is: a private one, and those in `SETNX_LOCK_TEST_URLS` |
//! | `events` | what an observer gets to know |
//! | `faults` | what a lock does when the server or the network does not |
//! | `gates`, `gate_faults` | the gate before a server plays old versions, and does harm, as it should |
//! | `golden` | the files in `compat/golden` are what Ruby makes, and keys are built as the gem builds them |
//! | `interop` | Ruby and Rust on the same keys, every family of the gem with every protocol |
//! | `matrix` | who takes whose lock, of the gem's and ours |
//! | `refusals` | what the server, or the library itself, says no to |
//! | `pools` | addresses, passwords, sockets, TLS, pools of somebody else's, and too few connections |
//! | `processes` | no lost update among processes, and takeover after a kill |
//! | `transactions`, `transaction_faults` | what the protocols with WATCH do that Classic cannot, and what happens when that comes to harm |
//! | `wire` | what goes over the wire, as the server's MONITOR sees it |
//! | `package` | what the package promises: its dependencies, and the oldest Rust |

mod contract;
mod events;
mod faults;
mod gate_faults;
mod gates;
mod golden;
mod interop;
mod matrix;
mod package;
mod pools;
mod processes;
mod refusals;
mod support;
mod transaction_faults;
mod transactions;
mod wire;

#[path = "../compat/servers/mod.rs"]
mod servers;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

fn main() -> ExitCode {
    if let Some(outcome) = processes::as_worker() {
        return outcome;
    }
    let arguments = Arguments::from_args();
    let grounds = match support::grounds(arguments.list) {
        Ok(grounds) => grounds,
        Err(problem) => {
            eprintln!("cannot test: {problem}");
            return ExitCode::FAILURE;
        }
    };
    let mut trials: Vec<Trial> = grounds.iter().flat_map(contract::trials).collect();
    for part in [
        events::trials(),
        faults::trials(),
        gate_faults::trials(),
        gates::trials(),
        golden::trials(),
        interop::trials(),
        matrix::trials(),
        package::trials(),
        pools::trials(),
        processes::trials(),
        refusals::trials(),
        transaction_faults::trials(),
        transactions::trials(),
        wire::trials(),
    ] {
        trials.extend(part);
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}
