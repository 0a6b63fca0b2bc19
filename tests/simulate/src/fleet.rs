//! The processes of a run, the server, and what happens to them.

use std::time::Duration;

use setnx_lock::Protocol;
use world::network::{self, ServerId};
use world::process::{Clocks, Process};
use world::run::{self, chance, random};
use world::thread;

use crate::laws::{self, Rules, broken};
use crate::plan::{Conditions, Plan};
use crate::program;

/// How long a process that keeps a key busy leaves it to others, so that it may be free then: `src/rules/window.rs`, and the time of a round trip.
const WINDOW: Duration = Duration::from_millis(115);

/// How long after its end nothing of a process may be left: threads wait for work for a while.
const LINGER: Duration = Duration::from_secs(90);

/// Runs the fleet, and looks at what it leaves.
pub(crate) fn run(plan: &Plan) {
    let server = ServerId::start("server", plan.version, &[]);
    network::set_faults(plan.faults);
    server.set_clock(i64::try_from(random(0..800_000)).unwrap_or_default() - 400_000);
    laws::set_rules(Rules {
        is_exclusive: plan.conditions != Conditions::LostKeys,
        has_losers: plan.protocol == Protocol::Classic,
        server: Some(server),
        keeps_keys: plan.conditions != Conditions::LostKeys,
        free_at_most: plan.has_no_faults().then(|| plan.reaction() + WINDOW),
    });
    let mut processes: Vec<Process> = (0..plan.processes).map(|number| start(plan, server, number)).collect();
    while run::now() < plan.length {
        thread::sleep(Duration::from_millis(random(50..3000)));
        let number = random(0..plan.processes);
        let at = usize::try_from(number).unwrap_or_default();
        if plan.conditions != Conditions::NoFaults {
            happen(plan, server, &mut processes[at], number);
        }
    }
    network::set_faults(network::Faults { latency: plan.faults.latency, ..network::Faults::NONE });
    thread::sleep(Duration::from_secs(60) + LINGER);
    leaves_nothing(plan, &processes, server);
}

/// Something happens to a process or to the server.
fn happen(plan: &Plan, server: ServerId, process: &mut Process, number: u64) {
    let are_late = matches!(plan.conditions, Conditions::LateCommands | Conditions::LostKeys);
    let most = if are_late { 6000 } else { 200 };
    match random(0..10) {
        0 => {
            process.kill(chance(2));
            *process = start(plan, server, number);
        }
        1 if are_late => {
            process.stop(true);
            let stopped = *process;
            run::after(Duration::from_millis(random(1..most)), move || stopped.stop(false));
        }
        2 => server.stall(Duration::from_millis(random(1..most))),
        3 => server.cut_all(),
        4 if are_late => server.separate(*process, Duration::from_millis(random(1..most))),
        // There a release is a DEL, which may delete another's key if it arrives late (limits.md, A full server).
        5 if !are_late => {
            server.set_full(true);
            run::after(Duration::from_millis(random(1..3000)), move || server.set_full(false));
        }
        6 => {
            server.kill();
            let keeps_keys = plan.conditions != Conditions::LostKeys;
            run::after(Duration::from_millis(random(1..most)), move || server.restart(keeps_keys));
        }
        7 if plan.knows_no_clocks() => {
            let by = i64::try_from(random(0..6_000_000)).unwrap_or_default() - 3_000_000;
            run::note(&format!("the clock of {process:?} is set by {by} us"));
            process.set_clock(by);
        }
        _ => {}
    }
}

fn start(plan: &Plan, server: ServerId, number: u64) -> Process {
    let ahead = i64::try_from(random(0..plan.clocks + 1)).unwrap_or_default();
    let clocks = Clocks { ahead, faster: i32::try_from(random(0..200)).unwrap_or_default() - 100 };
    let plan = plan.clone();
    Process::start(&format!("process {number}"), clocks, move || program::run(&plan, server, number))
}

/// Looks for what is left: on the server, and in processes whose programs have ended.
fn leaves_nothing(plan: &Plan, processes: &[Process], server: ServerId) {
    // What a killed process has left, or a lock that is left to expire, stays until somebody wants it, but nobody waits for it.
    let now = run::wall_clock();
    // Counters, and for how many readers a lock is, are to stay.
    let keys = server.look(&["KEYS", "*"]);
    for key in keys.lines().filter(|key| !key.contains(":setnx-lock:")) {
        let value = server.look(&["GET", key]);
        let time = value.split(':').next().and_then(|time| time.parse().ok());
        let is_over = time.is_some_and(|time: f64| time < now.as_secs_f64());
        if value != "(nil)" && !is_over {
            broken(&format!("{key} is left with {value}"));
        }
    }
    let waiters = server.look(&["KEYS", "*:waiters:*"]);
    if plan.has_no_faults() && !waiters.is_empty() {
        broken(&format!("these waiting lists are left: {waiters}"));
    }
    for process in processes {
        let threads = process.threads();
        if !threads.is_empty() {
            broken(&format!("{process:?} has ended, and has these threads: {threads:?}"));
        }
        if let Some(open) = server.connections().get(process) {
            broken(&format!("{process:?} has ended, and has {open} connections"));
        }
    }
}
