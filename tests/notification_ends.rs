//! The end of notifications and listeners: an unused notification goes on to another process, and no entry and no listener is left behind.

use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use redis::Commands as _;
use setnx_lock::{CancelToken, Error, Lock, Locker, Manager};

use crate::servers::Proxy;
use crate::support::monitor::{Monitor, names};
use crate::support::notified::{
    NOTIFIED, Waiter, Worker, connection, elsewhere, keys, list_of, until, until_listening, until_waiting,
};
use crate::support::scenario::{opened, pool_of_one};
use crate::support::{LONG, Outcome, RedisServer, expiring, millis, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "notification_ends",
        tests![
            releases_without_waiters_leave_nothing,
            a_process_that_is_killed_is_passed_over_and_its_list_expires,
            a_notification_for_a_process_without_waiters_goes_on_to_another,
            a_notification_that_comes_while_its_waiter_gives_up_goes_on_to_another,
            a_notification_for_a_process_without_waiters_waits_for_a_connection,
            a_notification_is_not_lost_with_waiters_that_are_cancelled_at_that_moment,
            a_locker_that_is_dropped_stops_listening,
            a_locker_that_is_shut_down_ends_its_waits_and_stops_listening,
        ],
    )
}

fn releases_without_waiters_leave_nothing() -> Outcome {
    let server = RedisServer::start()?;
    let lock = elsewhere(&server, "k", NOTIFIED)?;
    for _ in 0..3 {
        drop(lock.lock()?);
        assert_eq!(keys(&server, "*"), [""; 0]);
    }
    Ok(())
}

fn a_process_that_is_killed_is_passed_over_and_its_list_expires() -> Outcome {
    let server = RedisServer::start()?;
    let mut connection = connection(&server);
    let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
    let mut workers = Vec::new();
    for n in 1..=3 {
        workers.push(Worker::performing(&["wait", &server.url(), "k"])?);
        until_waiting(&server, "k", n);
    }
    until("the list has a time to live", || {
        let left: i64 = connection.ttl(list_of("k")).unwrap();
        (1..=600).contains(&left)
    });
    let waiter = Waiter::of(&elsewhere(&server, "k", NOTIFIED)?);
    until_waiting(&server, "k", 4);
    for worker in &mut workers {
        worker.kill();
    }
    until_listening(&server, 1);
    let monitor = Monitor::on(&server)?;
    drop(held);
    drop(waiter.came()?);
    let commands = monitor.recorded(&server)?;
    let published = names(&commands).iter().filter(|name| **name == "PUBLISH").count();
    assert_eq!(published, 4, "three that no client received, and one: {commands:?}");
    assert_eq!(keys(&server, "*"), [""; 0]);
    Ok(())
}

/// When a waiter gives up: long enough for others to enter the list meanwhile on a busy machine.
const GIVES_UP: Duration = Duration::from_secs(5);

/// Lets a thread of a locker wait. Returns what makes it give up.
type Wait = fn(&RedisServer) -> Result<(Waiter, Box<dyn FnOnce()>), Error>;

fn a_notification_for_a_process_without_waiters_goes_on_to_another() -> Outcome {
    let variants: [Wait; 3] = [
        |server| {
            let lock = elsewhere(server, "k", NOTIFIED.timeout(GIVES_UP))?;
            Ok((Waiter::of(&lock), Box::new(|| ())))
        },
        |server| {
            let cancel_token = CancelToken::new();
            let waiter = Waiter::of(&elsewhere(server, "k", NOTIFIED)?.cancelled_by(&cancel_token));
            Ok((waiter, Box::new(move || cancel_token.cancel())))
        },
        |server| {
            let locker = opened(&server.url())?;
            let waiter = Waiter::of(&Lock::new(&locker, "k", NOTIFIED)?);
            Ok((waiter, Box::new(move || locker.shut_down())))
        },
    ];
    for wait in variants {
        let server = RedisServer::start()?;
        let mut connection = connection(&server);
        let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
        let (first_waiter, give_up) = wait(&server)?;
        until_waiting(&server, "k", 1);
        let first: Vec<String> = connection.lrange(list_of("k"), 0, -1)?;
        let waiter = Waiter::of(&elsewhere(&server, "k", NOTIFIED)?);
        until_waiting(&server, "k", 2);
        give_up();
        let outcome = first_waiter.came();
        assert!(
            matches!(outcome, Err(Error::Timeout { .. } | Error::Cancelled { .. } | Error::ShutDown { .. })),
            "{outcome:?}"
        );
        until_waiting(&server, "k", 1);
        // As if it had been notified just before it left: it still listens.
        let _: i64 = connection.lpush(list_of("k"), first)?;
        let monitor = Monitor::on(&server)?;
        drop(held);
        assert!(waiter.came()?.attempts() <= 3);
        let commands = monitor.recorded(&server)?;
        let published = names(&commands).iter().filter(|name| **name == "PUBLISH").count();
        assert_eq!(published, 2, "one to each: {commands:?}");
    }
    Ok(())
}

