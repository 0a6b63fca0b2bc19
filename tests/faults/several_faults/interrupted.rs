//! Calls on several keys that a server interrupts: it stops answering, or carries out a command late or in part.

use std::mem;
use std::thread::{self, JoinHandle};

use libtest_mimic::Trial;
use setnx_lock::{CancelToken, Error, LockOptions, MultiLock, Protocol};
use setnx_lock_testing::{Fault, Received};

use crate::support::notified::until;
use crate::support::scenario::{FOREIGN, Scenario, patient};
use crate::support::sent::probed;
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

type Failure = Box<dyn std::error::Error>;

struct Stage {
    scenario: Scenario,
    keys: Vec<TestKey>,
    locks: MultiLock,
}

impl Stage {
    fn set(options: LockOptions) -> Result<Self, Failure> {
        let scenario = Scenario::set();
        let keys = scenario.target.keys("interrupted", 3);
        let locker = scenario.open(patient(&scenario.server.url())?.pool_size(1));
        probed(&locker, Protocol::Ttl)?;
        scenario.server.clear_log();
        let locks = MultiLock::new(&locker, keys.iter().map(|key| key.key.clone()), options)?;
        Ok(Self { scenario, keys, locks })
    }

    /// Has the first lock held by another client, cuts the connection before the command for the second, and waits on another thread.
    fn lose_the_second(&self, token: &CancelToken) -> JoinHandle<Result<(), Error>> {
        self.keys[0].set(FOREIGN);
        self.scenario.server.nth("SETNX", 2, Fault::CutBefore);
        let locks = self.locks.clone().cancelled_by(token);
        thread::spawn(move || locks.lock().map(drop))
    }

    /// Carries out the command for the second after all.
    fn carry_out_late(&self) -> Outcome {
        let second = self.keys[1].key.to_string();
        let is_it = |asked: &Received| asked.name == "SETNX" && asked.arguments[0] == second;
        let Received { arguments, .. } =
            self.scenario.server.log().into_iter().find(is_it).expect("each was asked for");
        let late: bool = redis::cmd("SETNX").arg(arguments).query(&mut self.scenario.target.connection())?;
        assert!(late, "it comes before another command");
        Ok(())
    }

    fn has_looked_at(&self, n: usize) -> bool {
        let name = self.keys[n].key.to_string();
        self.scenario.server.log().iter().any(|asked| asked.name == "GET" && asked.arguments[0] == name)
    }
}

fn what_lost_commands_acquire_late_is_given_back() -> Outcome {
    for protocol in [Protocol::Classic, Protocol::Watched] {
        let stage = Stage::set(expiring().protocol(protocol))?;
        let (keys, token) = (&stage.keys, CancelToken::new());
        let waiting = stage.lose_the_second(&token);
        until("it waits", || stage.has_looked_at(0));
        stage.carry_out_late()?;
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
        let stage = Stage::set(expiring().protocol(protocol).poll_interval(millis(5)))?;
        let (keys, token) = (&stage.keys, CancelToken::new());
        let again = stage.scenario.server.pause("SETNX", 3);
        let waiting = stage.lose_the_second(&token);
        until("it was lost", || stage.has_looked_at(1));
        keys[0].delete();
        again.reached();
        stage.carry_out_late()?;
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
        scenario.server.next(command, Fault::CutAfter);
        assert!(locks.try_lock()?.is_none());
        assert_eq!([keys[0].value(), keys[1].value()], [None, None], "given back");
        keys[2].delete();
        scenario.server.next(command, Fault::CutAfter);
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
        scenario.server.nth(command, 2, Fault::Say(words));
        let error = locks.try_lock().expect_err("the second key is refused");
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        assert_eq!(error.key(), Some(&keys[1].key));
        assert!(keys.iter().all(|key| key.value().is_none()), "{error:?}");
        assert_eq!(scenario.server.faults_left(), 0);
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
        let scenario = Scenario::set();
        let keys = scenario.target.keys("silent", KEYS);
        let builder = patient(&scenario.server.url())?.pool_size(1).command_timeout(millis(200));
        let locker = scenario.open(builder);
        let named = || keys.iter().map(|key| key.key.clone());
        let held = MultiLock::new(&locker, named(), expiring().protocol(protocol))?.lock()?;
        for _ in 0..KEYS {
            scenario.server.next(command, Fault::Hang);
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
        until("it is sent for one", || scenario.server.faults_left() < KEYS);
        assert!(scenario.server.faults_left() > KEYS / 4, "sent for nearly each of them");
        let of_each = if command == "GET" { 1 } else { KEYS };
        assert!(
            failures.iter().map(Error::key).eq(named().take(of_each).collect::<Vec<_>>().iter().map(Some))
        );
        assert_eq!(failures.iter().any(Error::may_hold_lock), command == "DEL");
    }
    Ok(())
}
