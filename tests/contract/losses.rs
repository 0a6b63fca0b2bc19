//! A lock that was lost while a body ran under it: the call says so, whatever the body returned.

use std::thread;

use setnx_lock::{Error, LockOptions, LossReason, Protocol};

use super::permits::Pool;
use crate::support::scenario::FOREIGN;
use crate::support::{LONG, Outcome, Target, TestKey, assert_says, expiring, millis, tests};

pub(super) const TESTS: super::Tests = tests![
    a_body_that_lost_its_lock_does_not_look_like_a_success,
    a_body_that_lost_one_of_several_locks_does_not_look_like_a_success,
    a_body_that_lost_its_permit_does_not_look_like_a_success,
    a_body_that_outlasts_its_lease_is_told_so_unless_the_server_proves_the_hold,
    a_loss_that_was_noticed_stays_one,
];

/// An error of a program.
#[derive(Debug)]
enum Failure {
    Own,
    Lock(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}

/// The work of a body whose key is cleared meanwhile.
fn loses(key: &TestKey) -> Result<(), Error> {
    key.delete();
    Ok(())
}

#[track_caller]
fn assert_gone<T: std::fmt::Debug>(outcome: Result<T, Error>, key: &TestKey) {
    let error = outcome.expect_err("the lock was lost");
    assert!(matches!(error, Error::Lost { reason: LossReason::Gone, .. }), "{error:?}");
    assert!(error.is_lost() && !error.is_transient() && !error.is_contention());
    assert_says(&error, key, &["is no longer held", "its key is missing"]);
}

fn a_body_that_lost_its_lock_does_not_look_like_a_success(target: &Target) -> Outcome {
    let key = target.key("lost:one");
    let lock = target.lock(&key, expiring());
    assert_gone(lock.with(|_| key.delete()), &key);
    assert_gone(lock.with_result(|_| loses(&key)), &key);
    let failed = lock.with_result(|_| {
        key.delete();
        Err::<(), _>(Failure::Own)
    });
    assert!(matches!(failed, Err(Failure::Own)), "the body's own error goes first: {failed:?}");
    let lost = lock.with_result(|_| {
        key.delete();
        Ok::<_, Failure>(())
    });
    assert!(matches!(lost, Err(Failure::Lock(Error::Lost { .. }))), "{lost:?}");
    assert_eq!(lock.with_result(|_| Ok::<_, Failure>(7)).expect("it is held all the time"), 7);
    // Without an expiration, too.
    let lock = target.lock(&key, LockOptions::without_expiration().timeout(LONG));
    assert_gone(lock.with(|_| key.delete()), &key);
    // A nested call leaves it to the outermost.
    let lock = target.lock(&key, expiring().reentrant());
    let outcome = lock.with(|_| lock.with(|_| key.delete()).expect("the outermost call releases"));
    assert_gone(outcome, &key);
    Ok(())
}

fn a_body_that_lost_one_of_several_locks_does_not_look_like_a_success(target: &Target) -> Outcome {
    let keys = target.keys("lost:several", 3);
    let locks = target.locks(&keys, expiring());
    assert_gone(locks.with(|_| keys[1].delete()), &keys[1]);
    assert_gone(locks.with_result(|_| loses(&keys[1])), &keys[1]);
    assert!(keys.iter().all(|key| key.value().is_none()), "the others are released");
    let failed = locks.with_result(|_| {
        keys[1].delete();
        Err::<(), _>(Failure::Own)
    });
    assert!(matches!(failed, Err(Failure::Own)), "{failed:?}");
    let both = locks.with(|_| keys[1..].iter().for_each(TestKey::delete));
    assert_gone(both, &keys[1]);
    Ok(())
}

fn a_body_that_lost_its_permit_does_not_look_like_a_success(target: &Target) -> Outcome {
    let pool = Pool::of(target, "lost", 1);
    let (semaphore, rw_lock, key) = (pool.semaphore(expiring()), pool.rw_lock(expiring()), &pool.slots[0]);
    assert_gone(semaphore.with(|_| key.delete()), key);
    assert_gone(semaphore.with_result(|_| loses(key)), key);
    assert_gone(rw_lock.with_read(|_| key.delete()), key);
    assert_gone(rw_lock.with_read_result(|_| loses(key)), key);
    assert_gone(rw_lock.with_write(|_| key.delete()), key);
    assert_gone(rw_lock.with_write_result(|_| loses(key)), key);
    Ok(())
}

fn a_body_that_outlasts_its_lease_is_told_so_unless_the_server_proves_the_hold(target: &Target) -> Outcome {
    let key = target.key("lost:late");
    let lock = target.lock(&key, LockOptions::expiring_after(millis(50)).timeout(LONG));
    let mut own = None;
    let outcome = lock.with(|_| {
        thread::sleep(millis(60));
        own = key.value();
    });
    match outcome {
        // Its own bytes were still there.
        Ok(()) => assert!(target.decided_protocol() != Protocol::Classic && own.is_some()),
        Err(error) => {
            assert!(matches!(error, Error::Lost { reason: LossReason::Expired, .. }), "{error:?}");
            assert_says(&error, &key, &["its lease ended", "choose a longer expiration"]);
            // In Ttl the server removes the key half a second later.
            assert!(target.decided_protocol() == Protocol::Classic || key.value().is_none(), "{error}");
        }
    }
    key.delete();
    // Another client has it by now.
    let outcome = lock.with(|_| {
        thread::sleep(millis(60));
        key.set(FOREIGN);
    });
    assert!(outcome.is_err_and(|error| error.is_lost()));
    assert_eq!(key.value().as_deref(), Some(FOREIGN));
    Ok(())
}

/// A server that proves the hold afterwards does not undo it: the program has stopped its work.
fn a_loss_that_was_noticed_stays_one(target: &Target) -> Outcome {
    let key = target.key("lost:noticed");
    let lock = target.lock(&key, LockOptions::expiring_after(millis(50)).timeout(LONG));
    let held = lock.lock()?;
    thread::sleep(millis(60));
    assert!(held.ensure_held().is_err_and(|error| error.is_lost()));
    let released = held.release();
    assert!(released.as_ref().is_err_and(Error::is_lost), "{released:?}");
    // Its own bytes are deleted all the same.
    assert!(target.decided_protocol() == Protocol::Classic || key.value().is_none());
    Ok(())
}