/// Several threads of a process wait, all of them are cancelled as another process releases the lock, and a thread of a third waits on.
fn a_notification_is_not_lost_with_waiters_that_are_cancelled_at_that_moment() -> Outcome {
    let server = RedisServer::start()?;
    for n in 0..40_u64 {
        let key = format!("k{n}");
        let held = elsewhere(&server, &key, NOTIFIED)?.lock()?;
        let cancel_token = CancelToken::new();
        let lock = elsewhere(&server, &key, NOTIFIED)?.cancelled_by(&cancel_token);
        let cancelled = [(); 3].map(|()| Waiter::of(&lock));
        until_waiting(&server, &key, 1);
        let waiter = Waiter::of(&elsewhere(&server, &key, NOTIFIED)?);
        until_waiting(&server, &key, 2);
        let release = thread::spawn(move || drop(held));
        thread::sleep(Duration::from_micros(n * 17));
        cancel_token.cancel();
        release.join().unwrap();
        for waiter in cancelled {
            drop(waiter.came());
        }
        drop(waiter.came()?);
    }
    Ok(())
}

/// The only connection of the process that was notified is in use for longer than a waiter would wait for one beside its work.
fn a_notification_for_a_process_without_waiters_waits_for_a_connection() -> Outcome {
    let server = RedisServer::start()?;
    let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
    let (locker, pool) = pool_of_one(&server, LONG)?;
    let cancel_token = CancelToken::new();
    let cancelled = Waiter::of(&Lock::new(&locker, "k", NOTIFIED)?.cancelled_by(&cancel_token));
    until_waiting(&server, "k", 1);
    let waiter = Waiter::of(&elsewhere(&server, "k", NOTIFIED)?);
    until_waiting(&server, "k", 2);
    let connection = pool.get()?;
    cancel_token.cancel();
    assert!(matches!(cancelled.came(), Err(Error::Cancelled { .. })));
    drop(held);
    thread::sleep(millis(400));
    drop(connection);
    drop(waiter.came()?);
    Ok(())
}

/// A locker that listens at the server itself, and sends its commands through a proxy.
fn sending_through(proxy: &Proxy, server: &RedisServer) -> Result<Locker, Box<dyn std::error::Error>> {
    let manager = |url: &str| -> redis::RedisResult<Manager> {
        Ok(Manager::new(redis::Client::open(url)?).command_timeout(LONG))
    };
    let pool = r2d2::Pool::builder().max_size(1).min_idle(Some(0)).test_on_check_out(false);
    let pool = pool.build_unchecked(manager(&proxy.url())?);
    Ok(Locker::with_managed_pool(pool, &manager(&server.url())?))
}

fn a_notification_that_comes_while_its_waiter_gives_up_goes_on_to_another() -> Outcome {
    let server = RedisServer::start()?;
    let proxy = Proxy::before(server.address())?;
    let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
    // Its second attempt, at the deadline, is held.
    let last_attempt = proxy.hold("GET", 2);
    let locker = sending_through(&proxy, &server).unwrap();
    let gives_up = Waiter::of(&Lock::new(&locker, "k", NOTIFIED.timeout(GIVES_UP))?);
    until_waiting(&server, "k", 1);
    let other = Waiter::of(&elsewhere(&server, "k", NOTIFIED)?);
    until_waiting(&server, "k", 2);
    last_attempt.reached();
    let mut monitor = Monitor::on(&server)?;
    drop(held);
    monitor.wait_for("the notification", |words| words[0] == "PUBLISH");
    // Time for it to come to the thread. If it is not enough, the notification comes to a process without waiters.
    thread::sleep(millis(100));
    let third = elsewhere(&server, "k", expiring())?.try_lock()?;
    last_attempt.go_on();
    let gave_up = gives_up.came().is_err();
    if gave_up && third.is_none() {
        // On a busy machine the other looks at the key once more after it has entered the list, and may find it free.
        drop(other.came()?);
        return Ok(());
    }
    assert_eq!(third.is_some(), gave_up, "either of them holds the lock");
    for attempt in ["the attempt of the third locker", "the attempt of the other locker"] {
        monitor.wait_for(attempt, |words| words[0] == "SETNX");
    }
    drop((third, other));
    Ok(())
}

fn a_locker_that_is_dropped_stops_listening() -> Outcome {
    let server = RedisServer::start()?;
    let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
    let lock = elsewhere(&server, "k", NOTIFIED.timeout(GIVES_UP))?;
    let waiter = Waiter::of(&lock);
    until_waiting(&server, "k", 1);
    assert!(waiter.came().is_err());
    drop(lock);
    until_listening(&server, 0);
    drop(held);
    Ok(())
}

fn a_locker_that_is_shut_down_ends_its_waits_and_stops_listening() -> Outcome {
    let server = RedisServer::start()?;
    let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
    let locker = opened(&server.url())?;
    let lock = Lock::new(&locker, "k", NOTIFIED)?;
    let waiters = [(); 3].map(|()| Waiter::of(&lock));
    until_waiting(&server, "k", 1);
    locker.shut_down();
    for waiter in waiters {
        assert!(matches!(waiter.came(), Err(Error::ShutDown { .. })));
    }
    until_listening(&server, 0);
    let monitor = Monitor::on(&server)?;
    drop(held);
    assert!(matches!(lock.lock(), Err(Error::ShutDown { .. })));
    assert!(!names(&monitor.recorded(&server)?).contains(&"SUBSCRIBE"));
    Ok(())
}
