//! Pools of the caller's own, and calls that wait for a connection of a pool.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use redis::Commands as _;
use setnx_lock::{CancelToken, Error, Lock, LockOptions, Locker, Manager, Protocol};

use crate::servers::Fault;
use crate::support::releases::record;
use crate::support::scenario::{BRIEF, FOREIGN, Scenario, brief, closed_port, patient, pool_of_one};
use crate::support::{
    LONG, Outcome, RedisServer, Release, Target, assert_says, expiring, millis, release, tests,
};
use crate::threads::successors::{assert_cancelled, successor};
use crate::wire::connections::works;

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "pools",
        tests![
            a_plain_pool_of_the_redis_crate,
            a_pool_of_the_manager_is_shared_with_other_work,
            a_transaction_that_is_refused_leaves_the_connection_usable,
            a_release_that_waits_for_a_connection_beyond_its_lease,
            a_release_waits_for_another_command_beyond_the_command_timeout,
            more_waiters_than_connections,
            more_threads_than_the_server_takes_clients,
            a_pool_that_tests_its_connections_releases_nothing_too_late,
            a_waiter_gets_a_connection_in_place_of_one_that_broke,
            a_pool_that_is_empty_for_the_whole_timeout,
            a_pool_that_is_empty_is_waited_for_for_ever,
            a_pool_of_connections_that_open_themselves_reports_why_they_do_not,
        ],
    )
}

fn a_plain_pool_of_the_redis_crate() -> Outcome {
    let server = RedisServer::start()?;
    let pool = r2d2::Pool::builder()
        .max_size(2)
        .test_on_check_out(false)
        .build(redis::Client::open(server.url())?)?;
    works(&Locker::with_pool(pool), &server, "", 0)?;
    // A pool without an open connection, and the longest possible wait.
    let cold = r2d2::Pool::builder().min_idle(Some(0)).build_unchecked(redis::Client::open(server.url())?);
    let lock = Lock::new(&Locker::with_pool(cold), "cold", expiring())?;
    assert!(lock.try_lock_for(Duration::MAX)?.is_some());
    Ok(())
}

fn a_pool_of_the_manager_is_shared_with_other_work() -> Outcome {
    let server = RedisServer::start()?;
    // With a PING for each checkout, r2d2's default.
    let pool = r2d2::Pool::builder()
        .max_size(1)
        .build(Manager::new(redis::Client::open(server.url())?).command_timeout(LONG))?;
    let locker = Locker::with_pool(pool.clone());
    works(&locker, &server, "", 0)?;
    let () = pool.get()?.set("other", "work")?;
    let (a, b): (String, i64) = redis::pipe().get("other").incr("n", 1).query(&mut *pool.get()?)?;
    assert_eq!((a.as_str(), b), ("work", 1));
    // A connection stays in use after an error reply.
    assert!(redis::cmd("INCR").arg("other").query::<i64>(&mut *pool.get()?).is_err());
    works(&locker, &server, "", 0)?;
    assert_eq!(pool.state().connections, 1);
    Ok(())
}

fn a_transaction_that_is_refused_leaves_the_connection_usable() -> Outcome {
    let server = RedisServer::start()?;
    let (locker, pool) = pool_of_one(&server, LONG)?;
    let mut connection = pool.get()?;
    let refused = redis::pipe().atomic().cmd("SET").arg("k").query::<()>(&mut *connection);
    let error = refused.expect_err("SET needs a value");
    assert!(matches!(error.kind(), redis::ErrorKind::Server(_)), "{error:?}");
    let pong: String = redis::cmd("PING").query(&mut *connection)?;
    assert_eq!(pong, "PONG");
    drop(connection);
    assert!(Lock::new(&locker, "shared", expiring())?.try_lock()?.is_some());
    Ok(())
}

fn a_release_that_waits_for_a_connection_beyond_its_lease() -> Outcome {
    let server = Arc::new(RedisServer::start()?);
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
        assert_eq!(releasing.join().unwrap()?, Release::Expired, "{protocol:?}");
        cancel_token.cancel();
        assert_cancelled(next);
        assert_eq!(key.value().as_deref(), Some(FOREIGN));
        key.delete();
    }
    Ok(())
}

