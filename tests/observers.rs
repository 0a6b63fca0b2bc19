//! Observers: closures and shared values can observe, the log stays on beside them, and each call that asks for a lock ends with one
//! `AcquireFinished`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{mem, thread};

use libtest_mimic::Trial;
use setnx_lock::{CancelToken, DeclaredLock, Error, Event, Lock, Locker, Observe};

use crate::support::asleep::asleep;
use crate::support::scenario::{closed_port, opened};
use crate::support::{LONG, Outcome, RedisServer, Target, TestKey, expiring, log_capture, millis, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "observers",
        tests![
            a_closure_and_a_shared_value_observe,
            an_observer_leaves_the_log_on,
            the_last_observer_replaces_earlier_ones,
            one_event_for_an_acquired_lock,
            one_event_for_contention,
            one_event_for_a_nested_lock,
            one_event_without_a_connection,
            one_event_for_a_cancelled_wait,
            one_event_for_a_call_after_the_shut_down,
            one_event_for_each_of_many_threads,
        ],
    )
}

/// One `AcquireFinished`.
#[derive(Clone, Debug)]
struct Finished {
    key: String,
    waited: Duration,
    attempts: u32,
    /// The error, by its `Debug` form.
    error: Option<String>,
}

/// Keeps each `AcquireFinished`.
#[derive(Debug, Default)]
struct Calls(Mutex<Vec<Finished>>);

impl Observe for Calls {
    fn event(&self, event: &Event<'_>) {
        if let Event::AcquireFinished { key, waited, attempts, outcome, .. } = event {
            self.0.lock().unwrap().push(Finished {
                key: key.to_string(),
                waited: *waited,
                attempts: *attempts,
                error: outcome.err().map(|error| format!("{error:?}")),
            });
        }
    }
}

impl Calls {
    /// Returns the events since the last time.
    fn take(&self) -> Vec<Finished> {
        mem::take(&mut self.0.lock().unwrap())
    }

    /// Returns the only event since the last time.
    #[track_caller]
    fn only(&self) -> Finished {
        let mut finished = self.take();
        assert_eq!(finished.len(), 1, "{finished:?}");
        finished.remove(0)
    }

    /// Asserts that there was one event since the last time, of a lock that was acquired.
    #[track_caller]
    fn assert_acquired(&self, key: &TestKey, attempts: u32, waited: Duration) {
        let finished = self.only();
        assert_eq!((finished.key, finished.attempts), (key.key.to_string(), attempts));
        assert!(finished.error.is_none() && finished.waited >= waited, "{:?}", finished.error);
    }

    /// Asserts that there was one event since the last time, with this error and not before `least`.
    #[track_caller]
    fn assert_failed(&self, error: &Error, least: Duration) -> Finished {
        let finished = self.only();
        assert_eq!(finished.error.as_deref(), Some(format!("{error:?}").as_str()));
        assert_eq!(Some(&finished.key), error.key().map(ToString::to_string).as_ref());
        assert!(finished.waited >= least, "{finished:?}");
        finished
    }
}

/// A key, an observed locker for its server, and the calls that are observed.
fn observed(test: &str) -> Result<(TestKey, Locker, Arc<Calls>), Box<dyn std::error::Error>> {
    let server = Arc::new(RedisServer::start()?);
    let key = Target::of(&server).key(test);
    let calls = Arc::<Calls>::default();
    let locker = opened(&server.url())?.observed_by(Arc::clone(&calls));
    Ok((key, locker, calls))
}

fn a_closure_and_a_shared_value_observe() -> Outcome {
    let (key, locker, calls) = observed("observes")?;
    let acquire = |locker: &Locker| Lock::new(locker, &key.key, expiring())?.lock().map(drop);
    acquire(&locker)?;
    assert_eq!(calls.take().len(), 1, "an Arc of an observer");

    let count = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&count);
    acquire(&locker.clone().observed_by(move |_: &Event<'_>| {
        counting.fetch_add(1, Ordering::SeqCst);
    }))?;
    assert_eq!(count.load(Ordering::SeqCst), 2, "a closure: acquired and released");

    let shared: Arc<dyn Observe> = calls.clone();
    acquire(&locker.clone().observed_by(shared))?;
    assert_eq!(calls.take().len(), 1, "an Arc of any observer");

    Ok(())
}

