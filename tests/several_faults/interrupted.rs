//! Calls on several keys that a server interrupts: it has no room for the client, stops answering, or carries out a command late or in part.

use std::mem;
use std::thread;
use std::time::Instant;

use libtest_mimic::Trial;
use setnx_lock::{CancelToken, Error, Key, Lock, LockOptions, Locker, Locks, Protocol, RefusalKind, Release};

use super::{Failure, IN_TIME};
use crate::servers::{Asked, Fault, Proxy};
use crate::support::notified::until;
use crate::support::scenario::{FOREIGN, Scenario, patient};
use crate::support::target::PROTOCOLS;
use crate::support::{LONG, Outcome, TestKey, expiring, millis, tests};

pub(super) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "several_faults",
        tests![
            a_release_waits_for_a_server_without_room_for_the_client,
            a_release_without_time_reports_that_there_is_no_room,
            what_a_lost_command_on_all_keys_acquires_late_is_given_back,
            what_a_transaction_acquires_in_part_is_given_back,
            a_server_that_stops_answering_is_not_asked_for_each_key,
            a_shutdown_ends_the_pause_after_a_lost_look,
        ],
    )
}

struct Stage {
    scenario: Scenario,
    locker: Locker,
    keys: Vec<TestKey>,
    locks: Locks,
}

impl Stage {
    /// So many keys, and their locks through a pool of so many connections.
    fn set(count: usize, pool_size: u32, options: LockOptions) -> Result<Self, Failure> {
        let scenario = Scenario::set()?;
        let keys = scenario.target.keys("interrupted", count);
        let locker = scenario.open(patient(&scenario.proxy.url())?.pool_size(pool_size));
        let locks = Locks::new(&locker, keys.iter().map(|key| key.key.clone()), options)?;
        Ok(Self { scenario, locker, keys, locks })
    }
}

/// Has the next trip that begins so find no room: the server refuses the connection by its first reply, and closes it.
fn fill(scenario: &Scenario, [first, second]: [&'static str; 2]) {
    scenario.proxy.next(first, Fault::Say("-ERR max number of clients reached\r\n"));
    scenario.proxy.next(second, Fault::CutBefore);
}

fn a_release_waits_for_a_server_without_room_for_the_client() -> Outcome {
    for protocol in PROTOCOLS {
        let options = expiring().protocol(protocol);
        let Stage { scenario, locker, keys, locks } = Stage::set(3, 2, options)?;
        let held = locks.lock()?;
        // The pool waits for room while it has another connection.
        let looking = scenario.proxy.hold("GET", 1);
        let other = Lock::new(&locker, "other", options)?;
        let look = thread::spawn(move || other.state());
        looking.reached();
        let certified = protocol != Protocol::Classic;
        fill(&scenario, if certified { ["WATCH", "GET"] } else { ["DEL", "DEL"] });
        for (key, outcome) in held.release() {
            assert_eq!(outcome?, Release::Released { certified }, "{key}");
        }
        assert_eq!(scenario.proxy.faults_left(), 0);
        assert!(keys.iter().all(|key| key.value().is_none()));
        looking.go_on();
        look.join().unwrap()?;
    }
    Ok(())
}

fn a_release_without_time_reports_that_there_is_no_room() -> Outcome {
    let Stage { scenario, keys, locks, .. } = Stage::set(3, 1, expiring())?;
    let held = locks.lock()?;
    let values: Vec<_> = keys.iter().map(TestKey::value).collect();
    fill(&scenario, ["DEL", "DEL"]);
    for (key, outcome) in held.release() {
        let error = outcome.expect_err("the server has not read the commands");
        let Error::Refused { refusal, .. } = &error else { panic!("{error:?}") };
        assert_eq!((refusal.kind(), error.key()), (RefusalKind::TooManyClients, Some(&key)));
    }
    assert_eq!(scenario.proxy.faults_left(), 0);
    assert_eq!(keys.iter().map(TestKey::value).collect::<Vec<_>>(), values);
    Ok(())
}

/// How the keys can be read after a command on all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    Together,
    OneByOne,
    Refused,
}

const READINGS: [Reading; 3] = [Reading::Together, Reading::OneByOne, Reading::Refused];

impl Reading {
    /// Refuses these commands by their numbers from now: the MGET that reads all keys, and the GET of the second.
    fn refuse(self, proxy: &Proxy, [all, second]: [usize; 2]) {
        let refusal = || Fault::Say("-NOPERM this user has no permissions\r\n");
        if self != Reading::Together {
            proxy.nth("MGET", all, refusal());
        }
        if self == Reading::Refused {
            proxy.nth("GET", second, refusal());
        }
    }

    /// The reply to a command on all keys was lost, then the call failed at the first key, and the others held its value. Asserts that they
    /// are free, or the second is named by the error if it could not be read. Returns why the call failed.
    #[track_caller]
    fn judge(self, error: Error, keys: &[TestKey], command: &str) -> Error {
        let (second, rest) = keys[1..].split_first().expect("there are several");
        assert!(rest.iter().all(|key| key.value().is_none()), "{self:?}: {error:?}");
        if self != Reading::Refused {
            assert!(second.value().is_none(), "{self:?}: {error:?}");
            return error;
        }
        assert!(error.may_hold_lock(), "{error:?}");
        let Error::Several { cause, others, .. } = error else { panic!("{error:?}") };
        let [other @ Error::Unknown { .. }] = others.as_slice() else { panic!("{others:?}") };
        assert_eq!(other.key(), Some(&second.key));
        assert!(other.to_string().contains(&format!("the reply to {command} was lost")), "{other}");
        assert!(second.value().is_some(), "in this case it is held");
        *cause
    }
}

