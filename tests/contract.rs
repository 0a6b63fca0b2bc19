//! What a lock does, on every server there is, by every protocol.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::time::{Duration, SystemTime};
use std::{panic, thread};

use libtest_mimic::Trial;
use setnx_lock::{Error, Lock, LockOptions, LockState, Locker, Release};

use crate::support::record::recorded;
use crate::support::{LONG, Outcome, Target, expiring, millis, tests};

type Test = fn(&Target) -> Outcome;

pub(crate) fn trials(target: &Target) -> Vec<Trial> {
    let tests: &[(&str, Test)] = tests![
        a_free_lock_is_acquired_and_released,
        a_lock_without_expiration_holds_1,
        a_held_lock_is_not_acquired_by_another,
        a_waiter_times_out_with_the_gem_s_words,
        a_waiter_gets_the_lock_on_release,
        an_expired_lock_is_taken_over,
        a_value_of_the_gem_is_honoured_and_taken_over_once_past,
        an_expired_lock_is_left_alone_for_the_margin,
        what_never_expires_is_left_alone_and_named,
        stealing_as_the_gem_does_takes_what_never_expires,
        waiting_for_ever_outlasts_the_default_timeout,
        peek_exists_and_clear_tell_what_is_there,
        a_panic_in_the_body_releases,
        an_error_in_the_body_releases_and_comes_back_untouched,
        eight_threads_on_a_pool_of_one_lose_no_update,
        separate_pools_lose_no_update,
        a_guard_can_be_dropped_by_another_thread,
        a_drop_after_expiry_leaves_the_key_to_others,
        a_release_of_a_cleared_lock_says_lost,
        the_guard_knows_its_time,
        a_nested_with_is_refused,
        a_nested_guard_times_out_with_a_hint,
        any_bytes_are_a_key,
    ];
    target
        .in_every_variant()
        .flat_map(|target| {
            let suited = tests.iter().filter(move |(name, _)| target.variant.load.suits("contract", name));
            suited.map(move |(name, test)| {
                let works = target.supports_its_protocol();
                recorded("contract", &target, name, works, *test, |target| target.refuses_its_protocol(name))
            })
        })
        .collect()
}

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
    assert!(text.contains("exceeded 0 sec after 1 attempt;"), "{text}");
    let unexpiring = LockOptions::held_until_released().timeout(Duration::ZERO);
    let text = target.lock(&key, unexpiring).lock().unwrap_err().to_string();
    assert!(text.contains("is never taken over: if its holder has crashed, clear it by hand"), "{text}");
    drop(held);
    Ok(())
}

