//! How a lock is acquired and taken over, what its key holds, and what its guard reports.

use std::thread;
use std::time::{Duration, SystemTime};

use setnx_lock::{Error, Lock, LockOptions, LockState, LossReason, Protocol};

use crate::support::{LONG, Outcome, Release, Target, attempts, expiring, millis, release, tests, waited};

pub(super) const TESTS: super::Tests = tests![
    a_free_lock_is_acquired_and_released,
    a_held_lock_is_not_acquired_by_another,
    state_exists_and_clear_report_the_key,
    any_bytes_are_a_key,
    a_guard_reports_its_remaining_time,
    an_expired_lock_is_taken_over,
    a_value_of_the_gem_is_honoured_and_taken_over_once_expired,
    a_value_that_never_expires_is_named_and_not_taken_over,
    data_of_another_program_is_not_taken_over,
];

fn a_free_lock_is_acquired_and_released(target: &Target) -> Outcome {
    let key = target.key("free");
    let lock = target.lock(&key, expiring());
    let before = SystemTime::now();
    let held = lock.lock()?;
    let value = key.value().expect("a held lock has a key");
    let (seconds, digits) = value.split_once('.').expect("seconds and a fraction");
    assert_eq!((seconds.len(), digits.len()), (10, 16), "{value}");
    let until = Duration::from_secs_f64(value.parse()?);
    let earliest = before.duration_since(SystemTime::UNIX_EPOCH)? + LONG + millis(1000);
    assert!(until + millis(1) >= earliest && until <= earliest + LONG, "{value}");
    assert_eq!(attempts(), 1);
    assert_eq!(held.protocol(), target.decided_protocol());
    assert!(waited() > Duration::ZERO);
    assert_eq!(release(held)?, target.released());
    assert_eq!(key.value(), None);
    Ok(())
}

fn a_held_lock_is_not_acquired_by_another(target: &Target) -> Outcome {
    let key = target.key("contend");
    let lock = target.lock(&key, expiring());
    let held = lock.lock()?;
    let value = key.value();
    for other in [&lock, &target.lock(&key, expiring())] {
        assert!(other.try_lock()?.is_none());
        assert!(other.try_lock_for(millis(20))?.is_none());
    }
    assert_eq!(key.value(), value, "a contender leaves the value alone");
    drop(held);
    assert!(lock.try_lock()?.is_some());
    Ok(())
}

fn state_exists_and_clear_report_the_key(target: &Target) -> Outcome {
    let key = target.key("peek");
    let lock = target.lock(&key, expiring());
    assert_eq!(lock.state()?, LockState::Absent);
    assert!(!lock.state()?.is_held() && !lock.clear()?);
    let held = lock.lock()?;
    let LockState::Until { expiry, .. } = lock.state()? else { panic!("{:?}", lock.state()) };
    let promised = held.expires_at().map(SystemTime::from).expect("it expires");
    assert_eq!(key.until(), Some(promised + target.shown_later()), "the gem's extra second, but for Ttl");
    let free = expiry.date().map(SystemTime::from).expect("in this century");
    if target.decided_protocol() == Protocol::Ttl {
        // PTTL counts whole milliseconds.
        let earliest = promised + target.extra_time() - millis(2);
        let late = free.duration_since(earliest).expect("the server removes it later");
        assert!(late < LONG, "{late:?}");
    } else {
        assert_eq!(Some(free), key.until());
    }
    assert!(lock.state()?.is_held() && lock.clear()?);
    assert_eq!(key.value(), None);
    assert_eq!(release(held)?, Release::Lost);
    key.set("1");
    assert_eq!(lock.state()?, LockState::Unexpiring);
    Ok(())
}

fn any_bytes_are_a_key(target: &Target) -> Outcome {
    let locker = target.locker();
    let mut bytes = target.key("bytes").key.as_bytes().to_vec();
    bytes.extend_from_slice(b" \xff\0\r\n*3\r\n");
    let lock = Lock::new(&locker, bytes, expiring().protocol(target.protocol))?;
    let held = lock.lock()?;
    assert!(lock.state()?.is_held());
    assert!(format!("{held:?}").contains("\\xff\\u{0}\\r\\n"), "{held:?}");
    assert_eq!(release(held)?, target.released());
    assert_eq!(lock.state()?, LockState::Absent);
    Ok(())
}

