//! What happens to the processes and servers of a fleet.

use std::time::Duration;

use setnx_lock_testing::ServerVersion;
use world::network;
use world::process::Process;
use world::run::{self, chance, random};

use crate::calls::one_of;
use crate::plan::{Conditions, Plan};
use crate::servers::{Failover, Servers, Topology};
use crate::{fleet, others, secret};

/// What servers answer for a while: operations.md, A server that refuses for now.
pub(crate) const REFUSALS: [&str; 6] = [
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "CLUSTERDOWN The cluster is down",
    "LOADING Redis is loading the dataset in memory",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
    "NOREPLICAS Not enough good replicas to write.",
];

/// The versions that a server becomes which comes back as another. Up to 2.0 a lock's time to live would hand it to the
/// next (SETNX deletes it).
const VERSIONS: [ServerVersion; 5] = [
    ServerVersion::V2_4,
    ServerVersion::V2_6,
    ServerVersion::V7,
    ServerVersion::V8_4,
    ServerVersion::Valkey9,
];

fn millis(from: u64, to: u64) -> Duration {
    Duration::from_millis(random(from..to))
}

/// Something happens to a process or to the servers.
pub(crate) fn happen(plan: &Plan, servers: &Servers, process: &mut Process, number: u64) {
    let several = if is_alone(plan) { 1 } else { 5 };
    match random(0..7 + several) {
        0..4 => to_process(plan, servers, process, number),
        4..7 => to_server(plan, servers),
        _ => to_several(plan, servers),
    }
}

fn is_alone(plan: &Plan) -> bool {
    matches!(plan.topology, Topology::One | Topology::Named | Topology::Quorum)
}

fn to_process(plan: &Plan, servers: &Servers, process: &mut Process, number: u64) {
    match random(0..5) {
        0 if plan.has("kill") && chance(2) => {
            process.kill(chance(2));
            *process = fleet::start(plan, servers, number);
        }
        // Between any two commands.
        0 if plan.has("kill") => network::kill_after(*process, random(1..40), chance(2)),
        1 if plan.has_late_commands() && plan.has("stop") => {
            process.stop(true);
            let stopped = *process;
            run::after(millis(1, 6000), move || stopped.stop(false));
        }
        2 if plan.has_late_commands() && plan.has("separate") => {
            servers.any().separate(*process, millis(1, 6000));
        }
        3 if plan.conditions == Conditions::LostKeys
            && plan.has("typing")
            && plan.topology != Topology::Quorum =>
        {
            others::type_something(servers, &plan.key(random(0..plan.keys)));
        }
        3 if plan.knows_no_clocks() && plan.has("clock") => {
            let by = i64::try_from(random(0..6_000_000)).unwrap_or_default() - 3_000_000;
            run::note(&format!("the clock of {process:?} is set by {by} us"));
            process.set_clock(by);
        }
        _ => {}
    }
}

fn to_server(plan: &Plan, servers: &Servers) {
    let most = if plan.has_late_commands() { 6000 } else { 200 };
    let server = servers.any();
    match random(0..8) {
        0 if plan.has("stall") => server.stall(millis(1, most)),
        1 if plan.has("cut") => server.cut_all(),
        // There a release is a DEL, which may delete another's key if it arrives late (limits.md, A full server).
        2 if !plan.has_late_commands() && plan.has("full") => {
            server.set_full(true);
            run::after(millis(1, 3000), move || server.set_full(false));
        }
        3 | 4 if is_alone(plan) && plan.has("restart") => {
            let (back, keeps_keys) = (millis(1, most), plan.conditions != Conditions::LostKeys);
            let version = plan.changes_version.then(|| one_of(&VERSIONS));
            if !keeps_keys && chance(2) {
                let before = server.snapshot();
                run::after(millis(1, 3000), move || {
                    server.kill();
                    run::after(back, move || server.restart_with(&before));
                });
                return;
            }
            server.kill();
            run::after(back, move || match version {
                Some(version) => server.restart_as(version),
                None => server.restart(keeps_keys),
            });
        }
        5 if is_alone(plan) && plan.has("refusal") => {
            let time = millis(1, 3000);
            server.set_refusing(Some(one_of(&REFUSALS)));
            network::trouble_for(time);
            run::after(time, move || server.set_refusing(None));
        }
        6 if is_alone(plan) && plan.has("maxclients") => {
            let time = millis(1, 3000);
            server.configure(&format!("maxclients {}", random(0..8)));
            network::trouble_for(time);
            run::after(time, move || server.configure("maxclients 10000"));
        }
        _ => {}
    }
}

/// What happens to servers that belong together, and to what all have to know.
fn to_several(plan: &Plan, servers: &Servers) {
    match random(0..6) {
        0 if plan.rotates && plan.has("rotate") => secret::rotate(servers),
        1 if plan.has("sentinels") => servers.trouble_those_who_know(),
        2 | 3 if plan.topology == Topology::Cluster && plan.has("move") => {
            servers.move_a_slot(&plan.key(random(0..plan.keys)));
        }
        _ if plan.has("failover") => {
            let loses = plan.conditions == Conditions::Failovers;
            let lost = if loses && chance(2) { millis(1, 1000) } else { Duration::ZERO };
            servers.fail_over(Failover { is_planned: chance(2), lost });
        }
        _ => {}
    }
}
