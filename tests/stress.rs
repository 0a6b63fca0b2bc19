//! Locks under stress: processes that are killed and stopped, different leases, a network with delays. The same as `make stress`,
//! but short, with tests of the checker itself.

#[allow(dead_code, unused_imports, reason = "shared with the program, which uses more of it")]
#[path = "../examples/stress/harness/mod.rs"]
pub(crate) mod harness;

use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use redis::Commands as _;
use setnx_lock::Protocol;

pub(crate) use harness::as_worker;

use crate::servers::Proxy;
use crate::support::{LONG, Outcome, RedisServer, tests};
use harness::hold::{End, Hold, Outcome as Reported};
use harness::moment::Moment;
use harness::random::Random;
use harness::{Contender, Failure, Harness, PREFIX, Remote, Run, check, network};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "stress",
        tests![
            the_checker_finds_overlaps_of_valid_leases,
            the_checker_finds_overlaps_that_a_release_did_not_report,
            the_checker_finds_nothing_in_correct_runs,
            the_checker_agrees_with_a_comparison_of_all_pairs,
            watched_has_no_overlaps,
            notified_locks_have_no_overlaps,
            pipelined_commands_have_no_overlaps,
            unpipelined_commands_have_no_overlaps,
            the_gem_s_protocol_has_overlaps,
            a_server_that_is_running_is_used_through_the_proxy,
        ],
    )
}

/// How long the gem's protocol may take to have an overlap.
const GEM_LIMIT: Duration = Duration::from_secs(60);

/// Enough that the gem has an overlap within seconds, and little enough that other tests go on.
const HARNESS: Harness = Harness {
    workers: 3,
    threads: 48,
    keys: 90,
    kill_every: Duration::from_millis(1500),
    stop_every: Duration::from_secs(3),
};

/// Runs a contender. Returns its run, and how many commands were pipelined together with others.
fn run(contender: Contender, mut go_on: impl FnMut(&[Hold], usize) -> bool) -> Result<(Run, usize), Failure> {
    let server = RedisServer::start()?;
    let proxy = Proxy::before(server.address())?;
    let random = Random::new();
    proxy.slow_down(move |asked| network::delay(&random, &asked.name));
    let mut pipelined = 0;
    // With few keys several threads of a process wait for the same.
    let keys = if contender == Contender::Notified { HARNESS.keys / 3 } else { HARNESS.keys };
    let run = Harness { keys, ..HARNESS }.run(contender, &proxy.url(), PREFIX, |holds| {
        // A release has three commands with the next thread's, so only pipelining puts SETNX into a larger batch.
        let is_pipelined = |name: &str, of| name == "SETNX" && of > 3;
        pipelined +=
            proxy.asked().iter().filter(|asked| is_pipelined(&asked.name, asked.position.of)).count();
        proxy.forget();
        Ok(go_on(holds, pipelined))
    })?;
    assert!(run.problems.is_empty(), "{:?}", run.problems);
    Ok((run, pipelined))
}

fn watched_has_no_overlaps() -> Outcome {
    excludes(Contender::Library(Protocol::Watched), |_, _| true)?;
    Ok(())
}

fn notified_locks_have_no_overlaps() -> Outcome {
    excludes(Contender::Notified, |_, _| true)?;
    Ok(())
}

fn pipelined_commands_have_no_overlaps() -> Outcome {
    excludes(Contender::Pipelined, |_, pipelined| pipelined >= OFTEN)?;
    Ok(())
}

fn unpipelined_commands_have_no_overlaps() -> Outcome {
    let pipelined = excludes(Contender::Unpipelined, |_, _| true)?;
    assert_eq!(pipelined, 0);
    Ok(())
}

/// How often the mechanism under test must have worked.
const OFTEN: usize = 30;

