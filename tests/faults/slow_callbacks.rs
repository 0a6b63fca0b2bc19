//! Observers and `on_loss` that take their time: they hold up no lease, and no loss goes unreported.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use setnx_lock::{Event, Lock, LockGuard, LockOptions, Locker, ProblemKind, Protocol};
use setnx_lock_testing::TestServer;

use crate::support::notified::until;
use crate::support::scenario::patient;
use crate::support::{AnyServer, LONG, Outcome, Target, millis, trials_of};

trials_of! {
    "slow_callbacks";
    a_slow_on_loss_delays_no_other_lease,
    a_slow_observer_delays_no_lease,
    a_guard_that_outlives_its_locker_is_kept_despite_a_slow_observer,
    what_waits_too_long_is_dropped_and_counted_but_no_loss,
    shut_down_and_the_last_drop_wait_for_what_is_to_be_reported,
    what_a_call_notices_is_reported_on_its_thread,
}

/// A lease that is extended in a second, and passes only if the machine stands still for two.
const KEPT: LockOptions = LockOptions::expiring_after(Duration::from_secs(3)).timeout(LONG).auto_extend(LONG);
/// Longer than that.
const SLOW: Duration = Duration::from_secs(5);

fn a_slow_on_loss_delays_no_other_lease() -> Outcome {
    for protocol in [Protocol::Classic, Protocol::Auto] {
        let server = Arc::new(TestServer::start());
        let target = Target::of(&server);
        let locker = patient(&server.url())?.build()?;
        let keys = target.keys("kept", 20);
        let options = KEPT.protocol(protocol);
        let lost = target.key("lost");
        let (begins, waits) = mpsc::channel();
        let losing = Lock::new(&locker, &lost.key, options)?.lock()?;
        losing.on_loss(move |_| {
            begins.send(()).unwrap();
            thread::sleep(SLOW);
        });
        let locks =
            keys.iter().map(|key| Lock::new(&locker, &key.key, options)).collect::<Result<Vec<_>, _>>()?;
        let held = locks.iter().map(Lock::lock).collect::<Result<Vec<_>, _>>()?;
        lost.delete();
        waits.recv_timeout(LONG)?;
        let end = Instant::now() + SLOW;
        while Instant::now() < end {
            held.iter().try_for_each(LockGuard::ensure_held)?;
            thread::sleep(millis(20));
        }
        assert!(losing.ensure_held().is_err());
    }
    Ok(())
}

/// A locker whose observer waits at each event of an extension while this is set, and counts what it gets.
struct Observed {
    waits: Arc<AtomicBool>,
    dropped: Arc<AtomicUsize>,
    locker: Locker,
}

fn observed(server: &impl AnyServer) -> Result<Observed, setnx_lock::Error> {
    let (waits, dropped) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
    let (waiting, counted) = (Arc::clone(&waits), Arc::clone(&dropped));
    let observer = move |event: &Event<'_>| match event {
        Event::Extended { .. } => {
            while waiting.load(Ordering::Relaxed) {
                thread::sleep(millis(5));
            }
        }
        Event::Problem { kind: ProblemKind::EventsDropped, details, .. } => {
            let count = details.split(' ').next().and_then(|count| count.parse::<usize>().ok()).unwrap();
            counted.fetch_add(count, Ordering::Relaxed);
        }
        _ => {}
    };
    let locker = patient(&server.url())?.observer(observer).build()?;
    Ok(Observed { waits, dropped, locker })
}

fn a_slow_observer_delays_no_lease() -> Outcome {
    let server = Arc::new(TestServer::start());
    let Observed { waits, locker, dropped } = observed(&server)?;
    let keys = Target::of(&server).keys("kept", 50);
    let lock =
        |key: &crate::support::TestKey| Lock::new(&locker, &key.key, KEPT).and_then(|lock| lock.lock());
    let held = keys.iter().map(lock).collect::<Result<Vec<_>, _>>()?;
    let end = Instant::now() + SLOW;
    while Instant::now() < end {
        held.iter().try_for_each(LockGuard::ensure_held)?;
        thread::sleep(millis(20));
    }
    assert_eq!(dropped.load(Ordering::Relaxed), 0);
    waits.store(false, Ordering::Relaxed);
    Ok(())
}

