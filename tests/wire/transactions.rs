//! The transactions of Watched and Ttl on a real server.

use std::sync::Arc;
use std::time::{Duration, SystemTime};
use std::{mem, thread};

use libtest_mimic::Trial;
use redis::ConnectionLike as _;
use setnx_lock::{Error, Lock, LockGuard, LockOptions, Protocol};
use setnx_lock_testing::{Fault, TestServer};

use crate::support::scenario::{FOREIGN, Scenario, patient, pool_of_one};
use crate::support::sent::probed;
use crate::support::{
    AnyServer, LONG, Outcome, PAST, Release, Target, TestKey, expiring, millis, release, release_all, tests,
};

pub(crate) const BOTH: [Protocol; 2] = [Protocol::Watched, Protocol::Ttl];
pub(crate) const CERTIFIED: Release = Release::Released { certified: true };
pub(crate) const UNCERTIFIED: Release = Release::Released { certified: false };

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "transactions",
        tests![
            only_ttl_puts_a_time_to_live_on_the_key,
            a_ttl_contender_leaves_a_key_with_a_time_to_live_to_the_server,
            the_server_frees_the_lock_of_a_crashed_holder,
            what_another_client_wrote_is_deleted_only_if_it_lost_a_takeover,
            a_lock_that_outlived_its_lease_without_contention_is_released_and_certified,
            a_lost_takeover_overwrites_nothing,
            a_key_that_is_written_after_it_was_read_is_not_deleted,
            a_connection_returns_to_its_pool_with_nothing_watched,
        ],
    )
}

fn only_ttl_puts_a_time_to_live_on_the_key() -> Outcome {
    let server = Arc::new(TestServer::start());
    let lease = i64::try_from(LONG.as_millis())?;
    for protocol in [Protocol::Classic, Protocol::Watched, Protocol::Ttl] {
        let target = Target::of(&server).with(protocol);
        let key = target.key("time-to-live");
        let lock = target.lock(&key, expiring());
        for before in [None, Some(PAST)] {
            if let Some(past) = before {
                key.set(past);
            }
            let held = lock.lock()?;
            let left = key.time_to_live();
            if protocol == Protocol::Ttl {
                // Half a second more than the expiration.
                assert!((lease + 1..=lease + 500).contains(&left), "{protocol:?} after {before:?}: {left}");
            } else {
                assert_eq!(left, -1, "{protocol:?} after {before:?}");
            }
            assert_eq!(release(held)?, target.released());
        }
    }
    Ok(())
}

fn a_ttl_contender_leaves_a_key_with_a_time_to_live_to_the_server() -> Outcome {
    let server = Arc::new(TestServer::start());
    let target = Target::of(&server).with(Protocol::Ttl);
    let keys = target.keys("another-clock", 2);
    let key = &keys[0];
    let lock = target.lock(key, expiring().timeout(Duration::ZERO));
    let locks = target.locks(&keys, expiring().timeout(Duration::ZERO));
    // As a holder writes it whose clock is years behind.
    server.say(&["SET", &key.key.to_string(), PAST, "PX", "600000"])?;
    assert!(matches!(lock.lock(), Err(Error::Contended { .. })));
    assert!(matches!(locks.lock(), Err(Error::Contended { .. })));
    assert_eq!(key.value().as_deref(), Some(PAST));
    // A client that goes by its clock takes the key over.
    target.with(Protocol::Watched).lock(key, expiring()).lock()?.release()?;
    server.say(&["SET", &key.key.to_string(), PAST, "PX", "1"])?;
    target.lock(key, expiring().timeout(LONG)).lock()?.release()?;
    // What no server removes is taken over by the clock, and one of several locks that has expired one by one.
    key.set(PAST);
    for (_, released) in release_all(locks.lock()?) {
        assert_eq!(released?, CERTIFIED);
    }
    Ok(())
}