/// Runs until there are enough holds and the mechanism has worked, and returns how many commands were pipelined together with others.
fn excludes(contender: Contender, it_has_worked: impl Fn(&[Hold], usize) -> bool) -> Result<usize, Failure> {
    const ENOUGH: usize = 700;
    let (end, mut worked) = (Instant::now() + 2 * LONG, false);
    let (run, pipelined) = run(contender, |holds, pipelined| {
        worked = it_has_worked(holds, pipelined);
        holds.len() < ENOUGH || !worked && Instant::now() < end
    })?;
    assert!(worked, "the mechanism under test was hardly used in {} holds", run.holds.len());
    let findings = check(&run.holds);
    assert!(findings.holds >= ENOUGH, "{}", findings.holds);
    assert!(findings.takeovers > 0, "{findings:?}");
    let clean = findings.overlaps.is_empty() && findings.unreported.is_empty();
    assert!(clean, "{findings:?}; the logs are kept in {}", run.logs.keep().display());
    Ok(pipelined)
}

/// Otherwise the checker would find nothing.
fn the_gem_s_protocol_has_overlaps() -> Outcome {
    let began = Instant::now();
    let (run, _) =
        run(Contender::Gem, |holds, _| check(holds).overlaps.is_empty() && began.elapsed() < GEM_LIMIT)?;
    let findings = check(&run.holds);
    assert!(!findings.overlaps.is_empty(), "no overlap in {} holds", findings.holds);
    Ok(())
}

fn a_server_that_is_running_is_used_through_the_proxy() -> Outcome {
    const ENOUGH: usize = 100;
    let server = RedisServer::start_with("requirepass pass,word")?;
    let url = server.url().replace("redis://", "redis://:pass,word@") + "3";
    let remote = Remote::at(&url)?;
    assert!(remote.version()? >= Protocol::Ttl.needs());
    let mut connection = redis::Client::open(url.as_str())?.get_connection()?;
    let () = connection.set("others", "1")?;
    let harness = Harness { workers: 1, threads: 8, keys: 20, ..HARNESS };

    let keys = remote.keys(harness.keys);
    let proxy = Proxy::before(remote.address())?;
    let prefix = keys.prefix.clone();
    let run = harness.run(
        Contender::Library(Protocol::Watched),
        &remote.url_through(&proxy.url()),
        &prefix,
        |holds| Ok(holds.len() < ENOUGH),
    )?;
    assert!(run.problems.is_empty() && run.holds.len() >= ENOUGH, "{:?}", run.problems);
    let asked = proxy.asked();
    let locked: Vec<&str> =
        asked.iter().filter(|asked| asked.name == "SETNX").map(|asked| asked.arguments[0].as_str()).collect();
    assert!(locked.len() >= ENOUGH && locked.iter().all(|key| key.starts_with(&prefix)), "{locked:?}");
    // As that of a worker that was killed.
    for beside in ["", ":setnx-lock:waiters", ":setnx-lock:fence", ":setnx-lock:holder"] {
        let () = connection.set(harness::key(&prefix, harness.keys - 1) + beside, "1")?;
    }
    drop((proxy, keys));
    let left: Vec<String> = connection.keys("*")?;
    assert_eq!(left, ["others"], "its own keys are removed, and no others");

    for unusable in ["redis+unix:///tmp/socket", "rediss://127.0.0.1:1/", "nonsense"] {
        assert!(Remote::at(unusable).is_err(), "{unusable}");
    }
    Ok(())
}

/// A hold by its begin, the end of its validity, and its end.
fn hold([enter, valid_until]: [u64; 2], end: End) -> Hold {
    let (enter, valid_until) = (Moment(enter), Moment(valid_until));
    Hold { worker: 1, number: 1, key: 1, enter, valid_until, taken_over: false, end }
}

fn left(at: u64) -> End {
    End::Left(Moment(at), Some(Reported::Released))
}

fn killed(at: u64) -> End {
    End::Killed(Moment(at))
}

fn the_checker_finds_overlaps_of_valid_leases() -> Outcome {
    let first = hold([10, 30], left(20));
    for second in [
        hold([19, 40], left(35)),
        hold([11, 14], left(13)),
        hold([5, 40], left(50)),
        hold([19, 40], killed(20)),
        hold([10, 30], left(20)),
    ] {
        let findings = check(&[second.clone(), first.clone()]);
        assert_eq!((findings.holds, findings.overlaps.len()), (2, 1), "{second:?}");
    }
    // One hold that is valid beyond the others.
    let findings = check(&[
        hold([1, 100], killed(90)),
        hold([10, 20], left(15)),
        hold([30, 40], left(35)),
        hold([95, 99], left(97)),
    ]);
    assert_eq!(findings.overlaps.len(), 2);
    Ok(())
}

