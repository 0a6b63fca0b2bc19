//! What a call does with the answer to its first command, which it sends before it waits.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use setnx_lock::{CancelToken, Error, Event, Lock, LockGuard, LockOptions, Protocol, Semaphore};
use setnx_lock_testing::Fault;

use crate::support::notified::{Waiter, until};
use crate::support::scenario::{Scenario, patient};
use crate::support::sent::probed;
use crate::support::{LONG, Outcome, expiring, millis, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "asked_first",
        tests![
            a_reply_that_is_lost_when_the_call_ends_leaves_the_lock_in_doubt,
            a_lost_reply_is_settled_although_others_wait,
            threads_that_come_at_once_for_an_idle_key_all_get_the_lock,
            a_call_that_has_ended_before_sends_nothing,
            a_permit_that_is_held_elsewhere_costs_no_second_look,
            the_event_of_a_permit_names_the_semaphore,
        ],
    )
}

fn command(protocol: Protocol) -> &'static str {
    if protocol == Protocol::Ttl { "SET" } else { "SETNX" }
}

fn a_reply_that_is_lost_when_the_call_ends_leaves_the_lock_in_doubt() -> Outcome {
    for (protocol, shuts_down, permits) in [
        (Protocol::Classic, false, 1),
        (Protocol::Classic, true, 1),
        (Protocol::Watched, true, 2),
        (Protocol::Ttl, false, 2),
    ] {
        let scenario = Scenario::set();
        let key = scenario.target.key("in-doubt");
        let locker = patient(&scenario.server.url())?.command_timeout(millis(300)).build()?;
        probed(&locker, protocol)?;
        scenario.server.clear_log();
        let token = CancelToken::new();
        let options = expiring().protocol(protocol);
        let pool = Semaphore::new(&locker, &key.key, permits, options)?.cancelled_by(&token);
        scenario.server.next(command(protocol), Fault::LoseReply);
        let call = thread::spawn(move || pool.acquire().map(drop));
        until("it was asked for", || scenario.server.names().iter().any(|name| name == command(protocol)));
        if shuts_down {
            locker.shut_down();
        } else {
            token.cancel();
        }
        let error = call.join().unwrap().expect_err("the reply is lost");
        assert!(
            matches!(&error, Error::InDoubt { command: lost, .. } if *lost == command(protocol)),
            "{error:?}"
        );
        let asks = scenario.server.names().into_iter().filter(|name| name != "MGET");
        assert_eq!(asks.collect::<Vec<_>>(), [command(protocol)], "nothing is sent after it");
        // So that the keys expire.
        assert_eq!(scenario.server.faults_left(), 0);
    }
    Ok(())
}

/// A thread that came while the reply was waited for is not ahead of one that may have the lock.
fn a_lost_reply_is_settled_although_others_wait() -> Outcome {
    let unexpiring = LockOptions::without_expiration().wait_forever();
    for (options, protocol, expires) in [
        (expiring(), Protocol::Classic, true),
        (expiring(), Protocol::Watched, true),
        (unexpiring, Protocol::Classic, false),
    ] {
        let scenario = Scenario::set();
        let key = scenario.target.key("settled");
        let locker = patient(&scenario.server.url())?.command_timeout(millis(300)).pool_size(4).build()?;
        let lock = Lock::new(&locker, &key.key, options.protocol(protocol).poll_interval(LONG))?;
        scenario.server.next("SETNX", Fault::LoseReply);
        let first = Waiter::of(&lock);
        until("it was asked for", || scenario.server.names().iter().any(|name| name == "SETNX"));
        let second = asleep_waiter(&lock);
        match first.came() {
            Ok(held) => held.release()?,
            Err(error) => {
                assert!(!expires, "{error:?}");
                assert!(matches!(error, Error::InDoubt { command: "SETNX", .. }), "{error:?}");
                assert!(lock.clear()?);
            }
        }
        second.came()?.release()?;
    }
    Ok(())
}

