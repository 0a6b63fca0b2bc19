//! Calls on several keys that a server interrupts: it stops answering, or carries out a command late or in part.

use std::{mem, thread};

use libtest_mimic::Trial;
use setnx_lock::{CancelToken, Error, LockOptions, MultiLock, Protocol};

use crate::servers::{Asked, Fault};
use crate::support::every_command::Failure;
use crate::support::notified::until;
use crate::support::scenario::{FOREIGN, Scenario, patient};
use crate::support::target::PROTOCOLS;
use crate::support::{Outcome, TestKey, expiring, millis, release_all, tests};

pub(super) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "several_faults",
        tests![
            what_lost_commands_acquire_late_is_given_back,
            what_comes_late_for_a_wait_that_is_cancelled_is_given_back,
            what_is_acquired_beside_a_refusal_is_given_back,
            what_lost_replies_have_acquired_is_kept,
            a_server_that_stops_answering_is_not_asked_for_each_key,
        ],
    )
}

struct Stage {
    scenario: Scenario,
    keys: Vec<TestKey>,
    locks: MultiLock,
}

impl Stage {
    fn set(options: LockOptions) -> Result<Self, Failure> {
        let scenario = Scenario::set()?;
        let keys = scenario.target.keys("interrupted", 3);
        let locker = scenario.open(patient(&scenario.proxy.url())?.pool_size(1));
        let locks = MultiLock::new(&locker, keys.iter().map(|key| key.key.clone()), options)?;
        Ok(Self { scenario, keys, locks })
    }
}

fn what_lost_commands_acquire_late_is_given_back() -> Outcome {
    for protocol in [Protocol::Classic, Protocol::Watched] {
        let Stage { scenario, keys, locks } = Stage::set(expiring().protocol(protocol))?;
        let proxy = &scenario.proxy;
        let token = CancelToken::new();
        keys[0].set(FOREIGN);
        proxy.nth("SETNX", 2, Fault::CutBefore);
        let waiting = thread::spawn({
            let locks = locks.cancelled_by(&token);
            move || locks.lock().map(drop)
        });
        let first = keys[0].key.to_string();
        until("it waits", || {
            proxy.asked().iter().any(|asked| asked.name == "GET" && asked.arguments[0] == first)
        });
        let lost = proxy.asked().into_iter().rfind(|asked| asked.name == "SETNX");
        let Asked { arguments, .. } = lost.expect("each was asked for");
        assert_eq!(arguments[0], keys[1].key.to_string());
        let late: bool = redis::cmd("SETNX").arg(arguments).query(&mut scenario.target.connection())?;
        assert!(late, "it comes before another command");
        token.cancel();
        let error = waiting.join().unwrap().expect_err("the wait was cancelled");
        assert!(matches!(error, Error::Cancelled { .. }), "{error:?}");
        assert_eq!(error.key(), Some(&keys[0].key));
        assert_eq!(keys[0].value().as_deref(), Some(FOREIGN));
        assert!(keys[1..].iter().all(|key| key.value().is_none()), "{error:?}");
    }
    Ok(())
}

/// As before, but the wait that is cancelled is the one for the lock whose command was lost.
fn what_comes_late_for_a_wait_that_is_cancelled_is_given_back() -> Outcome {
    for protocol in [Protocol::Classic, Protocol::Watched] {
        let options = expiring().protocol(protocol).poll_interval(millis(5));
        let Stage { scenario, keys, locks } = Stage::set(options)?;
        let proxy = &scenario.proxy;
        let token = CancelToken::new();
        keys[0].set(FOREIGN);
        proxy.nth("SETNX", 2, Fault::CutBefore);
        let again = proxy.hold("SETNX", 3);
        let waiting = thread::spawn({
            let locks = locks.cancelled_by(&token);
            move || locks.lock().map(drop)
        });
        let second = keys[1].key.to_string();
        until("it was lost", || {
            proxy.asked().iter().any(|asked| asked.name == "GET" && asked.arguments[0] == second)
        });
        keys[0].delete();
        again.reached();
        let lost =
            proxy.asked().into_iter().find(|asked| asked.name == "SETNX" && asked.arguments[0] == second);
        let Asked { arguments, .. } = lost.expect("each was asked for");
        let late: bool = redis::cmd("SETNX").arg(arguments).query(&mut scenario.target.connection())?;
        assert!(late, "it comes before another command");
        token.cancel();
        again.go_on();
        let error = waiting.join().unwrap().expect_err("the wait was cancelled");
        assert!(matches!(error, Error::Cancelled { .. }), "{error:?}");
        assert_eq!(error.key(), Some(&keys[1].key));
        assert!(keys.iter().all(|key| key.value().is_none()), "{error:?}");
    }
    Ok(())
}

