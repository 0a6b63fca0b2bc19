//! What several locks do that are held together. How they are waited for is tested in `several_waiting`.

use std::sync::mpsc;
use std::time::Duration;
use std::{panic, thread};

use setnx_lock::{
    CancelToken, Error, Key, LockGuard, LockOptions, LockState, LossReason, MultiLock, MultiLockGuard,
    Protocol,
};

use crate::support::scenario::{ANOTHERS, FOREIGN};
use crate::support::{
    LONG, Outcome, PAST, Release, Target, TestKey, attempts, expiring, millis, name_of_holder, release,
    release_all, tests,
};

pub(super) const TESTS: super::Tests = tests![
    several_free_locks_are_acquired_and_released_together,
    keys_are_sorted_and_named_once_and_others_are_refused,
    none_is_left_held_if_one_is_held,
    expired_locks_are_taken_over_together,
    locks_without_an_expiration_are_acquired_together,
    a_call_within_a_call_on_one_of_the_keys_is_refused,
    calls_on_several_keys_join_the_enclosing_ones,
    a_call_that_joins_several_extends_each_by_its_own_options,
    all_leases_are_extended_together,
    an_extension_reports_the_lock_that_is_lost,
    verification_says_it_of_each_key,
    a_release_after_the_lease_says_so_of_each_key,
    the_loss_of_one_is_noticed_and_acted_upon,
    the_tokens_of_each_key_grow,
    all_are_kept_or_held_at_least_for_a_time,
    the_holder_is_named_in_each_key,
];

fn values(keys: &[TestKey]) -> Vec<Option<String>> {
    keys.iter().map(TestKey::value).collect()
}

fn are_free(keys: &[TestKey]) -> bool {
    keys.iter().all(|key| key.value().is_none())
}

/// Releases all, and asserts that this is the outcome for each key.
#[track_caller]
fn assert_released(held: MultiLockGuard, expected: Release) {
    for (key, outcome) in release_all(held) {
        assert_eq!(outcome.unwrap(), expected, "{key}");
    }
}

fn several_free_locks_are_acquired_and_released_together(target: &Target) -> Outcome {
    let keys = target.keys("together", 3);
    let locks = target.locks(&keys, expiring());
    let held = locks.lock()?;
    held.ensure_held()?;
    assert_eq!(attempts(), 1);
    assert_eq!(held.guards().len(), 3);
    for (key, guard) in keys.iter().zip(held.guards()) {
        let single = target.lock(key, expiring());
        assert!(matches!(single.state()?, LockState::Until { .. }), "an ordinary value");
        assert!(single.try_lock()?.is_none(), "an ordinary lock waits");
        assert_eq!((guard.key(), guard.protocol()), (&key.key, target.decided_protocol()));
        if target.decided_protocol() == Protocol::Ttl {
            assert!(key.time_to_live() > 0);
        }
    }
    assert!(locks.try_lock()?.is_none());
    assert_released(held, target.released());
    assert!(are_free(&keys));
    // By the end of the guard, and by the end of a body.
    drop(locks.lock()?);
    assert!(are_free(&keys));
    let seen = locks.with(|_| values(&keys))?;
    assert!(seen.iter().all(Option::is_some) && are_free(&keys));
    locks.with_result(MultiLockGuard::ensure_held)?;
    // Unwinds as a panic does, without a message that would look like a failure.
    let unwind = || -> Result<(), Error> { panic::resume_unwind(Box::new("on purpose")) };
    assert!(panic::catch_unwind(|| locks.with(|_| unwind())).is_err() && are_free(&keys));
    assert!(panic::catch_unwind(|| locks.with_result(|_| unwind())).is_err() && are_free(&keys));
    // One key alone.
    let one = target.locks(&keys[..1], expiring()).lock()?;
    assert!(keys[0].value().is_some());
    assert_released(one, target.released());
    Ok(())
}

fn keys_are_sorted_and_named_once_and_others_are_refused(target: &Target) -> Outcome {
    let locker = target.locker();
    let none = MultiLock::new(&locker, Vec::<Key>::new(), expiring()).expect_err("there is no key");
    assert!(matches!(&none, Error::Invalid { .. }) && none.to_string().contains("there is no key"), "{none}");
    let empty = MultiLock::new(&locker, ["one", ""], expiring()).expect_err("a key is empty");
    assert!(matches!(empty, Error::Invalid { .. }), "{empty}");
    let zero = MultiLock::new(&locker, ["one"], LockOptions::expiring_after(Duration::ZERO));
    assert!(matches!(zero, Err(Error::Invalid { .. })));
    let [a, b, c] = ["sorted-a", "sorted-b", "sorted-c"].map(|name| target.key(name));
    let given = [&c, &a, &c, &b, &a].map(|key| key.key.clone());
    let held = MultiLock::new(&locker, given, expiring().protocol(target.protocol))?.lock()?;
    assert!(held.guards().iter().map(LockGuard::key).eq([&a, &b, &c].map(|key| &key.key)));
    Ok(())
}

