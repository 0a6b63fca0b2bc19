//! What a holder does with its lock: extends it, verifies it, takes a fencing token, keeps it.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use setnx_lock::{CancelToken, Error, Lock, LockGuard, LockOptions, LossReason, Protocol, Version};
use setnx_lock_proto::values::SideKey;

use crate::support::scenario::{ANOTHERS, FOREIGN};
use crate::support::{
    LONG, Outcome, PAST, Release, Target, assert_says, expiring, extend, leave_to_expire, millis, release,
    tests,
};

pub(super) const TESTS: super::Tests = tests![
    an_extended_lease_outlives_the_old_one,
    an_extension_replaces_the_value_of_a_holder_and_no_other,
    a_lease_that_has_passed_is_extended_by_proof_alone,
    a_lock_without_an_expiration_has_no_lease_to_extend,
    verification_says_what_the_key_shows,
    a_key_that_is_no_lock_any_more_is_left_alone,
    tokens_grow_from_holder_to_holder,
    a_counter_that_was_deleted_or_is_none_is_reported,
    a_counter_is_forgotten_after_a_time,
    a_lock_that_is_kept_expires_by_itself,
    a_lock_is_held_at_least_for_a_time,
    a_loss_is_noticed_and_acted_upon,
    a_loss_is_noticed_by_the_clocks_alone,
    a_holder_is_shown_by_its_name,
];

/// A lease that the steps of a test fit into on any machine, and a third of which is waited for.
const LEASE: Duration = Duration::from_secs(6);

fn an_extended_lease_outlives_the_old_one(target: &Target) -> Outcome {
    let key = target.key("extended");
    let held = target.lock(&key, expiring()).lock()?;
    let (value, end) = (key.value(), held.expires_at());
    thread::sleep(millis(5));
    assert!(extend(&held)?, "the key held the holder's own bytes");
    assert!(held.expires_at() > end);
    assert_ne!(key.value(), value);
    if target.protocol == Protocol::Ttl {
        assert!(key.time_to_live() > 0);
    }
    let remaining = held.remaining().expect("it expires");
    // From any thread.
    thread::scope(|scope| scope.spawn(|| held.extend_by(2 * LONG)).join().unwrap())?;
    assert!(held.remaining() > Some(remaining.max(LONG)));
    held.verify()?;
    assert!(target.lock(&key, expiring()).try_lock()?.is_none());
    assert_eq!(release(held)?, target.released());
    assert_eq!(key.value(), None);
    Ok(())
}

fn an_extension_replaces_the_value_of_a_holder_and_no_other(target: &Target) -> Outcome {
    let key = target.key("not-ours");
    let lock = target.lock(&key, expiring());
    for (value, reason, words) in [
        (
            Some(ANOTHERS),
            "Taken",
            "holds another client's value (held with a value that no lock writes: \"job 7\"",
        ),
        (None, "Gone", "its key is missing"),
    ] {
        let held = lock.lock()?;
        match value {
            Some(value) => key.set(value),
            None => key.delete(),
        }
        let error = held.extend().expect_err("the lock is lost");
        assert_says(&error, &key, &["is no longer held", words, "stop the protected work"]);
        assert_eq!(key.value().as_deref(), value, "it is left alone");
        assert!(format!("{:?}", held.loss_signal().reason()).contains(reason));
        assert!(matches!(held.ensure_held(), Err(Error::Lost { .. })));
        assert!(matches!(held.extend(), Err(Error::Lost { .. })));
        assert_eq!(held.remaining(), Some(Duration::ZERO));
        assert_eq!(release(held)?, Release::Lost);
        assert_eq!(key.value().as_deref(), value, "also by the release");
        key.delete();
    }
    Ok(())
}

fn a_lease_that_has_passed_is_extended_by_proof_alone(target: &Target) -> Outcome {
    let key = target.key("passed");
    let lock = target.lock(&key, LockOptions::expiring_after(millis(50)).timeout(LONG));
    let held = lock.lock()?;
    thread::sleep(millis(60));
    // In Ttl the server has removed the key if this takes more than a second.
    let proves = target.decided_protocol() != Protocol::Classic;
    let own = key.value();
    match held.extend_by(LONG) {
        Ok(()) => assert!(proves && own.is_some()),
        Err(error) => {
            assert!(!proves || own.is_none() || key.value().is_none(), "{error}");
            assert_says(&error, &key, &["its lease ended"]);
        }
    }
    // What was reported as lost stays so.
    key.delete();
    let held = lock.lock()?;
    thread::sleep(millis(60));
    assert!(held.loss_signal().is_lost());
    assert!(matches!(held.extend_by(LONG), Err(Error::Lost { reason: LossReason::Expired, .. })));
    Ok(())
}

