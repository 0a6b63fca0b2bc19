//! Acquiring on several servers: who gets the lock, what is given back, what is refused.

use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use setnx_lock::{CancelToken, Error, Lock, LockOptions, Locker, Protocol, Quorum, QuorumGuard};
use setnx_lock_testing::ServerVersion;

use super::{KEY, OPTIONS, Servers};
use crate::support::notified::until;
use crate::support::scenario::{FOREIGN, opened, patient};
use crate::support::{LONG, Outcome, PAST, chain, millis, server_of, trials_of};

trials_of! {
    "quorum";
    a_free_lock_is_acquired_on_each_server_and_released,
    one_server_is_a_quorum,
    what_is_no_quorum_is_refused,
    a_holder_on_a_minority_does_not_matter,
    what_a_minority_grants_is_given_back,
    expired_leftovers_are_taken_over_server_by_server,
    each_server_has_its_own_protocol,
    a_wait_ends_with_the_attempts_or_the_timeout,
    threads_that_split_the_servers_all_get_their_turn,
    a_body_runs_under_the_lock,
    a_call_within_a_call_is_refused,
    a_wait_ends_with_the_token_or_the_locker,
    an_error_says_whether_this_thread_has_the_lock,
}

fn a_free_lock_is_acquired_on_each_server_and_released() -> Outcome {
    for count in [3, 5] {
        let servers = Servers::start(count);
        let lock = servers.lock(OPTIONS)?;
        let held = lock.lock()?;
        assert_eq!(held.key().to_string(), KEY);
        assert!(held.remaining() > LONG / 2 && held.remaining() <= LONG, "{held:?}");
        held.ensure_held()?;
        servers.until_holding(count);
        let mut values = servers.values();
        values.sort();
        values.dedup();
        assert_eq!(values.len(), count, "each server has its own: {values:?}");
        held.release()?;
        servers.until_holding(0);
        assert!(lock.try_lock()?.is_some());
        servers.until_holding(0);
    }
    Ok(())
}

fn one_server_is_a_quorum() -> Outcome {
    let servers = Servers::start(1);
    let held = servers.lock(OPTIONS)?.lock()?;
    assert_eq!(servers.holding(), 1);
    assert!(servers.lock(OPTIONS)?.try_lock()?.is_none());
    held.release()?;
    assert_eq!(servers.holding(), 0);
    Ok(())
}

fn what_is_no_quorum_is_refused() -> Outcome {
    let locker = |port: u16| Locker::open(&format!("redis://127.0.0.1:{port}/"));
    let (one, two, three) = (locker(1)?, locker(2)?, locker(3)?);
    let refused = |lockers: &[&Locker], options: LockOptions, words: &str| {
        let error = Quorum::new(lockers.iter().copied(), KEY, options).expect_err("it is refused");
        let text = chain(&error);
        assert!(
            matches!(error, Error::Invalid { .. }) && text.contains(words) && text.contains(KEY),
            "{text}"
        );
    };
    refused(&[], OPTIONS, "no servers");
    refused(&[&one, &two], OPTIONS, "a quorum of 2 servers survives the loss of no more than one of 1");
    refused(&[&one, &two, &three, &locker(4)?], OPTIONS, "odd number");
    refused(&[&one, &two, &one.clone()], OPTIONS, "127.0.0.1:1 is there twice");
    refused(&[&one, &two, &locker(2)?], OPTIONS, "127.0.0.1:2 is there twice");
    let upper_case = Locker::open("redis://LOCALHOST:1/")?;
    refused(&[&Locker::open("redis://localhost:1/1")?, &two, &upper_case], OPTIONS, "is there twice");
    refused(&[&one, &two, &three], LockOptions::without_expiration(), "needs an expiration");
    refused(&[&one, &two, &three], OPTIONS.max_attempts(0), "at least 1");
    let quorum = Quorum::new([one, two, three], KEY, LockOptions::expiring_after(Duration::from_secs(4)))?;
    let error = quorum.clone().max_clock_difference(millis(2001)).expect_err("it is refused");
    assert!(chain(&error).contains("less than half of the lease of 4s"), "{error}");
    quorum.max_clock_difference(millis(2000))?;
    Ok(())
}

