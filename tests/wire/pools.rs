//! Pools of the caller's own, and calls that wait for a connection of a pool.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use redis::{Commands as _, ConnectionLike as _};
use setnx_lock::{CancelToken, Error, Lock, LockOptions, Locker, Protocol};
use setnx_lock_testing::TestServer;

use crate::support::releases::CERTIFIED;
use crate::support::scenario::{BRIEF, FOREIGN, Scenario, brief, client_pool, pool_of_one};
use crate::support::{
    AnyServer, LONG, Outcome, Release, Target, assert_says, expiring, millis, release, trials_of,
};
use crate::threads::successors::{assert_cancelled, successor};
use crate::wire::connections::works;

trials_of! {
    "pools";
    a_plain_pool_of_the_redis_crate,
    a_connection_returns_to_its_pool_with_nothing_watched,
    a_release_that_waits_for_a_connection_beyond_its_lease,
    a_lock_that_is_to_be_held_for_longer_is_given_up_in_time,
    a_release_waits_for_another_command_beyond_the_command_timeout,
    a_pool_whose_settings_do_not_fit_is_refused,
    a_server_that_stops_answering_blocks_no_call_on_a_pool_of_ones_own,
    a_waiter_gets_a_connection_in_place_of_one_that_broke,
    a_pool_that_is_empty_for_the_whole_timeout,
    a_pool_that_is_empty_is_waited_for_for_ever,
}

fn a_plain_pool_of_the_redis_crate() -> Outcome {
    let server = TestServer::start();
    let (locker, pool) = pool_of_one(&server, LONG)?;
    works(&locker, &server, "", 0)?;
    // Shared with other work.
    let () = pool.get()?.set("other", "work")?;
    assert!(redis::cmd("INCR").arg("other").query::<i64>(&mut *pool.get()?).is_err());
    works(&locker, &server, "", 0)?;
    assert_eq!(pool.state().connections, 1);
    // A pool without an open connection, and the longest possible wait.
    let cold = Locker::with_pool(client_pool(&server.url())).build()?;
    let lock = Lock::new(&cold, "cold", expiring())?;
    assert!(lock.try_lock_for(Duration::MAX)?.is_some());
    Ok(())
}

fn a_release_that_waits_for_a_connection_beyond_its_lease() -> Outcome {
    let server = Arc::new(TestServer::start());
    let key = Target::of(&server).key("release");
    for protocol in [Protocol::Classic, Protocol::Watched, Protocol::Ttl] {
        let (locker, pool) = pool_of_one(&server, LONG)?;
        let options = LockOptions::expiring_after(millis(300)).timeout(LONG).protocol(protocol);
        let cancel_token = CancelToken::new();
        let held = Lock::new(&locker, &key.key, options)?.lock()?;
        // It takes nothing over meanwhile.
        let waits = LockOptions::without_expiration().poll_interval(LONG).timeout(LONG);
        let next = successor(&Lock::new(&locker, &key.key, waits)?.cancelled_by(&cancel_token));
        let taken = pool.get()?;
        let releasing = thread::spawn(move || release(held));
        thread::sleep(millis(400));
        key.set(FOREIGN); // the lease has passed, and another client has the lock
        drop(taken);
        // Classic does not look. The lock was given up in time.
        let lost = if protocol == Protocol::Classic { Release::LeftToExpire } else { Release::Lost };
        assert_eq!(releasing.join().unwrap()?, lost, "{protocol:?}");
        cancel_token.cancel();
        assert_cancelled(next);
        assert_eq!(key.value().as_deref(), Some(FOREIGN));
        key.delete();
    }
    Ok(())
}

/// Its lease cannot be cut short before it ends: no loss, since no work was done after it.
fn a_lock_that_is_to_be_held_for_longer_is_given_up_in_time() -> Outcome {
    let server = TestServer::start();
    for protocol in [Protocol::Classic, Protocol::Watched] {
        let (locker, pool) = pool_of_one(&server, LONG)?;
        let options = LockOptions::expiring_after(millis(300)).hold_at_least(millis(200)).protocol(protocol);
        let held = Lock::new(&locker, format!("held longer {protocol:?}"), options)?.lock()?;
        let signal = held.loss_signal();
        let taken = pool.get()?;
        let releasing = thread::spawn(move || release(held));
        thread::sleep(millis(500));
        drop(taken);
        let released = releasing.join().unwrap()?;
        if protocol == Protocol::Classic {
            assert_eq!(released, Release::LeftToExpire);
        }
        assert!(!signal.is_lost(), "{protocol:?}: {released:?}");
    }
    Ok(())
}