fn what_a_lost_command_on_all_keys_acquires_late_is_given_back() -> Outcome {
    for protocol in [Protocol::Classic, Protocol::Watched] {
        for reading in READINGS {
            let options = expiring().protocol(protocol);
            let Stage { scenario, keys, locks, .. } = Stage::set(3, 1, options)?;
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
            // The first GET is part of the wait, the second is of the first key.
            reading.refuse(proxy, [1, 3]);
            token.cancel();
            first.go_on();
            let error = waiting.join().unwrap().expect_err("the wait was cancelled");
            let cause = reading.judge(error, &keys, "MSETNX");
            assert!(matches!(cause, Error::Cancelled { .. }), "{cause:?}");
            assert_eq!(cause.key(), Some(&keys[0].key));
            assert_eq!(keys[0].value().as_deref(), Some(FOREIGN));
            assert_eq!(proxy.faults_left(), 0);
        }
    }
    Ok(())
}

fn what_a_transaction_acquires_in_part_is_given_back() -> Outcome {
    for reading in READINGS {
        let options = expiring().protocol(Protocol::Ttl);
        let Stage { scenario, keys, locks, .. } = Stage::set(3, 1, options)?;
        let proxy = &scenario.proxy;
        // As before 2.6.5, the transaction leaves out what was refused. The fourth is for the first key alone.
        for n in [1, 4] {
            let words = "-OOM command not allowed when used memory > 'maxmemory'.\r\n";
            proxy.nth("SET", n, Fault::Say(words));
        }
        // Each key is read in the transaction, and all after it.
        reading.refuse(proxy, [2, 5]);
        let error = locks.lock().expect_err("the first key is refused");
        let cause = reading.judge(error, &keys, "EXEC");
        assert!(matches!(cause, Error::Refused { .. }), "{cause:?}");
        assert_eq!(cause.key(), Some(&keys[0].key));
        assert_eq!((keys[0].value(), proxy.faults_left()), (None, 0));
    }
    Ok(())
}

fn a_server_that_stops_answering_is_not_asked_for_each_key() -> Outcome {
    const KEYS: usize = 20;
    // Where each is released by itself, it is released first.
    const LAST: usize = KEYS - 1;
    // After the first, the others have the time of one command, and each an eighth of it; one more, since no clock is exact.
    const MOST: usize = 10;
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
        let locker = scenario.open(builder).pipelining(false);
        let named = || keys.iter().map(|key| key.key.clone());
        let held = Locks::new(&locker, named(), expiring().protocol(protocol))?.lock()?;
        for _ in 0..KEYS {
            scenario.proxy.next(command, Fault::HalfOpen);
        }
        let outcomes: Vec<(Key, Option<Error>)> = if command == "GET" {
            let looked = |(key, verified): (&Key, Result<_, Error>)| (key.clone(), verified.err());
            let looked = held.verify().into_iter().map(looked).collect();
            mem::forget(held);
            looked
        } else {
            held.release().into_iter().map(|(key, released)| (key, released.err())).collect()
        };
        until("it is sent for one", || scenario.proxy.faults_left() < KEYS);
        let sent = KEYS - scenario.proxy.faults_left();
        assert!(sent <= MOST, "sent for {sent} of them");
        assert!(outcomes.iter().map(|(key, _)| key.clone()).eq(named()));
        for (n, (key, error)) in outcomes.into_iter().enumerate() {
            let error = error.expect("the server does not answer");
            assert_eq!(error.key(), Some(&key), "{error:?}");
            match (command, n) {
                ("DEL", LAST) => assert!(error.may_hold_lock(), "{error:?}"),
                // Some were sent for the others as well.
                ("DEL", _) => {}
                _ => assert!(!error.may_hold_lock(), "{error:?}"),
            }
        }
    }
    Ok(())
}

fn a_shutdown_ends_the_pause_after_a_lost_look() -> Outcome {
    for protocol in PROTOCOLS {
        let options = expiring().poll_interval(LONG).protocol(protocol);
        let Stage { scenario, locker, keys, locks } = Stage::set(2, 1, options)?;
        let command = if protocol == Protocol::Ttl { "EXEC" } else { "MSETNX" };
        for lost in [command, "MGET"] {
            scenario.proxy.next(lost, Fault::CutAfter);
        }
        let waiting = thread::spawn(move || locks.lock().map(drop));
        until("the look is lost", || scenario.proxy.faults_left() == 0);
        let began = Instant::now();
        locker.shut_down();
        let error = waiting.join().unwrap().expect_err("the locker was shut down");
        assert!(began.elapsed() < IN_TIME, "only after the pause");
        assert!(error.may_hold_lock(), "{error:?}");
        let expected = keys.iter().map(|key| key.key.clone()).collect();
        assert_eq!(super::named(&error), expected, "{error:?}");
    }
    Ok(())
}