fn a_holder_on_a_minority_does_not_matter() -> Outcome {
    for (count, minority) in [(3, 1), (5, 2)] {
        let servers = Servers::start(count);
        (0..minority).for_each(|server| servers.set(server, FOREIGN));
        let held = servers.lock(OPTIONS)?.try_lock()?.expect("a majority is free");
        servers.until_holding(count);
        held.release()?;
        servers.until_holding(minority);
        assert_eq!(servers.value(0).as_deref(), Some(FOREIGN));
    }
    Ok(())
}

fn what_a_minority_grants_is_given_back() -> Outcome {
    for (count, majority) in [(3, 2), (5, 3)] {
        let servers = Servers::start(count);
        (0..majority).for_each(|server| servers.set(server, FOREIGN));
        let lock = servers.lock(OPTIONS)?;
        assert!(lock.try_lock()?.is_none());
        servers.until_holding(majority);
        let error = servers.lock(OPTIONS.timeout(millis(30)))?.lock().expect_err("it is held");
        assert!(error.is_contention() && error.is_transient() && !error.may_hold_lock(), "{error:?}");
        let text = chain(&error);
        assert!(text.starts_with("lock quorum not acquired in "), "{text}");
        assert!(text.contains(&format!("servers agreed, and {majority} must")), "{text}");
        for server in 0..majority {
            let address = servers.0[server].address();
            assert!(text.contains(&format!("{address}: held until 2030-")), "{text}");
        }
        let Error::NoMajority { agreed, answers, lost: false, .. } = &error else { panic!("{error:?}") };
        assert_eq!(agreed + answers.len(), count);
        servers.until_holding(majority);
    }
    Ok(())
}

fn expired_leftovers_are_taken_over_server_by_server() -> Outcome {
    for protocol in [Protocol::Classic, Protocol::Watched, Protocol::Ttl] {
        let servers = Servers::start(3);
        servers.set(0, PAST);
        servers.set(2, PAST);
        let held = servers.lock(OPTIONS.protocol(protocol))?.try_lock()?.expect("they have expired");
        let is_new = |value: &Option<String>| value.as_deref().is_some_and(|value| value != PAST);
        until("each is taken over", || servers.values().iter().all(is_new));
        held.release()?;
        servers.until_holding(0);
    }
    Ok(())
}

fn each_server_has_its_own_protocol() -> Outcome {
    let servers = Servers::start(3);
    let (oldest, old) = (server_of(ServerVersion::V1_2), server_of(ServerVersion::V2_4));
    // Two versions of one server in turn: the others are new.
    for (server, release) in [(&oldest, "DEL"), (&old, "EXEC")] {
        let lockers = [opened(&server.url())?, opened(&servers.0[1].url())?, opened(&servers.0[2].url())?];
        let lock = Quorum::new(lockers, KEY, OPTIONS)?;
        let held = servers.held(&lock)?;
        held.extend()?;
        held.verify()?;
        held.release()?;
        servers.until_holding(0);
        until("the release", || server.names().iter().any(|name| name == release));
        let watches = server.names().iter().any(|name| name == "WATCH");
        assert_eq!(watches, release == "EXEC", "{:?}", server.names());
        server.clear_log();
    }
    Ok(())
}

fn a_wait_ends_with_the_attempts_or_the_timeout() -> Outcome {
    let servers = Servers::start(3);
    let _held = servers.lock(OPTIONS)?.lock()?;
    let error = servers.lock(OPTIONS.max_attempts(3))?.lock().expect_err("it is held");
    assert!(error.is_contention() && chain(&error).contains(" and 3 attempts"), "{error}");
    let error = servers.lock(OPTIONS.timeout(Duration::ZERO))?.lock().expect_err("it is held");
    assert!(chain(&error).contains(" and 1 attempt:"), "{error}");
    assert!(servers.lock(OPTIONS.max_attempts(2))?.try_lock_for(LONG)?.is_none());
    Ok(())
}

