//! Locks under stress: processes that are killed and stopped, leases that differ, a network with delays. The same as `make stress`,
//! but short, and the checker is put to the test itself.

#[allow(dead_code, unused_imports, reason = "shared with the program, which uses more of it")]
#[path = "../examples/stress/harness/mod.rs"]
pub(crate) mod harness;

use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use setnx_lock::Protocol;

pub(crate) use harness::as_worker;

use crate::servers::Proxy;
use crate::support::{Outcome, RedisServer, tests};
use harness::chance::Chance;
use harness::hold::{End, Hold, Outcome as Told};
use harness::moment::Moment;
use harness::{Account, Harness, Failure, Contender, check, network};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "stress",
        tests![
            the_checker_finds_two_valid_leases,
            the_checker_finds_what_a_release_did_not_say,
            the_checker_leaves_alone_what_is_right,
            the_checker_agrees_with_a_look_at_every_pair,
            watched_never_has_two_valid_leases,
            locks_that_pass_from_thread_to_thread_never_have_two_valid_leases,
            threads_that_share_trips_never_have_two_valid_leases,
            threads_that_do_not_share_trips_never_have_two_valid_leases,
            the_gem_s_protocol_is_caught,
        ],
    )
}

/// How long the gem's protocol may take to go wrong.
const GEM_LIMIT: Duration = Duration::from_secs(60);

/// So much that it goes wrong for the gem within seconds, and not so much that other tests stand still.
const ARENA: Harness = Harness {
    workers: 3,
    threads: 48,
    keys: 90,
    kill_every: Duration::from_millis(1500),
    stop_every: Duration::from_secs(3),
};

/// What is told, and how many commands have shared a trip with others'.
fn play(contender: Contender, mut go_on: impl FnMut(&[Hold]) -> bool) -> Result<(Account, usize), Failure> {
    let server = RedisServer::start()?;
    let proxy = Proxy::before(server.address())?;
    let chance = Chance::new();
    proxy.slow_down(move |asked| network::delay(&chance, &asked.name));
    let mut shared = 0;
    let account = ARENA.run(contender, &proxy.url(), |holds| {
        // Which is in no transaction of its own.
        shared += proxy.asked().iter().filter(|asked| asked.name == "SETNX" && asked.seat.of > 1).count();
        proxy.forget();
        Ok(go_on(holds))
    })?;
    assert!(account.troubles.is_empty(), "{:?}", account.troubles);
    Ok((account, shared))
}

fn watched_never_has_two_valid_leases() -> Outcome {
    excludes(Contender::Ours(Protocol::Watched))?;
    Ok(())
}

fn locks_that_pass_from_thread_to_thread_never_have_two_valid_leases() -> Outcome {
    let (holds, _) = excludes(Contender::Passing)?;
    let passed_on = |hold: &&Hold| matches!(hold.end, End::Left(_, Some(Told::HandedOff)));
    let passed_on = holds.iter().filter(passed_on).count();
    assert!(passed_on > holds.len() / 50, "{passed_on} of {}", holds.len());
    Ok(())
}

fn threads_that_share_trips_never_have_two_valid_leases() -> Outcome {
    let (holds, shared) = excludes(Contender::Sharing)?;
    assert!(shared > holds.len() / 50, "{shared} for {}", holds.len());
    Ok(())
}

fn threads_that_do_not_share_trips_never_have_two_valid_leases() -> Outcome {
    let (_, shared) = excludes(Contender::Apart)?;
    assert_eq!(shared, 0);
    Ok(())
}

fn excludes(contender: Contender) -> Result<(Vec<Hold>, usize), Failure> {
    const ENOUGH: usize = 1500;
    let (account, shared) = play(contender, |holds| holds.len() < ENOUGH)?;
    let findings = check(&account.holds);
    assert!(findings.holds >= ENOUGH, "{}", findings.holds);
    assert!(findings.takeovers > 0, "{findings:?}");
    let clean = findings.overlaps.is_empty() && findings.unreported.is_empty();
    assert!(clean, "{findings:?}; the logs are kept in {}", account.logs.keep().display());
    Ok((account.holds, shared))
}

/// Or the checker would see nothing.
fn the_gem_s_protocol_is_caught() -> Outcome {
    let began = Instant::now();
    let (account, _) =
        play(Contender::Gem, |holds| check(holds).overlaps.is_empty() && began.elapsed() < GEM_LIMIT)?;
    let findings = check(&account.holds);
    assert!(!findings.overlaps.is_empty(), "no overlap in {} holds", findings.holds);
    Ok(())
}