fn event_name(event: &Event<'_>) -> String {
    format!("{event:?}").split([' ', '{']).next().unwrap_or_default().to_owned()
}

fn an_observer_leaves_the_log_on() -> Outcome {
    log_capture::open();
    let server = Arc::new(RedisServer::start()?);
    let key = Target::of(&server).key("logged");
    // The value of a lock without an expiration: an expiring lock waits for it, and warns.
    key.set("1");
    let events = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&events);
    let locker = opened(&server.url())?
        .observed_by(move |event: &Event<'_>| seen.lock().unwrap().push(event_name(event)));
    assert!(Lock::new(&locker, &key.key, expiring())?.try_lock()?.is_none());
    assert_eq!(*events.lock().unwrap(), ["NeverExpires", "AcquireFinished"]);
    let warnings = log_capture::warnings_about(&key.key.to_string());
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("held without an expiration"), "{warnings:?}");
    Ok(())
}

fn the_last_observer_replaces_earlier_ones() -> Outcome {
    let (key, locker, calls) = observed("replaced")?;
    let later = Arc::<Calls>::default();
    let lock = Lock::new(&locker, &key.key, expiring())?;
    drop(Lock::new(&locker.observed_by(Arc::clone(&later)), &key.key, expiring())?.lock()?);
    assert_eq!((calls.take().len(), later.take().len()), (0, 1));
    drop(lock.lock()?);
    assert_eq!((calls.take().len(), later.take().len()), (1, 0), "a lock keeps the observer of its locker");
    Ok(())
}

fn one_event_for_an_acquired_lock() -> Outcome {
    let (key, locker, calls) = observed("acquired")?;
    let lock = Lock::new(&locker, &key.key, expiring().timeout(LONG).poll_interval(millis(200)))?;
    for _ in 0..2 {
        let held = lock.lock()?;
        calls.assert_acquired(&key, held.attempts(), held.waited());
        drop(held);
        drop(lock.try_lock()?.expect("free"));
        calls.assert_acquired(&key, 1, Duration::ZERO);
        drop(lock.try_lock_for(LONG)?.expect("free"));
        calls.assert_acquired(&key, 1, Duration::ZERO);
        lock.with(|_| ())?;
        calls.assert_acquired(&key, 1, Duration::ZERO);
        lock.try_with(|_| Ok::<_, Error>(()))?;
        calls.assert_acquired(&key, 1, Duration::ZERO);
    }
    // A call that waits, with all of its attempts.
    key.set("1895000000.5");
    let waiting = asleep(move || lock.lock());
    thread::sleep(millis(100));
    assert!(calls.take().is_empty(), "the call has not ended");
    key.delete();
    let held = waiting.join().unwrap()?;
    calls.assert_acquired(&key, held.attempts(), millis(100));
    assert!(calls.take().is_empty());

    DeclaredLock::in_class("Team", "draft", expiring()).with(&locker, 7, |_| ())?;
    let finished = calls.only();
    assert_eq!((finished.key.as_str(), finished.attempts), ("team:7:draft_lock", 1));
    Ok(())
}

fn one_event_for_contention() -> Outcome {
    let (key, locker, calls) = observed("contention")?;
    key.set("1895000000.5");
    let timeout = millis(200);
    let lock = Lock::new(&locker, &key.key, expiring().timeout(timeout).poll_interval(millis(20)))?;
    assert!(lock.try_lock()?.is_none());
    let finished = calls.only();
    assert!(finished.error.as_deref().is_some_and(|error| error.starts_with("Timeout")), "{finished:?}");
    assert_eq!(finished.attempts, 1);

    assert!(lock.try_lock_for(timeout)?.is_none());
    let finished = calls.only();
    assert!(finished.waited >= timeout, "{finished:?}");

    for error in [lock.lock().map(drop).unwrap_err(), lock.with(|_| ()).unwrap_err()] {
        assert!(error.is_contention(), "{error:?}");
    }
    assert_eq!(calls.take().len(), 2);
    let error = lock.lock().expect_err("held");
    let finished = calls.assert_failed(&error, timeout);
    let Error::Timeout { details, .. } = &error else { panic!("{error:?}") };
    assert_eq!(finished.attempts, details.attempts);
    assert!(finished.waited >= details.waited, "{finished:?}");
    Ok(())
}