fn a_lock_without_an_expiration_has_no_lease_to_extend(target: &Target) -> Outcome {
    let key = target.key("unexpiring");
    let lock = target.lock(&key, LockOptions::without_expiration().timeout(LONG));
    let held = lock.lock()?;
    assert_eq!(key.value().as_deref(), Some("1"));
    assert_eq!((held.remaining(), held.expires_at()), (None, None));
    held.ensure_held()?;
    assert!(lock.try_lock()?.is_none());
    for error in [held.extend(), held.extend_by(LONG)].map(|extended| extended.expect_err("no lease")) {
        assert_says(&error, &key, &["it has no expiration, so there is no lease to extend"]);
    }
    held.verify()?;
    assert!(held.fencing_token()? > 0);
    assert!(!held.loss_signal().is_lost());
    assert_eq!(release(held)?, Release::Released { certified: false });
    assert_eq!(key.value(), None);
    let held = target.lock(&key, expiring()).lock()?;
    for (time, words) in [(Duration::ZERO, "less than a millisecond"), (Duration::MAX, "over ten years")] {
        assert_says(&held.extend_by(time).expect_err("no such time"), &key, &[words]);
    }
    Ok(())
}

fn verification_says_what_the_key_shows(target: &Target) -> Outcome {
    let key = target.key("verified");
    let held = target.lock(&key, expiring()).lock()?;
    held.verify()?;
    // What a gem writes that has lost the takeover: a time close to a second after our lease.
    let lease = held.expires_at().map(SystemTime::from).expect("it expires");
    let shown = (lease + millis(1000)).duration_since(SystemTime::UNIX_EPOCH)?.as_secs_f64();
    key.set(&format!("{shown:.4}"));
    held.verify()?;
    assert!(!extend(&held)?, "by the clocks alone");
    // What was not proven once is not proven later.
    held.verify()?;
    assert!(!extend(&held)?);
    assert_eq!(release(held)?, Release::Released { certified: false });
    let held = target.lock(&key, expiring()).lock()?;
    key.set(ANOTHERS);
    let Err(Error::Lost { reason, .. }) = held.verify() else { panic!("it holds another's value") };
    assert!(matches!(reason, LossReason::Taken(_)));
    assert_eq!(held.loss_signal().reason(), Some(reason));
    Ok(())
}

/// In Classic a release deletes without a look, as the gem's does.
fn a_key_that_is_no_lock_any_more_is_left_alone(target: &Target) -> Outcome {
    let key = target.key("no-lock");
    let held = target.lock(&key, expiring()).lock()?;
    key.delete();
    let () = redis::cmd("LPUSH").arg(key.key.as_bytes()).arg("precious").query(&mut target.connection())?;
    assert!(matches!(held.extend(), Err(Error::Refused { .. })));
    if target.decided_protocol() != Protocol::Classic {
        assert!(matches!(held.fencing_token(), Err(Error::Refused { .. })));
        assert!(matches!(held.release(), Err(Error::Refused { .. })));
        let length: i64 = redis::cmd("LLEN").arg(key.key.as_bytes()).query(&mut target.connection())?;
        assert_eq!(length, 1);
    }
    key.delete();
    Ok(())
}

fn tokens_grow_from_holder_to_holder(target: &Target) -> Outcome {
    let key = target.key("fenced");
    let lock = target.lock(&key, expiring());
    let mut last = 0;
    for _ in 0..3 {
        if last > 0 {
            // It is taken over.
            key.set(PAST);
        }
        let held = lock.lock()?;
        let token = held.fencing_token()?;
        assert!(token > last, "{token} after {last}");
        assert_eq!(held.fencing_token()?, token, "one for each hold");
        assert_eq!(release(held)?, target.released());
        last = token;
    }
    // Also by a release of another thread.
    let held = lock.lock()?;
    let before = held.fencing_token()?;
    assert!(before > last, "{before} after {last}");
    let waiting = thread::spawn({
        let lock = lock.clone();
        move || lock.lock().and_then(|held| held.fencing_token())
    });
    thread::sleep(millis(20));
    held.release()?;
    assert!(waiting.join().unwrap()? > before);
    let lock = target.lock(&key, expiring());
    // A holder whose lock was taken gets none that counts.
    let held = lock.lock()?;
    key.set(FOREIGN);
    let token = held.fencing_token();
    if target.decided_protocol() == Protocol::Classic {
        assert!(token? > before, "by the clocks it is the holder");
    } else {
        assert!(matches!(token, Err(Error::Lost { .. })), "{token:?}");
    }
    drop(held);
    // One whose lease has passed neither.
    key.delete();
    let held = target.lock(&key, LockOptions::expiring_after(millis(50)).timeout(LONG)).lock()?;
    thread::sleep(millis(60));
    key.set(FOREIGN);
    assert!(matches!(held.fencing_token(), Err(Error::Lost { reason: LossReason::Expired, .. })));
    Ok(())
}

