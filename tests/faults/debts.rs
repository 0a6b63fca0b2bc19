//! What is released in the background: what a command without a reply has acquired all the same, and what a program
//! has released there.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Instant;

use setnx_lock::{
    Drained, Error, Event, Lock, LockOptions, Locker, MultiLock, Protocol, Quorum, RwLock, Semaphore,
    Settlement,
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
    what_is_acquired_and_released_again_is_not_left,
    a_drain_says_what_is_left,
    a_drain_lists_what_a_quorum_has_not_released,
    a_lock_that_is_given_up_in_time_is_not_lost,
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

fn what_is_acquired_and_released_again_is_not_left() -> Outcome {
    let server = TestServer::start();
    let locker = Locker::builder(&server.url())?.build()?;
    for (key, releases) in [("again", 2), ("left", 1), ("held", 1)] {
        let lock = Lock::new(&locker, key, LockOptions::without_expiration().protocol(Protocol::Classic))?;
        for number in 0..releases {
            let held = lock.lock()?;
            if number == 0 {
                server.next("DEL", Fault::CutBefore);
            }
            assert_eq!(held.release().is_err(), number == 0);
            server.say(&["DEL", key])?;
        }
    }
    let held = Lock::new(&locker, "held", LockOptions::without_expiration())?.lock()?;
    let drained = locker.drain(millis(1));
    let [left] = &drained.unsettled[..] else { panic!("{drained:?}") };
    assert!(left.key.as_ref() == b"left" && drained.still_held.len() == 1, "{drained:?}");
    held.release()?;
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
    assert!(drained.unsettled.is_empty(), "{drained:?}");
    assert_eq!(settled.recv_timeout(LONG)?, Settlement::NotHeld);
    // The server gives no answer.
    let locker = open(Box::new(|_: &Event<'_>| {}))?;
    let lock = |name| Lock::new(&locker, name, holding_by(Protocol::Watched))?.lock();
    let (failed, later, last) = (lock("failed")?, lock("later")?, lock("last")?);
    // One that may never be released.
    let unexpiring = LockOptions::without_expiration().protocol(Protocol::Classic);
    let in_doubt = Lock::new(&locker, "doubt", unexpiring)?.lock()?;
    server.next("DEL", Fault::CutBefore);
    in_doubt.release().expect_err("the reply is lost");
    server.hang();
    let error = failed.release().expect_err("the server does not answer");
    later.release_later();
    let left = |drained: &Drained| -> Vec<(String, bool)> {
        drained.unsettled.iter().map(|left| (left.key.to_string(), left.why.is_some())).collect()
    };
    let are = |keys: &[(&str, bool)]| -> Vec<_> {
        keys.iter().map(|(key, was_tried)| ((*key).to_owned(), *was_tried)).collect()
    };
    let drained = locker.drain(millis(1));
    assert_eq!(drained.still_held.len(), 1, "{drained:?}");
    assert_eq!(drained.unsettled[0].remaining, None, "{drained:?}");
    let why = drained.unsettled[1].why.as_ref().expect("it was tried");
    assert_eq!(why.key(), error.key(), "{why:?}");
    // What has failed since is not forgotten.
    last.release().expect_err("the server does not answer");
    until("the attempt has failed", || {
        let left = left(&locker.drain(millis(1)));
        let all = |later| are(&[("doubt", true), ("failed", true), ("last", true), ("later", later)]);
        assert!(left == all(false) || left == all(true), "{left:?}");
        left == all(true)
    });
    server.resume();
    Ok(())
}

fn a_drain_lists_what_a_quorum_has_not_released() -> Outcome {
    let servers: Vec<TestServer> = (0..3).map(|_| TestServer::start()).collect();
    let open = |server: &TestServer| Locker::builder(&server.url())?.command_timeout(millis(500)).build();
    let lockers = servers.iter().map(open).collect::<Result<Vec<_>, Error>>()?;
    let quorum = Quorum::new(&lockers, "majority", holding_by(Protocol::Ttl))?;
    let held = quorum.lock()?;
    // The majority may be the others.
    until("each has granted it", || lockers[1].held().len() == 1);
    servers[1].hang();
    held.release_later();
    until("it is listed", || lockers[1].drain(millis(1)).unsettled.iter().any(|left| left.why.is_some()));
    servers[1].resume();
    assert!(lockers[0].drain(LONG).unsettled.is_empty());
    Ok(())
}

/// A thread that is busy with another lock comes to it after its lease.
fn a_lock_that_is_given_up_in_time_is_not_lost() -> Outcome {
    let each = PROTOCOLS.map(|protocol| (protocol, false));
    // Another client's value may have been there before. In Classic nobody looks.
    for (protocol, is_taken) in each.into_iter().chain([(Protocol::Watched, true), (Protocol::Ttl, true)]) {
        let (server, events) = (TestServer::start(), Arc::new(Mutex::new(Vec::new())));
        let seen = Arc::clone(&events);
        let builder = Locker::builder(&server.url())?.command_timeout(LONG);
        let locker = builder
            .observer(move |event: &Event<'_>| {
                if let Event::Lost { key, .. } | Event::Released { key, outlived_lease: false, .. } = event
                    && key.as_ref() == b"second"
                {
                    seen.lock().unwrap().push(matches!(event, Event::Released { .. }));
                }
            })
            .build()?;
        let first = Lock::new(&locker, "first", holding_by(protocol))?.lock()?;
        let (began, lease) = (Instant::now(), millis(2000));
        let options = LockOptions::expiring_after(lease).protocol(protocol);
        let second = Lock::new(&locker, "second", options)?.lock()?;
        let signal = second.loss_signal();
        if is_taken {
            server.say(&["SET", "second", "held by another"])?;
        }
        server.hang();
        first.release_later();
        thread::sleep(millis(50));
        second.release_later();
        if began.elapsed() > lease {
            // The machine is busy.
            server.resume();
            continue;
        }
        thread::sleep(lease + millis(1100));
        server.resume();
        until("it is over", || !events.lock().unwrap().is_empty());
        assert_eq!(*events.lock().unwrap(), [!is_taken], "{protocol:?}");
        assert_eq!(signal.is_lost(), is_taken, "{protocol:?}");
    }
    Ok(())
}
