//! How a lock is acquired, and what its key holds.

use std::time::{Duration, SystemTime};

use setnx_lock::{Lock, LockOptions, LockState, Release};

use crate::support::{LONG, Outcome, Target, expiring, millis, tests};

pub(super) const TESTS: super::Tests = tests![
    a_free_lock_is_acquired_and_released,
    a_lock_without_expiration_holds_1,
    a_held_lock_is_not_acquired_by_another,
    state_exists_and_clear_report_the_key,
    any_bytes_are_a_key,
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
    assert_eq!(held.attempts(), 1);
    assert_eq!(held.protocol(), target.decided_protocol());
    assert!(held.waited() > Duration::ZERO);
    assert_eq!(held.release()?, target.released());
    assert_eq!(key.value(), None);
    Ok(())
}

fn a_lock_without_expiration_holds_1(target: &Target) -> Outcome {
    let key = target.key("unexpiring");
    let lock = target.lock(&key, LockOptions::held_until_released());
    let held = lock.lock()?;
    assert_eq!(key.value().as_deref(), Some("1"));
    assert_eq!((held.remaining(), held.expires_at()), (None, None));
    held.ensure_held()?;
    assert_eq!(lock.try_lock()?.map(|held| held.attempts()), None);
    assert_eq!(held.release()?, Release::Released { certified: false });
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
    assert!(!lock.exists()? && !lock.clear()?);
    let held = lock.lock()?;
    let LockState::Until(expiry) = lock.state()? else { panic!("{:?}", lock.state()) };
    let promised = held.expires_at().expect("it expires");
    assert_eq!(expiry.date(), Some(promised + Duration::from_secs(1)), "the gem's extra second");
    assert!(lock.exists()? && lock.clear()?);
    assert_eq!(key.value(), None);
    drop(held);
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
    assert!(lock.exists()?);
    assert!(format!("{held:?}").contains("\\xff\\u{0}\\r\\n"), "{held:?}");
    assert_eq!(held.release()?, target.released());
    assert!(!lock.exists()?);
    Ok(())
}