fn the_checker_finds_overlaps_that_a_release_did_not_report() -> Outcome {
    let other = hold([35, 50], left(45));
    for (reported, expected) in [
        (Some(Reported::Released), 1),
        (Some(Reported::Certified), 1),
        (Some(Reported::Silent), 1),
        (Some(Reported::Expired), 0),
        (Some(Reported::Lost), 0),
        (Some(Reported::Failed), 0),
        (None, 0),
    ] {
        let outlived = hold([10, 30], End::Left(Moment(40), reported));
        let findings = check(&[other.clone(), outlived]);
        assert_eq!((findings.outlived, findings.unreported.len()), (1, expected), "{reported:?}");
        assert!(findings.overlaps.is_empty(), "their leases do not overlap");
    }
    Ok(())
}

fn the_checker_finds_nothing_in_correct_runs() -> Outcome {
    assert_eq!(check(&[]).holds, 0, "the caller has to check this number");
    let first = hold([10, 30], left(20));
    for other in [
        hold([20, 40], left(35)),
        hold([1, 5], left(10)),
        // It outlived its lease, and ended before the next hold.
        hold([1, 5], left(9)),
        // It outlived its lease and was killed meanwhile.
        hold([1, 5], killed(15)),
        // Its lease had ended when it began.
        hold([15, 15], End::Left(Moment(16), Some(Reported::Expired))),
        // Its end is not known yet.
        hold([11, 30], End::Open),
        Hold { key: 2, ..first.clone() },
    ] {
        let findings = check(&[first.clone(), other.clone()]);
        assert!(findings.overlaps.is_empty() && findings.unreported.is_empty(), "{other:?}: {findings:?}");
    }
    Ok(())
}

/// Compares the sweep with the definition: whether any two intervals of a key overlap.
fn the_checker_agrees_with_a_comparison_of_all_pairs() -> Outcome {
    let end = prop_oneof![
        (0_u64..60).prop_map(killed),
        (0_u64..60, any::<bool>()).prop_map(|(at, reports)| {
            End::Left(Moment(at), Some(if reports { Reported::Expired } else { Reported::Released }))
        }),
    ];
    let holds = vec((0_u64..3, 0_u64..200, 0_u64..30, end), 0..12).prop_map(|holds| {
        let holds = holds.into_iter().zip(0..).map(|((key, enter, lease, end), number)| {
            let end = match end {
                End::Open => End::Open,
                End::Killed(Moment(lasts)) => killed(enter + lasts),
                End::Left(Moment(lasts), reported) => End::Left(Moment(enter + lasts), reported),
            };
            Hold { number, key, ..hold([enter, enter + lease], end) }
        });
        holds.collect::<Vec<_>>()
    });
    let config = Config { failure_persistence: None, ..Config::default() };
    TestRunner::new(config).run(&holds, |holds| {
        let findings = check(&holds);
        let valid = |hold: &Hold| hold.ended().unwrap().min(hold.valid_until);
        let overlap = |a: &Hold, b: &Hold| {
            a.key == b.key && a.number != b.number && a.enter.max(b.enter) < valid(a).min(valid(b))
        };
        let any_overlaps = holds.iter().any(|a| holds.iter().any(|b| overlap(a, b)));
        prop_assert_eq!(any_overlaps, !findings.overlaps.is_empty());
        prop_assert!(findings.overlaps.iter().all(|(a, b)| overlap(a, b)));
        let unreported = |a: &Hold, b: &Hold| {
            a.key == b.key
                && a.number != b.number
                && a.outlived_lease()
                && a.reported_no_problem()
                && a.valid_until.max(a.enter) < b.enter
                && b.enter < a.ended().unwrap()
        };
        let expected = holds.iter().filter(|a| holds.iter().any(|b| unreported(a, b))).count();
        prop_assert_eq!(expected, findings.unreported.len());
        prop_assert!(findings.unreported.iter().all(|(a, b)| unreported(a, b)));
        Ok(())
    })?;
    Ok(())
}