fn none_is_left_held_if_one_is_held(target: &Target) -> Outcome {
    let keys = target.keys("one-held", 3);
    let locks = target.locks(&keys, expiring());
    for held in 0..keys.len() {
        let single = target.lock(&keys[held], expiring()).lock()?;
        let before = values(&keys);
        assert!(locks.try_lock()?.is_none());
        assert!(locks.try_lock_for(millis(30))?.is_none());
        assert_eq!(values(&keys), before, "the others are free, and that one is its holder's");
        assert_eq!(release(single)?, target.released());
        assert_released(locks.try_lock()?.expect("all are free"), target.released());
    }
    Ok(())
}

fn expired_locks_are_taken_over_together(target: &Target) -> Outcome {
    let keys = target.keys("expired", 3);
    let locks = target.locks(&keys, expiring());
    for (expired, timeout) in [(vec![1], Duration::ZERO), (vec![0, 2], LONG), (vec![0, 1, 2], LONG)] {
        for n in expired {
            keys[n].set(PAST);
        }
        let held = locks.try_lock_for(timeout)?.expect("none is held");
        let values = values(&keys);
        assert!(values.iter().all(|value| value.as_deref().is_some_and(|value| value != PAST)));
        held.ensure_held()?;
        assert_released(held, target.released());
        assert!(are_free(&keys));
    }
    // One is held, and those that have expired are left as they are, or free.
    keys[0].set(PAST);
    keys[2].set(FOREIGN);
    assert!(locks.try_lock()?.is_none());
    assert!([None, Some(PAST)].contains(&keys[0].value().as_deref()));
    assert_eq!((keys[1].value(), keys[2].value().as_deref()), (None, Some(FOREIGN)));
    Ok(())
}

fn locks_without_an_expiration_are_acquired_together(target: &Target) -> Outcome {
    let keys = target.keys("unexpiring", 3);
    let locks = target.locks(&keys, LockOptions::without_expiration().timeout(LONG));
    let held = locks.lock()?;
    assert_eq!(values(&keys), [(); 3].map(|()| Some("1".to_owned())));
    assert_eq!((held.remaining(), held.expires_at()), (None, None));
    assert!(matches!(held.extend(), Err(Error::Invalid { .. })));
    assert!(locks.try_lock()?.is_none());
    held.release()?;
    // An expired one is waited for all the same.
    keys[2].set(PAST);
    assert!(locks.try_lock()?.is_none());
    assert_eq!(values(&keys), [None, None, Some(PAST.to_owned())]);
    Ok(())
}

fn a_call_within_a_call_on_one_of_the_keys_is_refused(target: &Target) -> Outcome {
    let keys = target.keys("nested", 3);
    let locker = target.locker();
    let locks = target.locks_through(&locker, &keys[..2], expiring().wait_forever());
    let overlapping = target.locks_through(&locker, &keys[1..], expiring().wait_forever());
    let single = target.lock_through(&locker, &keys[1], expiring().wait_forever());
    let apart = target.lock_through(&locker, &keys[2], expiring());
    let assert_nested = |error: Error| {
        assert!(matches!(&error, Error::Nested { .. }), "{error}");
        assert!(keys.iter().any(|key| error.key() == Some(&key.key)));
    };
    locks.with_result(|_| {
        let before = values(&keys);
        assert_nested(locks.lock().expect_err("it would wait for itself"));
        assert_nested(overlapping.lock().expect_err("one of its keys is held here"));
        assert_nested(single.lock().expect_err("it is one of the keys"));
        assert_eq!(values(&keys), before, "nothing was acquired");
        thread::scope(|scope| scope.spawn(|| assert!(overlapping.try_lock().unwrap().is_none())).join())
            .unwrap();
        apart.with(|_| ())
    })?;
    locks.with(|_| ())?;
    Ok(())
}