fn what_lost_replies_have_acquired_is_kept() -> Outcome {
    for protocol in PROTOCOLS {
        let Stage { scenario, keys, locks } = Stage::set(expiring().protocol(protocol))?;
        let command = if protocol == Protocol::Ttl { "SET" } else { "SETNX" };
        keys[2].set(FOREIGN);
        scenario.proxy.next(command, Fault::CutAfter);
        assert!(locks.try_lock()?.is_none());
        assert_eq!([keys[0].value(), keys[1].value()], [None, None], "given back");
        keys[2].delete();
        scenario.proxy.next(command, Fault::CutAfter);
        let held = locks.lock()?;
        assert!(keys.iter().all(|key| key.value().is_some()));
        held.verify()?;
        held.release()?;
    }
    Ok(())
}

fn what_is_acquired_beside_a_refusal_is_given_back() -> Outcome {
    for protocol in PROTOCOLS {
        let Stage { scenario, keys, locks } = Stage::set(expiring().protocol(protocol))?;
        let command = if protocol == Protocol::Ttl { "SET" } else { "SETNX" };
        let words = "-OOM command not allowed when used memory > 'maxmemory'.\r\n";
        scenario.proxy.nth(command, 2, Fault::Say(words));
        let error = locks.lock().expect_err("the second key is refused");
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        assert_eq!(error.key(), Some(&keys[1].key));
        assert!(keys.iter().all(|key| key.value().is_none()), "{error:?}");
        assert_eq!(scenario.proxy.faults_left(), 0);
    }
    Ok(())
}

fn a_server_that_stops_answering_is_not_asked_for_each_key() -> Outcome {
    const KEYS: usize = 20;
    // The protocol, and the command that has no reply: the first of a release, or of a look.
    for (protocol, command) in [
        (Protocol::Classic, "DEL"),
        (Protocol::Watched, "WATCH"),
        (Protocol::Ttl, "WATCH"),
        (Protocol::Classic, "GET"),
    ] {
        let scenario = Scenario::set()?;
        let keys = scenario.target.keys("silent", KEYS);
        let builder = patient(&scenario.proxy.url())?.pool_size(1).command_timeout(millis(200));
        let locker = scenario.open(builder);
        let named = || keys.iter().map(|key| key.key.clone());
        let held = MultiLock::new(&locker, named(), expiring().protocol(protocol))?.lock()?;
        for _ in 0..KEYS {
            scenario.proxy.next(command, Fault::HalfOpen);
        }
        let failures: Vec<Error> = if command == "GET" {
            // The failure of the first.
            let failure = held.verify().err();
            mem::forget(held);
            failure.into_iter().collect()
        } else {
            let released = release_all(held).into_iter();
            released.map(|(_, released)| released.expect_err("the server does not answer")).collect()
        };
        until("it is sent for one", || scenario.proxy.faults_left() < KEYS);
        assert!(scenario.proxy.faults_left() > KEYS / 4, "sent for nearly each of them");
        let of_each = if command == "GET" { 1 } else { KEYS };
        assert!(
            failures.iter().map(Error::key).eq(named().take(of_each).collect::<Vec<_>>().iter().map(Some))
        );
        assert_eq!(failures.iter().any(Error::may_hold_lock), command == "DEL");
    }
    Ok(())
}
