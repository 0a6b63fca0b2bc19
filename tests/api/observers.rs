//! Observers: closures and shared values can observe, the log stays on beside them, and each call that asks for a lock
//! ends with one `AcquireFinished`.

use std::ops::RangeBounds;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use std::{mem, thread};

use log::Level;
use setnx_lock::{CancelToken, Error, Event, Lock, Locker, LockerBuilder, MultiLock, Observer};
use setnx_lock_testing::TestServer;

use crate::api::events::EventLog;
use crate::support::asleep::asleep;
use crate::support::scenario::{FOREIGN, closed_port, patient};
use crate::support::{LONG, Outcome, Target, TestKey, expiring, log_capture, millis, trials_of};

trials_of! {
    "observers";
    closures_and_shared_values_observe_and_the_last_one_counts,
    an_observer_leaves_the_log_on,
    one_event_for_an_acquired_lock,
    one_event_for_contention,
    one_event_for_a_lock_that_is_refused_or_cancelled,
    one_event_for_each_of_many_threads,
    an_observer_of_a_release_may_acquire_the_lock_again,
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

impl Observer for Calls {
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
    fn assert_acquired(&self, key: &TestKey, attempts: impl RangeBounds<u32>, waited: Duration) {
        let finished = self.only();
        assert_eq!(finished.key, key.key.to_string());
        assert!(attempts.contains(&finished.attempts), "{finished:?}");
        assert!(finished.error.is_none() && finished.waited >= waited, "{finished:?}");
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
/// A way to use a lock.
type Way = fn(&Lock) -> Result<(), Error>;

fn observed(test: &str) -> Result<(TestKey, Locker, Arc<Calls>), Box<dyn std::error::Error>> {
    let (key, builder, calls) = observing(test)?;
    Ok((key, builder.build()?, calls))
}

fn observing(test: &str) -> Result<(TestKey, LockerBuilder, Arc<Calls>), Box<dyn std::error::Error>> {
    let server = Arc::new(TestServer::start());
    let key = Target::of(&server).key(test);
    let calls = Arc::<Calls>::default();
    Ok((key, patient(&server.url())?.observer(Arc::clone(&calls)), calls))
}

fn closures_and_shared_values_observe_and_the_last_one_counts() -> Outcome {
    let (key, builder, calls) = observing("observes")?;
    let lock = |builder: LockerBuilder| Lock::new(&builder.build()?, &key.key, expiring());
    let first = lock(builder.clone())?;
    drop(first.lock()?);
    assert_eq!(calls.take().len(), 1, "an Arc of an observer");

    let count = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&count);
    let counted = builder.clone().observer(move |_: &Event<'_>| {
        counting.fetch_add(1, Ordering::SeqCst);
    });
    drop(lock(counted)?.lock()?);
    assert_eq!(count.load(Ordering::SeqCst), 2, "a closure: acquired and released");
    assert!(calls.take().is_empty(), "the last observer replaces the first");
    drop(first.lock()?);
    assert_eq!(calls.take().len(), 1, "a lock keeps the observer of its locker");

    let shared: Arc<dyn Observer> = calls.clone();
    drop(lock(builder.observer(shared))?.lock()?);
    assert_eq!(calls.take().len(), 1, "an Arc of any observer");
    Ok(())
}

fn an_observer_leaves_the_log_on() -> Outcome {
    log_capture::open();
    let server = Arc::new(TestServer::start());
    let key = Target::of(&server).key("logged");
    // The value of a lock without an expiration: an expiring lock waits for it, and warns.
    key.set("1");
    let events = EventLog::default();
    let locker = patient(&server.url())?.observer(events.clone()).build()?;
    assert!(Lock::new(&locker, &key.key, expiring())?.try_lock()?.is_none());
    assert_eq!(events.lines(), ["NeverExpires", "AcquireFailed"]);
    let warnings = log_capture::lines_about(&key.key.to_string(), Level::Warn);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("held without an expiration"), "{warnings:?}");
    Ok(())
}

fn one_event_for_an_acquired_lock() -> Outcome {
    let (key, locker, calls) = observed("acquired")?;
    let lock = Lock::new(&locker, &key.key, expiring().timeout(LONG).poll_interval(millis(200)))?;
    let ways: [Way; 5] = [
        |lock| lock.lock().map(drop),
        |lock| lock.try_lock().map(|held| drop(held.expect("free"))),
        |lock| lock.try_lock_for(LONG).map(|held| drop(held.expect("free"))),
        |lock| lock.with(|_| ()),
        |lock| lock.with_result(|_| Ok(())),
    ];
    for acquire in ways {
        acquire(&lock)?;
        calls.assert_acquired(&key, 1..=1, Duration::ZERO);
    }
    // A call that waits, with all of its attempts.
    key.set(FOREIGN);
    let waiting = asleep(move || lock.lock());
    thread::sleep(millis(100));
    assert!(calls.take().is_empty(), "the call has not ended");
    key.delete();
    let _held = waiting.join().unwrap()?;
    calls.assert_acquired(&key, 2.., millis(100));
    assert!(calls.take().is_empty());

    Ok(())
}