/// Another thread's command has the only connection until its time is over, and a new connection takes as long.
fn a_release_waits_for_another_command_beyond_the_command_timeout() -> Outcome {
    for protocol in [Protocol::Classic, Protocol::Watched] {
        let scenario = Scenario::set()?;
        let (key, other) = (scenario.target.key("released"), scenario.target.key("read"));
        let locker = brief(&scenario.proxy.url(), 1).command_timeout(millis(1000)).build()?;
        let held = Lock::new(&locker, &key.key, expiring().protocol(protocol))?.lock()?;
        scenario.proxy.slow_down(|asked| if asked.name == "INFO" { millis(1000) } else { Duration::ZERO });
        let stuck = scenario.proxy.hold("GET", 1);
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

fn more_waiters_than_connections() -> Outcome {
    let server = Arc::new(RedisServer::start()?);
    let key = Target::of(&server).key("waiters");
    key.set(FOREIGN);
    let locker = patient(&server.url())?.pool_size(1).build()?;
    let lock = Lock::new(&locker, &key.key, expiring().poll_interval(millis(20)))?;
    let waiters: Vec<_> = vec![lock; 32]
        .into_iter()
        .map(|lock| {
            thread::spawn(move || {
                (0..3).try_for_each(|_| lock.try_lock_for(millis(100)).map(|held| assert!(held.is_none())))
            })
        })
        .collect();
    // All make their last attempt at about the same time: they wait for the one connection, and get their reply.
    waiters.into_iter().try_for_each(|waiter| waiter.join().unwrap())?;
    Ok(())
}

fn more_threads_than_the_server_takes_clients() -> Outcome {
    // With a password the server refuses AUTH, without one the first command.
    for (config, password, protocol) in [
        ("requirepass secret", ":secret@", Protocol::Classic),
        ("", "", Protocol::Classic),
        ("", "", Protocol::Watched),
    ] {
        let server = RedisServer::start_with(&format!("maxclients 1\n{config}"))?;
        let manager = Manager::new(redis::Client::open(format!("redis://{password}{}/", server.address()))?)
            .command_timeout(LONG);
        let builder = r2d2::Pool::builder().max_size(4).min_idle(Some(0)).test_on_check_out(false);
        let pool = builder.build_unchecked(manager.clone());
        let locker = Locker::with_managed_pool(pool.clone(), &manager).observed_by(record);
        // The pool cannot grow; a call that can wait for its one connection does not fail for that.
        let held = Lock::new(&locker, "clients", expiring().protocol(protocol))?.lock()?;
        let taken = pool.get()?;
        let releasing = thread::spawn(move || release(held));
        thread::sleep(millis(600));
        assert!(!releasing.is_finished(), "{:?}", releasing.join());
        drop(taken);
        let certified = protocol != Protocol::Classic;
        assert_eq!(releasing.join().unwrap()?, Release::Released { certified });
    }
    Ok(())
}

fn a_pool_that_tests_its_connections_releases_nothing_too_late() -> Outcome {
    let scenario = Scenario::set()?;
    let key = scenario.target.key("tested");
    let manager = Manager::new(redis::Client::open(scenario.proxy.url())?).command_timeout(LONG);
    let pool = r2d2::Pool::builder().max_size(1).test_on_check_out(true).build(manager.clone())?;
    let locker = Locker::with_managed_pool(pool, &manager).observed_by(record);
    let held =
        Lock::new(&locker, &key.key, LockOptions::expiring_after(millis(500)).timeout(LONG))?.lock()?;
    key.set(FOREIGN);
    scenario.proxy.next("PING", Fault::AnswerLate(millis(700)));
    assert_eq!(release(held)?, Release::Expired, "the connection test outlasted the lease");
    assert_eq!(key.value().as_deref(), Some(FOREIGN));
    Ok(())
}

fn a_waiter_gets_a_connection_in_place_of_one_that_broke() -> Outcome {
    let server = RedisServer::start()?;
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
    let server = Arc::new(RedisServer::start()?);
    let key = Target::of(&server).key("pool");
    let (managed, pool) = pool_of_one(&server, millis(1000))?;
    let options = expiring().timeout(millis(100));
    for (locker, words) in
        [(managed, "make the pool larger"), (Locker::with_pool(pool.clone()), "the pool is large enough")]
    {
        let lock = Lock::new(&locker, &key.key, options)?;
        let mut taken = pool.get()?;
        let error = lock.lock().expect_err("the pool is empty");
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        assert_says(&error, &key, &[" within ", words]);
        let _: String = redis::cmd("PING").query(&mut *taken)?;
        assert_eq!(key.value(), None);
        drop(taken);
        // A held lock is kept then, and frees itself.
        let held = lock.lock()?;
        let taken = pool.get()?;
        assert!(matches!(held.release(), Err(Error::Unavailable { .. })));
        assert!(key.value().is_some());
        drop(taken);
        key.delete();
    }
    Ok(())
}

fn a_pool_that_is_empty_is_waited_for_for_ever() -> Outcome {
    let server = RedisServer::start()?;
    let (locker, pool) = pool_of_one(&server, millis(1000))?;
    let lock = Lock::new(&locker, "busy", expiring().wait_forever())?;
    let taken = pool.get()?;
    let waiting = thread::spawn(move || lock.lock().map(drop));
    // Longer than a command may take.
    thread::sleep(millis(1500));
    drop(taken);
    waiting.join().unwrap()?;
    Ok(())
}

fn a_pool_of_connections_that_open_themselves_reports_why_they_do_not() -> Outcome {
    let locker = |url: &str| -> Result<Locker, Box<dyn std::error::Error>> {
        // So long an unreachable server is waited for.
        let builder = r2d2::Pool::builder().max_size(2).connection_timeout(millis(1000));
        let manager = Manager::new(redis::Client::open(url)?);
        // r2d2 would test a connection by opening it.
        Ok(Locker::with_pool(builder.test_on_check_out(false).build(manager)?))
    };
    let server = RedisServer::start_with("requirepass secret")?;
    let wrong = locker(&server.url().replace("redis://", "redis://:wrong@"))?;
    let lock = Lock::new(&wrong, "password", expiring())?;
    assert!(matches!(lock.lock(), Err(Error::Refused { .. })), "{:?}", lock.lock());
    let down = locker(&format!("redis://127.0.0.1:{}/", closed_port()?))?;
    let (lock, began) = (Lock::new(&down, "down", expiring())?, Instant::now());
    for acquired in [lock.try_lock(), lock.lock().map(Some)] {
        assert!(matches!(&acquired, Err(Error::Unavailable { .. })), "{acquired:?}");
    }
    assert!(began.elapsed() < LONG, "until it is taken to be unreachable, not for the whole timeout");
    Ok(())
}
