//! Faults while a release acquires the lock for the next thread: a thread that stops waiting, a late reply, a refusal, and a key that is
//! written meanwhile. Lost replies are in `boundaries`.

use std::thread;

use libtest_mimic::Trial;
use setnx_lock::{CancelToken, Error, LockOptions, Protocol};

use crate::servers::{Fault, Hold};
use crate::support::scenario::{FOREIGN, QUEUED};
use crate::support::target::PROTOCOLS;
use crate::support::{LONG, Load, Outcome, Release, assert_says, load, millis, release, tests};
use crate::threads::successors::{Scenario, assert_cancelled, first, successor};

type Test = fn(Protocol, Load) -> Outcome;

pub(crate) fn trials() -> Vec<Trial> {
    let tests: &[(&str, Test)] = tests![
        the_next_is_ended_meanwhile,
        the_answer_comes_after_the_next_s_lease,
        the_next_is_refused,
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

/// Holds the command that deletes the key, and with it all that is sent behind it.
fn hold_deletion(scenario: &Scenario) -> Hold {
    scenario.proxy.hold(scenario.deletion(), 1)
}

/// The next thread has been cancelled, or the locker shut down, when the answer comes: the lock is released at once, to the thread behind.
fn the_next_is_ended_meanwhile(protocol: Protocol, load: Load) -> Outcome {
    for by_token in [true, false] {
        let scenario = Scenario::under_load(protocol, load)?;
        let cancel_token = CancelToken::new();
        let held = scenario.lock(QUEUED).lock()?;
        let ended = successor(&scenario.lock(QUEUED).cancelled_by(&cancel_token));
        let behind = by_token.then(|| successor(&scenario.lock(QUEUED)));
        let deletion = hold_deletion(&scenario);
        let releasing = thread::spawn(move || release(held));
        deletion.reached();
        if by_token {
            cancel_token.cancel();
        } else {
            scenario.locker.shut_down();
        }
        deletion.go_on();
        assert_eq!(releasing.join().unwrap()?, scenario.released());
        let error = ended.join().expect_err("its wait was ended");
        let expected = match &error {
            Error::Cancelled { shut_down, .. } => *shut_down != by_token,
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

fn the_answer_comes_after_the_next_s_lease(protocol: Protocol, load: Load) -> Outcome {
    let scenario = Scenario::under_load(protocol, load)?;
    let held = scenario.lock(QUEUED).lock()?;
    let brief = LockOptions::expiring_after(millis(300)).poll_interval(LONG).timeout(LONG);
    let next = successor(&scenario.lock(brief));
    let deletion = hold_deletion(&scenario);
    let releasing = thread::spawn(move || release(held));
    deletion.reached();
    // The lease of the next thread began before that.
    thread::sleep(millis(310));
    deletion.go_on();
    assert_eq!(releasing.join().unwrap()?, scenario.released());
    // It does not use the lease. It waits until the lease has expired for other clients, too.
    drop(next.join()?);
    assert!(scenario.events.lines().contains(&"LateGrant".to_owned()));
    Ok(())
}

fn the_next_is_refused(protocol: Protocol, load: Load) -> Outcome {
    let scenario = Scenario::under_load(protocol, load)?;
    let lock = scenario.lock(QUEUED);
    let held = lock.lock()?;
    let next = successor(&lock);
    let over_memory = Fault::Say("-OOM command not allowed when used memory > 'maxmemory'.\r\n");
    scenario.proxy.next(first(protocol), over_memory);
    assert_eq!(release(held)?, scenario.released());
    let error = next.join().expect_err("over memory");
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert_says(&error, &scenario.key, &["OOM"]);
    assert_eq!(scenario.key.value(), None);
    Ok(())
}

fn the_key_is_written_meanwhile(protocol: Protocol, load: Load) -> Outcome {
    let scenario = Scenario::under_load(protocol, load)?;
    let cancel_token = CancelToken::new();
    let lock = scenario.lock(QUEUED).cancelled_by(&cancel_token);
    let held = lock.lock()?;
    let next = successor(&lock);
    let deletion = hold_deletion(&scenario);
    let releasing = thread::spawn(move || release(held));
    deletion.reached();
    scenario.key.set(FOREIGN);
    deletion.go_on();
    let released = releasing.join().unwrap()?;
    if protocol == Protocol::Classic {
        // It deletes what is there.
        assert_eq!(released, scenario.released());
        scenario.assert_holds(&next.join()?);
        return Ok(());
    }
    assert_eq!(released, Release::Lost);
    assert_eq!(scenario.key.value().as_deref(), Some(FOREIGN));
    next.rests();
    cancel_token.cancel();
    assert_cancelled(next);
    Ok(())
}
