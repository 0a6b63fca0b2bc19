//! The end of notifications and listeners: an unused notification expires or goes on to another process, and no listener is left behind.

use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use redis::Commands as _;
use setnx_lock::{CancelToken, Error, Lock, Locker, Manager};

use crate::servers::Proxy;
use crate::support::monitor::{Monitor, names};
use crate::support::notified::{
    NOTIFIED, Waiter, Worker, connection, elsewhere, keys, listeners, until, until_listening,
};
use crate::support::scenario::opened;
use crate::support::{LONG, Outcome, RedisServer, expiring, millis, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "notification_ends",
        tests![
            releases_without_waiters_leave_one_notification_that_expires,
            a_releaser_that_is_killed_leaves_no_list_without_a_ttl,
            a_notification_for_a_process_without_waiters_goes_on_to_another,
            a_notification_that_comes_while_its_waiter_gives_up_goes_on_to_another,
            a_locker_that_is_dropped_stops_listening,
            a_locker_that_is_shut_down_ends_its_waits_and_stops_listening,
        ],
    )
}

fn releases_without_waiters_leave_one_notification_that_expires() -> Outcome {
    let server = RedisServer::start()?;
    let lock = elsewhere(&server, "k", NOTIFIED)?;
    let mut connection = connection(&server);
    for _ in 0..50 {
        drop(lock.lock()?);
        let (length, ttl): (u32, i64) = redis::pipe()
            .atomic()
            .llen("k:setnx-lock:wake-up")
            .pttl("k:setnx-lock:wake-up")
            .query(&mut connection)?;
        assert!(
            (length == 1 && (1..=2000).contains(&ttl)) || length == 0,
            "{length} notifications, TTL {ttl} ms"
        );
    }
    until("no key is left", || keys(&server, "*").is_empty());
    Ok(())
}

fn a_releaser_that_is_killed_leaves_no_list_without_a_ttl() -> Outcome {
    let server = RedisServer::start()?;
    let mut connection = connection(&server);
    for n in 0..15_u64 {
        let key = format!("k{n}");
        let mut worker = Worker::performing(&["churn", &server.url(), &key])?;
        assert_eq!(worker.says()?, "ready");
        until("a notification is sent", || {
            connection.exists(format!("{key}:setnx-lock:wake-up")).unwrap_or(false)
        });
        thread::sleep(Duration::from_micros(n * 371));
        worker.kill();
        let ttl: i64 = connection.pttl(format!("{key}:setnx-lock:wake-up"))?;
        assert_ne!(ttl, -1, "the list has no TTL");
    }
    until("no notification is left", || keys(&server, "*:setnx-lock:wake-up").is_empty());
    Ok(())
}

/// Lets a thread of a locker wait. Returns what makes it give up.
type Wait = fn(&RedisServer) -> Result<(Waiter, Box<dyn FnOnce()>), Error>;

fn a_notification_for_a_process_without_waiters_goes_on_to_another() -> Outcome {
    let variants: [Wait; 3] = [
        |server| {
            let lock = elsewhere(server, "k", NOTIFIED.timeout(millis(1500)))?;
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
        until_listening(&server, 1);
        let first = listeners(&mut connection);
        let waiter = Waiter::of(&elsewhere(&server, "k", NOTIFIED)?);
        until("the other locker listens", || listeners(&mut connection).iter().any(|id| !first.contains(id)));
        give_up();
        let outcome = first_waiter.came();
        assert!(
            matches!(outcome, Err(Error::Timeout { .. } | Error::Cancelled { .. } | Error::ShutDown { .. })),
            "{outcome:?}"
        );
        // Its BLPOP is open for up to five seconds, and came before that of the other locker.
        drop(held);
        assert_eq!(waiter.came()?.attempts(), 2);
    }
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
    let gives_up = Waiter::of(&Lock::new(&locker, "k", NOTIFIED.timeout(millis(1500)))?);
    until_listening(&server, 1);
    let other = Waiter::of(&elsewhere(&server, "k", NOTIFIED)?);
    until_listening(&server, 2);
    last_attempt.reached();
    let mut monitor = Monitor::on(&server)?;
    drop(held);
    monitor.wait_for("the notification", |words| words[0] == "RPUSH");
    // The locker that received the notification has passed it on to its thread once it listens again.
    monitor.wait_for_a_listener("k");
    let third = elsewhere(&server, "k", expiring())?.try_lock()?;
    last_attempt.go_on();
    assert_eq!(third.is_some(), gives_up.came().is_err(), "either of them holds the lock");
    for attempt in ["the attempt of the third locker", "the attempt of the other locker"] {
        monitor.wait_for(attempt, |words| words[0] == "SETNX");
    }
    drop((third, other));
    Ok(())
}

fn a_locker_that_is_dropped_stops_listening() -> Outcome {
    let server = RedisServer::start()?;
    let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
    let lock = elsewhere(&server, "k", NOTIFIED.timeout(millis(1500)))?;
    let waiter = Waiter::of(&lock);
    until_listening(&server, 1);
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
    until_listening(&server, 1);
    locker.shut_down();
    for waiter in waiters {
        assert!(matches!(waiter.came(), Err(Error::ShutDown { .. })));
    }
    until_listening(&server, 0);
    let monitor = Monitor::on(&server)?;
    drop(held);
    assert!(matches!(lock.lock(), Err(Error::ShutDown { .. })));
    assert!(!names(&monitor.recorded(&server)?).contains(&"BLPOP"));
    Ok(())
}
