//! How a held lock is waited for, by threads that lose no update, and the block form: `with` and `with_result`.

use std::sync::Arc;
use std::time::Duration;
use std::{panic, thread};

use setnx_lock::{Error, LockOptions, LockState};

use crate::support::scenario::{ANOTHERS, FOREIGN};
use crate::support::{LONG, Outcome, Target, assert_says, expiring, millis, tests};

pub(super) const TESTS: super::Tests = tests![
    a_waiter_times_out_with_the_gem_s_words,
    a_waiter_acquires_the_lock_on_release,
    a_nested_guard_times_out_with_a_hint,
    with_returns_what_its_body_returns_and_releases,
    an_error_of_the_body_is_returned_as_the_body_s,
    a_nested_with_is_refused,
    nested_calls_join_the_enclosing_one,
    attempts_are_limited,
];

fn a_waiter_times_out_with_the_gem_s_words(target: &Target) -> Outcome {
    let key = target.key("timeout");
    let held = target.lock(&key, expiring()).lock()?;
    let waiter = target.lock(&key, expiring().timeout(millis(250)));
    let error = waiter.lock().expect_err("it is held");
    let text = error.to_string();
    let expected = format!("Timeout on lock {} exceeded 0.25 sec after ", key.key);
    assert!(text.starts_with(&expected), "{text}");
    assert!(text.contains("last seen: held until 2"), "{text}");
    let Error::Contended { details, timeout, .. } = error else { panic!("{text}") };
    assert_eq!(timeout, Some(millis(250)));
    assert!(details.attempts >= 1 && details.waited >= millis(250), "{details:?}");
    assert!(matches!(details.seen, Some(LockState::Until { .. })), "{details:?}");

    let text = target.lock(&key, expiring().timeout(Duration::ZERO)).lock().unwrap_err().to_string();
    assert!(text.contains("not acquired without waiting after 1 attempt;"), "{text}");
    let unexpiring = LockOptions::without_expiration().timeout(Duration::ZERO);
    let text = target.lock(&key, unexpiring).lock().unwrap_err().to_string();
    assert!(text.contains("is never taken over: if its holder has crashed, clear it by hand"), "{text}");
    drop(held);
    Ok(())
}

fn a_waiter_acquires_the_lock_on_release(target: &Target) -> Outcome {
    let key = target.key("waiting");
    for options in [expiring(), expiring().timeout(millis(1)).wait_forever()] {
        let held = target.lock(&key, expiring()).lock()?;
        let waiter = target.lock(&key, options.poll_interval(millis(5)));
        let waiting = thread::spawn(move || waiter.lock());
        thread::sleep(millis(50));
        assert!(!waiting.is_finished(), "{:?}", waiting.join());
        drop(held);
        waiting.join().unwrap()?.ensure_held()?;
    }
    Ok(())
}

fn a_nested_guard_times_out_with_a_hint(target: &Target) -> Outcome {
    let key = target.key("nested-guard");
    let lock = Arc::new(target.lock(&key, expiring().timeout(millis(20))));
    let held = lock.lock()?;
    let text = lock.lock().unwrap_err().to_string();
    assert!(text.contains("the calling thread itself took the lock"), "{text}");
    let there = Arc::clone(&lock);
    let text = thread::spawn(move || there.lock().unwrap_err().to_string()).join().unwrap();
    assert!(!text.contains("the calling thread"), "{text}");
    drop(held);
    assert!(lock.try_lock()?.is_some());
    Ok(())
}

fn with_returns_what_its_body_returns_and_releases(target: &Target) -> Outcome {
    let key = target.key("with");
    let lock = target.lock(&key, expiring().timeout(Duration::ZERO));
    let value = lock.with(|held| {
        assert_eq!(held.key(), &key.key);
        key.value()
    })?;
    assert!(value.is_some(), "the lock is held while the body runs");
    assert_eq!(key.value(), None);

    let held = target.lock(&key, expiring()).lock()?;
    let refused = lock.with(|_| unreachable!("another holder has the lock"));
    assert!(matches!(refused, Err(Error::Contended { .. })), "{refused:?}");
    // As a statement: the outcome of a release may be ignored.
    held.release()?;
    // Its own error and that of the lock stay apart.
    let failed: Result<Result<(), &str>, Error> = lock.with(|_| Err("went wrong"));
    assert_eq!(failed?, Err("went wrong"));
    // Unwinds as a panic does, without a message that would look like a failure.
    let unwind = || -> Result<(), Error> { panic::resume_unwind(Box::new("on purpose")) };
    assert!(panic::catch_unwind(|| lock.with(|_| unwind())).is_err());
    assert_eq!(key.value(), None);
    assert!(panic::catch_unwind(|| lock.with_result(|_| unwind())).is_err());
    assert_eq!(key.value(), None);
    assert_eq!(lock.with(|_| 42)?, 42);
    Ok(())
}

