//! What becomes of tokens that nobody waits for, and of those who listen for them: nothing is left behind, and what one process has no
//! use for goes on to another.

use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use redis::Commands as _;
use setnx_lock::{CancelToken, Error, Lock, Locker, Manager};

use crate::servers::Proxy;
use crate::support::monitor::{Monitor, names};
use crate::support::notified::{
    NOTIFIED, Waiter, Worker, connection, elsewhere, keys, until, until_listening,
};
use crate::support::{LONG, Outcome, RedisServer, expiring, millis, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "notification_ends",
        tests![
            releases_that_nobody_waits_for_leave_one_token_that_ends,
            a_releaser_that_is_killed_leaves_no_list_without_an_end,
            a_token_for_a_process_where_nobody_waits_any_more_goes_on_to_another,
            a_token_that_comes_while_its_waiter_gives_up_goes_on_to_another,
            a_locker_that_is_dropped_stops_listening,
            a_locker_that_is_shut_down_ends_its_waits_and_stops_listening,
        ],
    )
}

fn releases_that_nobody_waits_for_leave_one_token_that_ends() -> Outcome {
    let server = RedisServer::start()?;
    let lock = elsewhere(&server, "k", NOTIFIED)?;
    let mut connection = connection(&server);
    for _ in 0..50 {
        drop(lock.lock()?);
        let (tokens, time): (u32, i64) = redis::pipe()
            .atomic()
            .llen("k:setnx-lock:wake-up")
            .pttl("k:setnx-lock:wake-up")
            .query(&mut connection)?;
        assert!((tokens == 1 && (1..=2000).contains(&time)) || tokens == 0, "{tokens} tokens, for {time} ms");
    }
    until("nothing is left", || keys(&server, "*").is_empty());
    Ok(())
}

fn a_releaser_that_is_killed_leaves_no_list_without_an_end() -> Outcome {
    let server = RedisServer::start()?;
    let mut connection = connection(&server);
    for n in 0..15_u64 {
        let key = format!("k{n}");
        let mut worker = Worker::playing(&["churn", &server.url(), &key])?;
        assert_eq!(worker.says()?, "ready");
        until("it works", || connection.exists(format!("{key}:setnx-lock:wake-up")).unwrap_or(false));
        thread::sleep(Duration::from_micros(n * 371));
        worker.kill();
        let time: i64 = connection.pttl(format!("{key}:setnx-lock:wake-up"))?;
        assert_ne!(time, -1, "a list without an end");
    }
    until("no token is left", || keys(&server, "*:setnx-lock:wake-up").is_empty());
    Ok(())
}

/// Lets somebody wait and give up.
type GivesUp = fn(&RedisServer) -> Result<(), Error>;

fn a_token_for_a_process_where_nobody_waits_any_more_goes_on_to_another() -> Outcome {
    let variants: [GivesUp; 3] = [
        |server| {
            let waiter = Waiter::of(&elsewhere(server, "k", NOTIFIED.timeout(millis(200)))?);
            until_listening(server, 1);
            assert!(matches!(waiter.came(), Err(Error::Timeout { .. })));
            Ok(())
        },
        |server| {
            let cancel_token = CancelToken::new();
            let waiter = Waiter::of(&elsewhere(server, "k", NOTIFIED)?.cancelled_by(&cancel_token));
            until_listening(server, 1);
            cancel_token.cancel();
            assert!(matches!(waiter.came(), Err(Error::Cancelled { .. })));
            Ok(())
        },
        |server| {
            let locker = Locker::open(&server.url())?;
            let waiter = Waiter::of(&Lock::new(&locker, "k", NOTIFIED)?);
            until_listening(server, 1);
            locker.shut_down();
            assert!(matches!(waiter.came(), Err(Error::ShutDown { .. })));
            Ok(())
        },
    ];
    for gives_up in variants {
        let server = RedisServer::start()?;
        let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
        gives_up(&server)?;
        // It is still listening, and before the other.
        until_listening(&server, 1);
        let waiter = Waiter::of(&elsewhere(&server, "k", NOTIFIED)?);
        until_listening(&server, 2);
        drop(held);
        assert_eq!(waiter.came()?.attempts(), 2);
    }
    Ok(())
}

/// A locker that listens at the server itself, while its commands go through a gate.
fn through_a_gate(server: &RedisServer, proxy: &Proxy) -> Result<Locker, Box<dyn std::error::Error>> {
    let manager = |url: &str| -> redis::RedisResult<Manager> {
        Ok(Manager::new(redis::Client::open(url)?).command_timeout(LONG))
    };
    let pool = r2d2::Pool::builder().max_size(1).min_idle(Some(0)).test_on_check_out(false);
    let pool = pool.build_unchecked(manager(&proxy.url())?);
    Ok(Locker::with_managed_pool(pool, &manager(&server.url())?))
}

fn a_token_that_comes_while_its_waiter_gives_up_goes_on_to_another() -> Outcome {
    let server = RedisServer::start()?;
    let proxy = Proxy::before(server.address())?;
    let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
    // It looks a second time at its deadline, and is kept from it.
    let last_look = proxy.hold("GET", 2);
    let locker = through_a_gate(&server, &proxy).unwrap();
    let gives_up = Waiter::of(&Lock::new(&locker, "k", NOTIFIED.timeout(millis(300)))?);
    until_listening(&server, 1);
    let other = Waiter::of(&elsewhere(&server, "k", NOTIFIED)?);
    until_listening(&server, 2);
    last_look.reached();
    let mut monitor = Monitor::on(&server)?;
    drop(held);
    monitor.wait_for("the token", |words| words[0] == "RPUSH");
    // Whoever was given the token has it once it waits for the next.
    monitor.wait_for_a_listener("k");
    let stranger = elsewhere(&server, "k", expiring())?.try_lock()?;
    last_look.go_on();
    assert_eq!(stranger.is_some(), gives_up.came().is_err(), "the stranger was faster");
    monitor.wait_for("the other one's try", |words| words[0] == "SETNX");
    monitor.wait_for("the other one's try", |words| words[0] == "SETNX");
    drop((stranger, other));
    Ok(())
}

fn a_locker_that_is_dropped_stops_listening() -> Outcome {
    let server = RedisServer::start()?;
    let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
    let lock = elsewhere(&server, "k", NOTIFIED.timeout(millis(200)))?;
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
    let locker = Locker::open(&server.url())?;
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