fn one_event_for_a_nested_lock() -> Outcome {
    let (key, locker, calls) = observed("nested")?;
    let lock = Lock::new(&locker, &key.key, expiring())?;
    lock.with(|_| {
        calls.assert_acquired(&key, 1, Duration::ZERO);
        for error in [
            lock.lock().map(drop).unwrap_err(),
            lock.try_lock().map(drop).unwrap_err(),
            lock.with(|_| ()).unwrap_err(),
        ] {
            assert!(matches!(error, Error::Nested { .. }), "{error:?}");
        }
        let finished = calls.take();
        assert_eq!(finished.len(), 3, "{finished:?}");
        assert!(finished.iter().all(|finished| finished.attempts == 0), "{finished:?}");
        let error = lock.lock().unwrap_err();
        calls.assert_failed(&error, Duration::ZERO);
    })?;
    assert!(calls.take().is_empty());
    Ok(())
}

fn one_event_without_a_connection() -> Outcome {
    let port = closed_port()?;
    let calls = Arc::<Calls>::default();
    let retried = millis(200);
    let builder = Locker::builder(&format!("redis://127.0.0.1:{port}/"))?.unreachable_timeout(retried);
    let locker = builder.build()?.observed_by(Arc::clone(&calls));
    for (options, least) in [
        (expiring().timeout(LONG), retried),
        (expiring().wait_forever(), retried),
        (expiring().timeout(Duration::ZERO), Duration::ZERO),
    ] {
        let lock = Lock::new(&locker, "unconnected", options)?;
        let error = lock.lock().expect_err("no server listens there");
        assert!(matches!(error, Error::NoConnection { .. }), "{error:?}");
        assert_eq!(calls.assert_failed(&error, least).attempts, 1);
    }
    Ok(())
}

fn one_event_for_a_cancelled_wait() -> Outcome {
    let (key, locker, calls) = observed("cancelled")?;
    key.set("1895000000.5");
    let token = CancelToken::new();
    let options = expiring().timeout(LONG).poll_interval(LONG);
    let lock = Lock::new(&locker, &key.key, options)?.cancelled_by(&token);
    let began = Instant::now();
    let waiting = asleep({
        let lock = lock.clone();
        move || lock.lock()
    });
    assert!(calls.take().is_empty(), "the call has not ended");
    token.cancel();
    let error = waiting.join().unwrap().expect_err("cancelled");
    assert!(matches!(error, Error::Cancelled { .. }), "{error:?}");
    let finished = calls.assert_failed(&error, Duration::ZERO);
    assert_eq!(finished.attempts, 1);
    assert!(finished.waited <= began.elapsed(), "{finished:?}");
    // The token ends later calls before they ask the server.
    let error = lock.lock().expect_err("cancelled");
    assert!(matches!(error, Error::Cancelled { .. }), "{error:?}");
    assert_eq!(calls.assert_failed(&error, Duration::ZERO).attempts, 0);
    Ok(())
}

fn one_event_for_a_call_after_the_shut_down() -> Outcome {
    let (key, locker, calls) = observed("shut-down")?;
    let lock = Lock::new(&locker, &key.key, expiring())?;
    locker.shut_down();
    let error = lock.try_lock().expect_err("shut down");
    assert!(matches!(error, Error::ShutDown { .. }), "{error:?}");
    assert_eq!(calls.assert_failed(&error, Duration::ZERO).attempts, 0);
    Ok(())
}

/// Also where a release asks for the next thread, and where a call times out behind others without an attempt of its own.
fn one_event_for_each_of_many_threads() -> Outcome {
    const THREADS: usize = 8;
    const CALLS: usize = 20;
    let (key, locker, calls) = observed("threads")?;
    let options = expiring().timeout(millis(20));
    let lock = Lock::new(&locker, &key.key, options)?;
    let acquired = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..CALLS {
                    match lock.lock() {
                        Ok(held) => {
                            acquired.fetch_add(1, Ordering::SeqCst);
                            thread::sleep(millis(5));
                            drop(held);
                        }
                        Err(error) => assert!(error.is_contention(), "{error:?}"),
                    }
                }
            });
        }
    });
    let finished = calls.take();
    assert_eq!(finished.len(), THREADS * CALLS);
    let ok = finished.iter().filter(|finished| finished.error.is_none()).count();
    assert_eq!(ok, acquired.load(Ordering::SeqCst));
    Ok(())
}