fn a_guard_reports_its_remaining_time(target: &Target) -> Outcome {
    let key = target.key("time");
    let held = target.lock(&key, LockOptions::expiring_after(millis(200)).timeout(LONG)).lock()?;
    let at_first = held.remaining().expect("it expires");
    assert!(at_first <= millis(200));
    let (date, system) = (held.expires_at().unwrap(), held.expires_at().map(SystemTime::from).unwrap());
    assert_eq!(SystemTime::from(date), system);
    thread::sleep(millis(200));
    assert_eq!(held.remaining(), Some(Duration::ZERO));
    let text = held.ensure_held().unwrap_err().to_string();
    assert!(text.contains("is no longer held") && text.contains("choose a longer expiration"), "{text}");
    Ok(())
}

fn an_expired_lock_is_taken_over(target: &Target) -> Outcome {
    let key = target.key("expired");
    let options = LockOptions::expiring_after(millis(200)).timeout(LONG);
    let expired = target.lock(&key, options).lock()?;
    let shown = key.value().expect("held").parse::<f64>()?;
    let free = shown - target.shown_later().as_secs_f64() + target.extra_time().as_secs_f64();
    let held = target.lock(&key, options).lock()?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs_f64();
    assert!(now >= free, "acquired at {now}, before {free}");
    assert!(matches!(expired.ensure_held(), Err(Error::Lost { reason: LossReason::Expired, .. })));
    assert_eq!(release(expired)?, Release::Expired, "another holder has the key");
    drop(held);
    Ok(())
}

fn a_value_of_the_gem_is_honoured_and_taken_over_once_expired(target: &Target) -> Outcome {
    let key = target.key("gem");
    let lock = target.lock(&key, expiring());
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs_f64();
    for valid in [format!("{:?}", now + 30.0), format!("{:.6}0123456789:host:42", now + 30.0)] {
        key.set(&valid);
        assert!(lock.try_lock()?.is_none(), "{valid} has not expired");
        assert_eq!(key.value(), Some(valid));
    }
    for past in
        [format!("{:?}", now - 0.5), format!("{:.6}0123456789:host:42", now - 30.0), "1532000016.0".into()]
    {
        key.set(&past);
        assert!(lock.try_lock()?.is_some(), "{past} has expired");
    }
    // A lock without an expiration waits all the same, as in the gem.
    key.set("1532000016.0");
    assert!(target.lock(&key, LockOptions::without_expiration()).try_lock()?.is_none());
    Ok(())
}

/// Another program's data that begins like a time. The gem reads the first number in it.
fn data_of_another_program_is_not_taken_over(target: &Target) -> Outcome {
    let key = target.key("data");
    for value in ["1531999999-4a5b-11e8", "1531999999:42", "1531999999.5\n"] {
        key.set(value);
        let error = target.lock(&key, expiring().timeout(millis(20))).lock().expect_err(value);
        assert!(error.is_contention() && error.to_string().contains("which looks like"), "{error}");
        assert_eq!(key.value().as_deref(), Some(value));
    }
    // A time to come, in milliseconds: the gem waits for it, too.
    key.set("1531999999000");
    assert!(target.lock(&key, expiring()).try_lock()?.is_none());
    Ok(())
}

fn a_value_that_never_expires_is_named_and_not_taken_over(target: &Target) -> Outcome {
    let key = target.key("never-expires");
    for (value, words) in [
        ("1", "held without an expiration"),
        ("", "held with an empty value, as redis-objects from 1.4.2 on writes it"),
        ("rubbish", "held with a value that no lock writes: \"rubbish\""),
        ("1531999999abcdef", "which looks like a number with text behind it"),
    ] {
        key.set(value);
        let lock = target.lock(&key, expiring().timeout(millis(20)));
        let text = lock.lock().expect_err("it never expires").to_string();
        assert!(text.contains(words) && text.contains("clear it by hand"), "{text}");
        assert_eq!(key.value().as_deref(), Some(value));
    }
    Ok(())
}