fn one_event_for_contention() -> Outcome {
    let (key, locker, calls) = observed("contention")?;
    key.set(FOREIGN);
    let timeout = millis(100);
    let lock = Lock::new(&locker, &key.key, expiring().timeout(timeout).poll_interval(millis(20)))?;
    assert!(lock.try_lock()?.is_none());
    let finished = calls.only();
    assert!(finished.error.is_some_and(|error| error.starts_with("Contended")) && finished.attempts == 1);
    assert!(lock.try_lock_for(timeout)?.is_none());
    assert!(calls.only().waited >= timeout);
    calls.assert_failed(&lock.with(|_| ()).expect_err("held"), timeout);
    let error = lock.lock().expect_err("held");
    let finished = calls.assert_failed(&error, timeout);
    let Error::Contended { details, .. } = &error else { panic!("{error:?}") };
    assert_eq!(finished.attempts, details.attempts);
    assert!(finished.waited >= details.waited, "{finished:?}");
    Ok(())
}

fn one_event_for_a_lock_that_is_refused_or_cancelled() -> Outcome {
    // A call within a call.
    let (key, locker, calls) = observed("refused")?;
    let lock = Lock::new(&locker, &key.key, expiring())?;
    lock.with(|_| {
        calls.assert_acquired(&key, 1..=1, Duration::ZERO);
        let ways: [Way; 3] =
            [|lock| lock.lock().map(drop), |lock| lock.try_lock().map(drop), |lock| lock.with(|_| ())];
        for acquire in ways {
            let error = acquire(&lock).expect_err("nested");
            assert!(matches!(error, Error::Nested { .. }), "{error:?}");
            assert_eq!(calls.assert_failed(&error, Duration::ZERO).attempts, 0);
        }
    })?;
    assert!(calls.take().is_empty());

    // A wait that is cancelled, and a call after that.
    key.set(FOREIGN);
    let token = CancelToken::new();
    let cancelled = Lock::new(&locker, &key.key, expiring().poll_interval(LONG))?.cancelled_by(&token);
    let waiting = asleep({
        let cancelled = cancelled.clone();
        move || cancelled.lock()
    });
    assert!(calls.take().is_empty(), "the call has not ended");
    token.cancel();
    let error = waiting.join().unwrap().expect_err("cancelled");
    assert!(matches!(error, Error::Cancelled { .. }), "{error:?}");
    assert_eq!(calls.assert_failed(&error, Duration::ZERO).attempts, 1);
    let error = cancelled.lock().expect_err("it ends later calls before they ask the server");
    assert!(matches!(error, Error::Cancelled { .. }), "{error:?}");
    assert_eq!(calls.assert_failed(&error, Duration::ZERO).attempts, 0);

    locker.shut_down();
    let error = lock.try_lock().expect_err("shut down");
    assert!(matches!(error, Error::ShutDown { .. }), "{error:?}");
    assert_eq!(calls.assert_failed(&error, Duration::ZERO).attempts, 0);

    // A server that is not there.
    let retried = millis(200);
    let builder = Locker::builder(&format!("redis://127.0.0.1:{}/", closed_port()?))?;
    let locker = builder.retry_for(retried).observer(Arc::clone(&calls)).build()?;
    for (options, least) in [
        (expiring(), retried),
        (expiring().wait_forever(), retried),
        (expiring().timeout(Duration::ZERO), Duration::ZERO),
    ] {
        let error = Lock::new(&locker, "unconnected", options)?.lock().expect_err("no server listens there");
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        assert_eq!(calls.assert_failed(&error, least).attempts, 1);
    }
    Ok(())
}

/// Also where a release asks for the next thread, and where a
/// call times out behind others without an attempt of its own.
fn one_event_for_each_of_many_threads() -> Outcome {
    const THREADS: usize = 8;
    const CALLS: usize = 10;
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

/// Locks the same lock in each release that it learns of, but not in its own.
#[derive(Clone, Default)]
struct Again {
    lock: Arc<OnceLock<Lock>>,
    is_inside: Arc<AtomicBool>,
    outcomes: Arc<Mutex<Vec<Result<(), String>>>>,
}

impl Observer for Again {
    fn event(&self, event: &Event<'_>) {
        if matches!(event, Event::Released { .. }) && !self.is_inside.swap(true, Ordering::SeqCst) {
            let again = self.lock.get().unwrap().with(|_| ()).map_err(|error| format!("{error:?}"));
            self.outcomes.lock().unwrap().push(again);
            self.is_inside.store(false, Ordering::SeqCst);
        }
    }
}

/// The `with` that it is called in is over.
fn an_observer_of_a_release_may_acquire_the_lock_again() -> Outcome {
    let (key, builder, _) = observing("again")?;
    let again = Again::default();
    let locker = builder.observer(again.clone()).build()?;
    let lock = Lock::new(&locker, &key.key, expiring())?;
    again.lock.set(lock.clone()).unwrap();
    lock.with(|_| ())?;
    lock.lock()?.release()?;
    MultiLock::new(&locker, [key.key.clone(), format!("{}:b", key.key).into()], expiring())?.with(|_| ())?;
    // Where another thread waits, that has it first.
    let waiting = lock.with(|_| {
        let lock = lock.clone();
        asleep(move || lock.lock().map(drop))
    })?;
    waiting.join().unwrap()?;
    let outcomes = mem::take(&mut *again.outcomes.lock().unwrap());
    assert!(outcomes.len() >= 4 && outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    Ok(())
}