fn asleep_waiter(lock: &Lock) -> Waiter {
    let waiter = Waiter::of(lock);
    thread::sleep(millis(100));
    assert!(waiter.still_waits());
    waiter
}

/// None waits for the others' answers, and each is queued where it belongs.
fn threads_that_come_at_once_for_an_idle_key_all_get_the_lock() -> Outcome {
    let protocols = [Protocol::Classic, Protocol::Watched, Protocol::Ttl, Protocol::Auto];
    let pauses = [Duration::ZERO, millis(50)];
    let unexpiring = LockOptions::without_expiration().timeout(LONG);
    let options = protocols.map(|protocol| expiring().protocol(protocol)).into_iter();
    for (options, pause) in
        options.chain([unexpiring]).flat_map(|options| pauses.map(|pause| (options, pause)))
    {
        let scenario = Scenario::set();
        let key = scenario.target.key("at-once");
        let locker = patient(&scenario.server.url())?.pool_size(4).build()?;
        let lock = Lock::new(&locker, &key.key, options.poll_interval(LONG))?;
        let protocol = lock.with(LockGuard::protocol)?;
        scenario.server.clear_log();
        let held = scenario.server.pause(command(protocol), 1);
        let late = Waiter::of(&lock);
        held.reached();
        let other = lock.lock()?;
        held.go_on();
        // It waits by now, or not yet.
        thread::sleep(pause);
        other.release()?;
        late.came()?.release()?;
        assert!(key.value().is_none());
    }
    Ok(())
}

fn a_call_that_has_ended_before_sends_nothing() -> Outcome {
    let scenario = Scenario::set();
    let key = scenario.target.key("ended");
    let locker = patient(&scenario.server.url())?.build()?;
    let token = CancelToken::new();
    let lock = Lock::new(&locker, &key.key, expiring())?;
    let pool = Semaphore::new(&locker, &key.key, 3, expiring())?;
    token.cancel();
    let cancelled = [
        lock.clone().cancelled_by(&token).lock().map(drop),
        lock.clone().cancelled_by(&token).try_lock().map(drop),
        pool.clone().cancelled_by(&token).acquire().map(drop),
    ];
    locker.shut_down();
    for ended in cancelled.into_iter().chain([lock.lock().map(drop), pool.acquire().map(drop)]) {
        assert!(matches!(ended, Err(Error::Cancelled { .. } | Error::ShutDown { .. })), "{ended:?}");
    }
    assert_eq!(scenario.server.whole_log().len(), 0);
    Ok(())
}

fn a_permit_that_is_held_elsewhere_costs_no_second_look() -> Outcome {
    let scenario = Scenario::set();
    let key = scenario.target.key("permits");
    let pool = Semaphore::new(&scenario.locker(), &key.key, 2, expiring().timeout(Duration::ZERO))?;
    let other = Semaphore::new(&scenario.locker(), &key.key, 2, expiring())?;
    let held = [other.acquire()?, other.acquire()?];
    scenario.server.clear_log();
    assert!(pool.try_acquire()?.is_none());
    assert_eq!(scenario.server.names(), ["SETNX", "MGET"]);
    drop(held);
    Ok(())
}

fn the_event_of_a_permit_names_the_semaphore() -> Outcome {
    let scenario = Scenario::set();
    let key = scenario.target.key("named");
    let names = Arc::<Mutex<Vec<String>>>::default();
    let noted = Arc::clone(&names);
    let observer = move |event: &Event<'_>| {
        if let Event::AcquireFinished { key, .. } = event {
            noted.lock().unwrap().push(key.to_string());
        }
    };
    let locker = patient(&scenario.server.url())?.observer(observer).build()?;
    let pool = Semaphore::new(&locker, &key.key, 2, expiring())?;
    // The second waits for its turn, since a thread of this process has a permit.
    let held = [pool.acquire()?, pool.acquire()?];
    assert_eq!(*names.lock().unwrap(), [key.key.to_string(), key.key.to_string()]);
    drop(held);
    Ok(())
}
