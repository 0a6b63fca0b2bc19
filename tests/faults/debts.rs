//! What is released in the background: what a command without a reply has acquired all the same, and what a program
//! has released there.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread;

use setnx_lock::{
    Error, Event, Lock, LockOptions, Locker, MultiLock, Protocol, Quorum, RwLock, Semaphore, Settlement,
};
use setnx_lock_testing::{Fault, TestServer};

use super::failed_releases::{LEASE, Late, holding_by, through_a_proxy};
use crate::support::notified::{Waiter, until};
use crate::support::target::PROTOCOLS;
use crate::support::{AnyServer, LONG, Outcome, Target, assert_says, expiring, millis, trials_of};

trials_of! {
    "debts";
    what_a_lost_reply_has_acquired_is_released,
    what_a_lost_getset_has_written_is_left,
    a_thread_that_releases_later_does_not_wait,
    the_next_thread_gets_what_is_released_later,
    guards_of_each_kind_are_released_later,
    a_release_in_the_background_that_fails_is_tried_again,
    a_drain_says_what_is_left,
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

/// The server answers when all have returned.
fn a_thread_that_releases_later_does_not_wait() -> Outcome {
    const KEYS: usize = 1000;
    let (server, released) = (TestServer::start(), Arc::new(AtomicUsize::new(0)));
    let counts = Arc::clone(&released);
    let builder = Locker::builder(&server.url())?.command_timeout(LONG).observer(move |event: &Event<'_>| {
        counts.fetch_add(usize::from(matches!(event, Event::Released { .. })), Relaxed);
    });
    let locker = builder.build()?;
    for by_dropping in [false, true] {
        let options = expiring().protocol(Protocol::Auto);
        let options = if by_dropping { options.release_later_on_drop() } else { options };
        let keys: Vec<String> = (0..KEYS).map(|n| format!("later:{n}")).collect();
        let locks = keys.iter().map(|key| Lock::new(&locker, key.as_str(), options)?.lock());
        let held = locks.collect::<Result<Vec<_>, _>>()?;
        server.hang();
        for guard in held {
            if by_dropping { drop(guard) } else { guard.release_later() }
        }
        assert!(locker.held().is_empty());
        server.resume();
        until("each has its event", || released.load(Relaxed) == KEYS);
        assert_eq!(server.say(&["DBSIZE"])?, ":0");
        released.store(0, Relaxed);
    }
    // The last is waited for.
    Lock::new(&locker, "last", expiring())?.lock()?.release_later();
    assert!(locker.drain(LONG).still_held.is_empty());
    assert_eq!((server.say(&["DBSIZE"])?, released.load(Relaxed)), (":0".to_owned(), 1));
    Ok(())
}

fn the_next_thread_gets_what_is_released_later() -> Outcome {
    for protocol in PROTOCOLS {
        let late = Late::default();
        let (scenario, locker) = through_a_proxy(&late)?;
        let key = scenario.target.key("next");
        let lock = Lock::new(&locker, &key.key, holding_by(protocol).poll_interval(LONG))?;
        let held = lock.lock()?;
        let next = Waiter::of(&lock);
        held.release_later();
        next.came()?.release()?;
        until("the key is free", || key.value().is_none());
    }
    Ok(())
}

fn guards_of_each_kind_are_released_later() -> Outcome {
    let servers: Vec<TestServer> = (0..3).map(|_| TestServer::start()).collect();
    let lockers = servers.iter().map(|server| Locker::open(&server.url())).collect::<Result<Vec<_>, _>>()?;
    for options in [expiring(), expiring().release_later_on_drop()] {
        let drops = options != expiring();
        macro_rules! release_later {
            ($($guard:expr),*) => {$({
                let guard = $guard;
                if drops { drop(guard) } else { guard.release_later() }
            })*};
        }
        let locker = &lockers[0];
        release_later!(
            MultiLock::new(locker, ["a", "b"], options)?.lock()?,
            Semaphore::new(locker, "permits", 2, options)?.acquire()?,
            RwLock::new(locker, "file", 2, options)?.read()?,
            RwLock::new(locker, "other", 2, options)?.write()?,
            Quorum::new(&lockers, "majority", options)?.lock()?
        );
        for server in &servers {
            let readers = |key: &str| key.contains(":setnx-lock:readers:");
            let keys = || server.say(&["KEYS", "*"]).unwrap_or_default();
            until("all are free", || {
                keys().split_whitespace().filter(|word| !word.starts_with(['*', '$', ':'])).all(readers)
            });
        }
    }
    Ok(())
}

