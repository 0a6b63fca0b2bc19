//! What a guard reports, and what its release returns.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, SystemTime};

use setnx_lock::{LockOptions, Release};

use crate::support::{LONG, Outcome, Target, expiring, millis, tests};

pub(super) const TESTS: super::Tests = tests![
    a_guard_can_be_dropped_by_another_thread,
    a_drop_after_expiry_does_not_delete_the_key,
    a_release_of_a_cleared_lock_returns_lost,
    a_guard_reports_its_remaining_time,
];

fn a_guard_can_be_dropped_by_another_thread(target: &Target) -> Outcome {
    let key = target.key("moved");
    let lock = target.lock(&key, expiring());
    let (sender, receiver) = mpsc::channel();
    sender.send(lock.lock()?)?;
    thread::spawn(move || {
        let held = receiver.recv().unwrap();
        held.ensure_held().unwrap();
        drop(held);
    })
    .join()
    .unwrap();
    assert_eq!(key.value(), None);
    assert!(lock.try_lock()?.is_some());
    Ok(())
}

fn a_drop_after_expiry_does_not_delete_the_key(target: &Target) -> Outcome {
    let key = target.key("late-drop");
    let held = target.lock(&key, LockOptions::expiring_after(millis(50)).timeout(LONG)).lock()?;
    thread::sleep(millis(60));
    key.set("1895000000.5");
    drop(held);
    assert_eq!(key.value().as_deref(), Some("1895000000.5"));
    Ok(())
}

fn a_release_of_a_cleared_lock_returns_lost(target: &Target) -> Outcome {
    let key = target.key("cleared");
    let lock = target.lock(&key, expiring());
    let held = lock.lock()?;
    assert!(lock.clear()?);
    assert_eq!(held.release()?, Release::Lost);
    Ok(())
}

fn a_guard_reports_its_remaining_time(target: &Target) -> Outcome {
    let key = target.key("time");
    let held = target.lock(&key, LockOptions::expiring_after(millis(400)).timeout(LONG)).lock()?;
    let at_first = held.remaining().expect("it expires");
    assert!(at_first <= millis(400));
    let (date, system) = (held.expires_at().unwrap(), held.expires_at_system_time().unwrap());
    assert_eq!(SystemTime::from(date), system);
    thread::sleep(millis(400));
    assert_eq!(held.remaining(), Some(Duration::ZERO));
    let text = held.ensure_held().unwrap_err().to_string();
    assert!(text.contains("is no longer held") && text.contains("choose a longer expiration"), "{text}");
    Ok(())
}