fn an_error_of_the_body_is_returned_as_the_body_s(target: &Target) -> Outcome {
    type Boxed = Box<dyn std::error::Error>;
    let key = target.key("error");
    let lock = target.lock(&key, expiring().timeout(Duration::ZERO));
    let failed: Result<u32, Boxed> = lock.with_result(|held| {
        assert_eq!(held.key(), &key.key);
        assert!(key.value().is_some());
        Err("went wrong".into())
    });
    assert_eq!(failed.map_err(|error| error.to_string()), Err("went wrong".into()));
    assert_eq!(key.value(), None);
    assert_eq!(lock.with_result(|_| Ok::<_, Boxed>(42)).map_err(|error| error.to_string()), Ok(42));

    let _held = target.lock(&key, expiring()).lock()?;
    let refused: Result<u32, Boxed> = lock.with_result(|_| unreachable!("another holder has the lock"));
    assert!(refused.is_err_and(|error| error.to_string().contains("not acquired without waiting")));
    Ok(())
}

fn a_nested_with_is_refused(target: &Target) -> Outcome {
    let key = target.key("nested");
    let lock = target.lock(&key, expiring().wait_forever());
    let other = target.lock(&target.key("nested-other"), expiring());
    lock.with_result(|_| {
        let error = lock.lock().expect_err("it would wait for itself");
        assert!(matches!(&error, Error::Nested { key: named, .. } if *named == key.key), "{error}");
        assert!(matches!(lock.clone().with(|_| ()), Err(Error::Nested { .. })));
        assert!(matches!(lock.clone().with_result(|_| Ok(())), Err(Error::Nested { .. })));
        thread::scope(|scope| scope.spawn(|| assert!(lock.try_lock().unwrap().is_none())).join()).unwrap();
        other.with(|_| ())
    })?;
    lock.with(|_| ())?;
    Ok(())
}

fn nested_calls_join_the_enclosing_one(target: &Target) -> Outcome {
    let key = target.key("reentrant");
    let locker = target.locker();
    let lock = target.lock_through(&locker, &key, expiring().reentrant());
    let plain = target.lock_through(&locker, &key, expiring().timeout(Duration::ZERO));
    let lost = lock.with_result(|held| -> Outcome {
        let (value, token) = (key.value(), held.fencing_token()?);
        lock.with(|inner| {
            assert_eq!(inner.fencing_token().unwrap(), token);
            inner.extend().unwrap();
            lock.with(|_| ()).unwrap();
        })?;
        assert_ne!(key.value(), value, "the inner call has extended the lease");
        assert!(key.value().is_some(), "the inner calls release nothing");
        assert!(matches!(plain.with(|_| ()), Err(Error::Nested { .. })), "both must have the option");
        thread::scope(|scope| {
            let at_once = target.lock_through(&locker, &key, expiring().reentrant().timeout(Duration::ZERO));
            let other = scope.spawn(move || at_once.with(|_| ()));
            assert!(other.join().unwrap().is_err(), "another thread is excluded");
            Ok::<_, Error>(())
        })?;
        // A panic in an inner body unwinds through it alone.
        let panicked = panic::catch_unwind(panic::AssertUnwindSafe(|| {
            lock.with(|_| panic::resume_unwind(Box::new("on purpose")))
        }));
        assert!(panicked.is_err());
        assert!(key.value().is_some());
        lock.with(|_| ())?;
        // A loss is that of all.
        key.set(ANOTHERS);
        assert!(held.verify().is_err_and(|error| error.is_lost()));
        assert!(matches!(lock.with(|_| ()), Err(Error::Lost { .. })));
        key.delete();
        Ok(())
    });
    assert!(lost.is_err(), "the enclosing call says so, too");
    plain.with(|_| ())?;
    Ok(())
}

fn attempts_are_limited(target: &Target) -> Outcome {
    let key = target.key("attempts");
    key.set(FOREIGN);
    let options = expiring().poll_interval(millis(5));
    for attempts in [1, 3] {
        let lock = target.lock(&key, options.max_attempts(attempts));
        let error = lock.lock().expect_err("it is held");
        let count = if attempts == 1 { "1 attempt;" } else { "3 attempts;" };
        assert_says(&error, &key, &["its attempts are used up after", count, "last seen: held until 2030"]);
        assert!(error.is_contention() && error.is_transient());
        assert!(lock.try_lock_for(LONG)?.is_none());
    }
    let lock = target.lock(&key, options.max_attempts(1000).timeout(millis(20)));
    assert!(matches!(lock.lock(), Err(Error::Contended { .. })), "whichever comes first");
    key.delete();
    assert!(target.lock(&key, options.max_attempts(1)).try_lock_for(LONG)?.is_some());
    Ok(())
}