fn a_waiter_gets_the_lock_on_release(target: &Target) -> Outcome {
    let key = target.key("handoff");
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

fn an_expired_lock_is_taken_over(target: &Target) -> Outcome {
    let key = target.key("expired");
    let options = LockOptions::expiring_after(millis(200)).timeout(LONG);
    let dead = target.lock(&key, options).lock()?;
    let expiry = key.value().expect("held").parse::<f64>()?;
    let held = target.lock(&key, options).lock()?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs_f64();
    assert!(now >= expiry, "taken over at {now}, before {expiry}");
    assert!(matches!(dead.ensure_held(), Err(Error::Expired { .. })));
    assert_eq!(dead.release()?, Release::Expired, "the key is another's now");
    drop(held);
    Ok(())
}

fn a_value_of_the_gem_is_honoured_and_taken_over_once_past(target: &Target) -> Outcome {
    let key = target.key("gem");
    let lock = target.lock(&key, expiring());
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs_f64();
    for alive in [format!("{:?}", now + 30.0), format!("{}:host:42", now + 30.0)] {
        key.set(&alive);
        assert!(lock.try_lock()?.is_none(), "{alive} is alive");
        assert_eq!(key.value(), Some(alive));
    }
    for past in [format!("{:?}", now - 0.5), format!("{}:host:42", now - 30.0), "1532000016.0".into()] {
        key.set(&past);
        assert!(lock.try_lock()?.is_some(), "{past} is past");
    }
    // A lock without an expiration waits for it all the same, as in the gem.
    key.set("1532000016.0");
    assert!(target.lock(&key, LockOptions::held_until_released()).try_lock()?.is_none());
    Ok(())
}

fn an_expired_lock_is_left_alone_for_the_margin(target: &Target) -> Outcome {
    let key = target.key("margin");
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs_f64();
    let past = format!("{:?}", now - 5.0);
    key.set(&past);
    let text = target
        .lock(&key, expiring().takeover_margin(LONG).timeout(millis(20)))
        .lock()
        .expect_err("within the margin")
        .to_string();
    assert!(text.contains("and left alone for a takeover margin of 60s after that"), "{text}");
    assert_eq!(key.value().as_deref(), Some(past.as_str()));
    assert!(target.lock(&key, expiring().takeover_margin(millis(4000))).try_lock()?.is_some());
    Ok(())
}

fn what_never_expires_is_left_alone_and_named(target: &Target) -> Outcome {
    let key = target.key("stuck");
    for (value, words) in [
        ("1", "held without an expiration"),
        ("", "held with an empty value, as redis-objects from 1.4.2 on writes it"),
        ("rubbish", "held with a value that no lock writes: \"rubbish\""),
    ] {
        key.set(value);
        let lock = target.lock(&key, expiring().timeout(millis(20)));
        let text = lock.lock().expect_err("not ours to take").to_string();
        assert!(text.contains(words) && text.contains("clear it by hand"), "{text}");
        assert_eq!(key.value().as_deref(), Some(value));
    }
    Ok(())
}

fn stealing_as_the_gem_does_takes_what_never_expires(target: &Target) -> Outcome {
    let key = target.key("steal");
    for value in ["1", "", "rubbish"] {
        key.set(value);
        let lock = target.lock(&key, expiring().stealing_as_the_gem_does());
        assert!(lock.try_lock()?.is_some(), "{value:?}");
    }
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

fn peek_exists_and_clear_tell_what_is_there(target: &Target) -> Outcome {
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

fn a_panic_in_the_body_releases(target: &Target) -> Outcome {
    let key = target.key("panic");
    let lock = target.lock(&key, expiring());
    // Unwinds as a panic does, without the message that would look like a failure.
    let unwound = panic::catch_unwind(|| {
        lock.try_with(|_| -> Result<(), Error> { panic::resume_unwind(Box::new("on purpose")) })
    });
    assert!(unwound.is_err());
    assert_eq!(key.value(), None);
    lock.try_with(|_| Ok::<_, Error>(()))?;
    Ok(())
}

fn an_error_in_the_body_releases_and_comes_back_untouched(target: &Target) -> Outcome {
    #[derive(Debug, PartialEq)]
    enum Mine {
        Body(&'static str),
        Lock(String),
    }
    impl From<Error> for Mine {
        fn from(error: Error) -> Self {
            Mine::Lock(error.to_string())
        }
    }

    let key = target.key("error");
    let lock = target.lock(&key, expiring().timeout(Duration::ZERO));
    let failed: Result<(), Mine> = lock.try_with(|held| {
        assert_eq!(held.key(), &key.key);
        assert!(key.value().is_some());
        Err(Mine::Body("went wrong"))
    });
    assert_eq!(failed, Err(Mine::Body("went wrong")));
    assert_eq!(key.value(), None);
    assert_eq!(lock.try_with(|_| Ok::<_, Mine>(42)), Ok(42));

    let _held = target.lock(&key, expiring()).lock()?;
    let refused: Result<(), Mine> = lock.try_with(|_| unreachable!("the lock is held by another"));
    assert!(matches!(refused, Err(Mine::Lock(text)) if text.starts_with("Timeout on lock")));
    Ok(())
}

/// Increments a number that is read, left alone for a moment, and written back, under the lock.
fn count(locks: Vec<Lock>, rounds: u32) -> Result<(u32, u32), Error> {
    let number = AtomicU32::new(0);
    let threads = u32::try_from(locks.len()).unwrap();
    let start = Barrier::new(locks.len());
    let (number, start) = (&number, &start);
    thread::scope(|scope| {
        let threads: Vec<_> = locks
            .into_iter()
            .map(|lock| {
                scope.spawn(move || {
                    start.wait();
                    for _ in 0..rounds {
                        lock.try_with(|_| {
                            let read = number.load(Ordering::SeqCst);
                            thread::sleep(millis(1));
                            number.store(read + 1, Ordering::SeqCst);
                            Ok::<_, Error>(())
                        })?;
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    })?;
    Ok((number.load(Ordering::SeqCst), threads * rounds))
}

fn eight_threads_on_a_pool_of_one_lose_no_update(target: &Target) -> Outcome {
    let key = target.key("pool-of-one");
    let locker = target.variant.load.pipelining(Locker::builder(&target.url)?.pool_size(1).build()?);
    let lock = target.lock_through(&locker, &key, expiring().timeout(LONG).poll_interval(millis(2)));
    let (counted, expected) = count(vec![lock; 8], 20)?;
    assert_eq!(counted, expected);
    assert_eq!(key.value(), None);
    Ok(())
}

fn separate_pools_lose_no_update(target: &Target) -> Outcome {
    let key = target.key("pools");
    let options = expiring().timeout(LONG).poll_interval(millis(2));
    let (counted, expected) = count((0..4).map(|_| target.lock(&key, options)).collect(), 25)?;
    assert_eq!(counted, expected);
    Ok(())
}

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

fn a_drop_after_expiry_leaves_the_key_to_others(target: &Target) -> Outcome {
    let key = target.key("late-drop");
    let held = target.lock(&key, LockOptions::expiring_after(millis(50))).lock()?;
    thread::sleep(millis(60));
    key.set("1895000000.5");
    drop(held);
    assert_eq!(key.value().as_deref(), Some("1895000000.5"));
    Ok(())
}

fn a_release_of_a_cleared_lock_says_lost(target: &Target) -> Outcome {
    let key = target.key("cleared");
    let lock = target.lock(&key, expiring());
    let held = lock.lock()?;
    assert!(lock.clear()?);
    assert_eq!(held.release()?, Release::Lost);
    Ok(())
}

fn the_guard_knows_its_time(target: &Target) -> Outcome {
    let key = target.key("time");
    let held = target.lock(&key, LockOptions::expiring_after(millis(400))).lock()?;
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

fn a_nested_with_is_refused(target: &Target) -> Outcome {
    let key = target.key("nested");
    let lock = target.lock(&key, expiring().wait_forever());
    let other = target.lock(&target.key("nested-other"), expiring());
    lock.try_with(|_| {
        let error = lock.lock().expect_err("it would wait for itself");
        assert!(matches!(&error, Error::Nested { key: named, .. } if *named == key.key), "{error}");
        assert!(matches!(lock.clone().try_with(|_| Ok(())), Err(Error::Nested { .. })));
        thread::scope(|scope| scope.spawn(|| assert!(lock.try_lock().unwrap().is_none())).join()).unwrap();
        other.try_with(|_| Ok::<_, Error>(()))
    })?;
    lock.try_with(|_| Ok::<_, Error>(()))?;
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
