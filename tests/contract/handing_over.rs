//! A lock that goes to another process by a token.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use setnx_lock::{CancelToken, Error, Lock, LockOptions, LockToken, LossReason, Protocol};

use crate::support::scenario::ANOTHERS;
use crate::support::{
    LONG, Outcome, PAST, Release, Target, assert_says, expiring, millis, name_of_holder, release, tests,
};

pub(super) const TESTS: super::Tests = tests![
    a_token_goes_on_with_the_lock_once,
    a_token_of_a_lock_that_is_lost_is_refused,
    a_token_of_a_lease_that_has_ended,
    a_lock_is_released_by_its_token,
    what_has_no_token,
    times_go_along,
    a_holders_name_goes_along,
];

/// As it travels.
fn handed_over(lock: &Lock) -> Result<LockToken, Error> {
    lock.lock()?.into_token()?.to_string().parse()
}

fn a_token_goes_on_with_the_lock_once(target: &Target) -> Outcome {
    let key = target.key("once");
    let lock = target.lock(&key, expiring());
    let held = lock.lock()?;
    let (number, value, signal) = (held.fencing_token()?, key.value(), held.loss_signal());
    let losses = Arc::new(AtomicU32::new(0));
    let noted = Arc::clone(&losses);
    held.on_loss(move |_| {
        noted.fetch_add(1, Ordering::SeqCst);
    });
    let token: LockToken = held.into_token()?.to_string().parse()?;
    assert_eq!(key.value(), value, "it stays held");
    assert!(!signal.is_lost());
    assert_eq!((token.key(), token.fencing_token()), (&key.key, Some(number)));
    assert!(lock.try_lock()?.is_none(), "as by another");
    let other = target.lock_through(&target.locker(), &key, expiring());
    let resumed = other.resume(&token)?;
    assert_ne!(key.value(), value);
    assert!(resumed.expires_at() > token.expires_at());
    assert_eq!(resumed.fencing_token()?, number);
    resumed.verify()?;
    for by in [&lock, &other] {
        let error = by.resume(&token).expect_err("a token works once");
        assert!(matches!(&error, Error::Lost { reason: LossReason::Taken(_), .. }), "{error:?}");
    }
    assert!(matches!(target.locker().release_token(&token), Err(Error::Lost { .. })));
    resumed.verify()?;
    // And on.
    let again = lock.resume(&resumed.into_token()?)?;
    again.extend()?;
    assert_eq!(again.fencing_token()?, number);
    assert_eq!(release(again)?, target.released());
    assert_eq!(key.value(), None);
    assert!(matches!(other.resume(&token), Err(Error::Lost { reason: LossReason::Gone, .. })));
    assert_eq!(losses.load(Ordering::SeqCst), 0);
    Ok(())
}

fn a_token_of_a_lock_that_is_lost_is_refused(target: &Target) -> Outcome {
    let key = target.key("lost");
    let lock = target.lock(&key, expiring());
    let locker = target.locker();
    for value in [Some(ANOTHERS), Some("1"), None] {
        let token = handed_over(&lock)?;
        match value {
            Some(value) => key.set(value),
            None => key.delete(),
        }
        let error = lock.resume(&token).expect_err("it is lost");
        assert_says(&error, &key, &["its token cannot be used: its key", "do not begin the work"]);
        let error = locker.release_token(&token).expect_err("it is lost");
        assert!(error.is_lost());
        assert_says(&error, &key, &["its token cannot be used: its key", "there is nothing to release"]);
        assert_eq!(key.value().as_deref(), value, "it is left alone");
        key.delete();
    }
    // Another client has the lock since.
    let token = handed_over(&lock)?;
    assert!(lock.clear()?);
    let held = lock.lock()?;
    assert!(lock.resume(&token).expect_err("another has it").is_lost());
    held.verify()?;
    // One that is lost makes no token.
    key.delete();
    assert!(held.verify().is_err());
    assert!(matches!(held.into_token(), Err(Error::Lost { .. })));
    Ok(())
}

fn a_token_of_a_lease_that_has_ended(target: &Target) -> Outcome {
    let key = target.key("ended");
    let short = target.lock(&key, LockOptions::expiring_after(millis(50)).timeout(LONG));
    let token = match short.lock()?.into_token() {
        // The machine has stalled.
        Err(error) if error.is_lost() => return Ok(()),
        token => token?,
    };
    thread::sleep(millis(60));
    let own = key.value();
    // In Ttl the server has removed the key if this takes more than half a second.
    let proves = target.decided_protocol() != Protocol::Classic && own.is_some();
    match target.lock(&key, expiring()).resume(&token) {
        Ok(held) => {
            assert!(proves);
            held.verify()?;
        }
        Err(error) => {
            assert!(!proves || key.value().is_none(), "{error}");
            assert!(error.is_lost(), "{error:?}");
            assert_eq!(key.value(), key.value().and(own), "nothing was written");
        }
    }
    key.delete();
    let held = short.lock()?;
    thread::sleep(millis(60));
    assert!(matches!(held.into_token(), Err(Error::Lost { reason: LossReason::Expired, .. })));
    // It was taken over.
    key.set(PAST);
    let token = handed_over(&target.lock(&key, expiring()))?;
    key.set(PAST);
    let held = target.lock(&key, expiring()).lock()?;
    assert!(target.lock(&key, expiring()).resume(&token).expect_err("it was taken over").is_lost());
    held.verify()?;
    Ok(())
}

