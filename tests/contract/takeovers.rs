//! Which locks are taken over, and when.

use std::time::SystemTime;

use setnx_lock::{Error, LockOptions, Release};

use crate::support::{LONG, Outcome, Target, expiring, millis, tests};

pub(super) const TESTS: super::Tests = tests![
    an_expired_lock_is_taken_over,
    a_value_of_the_gem_is_honoured_and_taken_over_once_expired,
    an_expired_lock_is_not_taken_over_within_the_margin,
    a_value_that_never_expires_is_not_taken_over_and_is_named,
    stealing_as_the_gem_does_takes_a_lock_that_never_expires,
];

fn an_expired_lock_is_taken_over(target: &Target) -> Outcome {
    let key = target.key("expired");
    let options = LockOptions::expiring_after(millis(200)).timeout(LONG);
    let expired = target.lock(&key, options).lock()?;
    let free = key.value().expect("held").parse::<f64>()? - 1.0 + target.extra_time().as_secs_f64();
    let held = target.lock(&key, options).lock()?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs_f64();
    assert!(now >= free, "acquired at {now}, before {free}");
    assert!(matches!(expired.ensure_held(), Err(Error::Expired { .. })));
    assert_eq!(expired.release()?, Release::Expired, "another holder has the key");
    drop(held);
    Ok(())
}

fn a_value_of_the_gem_is_honoured_and_taken_over_once_expired(target: &Target) -> Outcome {
    let key = target.key("gem");
    let lock = target.lock(&key, expiring());
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs_f64();
    for valid in [format!("{:?}", now + 30.0), format!("{}:host:42", now + 30.0)] {
        key.set(&valid);
        assert!(lock.try_lock()?.is_none(), "{valid} has not expired");
        assert_eq!(key.value(), Some(valid));
    }
    for past in [format!("{:?}", now - 0.5), format!("{}:host:42", now - 30.0), "1532000016.0".into()] {
        key.set(&past);
        assert!(lock.try_lock()?.is_some(), "{past} has expired");
    }
    // A lock without an expiration waits all the same, as in the gem.
    key.set("1532000016.0");
    assert!(target.lock(&key, LockOptions::held_until_released()).try_lock()?.is_none());
    Ok(())
}

fn an_expired_lock_is_not_taken_over_within_the_margin(target: &Target) -> Outcome {
    let key = target.key("margin");
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs_f64();
    let past = format!("{:?}", now - 5.0);
    key.set(&past);
    let text = target
        .lock(&key, expiring().takeover_margin(millis(60_000)).timeout(millis(20)))
        .lock()
        .expect_err("within the margin")
        .to_string();
    assert!(text.contains("and left alone for a takeover margin of 60s after that"), "{text}");
    assert_eq!(key.value().as_deref(), Some(past.as_str()));
    assert!(target.lock(&key, expiring().takeover_margin(millis(4000))).try_lock()?.is_some());
    Ok(())
}

fn a_value_that_never_expires_is_not_taken_over_and_is_named(target: &Target) -> Outcome {
    let key = target.key("never-expires");
    for (value, words) in [
        ("1", "held without an expiration"),
        ("", "held with an empty value, as redis-objects from 1.4.2 on writes it"),
        ("rubbish", "held with a value that no lock writes: \"rubbish\""),
    ] {
        key.set(value);
        let lock = target.lock(&key, expiring().timeout(millis(20)));
        let text = lock.lock().expect_err("it never expires").to_string();
        assert!(text.contains(words) && text.contains("clear it by hand"), "{text}");
        assert_eq!(key.value().as_deref(), Some(value));
    }
    Ok(())
}

fn stealing_as_the_gem_does_takes_a_lock_that_never_expires(target: &Target) -> Outcome {
    let key = target.key("steal");
    for value in ["1", "", "rubbish"] {
        key.set(value);
        let lock = target.lock(&key, expiring().stealing_as_the_gem_does());
        assert!(lock.try_lock()?.is_some(), "{value:?}");
    }
    Ok(())
}
