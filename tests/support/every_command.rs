//! A fault at every command of a path: the path runs once for each of its commands and each fault.

use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use setnx_lock::Protocol;
use setnx_lock_testing::Fault;

use super::scenario::Scenario;
use super::target::PROTOCOLS;
use super::{LONG, trial};

/// Longer than a call takes that waits for a lost reply.
pub(crate) const LEASE: Duration = Duration::from_secs(5);
/// A lease that passes before a late reply comes.
const BRIEF_LEASE: Duration = Duration::from_millis(400);
/// Later than that, and within the command timeout.
const LATE: Duration = Duration::from_millis(600);
pub(crate) const COMMAND_TIMEOUT: Duration = Duration::from_millis(900);

/// The faults, and whether each can happen to a command in the middle of a trip: a stream of bytes loses nothing there.
pub(crate) const FAULTS: [(&str, Fault, bool); 6] = [
    ("reply_lost", Fault::LoseReply, false),
    ("reply_later_than_the_lease", Fault::DelayReply(LATE), true),
    ("cut_before", Fault::CutBefore, true),
    ("cut_after", Fault::CutAfter, true),
    ("cut_within_the_reply", Fault::CutWithin, true),
    ("request_lost", Fault::Hang, true),
];

/// How often a path is tried: the machine may stall, so that no fault happens, and what is left to chance decides which commands are sent.
const ATTEMPTS: usize = 40;
/// How often it runs undisturbed: the longest run shows the commands.
const UNDISTURBED: usize = 4;
/// A run that takes longer is one in which the machine stalled: a lease passed, or a key was left to other processes. It sends commands
/// that a run without a stall does not.
const STALLED: Duration = Duration::from_secs(1);

pub(crate) type Failure = Box<dyn std::error::Error>;

/// What a run of a path starts from.
pub(crate) trait Stage: Sized + 'static {
    type Path: Copy + Send + 'static;

    /// Sets the stage. On a busy machine it may fail, since an attempt takes longer than the time limits allow.
    fn set_once(protocol: Protocol, path: Self::Path, lease: Duration) -> Result<Self, Failure>;

    fn scenario(&self) -> &Scenario;

    /// Runs the path, and judges its outcome.
    fn run(self) -> Result<Scenario, Failure>;
}

/// A trial for each protocol, path and fault.
pub(crate) fn trials<S: Stage>(area: &str, paths: &[(&str, S::Path)]) -> Vec<Trial> {
    let mut trials = Vec::new();
    for protocol in PROTOCOLS {
        for (path_name, path) in paths {
            for (fault_name, fault, in_the_middle) in FAULTS {
                let name = format!("{protocol:?}").to_lowercase();
                let name = format!("{area}::{name}::{path_name}::{fault_name}");
                let path = *path;
                let test = move || Ok(at_every_command::<S>(protocol, path, &fault, in_the_middle)?);
                trials.push(trial(name, test));
            }
        }
    }
    trials
}

fn at_every_command<S: Stage>(
    protocol: Protocol,
    path: S::Path,
    fault: &Fault,
    in_the_middle: bool,
) -> Result<(), String> {
    let commands = undisturbed::<S>(protocol, path).map_err(|error| error.to_string())?;
    for (place, (name, is_last)) in commands.iter().enumerate() {
        if !in_the_middle && !is_last {
            continue;
        }
        let here = || format!("{name} ({} of {commands:?}), {fault:?}", place + 1);
        let mut outcomes = (0..ATTEMPTS).map(|_| disturb::<S>(protocol, path, place, fault));
        match outcomes.find(|outcome| !matches!(outcome, Ok(false))) {
            Some(Ok(_)) => {}
            Some(Err(problem)) => return Err(format!("{}: {problem}", here())),
            None => return Err(format!("{}: it never happened", here())),
        }
    }
    Ok(())
}

/// Returns the names of the commands of a path without a fault, and which are the last of their trips.
fn undisturbed<S: Stage>(protocol: Protocol, path: S::Path) -> Result<Vec<(String, bool)>, Failure> {
    let mut longest = Vec::new();
    let mut runs = 0;
    for _ in 0..ATTEMPTS {
        let began = Instant::now();
        let scenario = set::<S>(protocol, path, LEASE)?.run()?;
        if began.elapsed() >= STALLED {
            continue;
        }
        runs += 1;
        let trips = scenario.server.batches();
        let commands = trips.iter().flat_map(|trip| {
            trip.iter().enumerate().map(|(n, asked)| (asked.name.clone(), n + 1 == trip.len()))
        });
        let commands: Vec<_> = commands.collect();
        if commands.len() > longest.len() {
            longest = commands;
        }
        if runs >= UNDISTURBED && !longest.is_empty() {
            break;
        }
    }
    if longest.is_empty() { Err("it never went undisturbed".into()) } else { Ok(longest) }
}

/// Returns whether the fault happened.
fn disturb<S: Stage>(
    protocol: Protocol,
    path: S::Path,
    place: usize,
    fault: &Fault,
) -> Result<bool, Failure> {
    let lease = if matches!(fault, Fault::DelayReply(_)) { BRIEF_LEASE } else { LEASE };
    let stage = set::<S>(protocol, path, lease)?;
    stage.scenario().server.at(place + 1, fault.clone());
    let scenario = stage.run()?;
    Ok(scenario.server.faults_left() == 0)
}

fn set<S: Stage>(protocol: Protocol, path: S::Path, lease: Duration) -> Result<S, Failure> {
    let end = Instant::now() + LONG;
    loop {
        match S::set_once(protocol, path, lease) {
            Err(_) if Instant::now() < end => {}
            set => return set,
        }
    }
}