fn calls_on_several_keys_join_the_enclosing_ones(target: &Target) -> Outcome {
    let keys = target.keys("reentrant", 3);
    let locker = target.locker();
    let options = expiring().reentrant();
    let locks = target.locks_through(&locker, &keys[..2], options);
    let single = target.lock_through(&locker, &keys[1], options);
    let beyond = target.locks_through(&locker, &keys[1..], options);
    let plain = target.locks_through(&locker, &keys[..2], expiring());
    let lost = locks.with_result(|held| -> Outcome {
        let before = values(&keys);
        locks.with_result(|inner| -> Outcome {
            inner.extend()?;
            single.with(|_| ())?;
            Ok(())
        })?;
        let after = values(&keys);
        assert!(after[0] != before[0] && after[1] != before[1], "the inner call has extended the leases");
        assert!(after[..2].iter().all(Option::is_some), "the inner calls release nothing");
        assert!(matches!(beyond.with(|_| ()), Err(Error::Nested { .. })), "not all its keys are held");
        assert!(matches!(plain.with(|_| ()), Err(Error::Nested { .. })), "both must have the option");
        assert_eq!(keys[2].value(), None);
        keys[1].set(ANOTHERS);
        assert!(held.verify().is_err_and(|error| error.is_lost()));
        assert!(matches!(locks.with(|_| ()), Err(Error::Lost { .. })));
        keys[1].delete();
        Ok(())
    });
    assert!(lost.is_err(), "the enclosing call says so, too");
    assert!(are_free(&keys));
    plain.with(|_| ())?;
    Ok(())
}

fn a_call_that_joins_several_extends_each_by_its_own_options(target: &Target) -> Outcome {
    let keys = target.keys("joined", 2);
    let locker = target.locker();
    let locks = target.locks_through(&locker, &keys, expiring().reentrant());
    let first = target.lock_through(&locker, &keys[0], expiring().reentrant());
    let longer = LockOptions::expiring_after(3 * LONG).timeout(LONG).reentrant();
    let longer = target.lock_through(&locker, &keys[1], longer);

    first.with(|_| {
        longer.with(|_| {
            locks.with_result(|inner| -> Outcome {
                let before = values(&keys);
                inner.extend()?;
                assert!(values(&keys).iter().zip(&before).all(|(after, before)| after != before));
                let left: Vec<_> = inner.guards().iter().filter_map(LockGuard::remaining).collect();
                assert!(left[0] <= LONG && left[1] > 2 * LONG, "{left:?}");
                inner.extend_by(2 * LONG)?;
                assert!(inner.guards().iter().all(|guard| guard.remaining() <= Some(2 * LONG)), "{inner:?}");
                Ok(())
            })
        })
    })???;
    assert!(are_free(&keys));
    Ok(())
}

fn all_leases_are_extended_together(target: &Target) -> Outcome {
    let keys = target.keys("extended", 3);
    let held = target.locks(&keys, expiring()).lock()?;
    let (before, ends) = (values(&keys), held.expires_at());
    thread::sleep(millis(5));
    held.extend()?;
    assert!(held.expires_at() > ends);
    assert!(values(&keys).iter().zip(&before).all(|(after, before)| after.is_some() && after != before));
    held.extend_by(2 * LONG)?;
    assert!(held.remaining() > Some(LONG), "until one is extended by itself: the shortest counts for all");
    held.guards()[1].extend_by(LONG)?;
    assert!(held.remaining() <= Some(LONG), "{held:?}");
    assert_eq!(held.expires_at(), held.guards()[1].expires_at());
    Ok(())
}

fn an_extension_reports_the_lock_that_is_lost(target: &Target) -> Outcome {
    let keys = target.keys("not-extended", 3);
    let locks = target.locks(&keys, expiring());
    for value in [Some(ANOTHERS), None] {
        let held = locks.lock()?;
        let before = values(&keys);
        match value {
            Some(value) => keys[1].set(value),
            None => keys[1].delete(),
        }
        let error = held.extend().expect_err("one is lost");
        assert!(matches!(error, Error::Lost { .. }), "{error}");
        assert_eq!(error.key(), Some(&keys[1].key));
        let after = values(&keys);
        assert_eq!(after[1].as_deref(), value, "it is left alone");
        assert!(after[0] != before[0] && after[2] != before[2], "the others are extended");
        assert_eq!(held.ensure_held().expect_err("one is lost").key(), Some(&keys[1].key));
        assert!(held.guards()[0].ensure_held().is_ok() && held.guards()[2].ensure_held().is_ok());
        let released: Result<Vec<_>, _> = release_all(held).into_iter().map(|(_, outcome)| outcome).collect();
        assert_eq!(released?, [target.released(), Release::Lost, target.released()]);
        assert_eq!(keys[1].value().as_deref(), value, "also by the release");
        keys[1].delete();
    }
    Ok(())
}

fn verification_says_it_of_each_key(target: &Target) -> Outcome {
    let keys = target.keys("verified", 3);
    let held = target.locks(&keys, expiring()).lock()?;
    keys[0].set(ANOTHERS);
    keys[2].delete();
    let error = held.verify().expect_err("two are lost");
    assert!(matches!(error, Error::Lost { reason: LossReason::Taken(_), .. }), "{error:?}");
    assert_eq!(error.key(), Some(&keys[0].key));
    let of_each = held.guards().iter().map(|guard| guard.loss_signal().reason()).collect::<Vec<_>>();
    assert!(matches!(of_each[..], [Some(LossReason::Taken(_)), None, Some(LossReason::Gone)]), "{of_each:?}");
    let error = held.ensure_held().expect_err("two are lost");
    assert_eq!(error.key(), Some(&keys[0].key), "the first of them");
    Ok(())
}

