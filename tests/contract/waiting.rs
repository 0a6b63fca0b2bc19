//! How a held lock is waited for.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use setnx_lock::{Error, LockOptions, LockState};

use crate::support::{LONG, Outcome, Target, expiring, millis, tests};

pub(super) const TESTS: super::Tests = tests![
    a_waiter_times_out_with_the_gem_s_words,
    a_waiter_acquires_the_lock_on_release,
    waiting_for_ever_outlasts_the_default_timeout,
    a_nested_guard_times_out_with_a_hint,
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
    let Error::Timeout { details, timeout, .. } = error else { panic!("{text}") };
    assert_eq!(timeout, millis(250));
    assert!(details.attempts >= 1 && details.waited >= millis(250), "{details:?}");
    assert!(matches!(details.seen, Some(LockState::Until(_))), "{details:?}");

    let text = target.lock(&key, expiring().timeout(Duration::ZERO)).lock().unwrap_err().to_string();
    assert!(text.contains("not acquired without waiting after 1 attempt;"), "{text}");
    let unexpiring = LockOptions::held_until_released().timeout(Duration::ZERO);
    let text = target.lock(&key, unexpiring).lock().unwrap_err().to_string();
    assert!(text.contains("is never taken over: if its holder has crashed, clear it by hand"), "{text}");
    drop(held);
    Ok(())
}

fn a_waiter_acquires_the_lock_on_release(target: &Target) -> Outcome {
    let key = target.key("waiting");
    let held = target.lock(&key, expiring()).lock()?;
    let waiter = target.lock(&key, expiring().timeout(LONG).poll_interval(millis(5)));
    let waiting = thread::spawn(move || waiter.lock());
    thread::sleep(millis(50));
    assert!(!waiting.is_finished());
    drop(held);
    let held = waiting.join().unwrap()?;
    held.ensure_held()?;
    Ok(())
}

fn waiting_for_ever_outlasts_the_default_timeout(target: &Target) -> Outcome {
    let key = target.key("forever");
    let held = target.lock(&key, expiring()).lock()?;
    let waiter = target.lock(&key, expiring().timeout(millis(1)).wait_forever());
    let waiting = thread::spawn(move || waiter.lock());
    thread::sleep(setnx_lock::DEFAULT_TIMEOUT + millis(200));
    assert!(!waiting.is_finished(), "{:?}", waiting.join());
    drop(held);
    waiting.join().unwrap()?.ensure_held()?;
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
