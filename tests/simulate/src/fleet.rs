//! The processes of a run, the servers, and what they leave.

use std::time::Duration;

use setnx_lock::Protocol;
use setnx_lock_testing::ServerVersion;
use world::network;
use world::process::{Clocks, Process};
use world::run::{self, random};
use world::thread;

use crate::laws::{self, Losers, Rules, Tokens, broken};
use crate::others::Others;
use crate::plan::{Conditions, Plan};
use crate::servers::Servers;
use crate::{mishaps, others, program, secret};

/// How long a process that keeps a key busy leaves it to others, so that it may be free then: `proto/src/window.rs`,
/// and the time of a round trip.
const WINDOW: Duration = Duration::from_millis(115);

/// How long after its end nothing of a process may be left: threads wait for work for a while.
const LINGER: Duration = Duration::from_secs(90);

/// Runs the fleet, and looks at what it leaves.
pub(crate) fn run(plan: &Plan) {
    let servers = Servers::start(plan.topology, plan.version);
    network::set_faults(plan.faults);
    let all = servers.all();
    // A failover to a server whose clock is ahead is as if the clock were set forward: half a second is allowed
    // (limits.md, Clocks).
    let apart = if all.len() > 1 { 400_000 } else { 800_000 };
    for server in all {
        server.set_clock(i64::try_from(random(0..apart)).unwrap_or_default() - 400_000);
    }
    if plan.rotates {
        secret::begin(&servers);
    }
    laws::set_rules(&servers, rules(plan));
    let mut processes: Vec<Process> =
        (0..plan.processes).map(|number| start(plan, &servers, number)).collect();
    if let Some(others) = plan.others {
        others::start(plan, &servers, others);
    }
    while run::now() < plan.length {
        thread::sleep(Duration::from_millis(random(50..3000)));
        let number = random(0..plan.processes);
        let at = usize::try_from(number).unwrap_or_default();
        if processes[at].is_dead() {
            processes[at] = start(plan, &servers, number);
        }
        if plan.conditions != Conditions::NoFaults {
            mishaps::happen(plan, &servers, &mut processes[at], number);
        }
    }
    network::set_faults(network::Faults { latency: plan.faults.latency, ..network::Faults::NONE });
    thread::sleep(Duration::from_secs(60) + LINGER);
    leaves_nothing(plan, &processes, &servers);
}

fn rules(plan: &Plan) -> Rules {
    Rules {
        is_exclusive: plan.is_exclusive(),
        losers: match plan.others {
            _ if plan.protocol == Protocol::Classic => Losers::Some,
            Some(Others::OldGems | Others::OldGemsThatDiffer) => Losers::Known,
            _ => Losers::None,
        },
        tokens: match plan.conditions {
            Conditions::LostKeys => Tokens::May,
            Conditions::Failovers => Tokens::Differ,
            _ => Tokens::Grow,
        },
        keeps_keys: plan.keeps_keys(),
        free_at_most: plan.is_prompt().then(|| plan.reaction() + WINDOW),
    }
}

/// Starts a process of the fleet.
pub(crate) fn start(plan: &Plan, servers: &Servers, number: u64) -> Process {
    let ahead = i64::try_from(random(0..plan.clocks + 1)).unwrap_or_default();
    let clocks = Clocks { ahead, faster: i32::try_from(random(0..200)).unwrap_or_default() - 100 };
    let (plan, servers) = (plan.clone(), servers.clone());
    Process::start(&format!("process {number}"), clocks, move || program::run(&plan, &servers, number))
}

/// Looks for what is left: on the servers, and in processes whose programs have ended.
fn leaves_nothing(plan: &Plan, processes: &[Process], servers: &Servers) {
    // What a killed process has left, or a lock that is left to
    // expire, stays until somebody wants it, but nobody waits for it.
    let now = run::wall_clock();
    for server in servers.masters() {
        // Counters, and for how many readers a lock is, are to stay.
        let keys = server.look(&["KEYS", "*"]);
        for key in keys.lines().filter(|key| !key.contains(":setnx-lock:") && *key != others::ELSEWHERE) {
            let value = server.look(&["GET", key]);
            let time = others::time_in(&value);
            let is_over = time.is_some_and(|time| time < now.as_secs_f64());
            // What somebody has typed may be there again on a server that went back.
            let is_typed = plan.conditions == Conditions::LostKeys && time.is_none();
            if value != "(nil)" && !is_over && !is_typed {
                broken(&format!("{key} is left with {value}"));
            }
        }
        // A process may be in a list twice, and nobody waits then for
        // the second one to be taken out: the list ends by itself.
        let waiters = server.look(&["KEYS", "*:waiters:*"]);
        let stays = |list: &&str| plan.version > ServerVersion::V2_0 && server.look(&["TTL", list]) == "-1";
        if let Some(list) = waiters.lines().find(stays) {
            broken(&format!("this waiting list is left without an end: {list}"));
        }
    }
    for process in processes.iter().filter(|process| !process.is_dead()) {
        let threads = process.threads();
        if !threads.is_empty() {
            broken(&format!("{process:?} has ended, and has these threads: {threads:?}"));
        }
        let open = servers.connections_of(*process);
        if open > 0 {
            broken(&format!("{process:?} has ended, and has {open} connections"));
        }
    }
}