fn threads_that_split_the_servers_all_get_their_turn() -> Outcome {
    const THREADS: usize = 4;
    const ROUNDS: usize = 10;
    let servers = Servers::start(3);
    let (inside, entered) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                // Two programs of two threads.
                let lock = servers.lock(OPTIONS);
                let (inside, entered) = (&inside, &entered);
                scope.spawn(move || -> Result<(), Error> {
                    let lock = lock?;
                    for _ in 0..ROUNDS {
                        lock.with(|_| {
                            assert_eq!(
                                inside.fetch_add(1, Ordering::SeqCst),
                                0,
                                "thread {thread} is not alone"
                            );
                            entered.fetch_add(1, Ordering::SeqCst);
                            thread::sleep(millis(1));
                            inside.fetch_sub(1, Ordering::SeqCst);
                        })?;
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    })?;
    assert_eq!(entered.into_inner(), THREADS * ROUNDS);
    servers.until_holding(0);
    Ok(())
}

fn a_body_runs_under_the_lock() -> Outcome {
    let servers = Servers::start(3);
    let lock = servers.lock(OPTIONS)?;
    let held = lock.with(|held| {
        servers.until_holding(3);
        held.verify().map(|()| 42)
    })?;
    assert_eq!(held?, 42);
    servers.until_holding(0);
    let failed = lock.with_result(|_| Err::<(), Box<dyn std::error::Error>>("on purpose".into()));
    assert_eq!(failed.unwrap_err().to_string(), "on purpose");
    servers.until_holding(0);
    let panicked =
        panic::catch_unwind(AssertUnwindSafe(|| lock.with(|_| panic::resume_unwind(Box::new("on purpose")))));
    assert!(panicked.is_err());
    servers.until_holding(0);
    Ok(())
}

fn a_call_within_a_call_is_refused() -> Outcome {
    let servers = Servers::start(3);
    let lockers = servers.lockers()?;
    let lock = Quorum::new(&lockers, KEY, OPTIONS)?;
    lock.with(|_| {
        let error = lock.lock().expect_err("it would wait for itself");
        assert!(matches!(error, Error::Nested { .. }), "{error:?}");
        let other = Quorum::new(&lockers, "another", OPTIONS).unwrap();
        other.with(QuorumGuard::verify).unwrap().unwrap();
        // Another thread waits.
        thread::scope(|scope| {
            let other = scope.spawn(|| lock.try_lock());
            assert!(other.join().unwrap().unwrap().is_none());
        });
    })?;
    drop(lock.lock()?);
    Ok(())
}

fn a_wait_ends_with_the_token_or_the_locker() -> Outcome {
    let servers = Servers::start(3);
    let _held = servers.lock(OPTIONS)?.lock()?;
    let token = CancelToken::new();
    let lock = servers.lock(OPTIONS)?.cancelled_by(&token);
    let waiter = thread::spawn(move || lock.lock().map(drop));
    thread::sleep(millis(30));
    token.cancel();
    let error = waiter.join().unwrap().expect_err("it is cancelled");
    assert!(matches!(error, Error::Cancelled { .. }), "{error:?}");
    let lockers = servers.lockers()?;
    let lock = Quorum::new(&lockers, KEY, OPTIONS)?;
    let held_elsewhere = Quorum::new(&lockers, "another", OPTIONS)?.lock()?;
    let waiter = thread::spawn(move || lock.lock().map(drop));
    thread::sleep(millis(30));
    lockers[1].shut_down();
    let error = waiter.join().unwrap().expect_err("it is shut down");
    assert!(matches!(error, Error::ShutDown { .. }), "{error:?}");
    // What is held can be released.
    held_elsewhere.extend()?;
    held_elsewhere.release()?;
    let patient = patient(&servers.0[0].url())?.build()?;
    let another = Lock::new(&patient, "another", OPTIONS)?;
    until("it is released there", || another.try_lock().unwrap().is_some());
    Ok(())
}

fn an_error_says_whether_this_thread_has_the_lock() -> Outcome {
    let servers = Servers::start(3);
    let lock = Quorum::new(servers.lockers()?, KEY, OPTIONS.max_attempts(1))?;
    let says = |error: Error| {
        let Error::NoMajority { answers, .. } = error else { panic!("{error:?}") };
        let mut said: Vec<bool> = answers
            .into_iter()
            .filter_map(|(_, answer)| match answer {
                Some(Error::Contended { details, .. }) => Some(details.taken_by_this_thread),
                _ => None,
            })
            .collect();
        said.dedup();
        said
    };
    let held = servers.held(&lock)?;
    assert_eq!(says(lock.lock().expect_err("it is held")), [true]);
    let others = thread::scope(|scope| scope.spawn(|| says(lock.lock().expect_err("it is held"))).join());
    assert_eq!(others.unwrap(), [false]);
    held.release()?;
    Ok(())
}