/// Another thread's command has the only connection until its time is over, and a new connection takes as long.
fn a_release_waits_for_another_command_beyond_the_command_timeout() -> Outcome {
    for protocol in [Protocol::Classic, Protocol::Watched] {
        let scenario = Scenario::set();
        let (key, other) = (scenario.target.key("released"), scenario.target.key("read"));
        let locker = brief(&scenario.server.url(), 1).command_timeout(millis(1000)).build()?;
        let held = Lock::new(&locker, &key.key, expiring().protocol(protocol))?.lock()?;
        scenario.server.delay_by(|asked| if asked.name == "INFO" { millis(1000) } else { Duration::ZERO });
        let stuck = scenario.server.pause("GET", 1);
        let lock = Lock::new(&locker, &other.key, expiring())?;
        let reading = thread::spawn(move || lock.state());
        stuck.reached();
        let released = release(held)?;
        assert_eq!(released, Release::Released { certified: protocol != Protocol::Classic });
        assert!(matches!(reading.join().unwrap(), Err(Error::Unavailable { .. })));
        assert_eq!(key.value(), None);
    }
    Ok(())
}

fn a_pool_whose_settings_do_not_fit_is_refused() -> Outcome {
    let client = redis::Client::open("redis://127.0.0.1/")?;
    let tests_them = r2d2::Pool::builder().min_idle(Some(0)).build_unchecked(client);
    let own = || Locker::with_pool(client_pool("redis://127.0.0.1/"));
    for (builder, words) in [
        (Locker::with_pool(tests_them), "build the pool with `.test_on_check_out(false)`"),
        (own().pool_size(4), "a pool of your own has its size"),
        (own().connect_timeout(LONG), "set them there"),
        (own().command_timeout(Duration::ZERO), "a timeout of zero"),
    ] {
        let error = builder.build().expect_err(words);
        assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains(words), "{error}");
    }
    Ok(())
}

/// The redis crate's connections have no time limits of their own.
fn a_server_that_stops_answering_blocks_no_call_on_a_pool_of_ones_own() -> Outcome {
    let server = TestServer::start();
    let (locker, pool) = pool_of_one(&server, millis(300))?;
    let lock = Lock::new(&locker, "frozen", expiring().timeout(millis(300)))?;
    // With an open connection, which other work has used, and without one.
    let () = pool.get()?.set("other", "work")?;
    for _ in 0..2 {
        server.hang();
        let error = lock.lock().expect_err("the server is stopped");
        server.resume();
        assert!(error.may_hold_lock() || matches!(error, Error::Unavailable { .. }), "{error:?}");
        lock.clear()?;
    }
    Ok(())
}

fn a_waiter_gets_a_connection_in_place_of_one_that_broke() -> Outcome {
    let server = TestServer::start();
    let (locker, pool) = pool_of_one(&server, BRIEF)?;
    let lock = Lock::new(&locker, "waits", expiring())?;
    let mut taken = pool.get()?;
    let _: String = redis::cmd("PING").query(&mut *taken)?;
    let waiting = thread::spawn(move || lock.try_lock());
    thread::sleep(millis(100));
    server.say(&["CLIENT", "KILL", "TYPE", "normal"])?;
    assert!(redis::cmd("PING").query::<String>(&mut *taken).is_err());
    drop(taken);
    assert!(waiting.join().unwrap()?.is_some());
    Ok(())
}

fn a_pool_that_is_empty_for_the_whole_timeout() -> Outcome {
    let server = Arc::new(TestServer::start());
    let key = Target::of(&server).key("pool");
    let (locker, pool) = pool_of_one(&server, millis(1000))?;
    let options = expiring().timeout(millis(100));
    let lock = Lock::new(&locker, &key.key, options)?;
    let mut taken = pool.get()?;
    let error = lock.lock().expect_err("the pool is empty");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert_says(&error, &key, &[" within ", "make the pool larger"]);
    let _: String = redis::cmd("PING").query(&mut *taken)?;
    assert_eq!(key.value(), None);
    drop(taken);
    // A held lock is kept then, and frees itself.
    let held = lock.lock()?;
    let taken = pool.get()?;
    assert!(matches!(held.release(), Err(Error::Unavailable { .. })));
    assert!(key.value().is_some());
    drop(taken);
    Ok(())
}

fn a_pool_that_is_empty_is_waited_for_for_ever() -> Outcome {
    let server = TestServer::start();
    let (locker, pool) = pool_of_one(&server, millis(1000))?;
    let lock = Lock::new(&locker, "busy", expiring().wait_forever())?;
    let taken = pool.get()?;
    let waiting = thread::spawn(move || lock.lock().map(drop));
    // Longer than a command may take, and than a connection is waited for at a time.
    thread::sleep(millis(2700));
    drop(taken);
    waiting.join().unwrap()?;
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