fn a_release_after_the_lease_says_so_of_each_key(target: &Target) -> Outcome {
    let keys = target.keys("outcomes", 3);
    let held = target.locks(&keys, LockOptions::expiring_after(millis(50)).timeout(LONG)).lock()?;
    thread::sleep(millis(60));
    assert!(matches!(held.ensure_held(), Err(Error::Lost { reason: LossReason::Expired, .. })));
    for (key, outcome) in release_all(held) {
        // Bytes that are still there prove that no other client had the lock.
        let proves = target.decided_protocol() != Protocol::Classic;
        let outcome = outcome?;
        assert!(outcome == Release::Expired || proves && outcome == target.released(), "{key}: {outcome:?}");
    }
    Ok(())
}

fn the_loss_of_one_is_noticed_and_acted_upon(target: &Target) -> Outcome {
    let keys = target.keys("noticed", 3);
    let (sender, losses) = mpsc::channel();
    let token = CancelToken::new();
    let held = target.locks(&keys, LockOptions::expiring_after(millis(6000)).timeout(LONG)).lock()?;
    held.on_loss(move |key, reason| sender.send((key.clone(), reason)).unwrap());
    let to_cancel = token.clone();
    held.on_loss(move |_, _| to_cancel.cancel());
    let signal = held.loss_signal();
    assert!(signal.is_held() && !signal.is_lost());
    keys[1].delete();
    assert!(signal.wait_timeout(LONG), "the keeper looks");
    assert_eq!(losses.recv_timeout(LONG)?, (keys[1].key.clone(), LossReason::Gone));
    assert_eq!(signal.reason(), Some(LossReason::Gone));
    // The function of the guard comes after the signal's end.
    while !token.is_cancelled() {
        thread::sleep(millis(1));
    }
    drop(held);
    assert!(losses.recv().is_err(), "once, for the first of them");
    // A release in time is no loss.
    let held = target.locks(&keys, expiring()).lock()?;
    let signal = held.loss_signal();
    held.on_loss(move |_, _| unreachable!("none is lost"));
    assert_released(held, target.released());
    assert!(!signal.is_lost() && !signal.is_held());
    Ok(())
}

fn the_tokens_of_each_key_grow(target: &Target) -> Outcome {
    let keys = target.keys("fenced", 3);
    // The first key's counter is ahead of the others.
    let first = target.lock(&keys[0], expiring()).with(LockGuard::fencing_token)??;
    let mut last = vec![first, 0, 0];
    for _ in 0..3 {
        let held = target.locks(&keys, expiring()).lock()?;
        let tokens = held.fencing_tokens()?;
        assert!(tokens.iter().map(|(key, _)| *key).eq(keys.iter().map(|key| &key.key)));
        let tokens: Vec<u64> = tokens.into_iter().map(|(_, token)| token).collect();
        assert!(tokens.iter().zip(&last).all(|(token, last)| token > last), "{tokens:?} after {last:?}");
        last = tokens;
        assert_released(held, target.released());
    }
    // A single holder goes on with the same counter.
    assert!(target.lock(&keys[2], expiring()).with(LockGuard::fencing_token)?? > last[2]);
    Ok(())
}

fn all_are_kept_or_held_at_least_for_a_time(target: &Target) -> Outcome {
    let keys = target.keys("at-least", 2);
    let locks = target.locks(&keys, expiring().hold_at_least(LONG / 2));
    let held = locks.lock()?;
    let before = values(&keys);
    assert_released(held, Release::LeftToExpire);
    let after = values(&keys);
    for (after, before) in after.iter().zip(&before) {
        assert!(after < before && after.is_some(), "each expires sooner than its lease: {after:?}");
    }
    assert!(locks.try_lock()?.is_none());
    keys.iter().for_each(TestKey::delete);
    let held = locks.lock()?;
    let before = values(&keys);
    held.leave_to_expire()?;
    assert_eq!(values(&keys), before);
    assert!(locks.try_lock()?.is_none());
    Ok(())
}

fn the_holder_is_named_in_each_key(target: &Target) -> Outcome {
    let keys = target.keys("named", 2);
    let held = target.locks_through(&target.locker_named("worker 7")?, &keys, expiring()).lock()?;
    let name = Some("worker 7".to_owned());
    let holders = || {
        keys.iter().map(|key| name_of_holder(&target.lock(key, expiring()))).collect::<Result<Vec<_>, _>>()
    };
    assert_eq!(holders()?, [name.clone(), name]);
    drop(held);
    assert_eq!(holders()?, [None, None]);
    Ok(())
}
