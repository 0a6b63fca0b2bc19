//! How several locks are waited for that are to be held together.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use setnx_lock::{CancelToken, Error, Event, LockGuard, LockOptions, LossReason, MultiLockGuard};

use crate::support::asleep::asleep;
use crate::support::scenario::{ANOTHERS, FOREIGN, patient};
use crate::support::{LONG, Outcome, Target, TestKey, expiring, millis, release_all, tests};

pub(super) const TESTS: super::Tests = tests![
    several_locks_are_waited_for,
    a_wait_that_is_ended_gives_back_what_it_got,
    early_locks_are_extended_while_the_last_is_waited_for,
    an_early_lock_that_is_lost_is_left_alone,
];

/// Waits until another client sees a value in the key.
#[track_caller]
fn appears(key: &TestKey) -> String {
    let end = Instant::now() + LONG;
    loop {
        if let Some(value) = key.value() {
            return value;
        }
        assert!(Instant::now() < end, "the key stays empty");
        thread::sleep(millis(5));
    }
}

fn several_locks_are_waited_for(target: &Target) -> Outcome {
    let keys = target.keys("waited-for", 3);
    let locks = target.locks(&keys, expiring().poll_interval(millis(5)));
    for n in 0..keys.len() {
        let single = target.lock(&keys[n], expiring()).lock()?;
        let waiting = thread::spawn({
            let locks = locks.clone();
            move || locks.lock()
        });
        keys[..n].iter().for_each(|key| drop(appears(key)));
        thread::sleep(millis(20));
        assert!(!waiting.is_finished());
        drop(single);
        let held = waiting.join().unwrap()?;
        held.ensure_held()?;
        for (_, outcome) in release_all(held) {
            assert_eq!(outcome?, target.released());
        }
    }
    assert!(keys.iter().all(|key| key.value().is_none()));
    Ok(())
}

fn a_wait_that_is_ended_gives_back_what_it_got(target: &Target) -> Outcome {
    let keys = target.keys("ended", 3);
    for (n, shuts_down) in [(0, false), (2, false), (2, true)] {
        keys[n].set(FOREIGN);
        let token = CancelToken::new();
        let own = || patient(&target.url)?.build();
        let locker = if shuts_down { own()? } else { target.locker() };
        let locks = target.locks_through(&locker, &keys, expiring().wait_forever()).cancelled_by(&token);
        let waiting = asleep({
            let locks = locks.clone();
            move || locks.lock().map(drop)
        });
        keys[..n].iter().for_each(|key| drop(appears(key)));
        if shuts_down {
            locker.shut_down();
        } else {
            token.cancel();
        }
        let is_expected = |error: &Error| match error {
            Error::Cancelled { .. } => !shuts_down,
            Error::ShutDown { .. } => shuts_down,
            _ => false,
        };
        let error = waiting.join().unwrap().expect_err("the wait was ended");
        assert!(is_expected(&error), "{error:?}");
        assert!(keys.iter().any(|key| error.key() == Some(&key.key)));
        for (m, key) in keys.iter().enumerate() {
            assert_eq!(key.value().as_deref(), (m == n).then_some(FOREIGN));
        }
        keys[n].delete();
        assert!(locks.try_lock().is_err_and(|error| is_expected(&error)));
        assert!(keys.iter().all(|key| key.value().is_none()));
    }
    Ok(())
}

fn early_locks_are_extended_while_the_last_is_waited_for(target: &Target) -> Outcome {
    // Three thirds pass, and a machine may stand still for most of the last.
    const EXPIRATION: Duration = Duration::from_secs(3);
    let keys = target.keys("early", 3);
    keys[2].set(FOREIGN);
    let locks = target.locks(&keys, LockOptions::expiring_after(EXPIRATION).timeout(LONG));
    let waiting = thread::spawn(move || locks.lock());
    let until = |key: &TestKey| -> f64 { appears(key).parse().unwrap_or_default() };
    let first: Vec<f64> = keys[..2].iter().map(until).collect();
    let end = Instant::now() + LONG;
    let outlasted = |n: usize| until(&keys[n]) > first[n] + EXPIRATION.as_secs_f64() / 2.0;
    while !(outlasted(0) && outlasted(1)) {
        assert!(Instant::now() < end && !waiting.is_finished(), "the leases are not extended");
        thread::sleep(millis(10));
    }
    for key in &keys[..2] {
        assert!(target.lock(key, expiring()).try_lock()?.is_none(), "it is held meanwhile");
    }
    keys[2].delete();
    let held: MultiLockGuard = waiting.join().unwrap()?;
    // Those that were acquired first have lost at most a tenth of the expiration to the last.
    let ends: Vec<_> = held.guards().iter().filter_map(LockGuard::expires_at).map(SystemTime::from).collect();
    assert_eq!(ends.len(), 3);
    assert!(ends[..2].iter().all(|end| *end + EXPIRATION / 10 + millis(1) >= ends[2]), "{ends:?}");
    drop(held);
    Ok(())
}

fn an_early_lock_that_is_lost_is_left_alone(target: &Target) -> Outcome {
    let keys = target.keys("lost-early", 2);
    let (sender, losses) = mpsc::channel();
    let locker = target.locker_observed_by(move |event: &Event<'_>| {
        if let Event::Lost { key, reason, .. } = event {
            // After the test there is no receiver.
            let _ = sender.send(((*key).clone(), (*reason).clone()));
        }
    })?;
    let options = LockOptions::expiring_after(millis(1200)).wait_forever();
    let locks = target.locks_through(&locker, &keys, options);
    let end = Instant::now() + LONG;
    loop {
        keys[1].set(FOREIGN);
        let token = CancelToken::new();
        let waiting = thread::spawn({
            let locks = locks.clone().cancelled_by(&token);
            move || locks.lock().map(drop)
        });
        appears(&keys[0]);
        keys[0].set(ANOTHERS);
        let (key, reason) = losses.recv_timeout(LONG)?;
        token.cancel();
        let error = waiting.join().unwrap().expect_err("the wait was cancelled");
        assert!(matches!(error, Error::Cancelled { .. }), "{error:?}");
        assert_eq!((&key, error.key()), (&keys[0].key, Some(&keys[1].key)));
        assert_eq!(keys[0].value().as_deref(), Some(ANOTHERS), "it is another client's");
        // On a busy machine the lease may have passed before the keeper looked; then nothing would be deleted anyway.
        if matches!(reason, LossReason::Taken(_)) {
            return Ok(());
        }
        assert!(Instant::now() < end, "{reason:?}");
        keys[0].delete();
    }
}