fn a_guard_that_outlives_its_locker_is_kept_despite_a_slow_observer() -> Outcome {
    let server = Arc::new(TestServer::start());
    let Observed { waits, locker, .. } = observed(&server)?;
    let key = Target::of(&server).key("outlives");
    let held = Lock::new(&locker, &key.key, KEPT)?.lock()?;
    drop(locker);
    let end = Instant::now() + SLOW;
    while Instant::now() < end {
        held.ensure_held()?;
        thread::sleep(millis(20));
    }
    waits.store(false, Ordering::Relaxed);
    Ok(held.release()?)
}

fn what_waits_too_long_is_dropped_and_counted_but_no_loss() -> Outcome {
    let server = Arc::new(TestServer::start());
    let Observed { waits, dropped, locker } = observed(&server)?;
    let target = Target::of(&server);
    let keys = target.keys("kept", 400);
    let lock =
        |key: &crate::support::TestKey| Lock::new(&locker, &key.key, KEPT).and_then(|lock| lock.lock());
    let held = keys.iter().map(lock).collect::<Result<Vec<_>, _>>()?;
    // Each has been extended four times at least: more than are reported together, and wait.
    let ends: Vec<_> = held.iter().map(|held| held.expires_at().unwrap() + Duration::from_secs(4)).collect();
    until("they are extended", || held.iter().zip(&ends).all(|(held, end)| held.expires_at() > Some(*end)));
    let (told, losses) = mpsc::channel();
    for (held, key) in held.iter().zip(&keys).take(5) {
        let told = told.clone();
        held.on_loss(move |reason| told.send(reason).unwrap());
        key.delete();
    }
    for held in &held[..5] {
        until("it is lost", || held.ensure_held().is_err());
    }
    waits.store(false, Ordering::Relaxed);
    for _ in 0..5 {
        losses.recv_timeout(LONG)?;
    }
    until("it is said how many were dropped", || dropped.load(Ordering::Relaxed) > 0);
    Ok(())
}

fn shut_down_and_the_last_drop_wait_for_what_is_to_be_reported() -> Outcome {
    let server = Arc::new(TestServer::start());
    let target = Target::of(&server);
    let ends: [fn(Locker); 2] = [|locker| locker.shut_down(), drop];
    for end in ends {
        let key = target.key("flushed");
        let locker = patient(&server.url())?.build()?;
        let held = Lock::new(&locker, &key.key, KEPT)?.lock()?;
        let told = Arc::new(AtomicUsize::new(0));
        for _ in 0..2 {
            let told = Arc::clone(&told);
            held.on_loss(move |_| {
                thread::sleep(millis(300));
                told.fetch_add(1, Ordering::Relaxed);
            });
        }
        let signal = held.loss_signal();
        key.delete();
        until("it is noticed", || signal.is_lost());
        end(locker);
        assert_eq!(told.load(Ordering::Relaxed), 2);
        drop(held);
    }
    Ok(())
}

fn what_a_call_notices_is_reported_on_its_thread() -> Outcome {
    let server = Arc::new(TestServer::start());
    let key = Target::of(&server).key("own");
    let (told, threads) = mpsc::channel();
    let observe = told.clone();
    let observer = move |event: &Event<'_>| {
        if matches!(event, Event::Lost { .. } | Event::Extended { .. }) {
            observe.send(thread::current().id()).unwrap();
        }
    };
    let locker = patient(&server.url())?.observer(observer).build()?;
    let options = LockOptions::expiring_after(2 * LONG).timeout(LONG);
    let held = Lock::new(&locker, &key.key, options)?.lock()?;
    held.on_loss(move |_| told.send(thread::current().id()).unwrap());
    held.extend()?;
    assert_eq!(threads.try_iter().collect::<Vec<_>>(), [thread::current().id()]);
    key.delete();
    held.verify().expect_err("it was deleted");
    assert_eq!(threads.try_iter().collect::<Vec<_>>(), [thread::current().id(); 2]);
    Ok(())
}