fn a_counter_is_forgotten_after_a_time(target: &Target) -> Outcome {
    let key = target.key("forgotten");
    let counter = SideKey::Fence.of(key.key.as_bytes());
    let time_to_live = || -> Result<i64, redis::RedisError> {
        redis::cmd("TTL").arg(&counter).query(&mut target.connection())
    };
    let lock = target.lock(&key, expiring().forget_tokens_after(10 * LONG));
    let held = lock.lock()?;
    if target.version < Version::new(2, 2, 0) {
        let error = held.fencing_token().expect_err("INCR would drop the time to live");
        assert_says(&error, &key, &["`forget_tokens_after` needs Redis 2.2"]);
        let exists: bool = redis::cmd("EXISTS").arg(&counter).query(&mut target.connection())?;
        assert!(!exists, "no counter is left");
        return Ok(release(held).map(drop)?);
    }
    let token = held.fencing_token()?;
    let first = time_to_live()?;
    let all = i64::try_from((10 * LONG).as_secs())?;
    assert!((all / 2..=all).contains(&first), "{first}");
    drop(held);
    // Each token begins the time anew.
    let () = redis::cmd("EXPIRE").arg(&counter).arg(100).query(&mut target.connection())?;
    let held = lock.lock()?;
    assert_eq!(held.fencing_token()?, token + 1);
    assert!(time_to_live()? > 100);
    drop(held);
    // Another that does not ask for it leaves the time to live.
    assert_eq!(target.lock(&key, expiring()).with(LockGuard::fencing_token)??, token + 2);
    assert!(time_to_live()? > 100);
    Ok(())
}

fn a_counter_that_was_deleted_or_is_none_is_reported(target: &Target) -> Outcome {
    let key = target.key("counter");
    let counter = SideKey::Fence.of(key.key.as_bytes());
    let lock = target.lock(&key, expiring());
    let with_counter = |value: &str| -> Result<_, redis::RedisError> {
        let () = redis::cmd("SET").arg(&counter).arg(value).query(&mut target.connection())?;
        Ok(lock.with(LockGuard::fencing_token))
    };
    assert_eq!(with_counter("41")???, 42);
    let () = redis::cmd("DEL").arg(&counter).query(&mut target.connection())?;
    assert_eq!(lock.with(LockGuard::fencing_token)??, 1, "it starts again");
    let error = with_counter("-7")??.expect_err("no token is negative");
    assert_says(&error, &key, &["its fencing counter is at -6", "greatest token"]);
    if target.version < Version::new(2, 0, 0) {
        assert_eq!(with_counter("oops")???, 1, "what is no number is counted from 0");
        return Ok(());
    }
    let error = with_counter("oops")??.expect_err("it is no number");
    assert_says(&error, &key, &["not an integer"]);
    // The lock itself is acquired all the same.
    let held = target.lock(&key, expiring()).lock()?;
    assert!(matches!(held.fencing_token(), Err(Error::Refused { .. })));
    Ok(())
}

fn a_lock_that_is_kept_expires_by_itself(target: &Target) -> Outcome {
    let key = target.key("kept");
    let lock = target.lock(&key, expiring());
    let held = lock.lock()?;
    let value = key.value();
    assert_eq!(leave_to_expire(held)?, Release::LeftToExpire);
    assert_eq!(key.value(), value);
    assert!(lock.try_lock()?.is_none());
    assert!(lock.clear()?);
    let began = Instant::now();
    let lease = millis(400);
    let held = target.lock(&key, LockOptions::expiring_after(lease).timeout(LONG)).lock()?;
    // Expired, if the machine was busy for so long.
    assert!(matches!(leave_to_expire(held)?, Release::LeftToExpire | Release::Expired));
    assert!(lock.try_lock_for(LONG)?.is_some());
    assert!(began.elapsed() >= after_a_lease_of(target, lease), "after the lease");
    let held = target.lock(&key, LockOptions::expiring_after(millis(50)).timeout(LONG)).lock()?;
    thread::sleep(millis(60));
    assert_eq!(leave_to_expire(held)?, Release::Expired);
    Ok(())
}

/// How long after its acquisition a lock that is left to expire is free at the earliest.
fn after_a_lease_of(target: &Target, lease: Duration) -> Duration {
    // A little less, for clocks that are read one after the other.
    (lease + target.extra_time()).saturating_sub(millis(20))
}