fn a_lock_is_released_by_its_token(target: &Target) -> Outcome {
    let key = target.key("released");
    let lock = target.lock(&key, expiring());
    let token = handed_over(&lock)?;
    // Threads that wait learn of it.
    let waiting = thread::spawn({
        let lock = lock.clone();
        move || lock.lock().map(drop)
    });
    target.locker().release_token(&token)?;
    waiting.join().unwrap()?;
    assert!(target.locker().release_token(&token).expect_err("it was used").is_lost());
    assert_eq!(key.value(), None);
    // Held for longer, it is left to expire.
    let token = handed_over(&target.lock(&key, expiring().hold_at_least(LONG)))?;
    target.locker().release_token(&token)?;
    assert!(key.value().is_some());
    assert!(lock.try_lock()?.is_none());
    Ok(())
}

fn what_has_no_token(target: &Target) -> Outcome {
    let (key, other) = (target.key("none"), target.key("other"));
    let lock = target.lock(&key, expiring());
    let endless = target.lock(&key, LockOptions::without_expiration().timeout(LONG));
    let error = endless.lock()?.into_token().expect_err("its value names no holder");
    assert_says(&error, &key, &["no expiration", "it is released"]);
    assert_eq!(key.value(), None);
    let token = handed_over(&lock)?;
    let error = target.lock(&other, expiring()).resume(&token).expect_err("it is another's");
    assert_says(&error, &other, &["the token is that of lock", &key.key.to_string()]);
    let error = endless.resume(&token).expect_err("it does not expire");
    assert_says(&error, &key, &["no expiration"]);
    assert_eq!(other.value(), None);
    let text = token.to_string();
    for (text, words) in [
        ("", "no lock token"),
        (&text[1..], "no lock token"),
        (&text[..30], "damaged or cut off"),
        (&text.replacen('1', "2", 1), "version"),
    ] {
        let error = text.parse::<LockToken>().expect_err("it is none");
        assert!(error.to_string().contains(words), "{text}: {error}");
    }
    lock.resume(&token)?.release()?;
    let cancelled = CancelToken::new();
    cancelled.cancel();
    let token = handed_over(&lock)?;
    let refused = lock.clone().cancelled_by(&cancelled).resume(&token);
    assert!(matches!(refused, Err(Error::Cancelled { .. })), "{refused:?}");
    lock.resume(&token)?.release()?;
    Ok(())
}

fn times_go_along(target: &Target) -> Outcome {
    let key = target.key("times");
    // What is left of an hour, and of a minute.
    let options = expiring().hold_at_least(LONG / 2).auto_extend(Duration::from_secs(3600));
    let token = handed_over(&target.lock(&key, options))?;
    thread::sleep(millis(20));
    let held = target.lock(&key, expiring()).resume(&token)?;
    let second: LockToken = held.into_token()?.to_string().parse()?;
    let held = target.lock(&key, expiring()).resume(&second)?;
    assert_eq!(release(held)?, Release::LeftToExpire, "for the rest of the time");
    let left = key.until().expect("it is held").duration_since(std::time::SystemTime::now())?;
    assert!(left < LONG / 2 + target.shown_later(), "{left:?}");
    key.delete();
    // Also by a lock with a shorter expiration.
    let token = handed_over(&target.lock(&key, options))?;
    let held = target.lock(&key, LockOptions::expiring_after(LONG / 8)).resume(&token)?;
    held.extend()?;
    assert!(held.remaining() > Some(LONG / 4));
    assert_eq!(release(held)?, Release::LeftToExpire);
    assert!(key.until() > Some(std::time::SystemTime::now() + LONG / 4));
    key.delete();
    // A limit that is used up only ends the extensions.
    let short = LockOptions::expiring_after(millis(200)).auto_extend(millis(200)).timeout(LONG);
    if let Ok(token) = target.lock(&key, short).lock()?.into_token() {
        match target.lock(&key, expiring()).resume(&token) {
            Ok(held) => assert!(held.remaining() > Some(LONG / 2)),
            // The machine has stalled.
            Err(error) => assert!(error.is_lost(), "{error:?}"),
        }
    }
    key.delete();
    Ok(())
}

fn a_holders_name_goes_along(target: &Target) -> Outcome {
    let key = target.key("named");
    let (web, worker) = (target.locker_named("web:7")?, target.locker_named("worker:2")?);
    let through = |locker| target.lock_through(locker, &key, expiring());
    let token = handed_over(&through(&web))?;
    let held = target.lock(&key, expiring()).resume(&token)?;
    assert_eq!(name_of_holder(&through(&web))?.as_deref(), Some("web:7"), "it has no name of its own");
    let held = through(&worker).resume(&held.into_token()?)?;
    assert_eq!(name_of_holder(&through(&web))?.as_deref(), Some("worker:2"));
    assert_eq!(release(held)?, target.released());
    Ok(())
}
