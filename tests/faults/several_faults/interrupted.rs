//! Calls on several keys that a server interrupts: it stops answering, or carries out a command late or in part.

use std::{mem, thread};

use libtest_mimic::Trial;
use setnx_lock::{CancelToken, Error, LockOptions, MultiLock, Protocol};

use crate::servers::{Asked, Fault};
use crate::support::every_command::Failure;
use crate::support::notified::until;
use crate::support::scenario::{FOREIGN, Scenario, patient};
use crate::support::{Outcome, TestKey, expiring, millis, release_all, tests};

pub(super) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "several_faults",
        tests![
            what_a_lost_command_on_all_keys_acquires_late_is_given_back,
            what_a_transaction_acquires_in_part_is_given_back,
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

fn what_a_lost_command_on_all_keys_acquires_late_is_given_back() -> Outcome {
    for protocol in [Protocol::Classic, Protocol::Watched] {
        let Stage { scenario, keys, locks } = Stage::set(expiring().protocol(protocol))?;
        let proxy = &scenario.proxy;
        let token = CancelToken::new();
        proxy.next("MSETNX", Fault::CutBefore);
        let first = proxy.hold("SETNX", 1);
        let waiting = thread::spawn({
            let locks = locks.cancelled_by(&token);
            move || locks.lock().map(drop)
        });
        first.reached();
        let lost = proxy.asked().into_iter().find(|asked| asked.name == "MSETNX");
        let Asked { arguments, .. } = lost.expect("all were asked for at first");
        let late: bool = redis::cmd("MSETNX").arg(arguments).query(&mut scenario.target.connection())?;
        assert!(late, "it comes before another command");
        // Another client clears the first lock, and acquires it.
        keys[0].set(FOREIGN);
        token.cancel();
        first.go_on();
        let error = waiting.join().unwrap().expect_err("the wait was cancelled");
        assert!(matches!(error, Error::Cancelled { .. }), "{error:?}");
        assert_eq!(error.key(), Some(&keys[0].key));
        assert_eq!(keys[0].value().as_deref(), Some(FOREIGN));
        assert!(keys[1..].iter().all(|key| key.value().is_none()), "{error:?}");
    }
    Ok(())
}

fn what_a_transaction_acquires_in_part_is_given_back() -> Outcome {
    let Stage { scenario, keys, locks } = Stage::set(expiring().protocol(Protocol::Ttl))?;
    // As before 2.6.5, the transaction leaves out what was refused. The fourth is for the first key alone.
    for n in [1, 4] {
        let words = "-OOM command not allowed when used memory > 'maxmemory'.\r\n";
        scenario.proxy.nth("SET", n, Fault::Say(words));
    }
    let error = locks.lock().expect_err("the first key is refused");
    assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    assert_eq!(error.key(), Some(&keys[0].key));
    assert!(keys.iter().all(|key| key.value().is_none()), "{error:?}");
    assert_eq!(scenario.proxy.faults_left(), 0);
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