fn a_lock_is_held_at_least_for_a_time(target: &Target) -> Outcome {
    let key = target.key("at-least");
    let (locker, options) = (target.locker(), expiring().hold_at_least(millis(1000)));
    let lock = target.lock_through(&locker, &key, options);
    let began = Instant::now();
    let held = lock.lock()?;
    let value = key.value();
    let waiter = target.lock_through(&locker, &key, options.poll_interval(LONG));
    let waiting = thread::spawn(move || waiter.lock().map(drop));
    thread::sleep(millis(20));
    assert_eq!(release(held)?, Release::LeftToExpire);
    assert_ne!(key.value(), value, "it expires sooner than its lease");
    assert!(key.value() < value);
    // Another thread of the process waits as any client, and knows when the key expires, however seldom it polls.
    let free = after_a_lease_of(target, millis(1000));
    assert!(lock.try_lock()?.is_none() || began.elapsed() >= free);
    waiting.join().unwrap()?;
    assert!(began.elapsed() >= free, "{:?}", began.elapsed());
    assert!(began.elapsed() < LONG / 2, "not by the old lease, nor by a poll");
    key.delete();
    // After that time a release deletes.
    let lock = target.lock(&key, expiring().hold_at_least(millis(30)));
    let held = lock.lock()?;
    thread::sleep(millis(40));
    assert_eq!(release(held)?, target.released());
    Ok(())
}

fn a_loss_is_noticed_and_acted_upon(target: &Target) -> Outcome {
    let key = target.key("noticed");
    let (sender, losses) = mpsc::channel();
    let token = CancelToken::new();
    // By a look, and by an extension.
    for options in [LockOptions::expiring_after(LEASE), LockOptions::expiring_after(LEASE).auto_extend(LONG)]
    {
        let held = target.lock(&key, options.timeout(LONG)).lock()?;
        let sender = sender.clone();
        let to_cancel = token.clone();
        held.on_loss(move |_| to_cancel.cancel());
        held.on_loss(move |reason| sender.send(reason).unwrap());
        let signal = held.loss_signal();
        assert!(!signal.is_lost() && signal.is_held() && signal.reason().is_none());
        key.set(ANOTHERS);
        assert!(signal.wait_timeout(LONG), "the keeper looks");
        assert!(matches!(losses.recv_timeout(LONG)?, LossReason::Taken(_)));
        assert!(token.is_cancelled());
        assert!(matches!(held.ensure_held(), Err(Error::Lost { .. })));
        assert_eq!(release(held)?, Release::Lost);
        assert_eq!(key.value().as_deref(), Some(ANOTHERS));
        key.delete();
    }
    Ok(())
}

fn a_loss_is_noticed_by_the_clocks_alone(target: &Target) -> Outcome {
    let key = target.key("by-the-clocks");
    let lock = target.lock(&key, LockOptions::expiring_after(millis(80)).timeout(LONG));
    let held = lock.lock()?;
    let (sender, losses) = mpsc::channel();
    held.on_loss(move |reason| sender.send(reason).unwrap());
    assert!(held.loss_signal().wait_timeout(LONG));
    assert_eq!(held.loss_signal().reason(), Some(LossReason::Expired));
    assert_eq!(losses.recv_timeout(LONG)?, LossReason::Expired);
    drop(held);
    // A release in time is no loss, and ends the wait for one.
    key.delete();
    let held = target.lock(&key, expiring()).lock()?;
    let signal = held.loss_signal();
    let waiting = thread::spawn({
        let signal = signal.clone();
        move || signal.wait_timeout(LONG)
    });
    let (sender, losses) = mpsc::channel::<LossReason>();
    held.on_loss(move |reason| sender.send(reason).unwrap());
    held.release()?;
    assert!(!waiting.join().unwrap());
    assert!(!signal.is_lost() && !signal.is_held());
    assert!(losses.recv().is_err(), "nothing is sent, and the function is dropped");
    Ok(())
}

fn a_holder_is_shown_by_its_name(target: &Target) -> Outcome {
    let key = target.key("named");
    let lock = Lock::new(&target.locker_named("worker 7")?, &key.key, expiring().protocol(target.protocol))?;
    assert_eq!(lock.holder()?, None);
    let held = lock.lock()?;
    let holder = lock.holder()?.expect("it is held");
    assert_eq!(holder.name(), "worker 7");
    let since = SystemTime::from(holder.since());
    assert!(since <= SystemTime::now() && since.elapsed()? < LONG, "{holder:?}");
    // A second later it would be another.
    thread::sleep(millis(1100));
    held.extend()?;
    assert_eq!(lock.holder()?.as_ref(), Some(&holder), "an extension leaves it");
    let brief = expiring().timeout(millis(1)).protocol(target.protocol);
    let other = Lock::new(&target.locker_named("worker 8")?, &key.key, brief)?;
    let text = other.lock().expect_err("it is held").to_string();
    assert!(text.contains("held by worker 7 for "), "{text}");
    drop(held);
    assert_eq!(lock.holder()?, None);
    // A holder without a name is not taken for the last one with one.
    let plain = target.lock(&key, expiring());
    let _held = plain.lock()?;
    assert_eq!(lock.holder()?, None);
    Ok(())
}
