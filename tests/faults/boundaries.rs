//! A fault at every boundary: each protocol, each path through it, each command on the path, each fault. Whatever the fault, the call
//! ends in time with a correct outcome or error; no value is sent twice; and the key is held, or free at most the expiration and one
//! second later.

mod stage;

use std::time::Duration;

use libtest_mimic::Trial;
use setnx_lock::Protocol;
use setnx_lock_testing::{Fault, ServerVersion};

use crate::support::every_command::FAULTS;
use crate::support::target::{PROTOCOLS, emulated_name};
use crate::support::{Load, Outcome, trial};
use stage::Stage;

/// A late reply comes after it.
const LEASE: Duration = Duration::from_millis(400);
/// Long enough for any load, and short enough to detect a call that does not end.
const IN_TIME: Duration = Duration::from_secs(60);

/// A path through a protocol.
#[derive(Clone, Copy, Debug)]
enum Path {
    /// Acquires a free lock.
    Free,
    /// The same without a connection: the server check comes first.
    Connecting,
    /// Takes over an expired lock.
    TakeOver,
    /// Releases a lock.
    Release,
    /// Releases a lock, and sends a notification to waiters of other processes.
    ReleaseWithNotification,
    /// Releases a lock, and asks for it for a waiting thread.
    ReleaseWithSuccessor,
    /// Releases a lock that is held for longer: the key is left to expire.
    EarlyRelease,
    /// Extends the lease of a lock.
    Extension,
    /// Takes a fencing token.
    Token,
    /// Goes on with a lock that was handed over by a token.
    Resume,
}

const PATHS: [(&str, Path); 10] = [
    ("a_free_lock", Path::Free),
    ("a_new_connection", Path::Connecting),
    ("an_expired_lock", Path::TakeOver),
    ("a_release", Path::Release),
    ("a_release_with_a_notification", Path::ReleaseWithNotification),
    ("a_release_with_a_successor", Path::ReleaseWithSuccessor),
    ("an_early_release", Path::EarlyRelease),
    ("an_extension", Path::Extension),
    ("a_token", Path::Token),
    ("a_lock_that_is_resumed", Path::Resume),
];

/// How often a path is tried if the machine stalls for longer than a lease, so that no fault happens.
const ATTEMPTS: usize = 20;

/// Where not every boundary is tried, one of so many neighbours is.
const STRIDE: usize = 3;

/// What a trial is about.
#[derive(Clone, Copy, Debug)]
struct Case {
    protocol: Protocol,
    path: Path,
    /// The server's version.
    emulated: ServerVersion,
    load: Load,
}

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for protocol in PROTOCOLS {
        for (path_name, path) in PATHS {
            // The notification is the same in all protocols.
            if protocol != Protocol::Classic && matches!(path, Path::ReleaseWithNotification) {
                continue;
            }
            let case = Case { protocol, path, emulated: ServerVersion::V7, load: Load::Any };
            for (fault_name, fault, within_batch) in FAULTS {
                if matches!(path, Path::ReleaseWithNotification) && !within_batch {
                    continue;
                }
                let name = format!("{protocol:?}").to_lowercase();
                let name = format!("boundaries::{name}::{path_name}::{fault_name}");
                trials.push(trial(name, move || at_every_command(case, &fault)));
            }
        }
    }
    trials.extend(under_load());
    trials
}

/// Under load, on each version by each protocol: some of the boundaries, with one fault each, in turn.
fn under_load() -> Vec<Trial> {
    let mut trials = Vec::new();
    let versions = ServerVersion::OLD.into_iter().chain([ServerVersion::V7]);
    for (emulated, protocol) in versions.flat_map(|emulated| PROTOCOLS.map(|protocol| (emulated, protocol))) {
        if !is_new_enough(emulated, protocol) {
            continue;
        }
        for (path_name, path) in PATHS {
            // Under load the connection is open already, and a notification is a batch of its own.
            if matches!(path, Path::Connecting | Path::ReleaseWithNotification) {
                continue;
            }
            let load = Load::Contended;
            let case = Case { protocol, path, emulated, load };
            let version = emulated_name(emulated);
            let load = load.name().unwrap_or_default();
            let name = format!("{load}::{version}::{protocol:?}").to_lowercase();
            let turn = trials.len();
            trials.push(trial(format!("boundaries::{name}::{path_name}"), move || {
                at_some_commands(case, turn)
            }));
        }
    }
    trials
}

/// Whether a server is new enough for the protocol.
fn is_new_enough(emulated: ServerVersion, protocol: Protocol) -> bool {
    let oldest = match protocol {
        Protocol::Classic => ServerVersion::V1_2,
        Protocol::Watched => ServerVersion::V2_2,
        _ => ServerVersion::V2_6,
    };
    emulated >= oldest
}

/// Runs the path once without a fault, to count its commands, and then once for each of them with the fault.
fn at_every_command(case: Case, fault: &Fault) -> Outcome {
    if matches!(case.path, Path::Connecting) {
        let disturbed = Stage::set(case)?;
        disturbed.scenario.server.next("INFO", fault.clone());
        return disturbed.run().map(|happened| assert!(happened)).map_err(Into::into);
    }
    let commands = undisturbed(case)?;
    let everywhere: Vec<_> = (0..commands.len()).map(|place| (place, fault.clone())).collect();
    at_these(case, &commands, &everywhere)
}

/// The same for some of the commands, each with another fault: one that can happen within a batch.
fn at_some_commands(case: Case, turn: usize) -> Outcome {
    let faults: Vec<Fault> =
        FAULTS.into_iter().filter_map(|(_, fault, within_batch)| within_batch.then_some(fault)).collect();
    let commands = undisturbed(case)?;
    let places = (turn % commands.len()..).step_by(STRIDE).take(commands.len().div_ceil(STRIDE));
    let chosen =
        places.zip(turn..).map(|(place, n)| (place % commands.len(), faults[n % faults.len()].clone()));
    at_these(case, &commands, &chosen.collect::<Vec<_>>())
}

/// Runs the path without a fault, and returns the names of its commands.
fn undisturbed(case: Case) -> Result<Vec<String>, Box<dyn std::error::Error>> {
    let mut last = Ok(Vec::new());
    for _ in 0..ATTEMPTS {
        last = Stage::set(case)?.undisturbed();
        if last.as_ref().is_ok_and(|commands| !commands.is_empty()) {
            return last;
        }
    }
    Err(format!("it never went undisturbed, at last with {last:?}").into())
}

/// Runs the path for each fault, which happens to the command at this place, until it has happened.
fn at_these(case: Case, commands: &[String], faults: &[(usize, Fault)]) -> Outcome {
    for (place, fault) in faults {
        let here = || format!("{} ({} of {commands:?}), {fault:?}", commands[*place], place + 1);
        // On a busy machine a release may come after its lease, and send less.
        let mut outcomes = (0..ATTEMPTS).map(|_| disturb(case, *place, fault));
        match outcomes.find(|outcome| !matches!(outcome, Ok(false))) {
            Some(Ok(_)) => {}
            Some(Err(problem)) => return Err(format!("{}: {problem}", here()).into()),
            None => return Err(format!("{}: it never happened", here()).into()),
        }
    }
    Ok(())
}

/// Returns whether the fault happened.
fn disturb(case: Case, place: usize, fault: &Fault) -> Result<bool, Box<dyn std::error::Error>> {
    let disturbed = Stage::set(case)?;
    disturbed.scenario.server.at(place + 1, fault.clone());
    disturbed.run()
}