fn the_server_frees_the_lock_of_a_crashed_holder() -> Outcome {
    let server = Arc::new(TestServer::start());
    let target = Target::of(&server).with(Protocol::Ttl);
    let key = target.key("crashed");
    mem::forget(target.lock(&key, LockOptions::expiring_after(millis(100)).timeout(LONG)).lock()?);
    let until: f64 = key.value().expect("held").parse()?;
    // No client asks for the lock: the server removes it, half a second after the lease, and long before the value has expired.
    let until = until - 9.5;
    let end = SystemTime::now() + LONG;
    while key.value().is_some() {
        assert!(SystemTime::now() < end, "the server does not remove it");
        thread::sleep(millis(10));
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs_f64();
    assert!(now >= until, "removed at {now}, before {until}");
    // Without an expiration there is no time to live.
    let error = Lock::new(&target.locker(), "k", LockOptions::without_expiration().protocol(Protocol::Ttl));
    assert!(matches!(&error, Err(Error::Invalid { .. })), "{error:?}");
    assert!(error.unwrap_err().to_string().contains("the protocol Ttl needs an expiration"));
    Ok(())
}

fn what_another_client_wrote_is_deleted_only_if_it_lost_a_takeover() -> Outcome {
    let server = Arc::new(TestServer::start());
    for protocol in BOTH {
        let target = Target::of(&server).with(protocol);
        let key = target.key("another");
        let lock = target.lock(&key, expiring());
        for n in 0..7 {
            let held = lock.lock()?;
            let (other, outcome) = match n {
                // Of a gem from 1.4.2 on, of a lock without an expiration, of another of this library.
                0 => (String::new(), Release::Lost),
                1 => ("1".to_owned(), Release::Lost),
                2 => (FOREIGN.to_owned(), Release::Lost),
                // Of this library at about the same time.
                3 => (format!("{}1234567", key.value().expect("held").split_at(18).0), Release::Lost),
                // Of a gem up to 1.4.1, with this expiration and another.
                4 => (classic_value(&held, 1050), UNCERTIFIED),
                5 => (classic_value(&held, 60_000), UNCERTIFIED),
                // The same, too late for one that lost a takeover.
                _ => (classic_value(&held, 1050), Release::Lost),
            };
            if n == 6 {
                // The key is looked at in between.
                thread::sleep(millis(701));
            }
            key.set(&other);
            assert_eq!(release(held)?, outcome, "{other:?}");
            assert_eq!(key.value(), (outcome == Release::Lost).then_some(other));
            key.delete();
        }
    }
    Ok(())
}

/// What a gem writes whose time is so much later than the end of the lease.
fn classic_value(held: &LockGuard, millis: i64) -> String {
    let until = held.expires_at().expect("it expires").timestamp_micros() + millis * 1000;
    format!("{}.{:06}", until / 1_000_000, until % 1_000_000)
}

fn a_lock_that_outlived_its_lease_without_contention_is_released_and_certified() -> Outcome {
    let server = Arc::new(TestServer::start());
    let target = Target::of(&server).with(Protocol::Watched);
    let key = target.key("outlived");
    let held = target.lock(&key, LockOptions::expiring_after(millis(20)).timeout(LONG)).lock()?;
    thread::sleep(millis(30));
    assert!(held.ensure_held().is_err(), "the lease has passed");
    assert_eq!(release(held)?, CERTIFIED, "no other holder took the lock");
    assert_eq!(key.value(), None);
    Ok(())
}

/// Writes the key after the server has executed this GET, whose reply is delayed.
fn write_after_get(scenario: &Scenario, key: &TestKey, value: &str, nth_get: usize) {
    let sent = || scenario.server.names().iter().filter(|name| *name == "GET").count() >= nth_get;
    while !sent() {
        thread::sleep(millis(1));
    }
    // The server has read the command, and executes it a moment later.
    thread::sleep(millis(50));
    key.set(value);
}

fn a_lost_takeover_overwrites_nothing() -> Outcome {
    // After which GET another client writes the key, and the commands that follow SETNX or SET.
    for (protocol, nth, commands) in [
        (Protocol::Watched, 1, "GET WATCH GET MULTI DISCARD"),
        (Protocol::Watched, 2, "GET WATCH GET MULTI SET EXEC GET"),
        (Protocol::Ttl, 2, "GET WATCH GET PTTL MULTI SET EXEC GET"),
    ] {
        let scenario = Scenario::set();
        let key = scenario.target.key("faster");
        key.set(PAST);
        let locker = patient(&scenario.server.url())?.pool_size(1).build()?;
        probed(&locker, protocol)?;
        scenario.server.clear_log();
        let lock = Lock::new(&locker, &key.key, expiring().protocol(protocol).timeout(Duration::ZERO))?;
        scenario.server.nth("GET", nth, Fault::DelayReply(millis(800)));
        let contending = thread::spawn(move || lock.lock());
        write_after_get(&scenario, &key, FOREIGN, nth);
        let error = contending.join().unwrap().expect_err("another client was faster");
        assert!(matches!(error, Error::Contended { .. }), "{error:?}");
        assert!(nth == 1 || error.to_string().contains("last seen: held until 2030"), "{error}");
        assert_eq!(key.value().as_deref(), Some(FOREIGN));
        assert_eq!(scenario.server.names()[1..].join(" "), commands);
    }
    Ok(())
}

fn a_key_that_is_written_after_it_was_read_is_not_deleted() -> Outcome {
    for protocol in BOTH {
        let scenario = Scenario::set();
        let key = scenario.target.key("written");
        let locker = patient(&scenario.server.url())?.pool_size(1).build()?;
        probed(&locker, protocol)?;
        scenario.server.clear_log();
        let held = Lock::new(&locker, &key.key, expiring().protocol(protocol))?.lock()?;
        scenario.server.next("GET", Fault::DelayReply(millis(800)));
        let releasing = thread::spawn(move || release(held));
        write_after_get(&scenario, &key, FOREIGN, 1);
        assert_eq!(releasing.join().unwrap()?, Release::Lost);
        assert_eq!(key.value().as_deref(), Some(FOREIGN));
        // Read again after the failed transaction, and left alone.
        assert_eq!(
            scenario.server.names()[1..].join(" "),
            "WATCH GET MULTI DEL EXEC WATCH GET MULTI DISCARD"
        );
    }
    Ok(())
}

fn a_connection_returns_to_its_pool_with_nothing_watched() -> Outcome {
    let server = Arc::new(TestServer::start());
    let target = Target::of(&server);
    let key = target.key("watched");
    let (locker, pool) = pool_of_one(&server, LONG)?;
    let lock = Lock::new(&locker, &key.key, expiring().protocol(Protocol::Watched))?;
    let id = || redis::cmd("CLIENT").arg("ID").query::<i64>(&mut pool.get().unwrap()).unwrap();
    let before = id();
    let held = lock.lock()?;
    key.set(FOREIGN);
    assert_eq!(release(held)?, Release::Lost);
    assert!(lock.try_lock()?.is_none());
    // A key that is still watched would make this transaction fail.
    key.set("1895000000.6");
    let mut connection = pool.get()?;
    let mut transaction = redis::pipe();
    transaction.atomic().set(key.key.as_bytes(), "mine");
    let done = connection.req_packed_commands(&transaction.get_packed_pipeline(), 2, 1)?;
    assert_eq!(done, [redis::Value::Array(vec![redis::Value::Okay])]);
    drop(connection);
    key.delete();
    assert_eq!(release(lock.lock()?)?, CERTIFIED);
    assert_eq!(id(), before, "no connection was replaced");
    Ok(())
}
