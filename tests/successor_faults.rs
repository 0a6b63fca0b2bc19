//! Faults while a holder asks for the next thread: threads that stop waiting, lost replies, missing connections, and keys that are written
//! meanwhile.

use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use setnx_lock::{CancelToken, Error, Lock, LockOptions, Protocol, Release};

use crate::servers::{Fault, Hold};
use crate::successors::{Scenario, assert_cancelled, deletion, first, successor};
use crate::support::asleep::Sleeper;
use crate::support::scenario::{FOREIGN, QUEUED, assert_nothing_sent_twice, patient};
use crate::support::target::PROTOCOLS;
use crate::support::{LONG, Load, Outcome, assert_says, load, millis, tests};

type Test = fn(Protocol, Load) -> Outcome;

pub(crate) fn trials() -> Vec<Trial> {
    let tests: &[(&str, Test)] = tests![
        the_deadline_of_the_next_passes_meanwhile,
        the_next_is_ended_meanwhile,
        the_answer_comes_after_the_next_s_lease,
        the_lease_passes_in_a_wait_for_a_connection,
        the_reply_to_the_next_is_lost,
        the_request_of_the_next_is_lost,
        no_reply_comes_at_all,
        the_next_is_refused,
        the_release_is_refused,
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
    scenario.proxy.hold(deletion(scenario.protocol), 1)
}

/// The next thread gets the lock, as by a command of its own that is on its way at the deadline.
fn the_deadline_of_the_next_passes_meanwhile(protocol: Protocol, load: Load) -> Outcome {
    let scenario = Scenario::under_load(protocol, load)?;
    let held = scenario.lock(QUEUED).lock()?;
    // Long enough for the release to begin on a busy machine.
    let timeout = Duration::from_secs(5);
    let next = successor(&scenario.lock(QUEUED.timeout(timeout)));
    let deletion = hold_deletion(&scenario);
    let releasing = thread::spawn(move || held.release());
    deletion.reached();
    thread::sleep(timeout + millis(100));
    deletion.go_on();
    assert_eq!(releasing.join().unwrap()?, scenario.released());
    let next = next.join()?;
    assert!(next.waited() >= timeout);
    scenario.assert_holds(&next);
    Ok(())
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
        let releasing = thread::spawn(move || held.release());
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
            Error::Cancelled { .. } => by_token,
            Error::ShutDown { .. } => !by_token,
            _ => false,
        };
        assert!(expected, "{error:?}");
        match behind {
            Some(behind) => {
                let behind = behind.join()?;
                scenario.assert_holds(&behind);
                assert_eq!(behind.release()?, scenario.released());
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
    let releasing = thread::spawn(move || held.release());
    deletion.reached();
    // The lease of the next thread began before that.
    thread::sleep(millis(310));
    deletion.go_on();
    assert_eq!(releasing.join().unwrap()?, scenario.released());
    // It does not use the lease. It waits until the lease has expired for other clients, too.
    let next = next.join()?;
    assert!(next.attempts() > 1);
    assert!(scenario.events.lines().contains(&"LateGrant".to_owned()));
    Ok(())
}

/// Options of a holder whose lease is shorter than its release takes.
const BRIEF: LockOptions = LockOptions::expiring_after(Duration::from_secs(2)).timeout(LONG);
/// Options of a waiter that does not take over meanwhile.
const TAKES_OVER_LATE: LockOptions = QUEUED.takeover_margin(LONG);

fn the_lease_passes_in_a_wait_for_a_connection(protocol: Protocol, load: Load) -> Outcome {
    let scenario = Scenario::under_load(protocol, load)?;
    let builder = patient(&scenario.proxy.url())?.pool_size(1);
    let locker = load.pipelining(builder.build()?);
    let lock = |options: LockOptions| Lock::new(&locker, &scenario.key.key, options.protocol(protocol));
    let cancel_token = CancelToken::new();
    let held = lock(BRIEF)?.lock()?;
    let expires_at = held.expires_at_system_time().ok_or("the lease expires")?;
    let successor = successor(&lock(TAKES_OVER_LATE)?.cancelled_by(&cancel_token));
    // The only connection is in use until the lease has expired and another client holds the lock.
    let reading = scenario.proxy.hold("GET", 1);
    let other = Lock::new(&locker, "another", BRIEF)?;
    let reader = thread::spawn(move || other.state());
    reading.reached();
    let releasing = Sleeper::start(move || held.release());
    releasing.rests();
    while expires_at.elapsed().is_err() {
        thread::sleep(millis(10));
    }
    scenario.key.set(FOREIGN);
    scenario.proxy.forget();
    reading.go_on();
    reader.join().unwrap()?;
    assert_eq!(releasing.join()?, Release::Expired);
    assert_eq!(scenario.key.value().as_deref(), Some(FOREIGN), "{:?}", scenario.proxy.names());
    cancel_token.cancel();
    assert_cancelled(successor);
    Ok(())
}

/// The next thread finds its value in the key.
fn the_reply_to_the_next_is_lost(protocol: Protocol, load: Load) -> Outcome {
    let scenario = Scenario::under_load(protocol, load)?;
    let lock = scenario.lock(QUEUED);
    let held = lock.lock()?;
    let next = successor(&lock);
    scenario.proxy.forget();
    scenario.proxy.next(first(protocol), Fault::CutAfter);
    assert_eq!(held.release()?, scenario.released());
    let next = next.join()?;
    assert_nothing_sent_twice(&scenario.proxy);
    let names = scenario.proxy.names();
    assert_eq!(names[names.len() - 2..], [first(protocol), "GET"], "{names:?}");
    scenario.assert_holds(&next);
    Ok(())
}

/// The next thread finds no value in the key, and asks itself.
fn the_request_of_the_next_is_lost(protocol: Protocol, load: Load) -> Outcome {
    let scenario = Scenario::under_load(protocol, load)?;
    let lock = scenario.lock(QUEUED);
    let held = lock.lock()?;
    let next = successor(&lock);
    scenario.proxy.forget();
    scenario.proxy.next(first(protocol), Fault::CutBefore);
    assert_eq!(held.release()?, scenario.released());
    let next = next.join()?;
    assert_nothing_sent_twice(&scenario.proxy);
    let names = scenario.proxy.names();
    assert_eq!(names[names.len() - 3..], [first(protocol), "GET", first(protocol)], "{names:?}");
    scenario.assert_holds(&next);
    Ok(())
}

/// The holder does not know what became of its release. The next thread reads the key, which still holds the holder's value.
fn no_reply_comes_at_all(protocol: Protocol, load: Load) -> Outcome {
    let scenario = Scenario::under_load(protocol, load)?;
    let cancel_token = CancelToken::new();
    let lock = scenario.lock(QUEUED).cancelled_by(&cancel_token);
    let held = lock.lock()?;
    let next = successor(&lock);
    let before = scenario.key.value();
    scenario.proxy.next(deletion(protocol), Fault::CutBefore);
    let error = held.release().expect_err("the deletion may still arrive");
    assert!(matches!(error, Error::Unknown { .. }), "{error:?}");
    assert_says(&error, &scenario.key, &["it frees itself when its lease has passed"]);
    assert_nothing_sent_twice(&scenario.proxy);
    assert_eq!(scenario.key.value(), before);
    next.rests();
    cancel_token.cancel();
    assert_cancelled(next);
    Ok(())
}

/// A refusal for lack of memory.
const OVER_MEMORY: Fault = Fault::Say("-OOM command not allowed when used memory > 'maxmemory'.\r\n");

fn the_next_is_refused(protocol: Protocol, load: Load) -> Outcome {
    let scenario = Scenario::under_load(protocol, load)?;
    let lock = scenario.lock(QUEUED);
    let held = lock.lock()?;
    let next = successor(&lock);
    scenario.proxy.next(first(protocol), OVER_MEMORY);
    assert_eq!(held.release()?, scenario.released());
    let error = next.join().expect_err("over memory");
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert_says(&error, &scenario.key, &["OOM"]);
    assert_eq!(scenario.key.value(), None);
    Ok(())
}

/// Where EXEC is refused, the transaction is still open, and what follows is queued in it.
fn the_release_is_refused(protocol: Protocol, load: Load) -> Outcome {
    let scenario = Scenario::under_load(protocol, load)?;
    let lock = scenario.lock(QUEUED);
    let held = lock.lock()?;
    let next = successor(&lock);
    scenario.proxy.forget();
    scenario.proxy.next(deletion(protocol), OVER_MEMORY);
    let released = held.release();
    assert!(matches!(released, Err(Error::Refused { .. })), "{released:?}");
    // The key is still there.
    scenario.key.delete();
    scenario.lock(QUEUED).clear()?;
    scenario.locker.shut_down();
    drop(next);
    Ok(())
}

fn the_key_is_written_meanwhile(protocol: Protocol, load: Load) -> Outcome {
    let scenario = Scenario::under_load(protocol, load)?;
    let cancel_token = CancelToken::new();
    let lock = scenario.lock(QUEUED).cancelled_by(&cancel_token);
    let held = lock.lock()?;
    let next = successor(&lock);
    let deletion = hold_deletion(&scenario);
    let releasing = thread::spawn(move || held.release());
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