/// A hold from and until, valid until, that ended like this.
fn hold([enter, valid_until]: [u64; 2], end: End) -> Hold {
    let (enter, valid_until) = (Moment(enter), Moment(valid_until));
    Hold { worker: 1, number: 1, key: 1, enter, valid_until, took_over: false, end }
}

fn left(at: u64) -> End {
    End::Left(Moment(at), Some(Told::Released))
}

fn killed(at: u64) -> End {
    End::Killed(Moment(at))
}

fn the_checker_finds_two_valid_leases() -> Outcome {
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
    // One that lasts beyond others, which are all inside of it.
    let findings = check(&[
        hold([1, 100], killed(90)),
        hold([10, 20], left(15)),
        hold([30, 40], left(35)),
        hold([95, 99], left(97)),
    ]);
    assert_eq!(findings.overlaps.len(), 2);
    Ok(())
}

fn the_checker_finds_what_a_release_did_not_say() -> Outcome {
    let intruder = hold([35, 50], left(45));
    for (told, expected) in [
        (Some(Told::Released), 1),
        (Some(Told::Certified), 1),
        (Some(Told::Silent), 1),
        (Some(Told::HandedOff), 1),
        (Some(Told::Expired), 0),
        (Some(Told::Lost), 0),
        (Some(Told::Failed), 0),
        (None, 0),
    ] {
        let overran = hold([10, 30], End::Left(Moment(40), told));
        let findings = check(&[intruder.clone(), overran]);
        assert_eq!((findings.overran, findings.unreported.len()), (1, expected), "{told:?}");
        assert!(findings.overlaps.is_empty(), "their leases did not meet");
    }
    Ok(())
}

fn the_checker_leaves_alone_what_is_right() -> Outcome {
    assert_eq!(check(&[]).holds, 0, "which whoever asks must look at");
    let first = hold([10, 30], left(20));
    for other in [
        hold([20, 40], left(35)),
        hold([1, 5], left(10)),
        // It overran, and had left when the next came.
        hold([1, 5], left(9)),
        // It overran and was killed over it.
        hold([1, 5], killed(15)),
        // Its lease was over when it began.
        hold([15, 15], End::Left(Moment(16), Some(Told::Expired))),
        // Nobody knows yet when it ended.
        hold([11, 30], End::Open),
        Hold { key: 2, ..first.clone() },
    ] {
        let findings = check(&[first.clone(), other.clone()]);
        assert!(findings.overlaps.is_empty() && findings.unreported.is_empty(), "{other:?}: {findings:?}");
    }
    Ok(())
}

/// The sweep against what it means: whether any two intervals of a key meet.
fn the_checker_agrees_with_a_look_at_every_pair() -> Outcome {
    let end = prop_oneof![
        (0_u64..60).prop_map(killed),
        (0_u64..60, any::<bool>()).prop_map(|(at, says)| {
            End::Left(Moment(at), Some(if says { Told::Expired } else { Told::Released }))
        }),
    ];
    let holds = vec((0_u64..3, 0_u64..200, 0_u64..30, end), 0..12).prop_map(|holds| {
        let holds = holds.into_iter().zip(0..).map(|((key, enter, lease, end), number)| {
            let end = match end {
                End::Open => End::Open,
                End::Killed(Moment(lasts)) => killed(enter + lasts),
                End::Left(Moment(lasts), told) => End::Left(Moment(enter + lasts), told),
            };
            Hold { number, key, ..hold([enter, enter + lease], end) }
        });
        holds.collect::<Vec<_>>()
    });
    let config = Config { failure_persistence: None, ..Config::default() };
    TestRunner::new(config).run(&holds, |holds| {
        let findings = check(&holds);
        let valid = |hold: &Hold| hold.ended().unwrap().min(hold.valid_until);
        let meets = |a: &Hold, b: &Hold| {
            a.key == b.key && a.number != b.number && a.enter.max(b.enter) < valid(a).min(valid(b))
        };
        let meeting = holds.iter().any(|a| holds.iter().any(|b| meets(a, b)));
        prop_assert_eq!(meeting, !findings.overlaps.is_empty());
        prop_assert!(findings.overlaps.iter().all(|(a, b)| meets(a, b)));
        let untold = |a: &Hold, b: &Hold| {
            a.key == b.key
                && a.number != b.number
                && a.overran()
                && a.left_assured()
                && a.valid_until.max(a.enter) < b.enter
                && b.enter < a.ended().unwrap()
        };
        let expected = holds.iter().filter(|a| holds.iter().any(|b| untold(a, b))).count();
        prop_assert_eq!(expected, findings.unreported.len());
        prop_assert!(findings.unreported.iter().all(|(a, b)| untold(a, b)));
        Ok(())
    })?;
    Ok(())
}
