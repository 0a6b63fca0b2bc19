//! Faults while a holder hands the lock over to the next thread: a thread that stops waiting, a late reply, a refusal, and a key that is
//! written meanwhile. Lost replies are in `boundaries`.

use std::thread;

use libtest_mimic::Trial;
use setnx_lock::{CancelToken, Error, LockOptions, Protocol};
use setnx_lock_testing::Paused;

use crate::support::scenario::{ANOTHERS, QUEUED};
use crate::support::target::PROTOCOLS;
use crate::support::{HANDED_OVER, LONG, Load, Outcome, Release, load, millis, release, tests};
use crate::threads::successors::{Scenario, assert_cancelled, successor};

type Test = fn(Protocol, Load) -> Outcome;

pub(crate) fn trials() -> Vec<Trial> {
    let tests: &[(&str, Test)] = tests![
        the_next_is_ended_meanwhile,
        the_reply_comes_after_the_next_s_lease,
        the_key_is_written_meanwhile,
    ];
    let of = |protocol: Protocol| {
        let name = format!("{protocol:?}").to_lowercase();
        tests.iter().map(move |(test, run)| {
            let run = *run;
            (format!("{name}::{test}"), move |load| run(protocol, load))
        })
    };
    load::trials("successor_faults", &PROTOCOLS.into_iter().flat_map(of).collect::<Vec<_>>())
}

/// Holds the command that hands the lock over.
fn hold_hand_over(scenario: &Scenario) -> Paused {
    scenario.server.pause(if scenario.protocol == Protocol::Classic { "GETSET" } else { "EXEC" }, 1)
}

/// The next thread has been cancelled, or the locker shut down, when the reply comes: the thread behind has the lock, or it is released.
fn the_next_is_ended_meanwhile(protocol: Protocol, load: Load) -> Outcome {
    for by_token in [true, false] {
        let scenario = Scenario::under_load(protocol, load)?;
        let cancel_token = CancelToken::new();
        let held = scenario.lock(QUEUED).lock()?;
        let ended = successor(&scenario.lock(QUEUED).cancelled_by(&cancel_token));
        let behind = by_token.then(|| successor(&scenario.lock(QUEUED)));
        let hand_over = hold_hand_over(&scenario);
        let releasing = thread::spawn(move || release(held));
        hand_over.reached();
        if by_token {
            cancel_token.cancel();
        } else {
            scenario.locker.shut_down();
        }
        hand_over.go_on();
        assert_eq!(releasing.join().unwrap()?, HANDED_OVER);
        let error = ended.join().expect_err("its wait was ended");
        let expected = match &error {
            Error::Cancelled { .. } => by_token,
            Error::ShutDown { .. } => !by_token,
            _ => false,
        };
        assert!(expected, "{error:?}");
        match behind {
            Some(behind) => {
                let behind = behind.join()?;
                scenario.assert_holds(&behind);
                assert_eq!(release(behind)?, scenario.released());
            }
            None => assert!(scenario.lock_of_another_process()?.try_lock()?.is_some(), "it is free"),
        }
        assert_eq!(scenario.key.value(), None, "no value is left behind");
    }
    Ok(())
}

fn the_reply_comes_after_the_next_s_lease(protocol: Protocol, load: Load) -> Outcome {
    let scenario = Scenario::under_load(protocol, load)?;
    let held = scenario.lock(QUEUED).lock()?;
    let brief = LockOptions::expiring_after(millis(300)).poll_interval(LONG).timeout(LONG);
    let next = successor(&scenario.lock(brief));
    let hand_over = hold_hand_over(&scenario);
    let releasing = thread::spawn(move || release(held));
    hand_over.reached();
    // The lease of the next thread began before that.
    thread::sleep(millis(310));
    hand_over.go_on();
    assert_eq!(releasing.join().unwrap()?, HANDED_OVER);
    // In Classic it does not use the lease, and waits until the lease has expired for other clients, too. In the others the holder deletes the key.
    drop(next.join()?);
    let late = scenario.events.lines().contains(&"LateGrant".to_owned());
    assert!(late || protocol != Protocol::Classic);
    Ok(())
}

/// The lock is lost. Classic overwrites the value, as a loser of a takeover does; the next thread has not got the lock.
fn the_key_is_written_meanwhile(protocol: Protocol, load: Load) -> Outcome {
    let scenario = Scenario::under_load(protocol, load)?;
    let cancel_token = CancelToken::new();
    let lock = scenario.lock(QUEUED).cancelled_by(&cancel_token);
    let held = lock.lock()?;
    let next = successor(&lock);
    let hand_over = hold_hand_over(&scenario);
    let releasing = thread::spawn(move || release(held));
    hand_over.reached();
    scenario.key.set(ANOTHERS);
    hand_over.go_on();
    assert_eq!(releasing.join().unwrap()?, Release::Lost);
    assert_eq!(scenario.key.value().as_deref() == Some(ANOTHERS), protocol != Protocol::Classic);
    next.rests();
    cancel_token.cancel();
    assert_cancelled(next);
    Ok(())
}
