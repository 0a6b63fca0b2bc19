//! Values of gems up to 1.4.1 over those of holders: each is written again. What is found within 0.7 s counts, so
//! rounds that a busy machine has made longer are repeated. A gem itself is in `interop/late_getset`.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use setnx_lock::redis::Commands as _;
use setnx_lock::{Locker, Protocol};
use setnx_lock_testing::{Received, TestServer};

use crate::support::rounds::until_soon;
use crate::support::scenario::opened;
use crate::support::sent::probed;
use crate::support::target::PROTOCOLS;
use crate::support::{LONG, Outcome, Target, expiring, millis, name_of_holder, trials_of};

trials_of! {
    "losers";
    a_lock_is_looked_at_once_where_a_gem_was_seen,
    many_values_are_written_again_at_once,
    locks_acquired_one_after_the_other_are_looked_at_once_each,
    a_holder_keeps_its_name,
    a_lock_that_is_lost_is_not_written_again,
}

/// What a gem with this expiration writes.
fn gems_value(expiration: Duration) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{:.6}", (now + expiration).as_secs_f64() + 1.0)
}

/// Has a locker read a gem's value, on another key.
fn see_a_gem(target: &Target, locker: &Locker) -> Outcome {
    let other = target.key("of-a-gem");
    other.set(&gems_value(LONG));
    target.lock_through(locker, &other, expiring()).state()?;
    Ok(())
}

fn a_lock_is_looked_at_once_where_a_gem_was_seen() -> Outcome {
    let server = Arc::new(TestServer::start());
    for protocol in PROTOCOLS {
        let target = Target::of(&server).with(protocol);
        let locker = opened(&server.url())?;
        probed(&locker, protocol)?;
        let key = target.key("looked-at");
        let lock = target.lock_through(&locker, &key, expiring());
        let looks = || {
            let asked = server.log().into_iter();
            asked.filter(|asked| asked.name == "GET" && asked.arguments[0] == key.key.to_string()).count()
        };
        let held = lock.lock()?;
        thread::sleep(millis(500));
        assert_eq!(looks(), 0, "no gem was seen");
        held.release()?;
        see_a_gem(&target, &locker)?;
        until_soon(|| {
            let held = lock.lock()?;
            server.clear_log();
            let end = Instant::now() + millis(1000);
            while looks() == 0 && Instant::now() < end {
                thread::sleep(millis(5));
            }
            let is_looked_at = looks() > 0;
            thread::sleep(millis(500));
            assert_eq!(looks(), usize::from(is_looked_at), "{protocol:?}");
            held.release()?;
            Ok(is_looked_at)
        })?;
    }
    Ok(())
}

fn many_values_are_written_again_at_once() -> Outcome {
    const MANY: usize = 200;
    let server = Arc::new(TestServer::start());
    for (protocol, kept) in PROTOCOLS.into_iter().flat_map(|protocol| [(protocol, true), (protocol, false)]) {
        let target = Target::of(&server).with(protocol);
        let locker = target.locker();
        if !kept {
            see_a_gem(&target, &locker)?;
        }
        let keys = target.keys("many", MANY);
        let options = if kept { expiring().auto_extend(2 * LONG) } else { expiring() };
        let locks = target.locks_through(&locker, &keys, options);
        until_soon(|| {
            let held = locks.lock()?;
            let value = gems_value(millis(200));
            let pairs: Vec<_> = keys.iter().map(|key| (key.key.as_bytes(), &value)).collect();
            let () = target.connection().mset(&pairs)?;
            let mut connection = target.connection();
            let names: Vec<&[u8]> = keys.iter().map(|key| key.key.as_bytes()).collect();
            let mut is_own = || -> redis::RedisResult<bool> {
                let found: Vec<Option<String>> = connection.mget(&names)?;
                Ok(found.iter().all(|found| found.as_ref().is_some_and(|found| *found != value)))
            };
            let end = Instant::now() + millis(1500);
            while !is_own()? && Instant::now() < end {
                thread::sleep(millis(20));
            }
            let is_own = is_own()?;
            let verified = held.verify();
            assert_eq!(verified.is_ok(), is_own, "{protocol:?} {kept}: {verified:?}");
            let released = held.release();
            assert_eq!(released.is_ok(), is_own, "{protocol:?} {kept}: {released:?}");
            let left: usize = connection.del(&names)?;
            assert!(!is_own || left == 0, "{protocol:?} {kept}");
            Ok(is_own)
        })?;
    }
    Ok(())
}

/// A thread acquires a lock each millisecond. What is due early, together with others, is not done once more later.
fn locks_acquired_one_after_the_other_are_looked_at_once_each() -> Outcome {
    const MANY: usize = 100;
    let server = Arc::new(TestServer::start());
    let target = Target::of(&server).with(Protocol::Watched);
    let locker = opened(&server.url())?;
    probed(&locker, Protocol::Watched)?;
    see_a_gem(&target, &locker)?;
    let keys = target.keys("staggered", MANY);
    let locks: Vec<_> = keys.iter().map(|key| target.lock_through(&locker, key, expiring())).collect();
    server.clear_log();
    let mut held = Vec::new();
    for lock in &locks {
        held.push(lock.lock()?);
        thread::sleep(millis(1));
    }
    thread::sleep(millis(1000));
    let asked = server.log();
    for key in &keys {
        let is_look = |asked: &&Received| asked.name == "GET" && asked.arguments[0] == key.key.to_string();
        let count = asked.iter().filter(is_look).count();
        assert!(count <= 1, "{}: {count} looks", key.key);
    }
    Ok(())
}

fn a_holder_keeps_its_name() -> Outcome {
    let server = Arc::new(TestServer::start());
    let target = Target::of(&server).with(Protocol::Watched);
    let locker = target.locker_named("web:7")?;
    see_a_gem(&target, &locker)?;
    let key = target.key("named");
    until_soon(|| {
        let held = target.lock_through(&locker, &key, expiring()).lock()?;
        let value = gems_value(LONG);
        key.set(&value);
        thread::sleep(millis(900));
        let is_own = key.value().is_some_and(|found| found != value);
        if is_own {
            assert_eq!(name_of_holder(&target.lock(&key, expiring()))?.as_deref(), Some("web:7"));
        }
        drop(held);
        key.delete();
        Ok(is_own)
    })
}

/// The holder has learned that its key was cleared. What a gem has written since is its own.
fn a_lock_that_is_lost_is_not_written_again() -> Outcome {
    let server = Arc::new(TestServer::start());
    for protocol in PROTOCOLS {
        let target = Target::of(&server).with(protocol);
        let key = target.key("lost");
        let held = target.lock(&key, expiring()).lock()?;
        key.delete();
        assert!(held.verify().is_err_and(|error| error.is_lost()));
        let value = gems_value(LONG);
        key.set(&value);
        assert!(held.verify().is_err_and(|error| error.is_lost()));
        assert!(held.release().is_err_and(|error| error.is_lost()));
        assert_eq!(key.value(), Some(value));
    }
    Ok(())
}
