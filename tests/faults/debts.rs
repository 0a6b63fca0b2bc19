//! Calls that end in doubt: what a command without a reply has acquired all the same is released in the background.

use std::thread;

use setnx_lock::{Error, Lock, LockOptions, Protocol};
use setnx_lock_testing::Fault;

use super::failed_releases::{Late, holding_by, through_a_proxy};
use crate::support::notified::until;
use crate::support::target::PROTOCOLS;
use crate::support::{Outcome, assert_says, millis, trials_of};

trials_of! {
    "debts";
    what_a_lost_reply_has_acquired_is_released,
    what_a_lost_getset_has_written_is_left,
}

/// The name of the command that acquires.
fn acquires_by(protocol: Protocol) -> &'static str {
    if matches!(protocol, Protocol::Ttl | Protocol::Auto) { "SET" } else { "SETNX" }
}

const RELEASED: &str = "a background thread releases it";

fn what_a_lost_reply_has_acquired_is_released() -> Outcome {
    for protocol in PROTOCOLS {
        let late = Late::default();
        let (scenario, locker) = through_a_proxy(&late)?;
        let key = scenario.target.key("lost");
        let lock = Lock::new(&locker, &key.key, holding_by(protocol))?;
        // The first call asks what the server can do.
        drop(lock.try_lock()?);
        scenario.server.clear_log();
        scenario.server.next(acquires_by(protocol), Fault::CutAfter);
        scenario.server.next("GET", Fault::CutBefore);
        let error = lock.try_lock().expect_err("neither reply comes");
        assert!(matches!(error, Error::InDoubt { .. }), "{error:?}");
        assert_says(&error, &key, &[RELEASED]);
        until("it is released", || key.value().is_none());
        until("one event", || late.count() == 1);
        if protocol == Protocol::Classic {
            let names = scenario.server.names();
            assert_eq!(names, ["SETNX", "GET", "GET", "GET", "DEL"], "the gem's commands");
        }
        assert!(lock.try_lock()?.is_some());
    }
    Ok(())
}

/// Another client may have taken the lock over just before.
fn what_a_lost_getset_has_written_is_left() -> Outcome {
    let late = Late::default();
    let (scenario, locker) = through_a_proxy(&late)?;
    let key = scenario.target.key("expired");
    key.set("1532000016.5");
    scenario.server.next("GETSET", Fault::CutAfter);
    scenario.server.nth("GET", 2, Fault::CutBefore);
    let lock = Lock::new(&locker, &key.key, LockOptions::expiring_after(millis(60_000)))?;
    let error = lock.try_lock().expect_err("its reply does not come");
    assert!(matches!(error, Error::InDoubt { command: "GETSET", .. }), "{error:?}");
    assert_says(&error, &key, &["it frees itself when its lease has passed"]);
    let (sent, value) = (scenario.server.names().len(), key.value());
    thread::sleep(millis(500));
    assert_eq!((scenario.server.names().len(), key.value(), late.count()), (sent, value, 0));
    Ok(())
}
