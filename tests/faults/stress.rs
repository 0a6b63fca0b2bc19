//! Locks under stress: processes that are killed and stopped, different leases, a network with delays. The same as
//! `make stress`, but short, with a test of the checker itself.

#[allow(dead_code, unused_imports, reason = "shared with the program, which uses more of it")]
#[path = "../../tools/stress/harness/mod.rs"]
pub(crate) mod harness;

use std::time::Duration;

use libtest_mimic::Trial;
use setnx_lock::Protocol;
use setnx_lock_testing::Proxy;

pub(crate) use harness::as_worker;

use crate::support::{Outcome, RedisServer, tests, trial};
use harness::hold::{End, Hold, Outcome as Reported};
use harness::moment::Moment;
use harness::own_keys::{Plan, Situation};
use harness::random::Random;
use harness::{Contender, Failure, Harness, PREFIX, Run, check, network};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = crate::support::trials("stress", tests![the_checker_finds_overlaps]);
    // `make stress` has all of them, and its own negatives.
    trials.push(trial("stress::notified_has_no_overlaps", || has_no_overlaps(Contender::Notified)));
    // Some take long, or have a lease that does not outlast what pauses a busy machine makes.
    let long = [
        Situation::Kept,
        Situation::KeptInCluster,
        Situation::HungNode,
        Situation::KeptWhileCut,
        Situation::LateReplies,
    ];
    let situations = Situation::ALL.into_iter().filter(|(_, situation)| !long.contains(situation));
    trials.extend(situations.map(|(name, situation)| {
        trial(format!("stress::own_keys::{name}"), move || no_hold_is_reported_lost(situation))
    }));
    trials
}

/// Threads with keys of their own, while what they share is disturbed.
fn no_hold_is_reported_lost(situation: Situation) -> Outcome {
    let each = [(Protocol::Watched, false), (Protocol::Auto, false), (Protocol::Watched, true)];
    for (protocol, on_pool) in each {
        let plan = Plan { threads: 24, holds: 1500, delay: Duration::ZERO, protocol, on_pool };
        let tally = situation.run(&plan)?;
        assert!(
            tally.is_clean(),
            "{protocol:?}, pool: {on_pool}: {tally}: {:?} {:?}",
            tally.lost,
            tally.failed
        );
        let refuses = [Situation::Full, Situation::NoReplicas, Situation::TextCounter].contains(&situation);
        assert_eq!(tally.refused > 0, refuses, "{tally}");
    }
    Ok(())
}

/// Few keys, so that several threads of a process wait for the same, and little enough that other tests go on.
const HARNESS: Harness = Harness {
    workers: 3,
    threads: 48,
    keys: 30,
    kill_every: Duration::from_millis(1500),
    stop_every: Duration::from_secs(3),
};

/// Runs a contender.
fn run(contender: Contender, mut go_on: impl FnMut(&[Hold]) -> bool) -> Result<Run, Failure> {
    let server = RedisServer::start()?;
    let proxy = Proxy::before(server.address())?;
    let random = Random::new();
    proxy.delay_by(move |asked| network::delay(&random, &asked.name));
    let run = HARNESS.run(contender, &proxy.url(), PREFIX, |holds| {
        proxy.clear_log();
        Ok(go_on(holds))
    })?;
    assert!(run.problems.is_empty(), "{:?}", run.problems);
    Ok(run)
}

fn has_no_overlaps(contender: Contender) -> Outcome {
    const ENOUGH: usize = 700;
    let run = run(contender, |holds| holds.len() < ENOUGH)?;
    let findings = check(&run.holds);
    assert!(findings.holds >= ENOUGH, "{}", findings.holds);
    assert!(findings.takeovers > 0, "{findings:?}");
    let clean = findings.overlaps.is_empty() && findings.unreported.is_empty();
    assert!(clean, "{findings:?}; the logs are kept in {}", run.logs.keep().display());
    Ok(())
}

fn the_checker_finds_overlaps() -> Outcome {
    let hold = |number, [enter, valid_until]: [u64; 2], end| {
        let (enter, valid_until) = (Moment(enter), Moment(valid_until));
        Hold { worker: 1, number, key: 1, enter, valid_until, taken_over: false, end }
    };
    let left = |at, reported| End::Left(Moment(at), Some(reported));
    let first = hold(1, [10, 30], left(20, Reported::Released));
    for (other, expected) in [
        (hold(2, [19, 40], left(35, Reported::Released)), [1, 0]),
        (hold(2, [19, 40], End::Killed(Moment(20))), [1, 0]),
        (hold(2, [20, 40], left(35, Reported::Released)), [0, 0]),
        // It outlived its lease until the first had begun, and reported that, or not.
        (hold(2, [1, 5], left(12, Reported::Released)), [0, 1]),
        (hold(2, [1, 5], left(12, Reported::Expired)), [0, 0]),
    ] {
        let findings = check(&[other.clone(), first.clone()]);
        assert_eq!([findings.overlaps.len(), findings.unreported.len()], expected, "{other:?}");
    }
    Ok(())
}