fn a_release_in_the_background_that_fails_is_tried_again() -> Outcome {
    let (sender, failed) = mpsc::channel();
    let server = Arc::new(TestServer::start());
    let key = Target::of(&server).key("again");
    let builder = Locker::builder(&server.url())?.observer(move |event: &Event<'_>| match event {
        Event::ReleaseFailed { error, .. } => _ = sender.send(error.to_string()),
        Event::Settled { outcome, .. } => _ = sender.send(format!("{outcome:?}")),
        _ => {}
    });
    let locker = builder.build()?;
    let held = Lock::new(&locker, &key.key, expiring().protocol(Protocol::Watched))?.lock()?;
    server.next("WATCH", Fault::Say("-LOADING Redis is loading the dataset in memory\r\n"));
    held.release_later();
    let error = failed.recv_timeout(LONG)?;
    assert!(error.contains("the release is tried again until the lease ends"), "{error}");
    assert_eq!(failed.recv_timeout(LONG)?, "Released");
    assert_eq!(key.value(), None);
    Ok(())
}

fn a_drain_says_what_is_left() -> Outcome {
    let server = Arc::new(TestServer::start());
    let open = |observer| -> Result<Locker, Error> {
        Locker::builder(&server.url())?.command_timeout(millis(500)).observer(observer).build()
    };
    // A command may come late, but the key does not show it.
    let (sender, settled) = mpsc::channel();
    let locker = open(Box::new(move |event: &Event<'_>| {
        if let Event::Settled { outcome, .. } = event {
            _ = sender.send(*outcome);
        }
    }) as Box<dyn Fn(&Event<'_>) + Send + Sync>)?;
    let lock = Lock::new(&locker, "late", holding_by(Protocol::Watched))?;
    drop(lock.try_lock()?);
    server.next("SETNX", Fault::CutBefore);
    server.next("GET", Fault::CutBefore);
    let error = lock.try_lock().expect_err("neither reply comes");
    assert!(matches!(error, Error::InDoubt { .. }), "{error:?}");
    // It does not wait for a command that may come before the lease ends.
    let drained = locker.drain(LEASE);
    let [late] = &drained.unsettled[..] else { panic!("{drained:?}") };
    assert!(late.key.as_ref() == b"late" && late.why.is_none(), "{drained:?}");
    assert!(late.remaining > Some(LONG), "{drained:?}");
    assert_eq!(settled.recv_timeout(LONG)?, Settlement::LeftToExpire);
    // The server gives no answer.
    let locker = open(Box::new(|_: &Event<'_>| {}))?;
    let lock = |name| Lock::new(&locker, name, holding_by(Protocol::Watched))?.lock();
    let (failed, later) = (lock("failed")?, lock("later")?);
    server.hang();
    let error = failed.release().expect_err("the server does not answer");
    later.release_later();
    let drained = locker.drain(millis(1));
    server.resume();
    let left: Vec<_> = drained.unsettled.iter().map(|left| left.key.to_string()).collect();
    assert_eq!((left, drained.still_held.len()), (vec!["failed".to_owned(), "later".to_owned()], 0));
    let why = drained.unsettled[0].why.as_ref().expect("it was tried");
    assert_eq!(why.key(), error.key(), "{why:?}");
    Ok(())
}
