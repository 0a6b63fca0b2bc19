//! Notifications and faults of servers, networks, users' rights and processes: a waiter polls then, and the observer is notified once.

use std::time::Duration;

use libtest_mimic::Trial;
use redis::Commands as _;
use setnx_lock::{Lock, LockOptions, Locker};

use crate::support::monitor::{Monitor, names};
use crate::support::notified::{
    NOTIFIED, Reasons, Waiter, Worker, connection, elsewhere, keys, listeners, until, until_listening,
};
use crate::support::raw::Wire;
use crate::support::scenario::opened;
use crate::support::{LONG, Outcome, RedisServer, expiring, millis, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "notification_faults",
        tests![
            a_listener_whose_connection_is_cut_reconnects_and_reports_it_once,
            a_listener_that_is_unblocked_with_an_error_listens_again,
            a_server_that_is_restarted,
            a_server_that_freezes_and_thaws,
            a_lost_notification_delays_no_later_waiter,
            a_user_without_the_right_to_listen_polls,
            a_user_without_the_right_to_notify_releases_all_the_same,
            a_user_without_the_right_to_notify_acquires_a_free_lock_at_once,
            a_user_without_transactions_leaves_no_list_without_a_ttl,
            a_wake_channel_that_is_not_a_list,
            a_waiter_that_is_stopped_or_killed_blocks_no_other,
        ],
    )
}

/// Options of a waiter that polls.
const POLLED: LockOptions =
    LockOptions::expiring_after(LONG).timeout(LONG).poll_interval(Duration::from_millis(20)).notify_waiters();

/// Closes the connections of all listeners.
fn cut_listeners(server: &RedisServer) {
    let mut connection = connection(server);
    for id in listeners(&mut connection) {
        let _: i64 = redis::cmd("CLIENT").arg(&["KILL", "ID", &id]).query(&mut connection).unwrap();
    }
}

fn a_listener_whose_connection_is_cut_reconnects_and_reports_it_once() -> Outcome {
    let server = RedisServer::start()?;
    let reasons = Reasons::default();
    let observed = reasons.of(&server.url(), "k", NOTIFIED)?;
    let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
    let waiter = Waiter::of(&observed);
    for _ in 0..3 {
        until_listening(&server, 1);
        cut_listeners(&server);
        until("it is reported", || !reasons.reported().is_empty());
    }
    until_listening(&server, 1);
    assert!(waiter.still_waits());
    drop(held);
    let held = waiter.came()?;
    let reported = reasons.reported();
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert!(reported[0].contains("closed the connection"), "{reported:?}");

    // It has worked meanwhile, so the next failure is reported again.
    let other = Waiter::of(&elsewhere(&server, "k", NOTIFIED)?);
    until_listening(&server, 2);
    cut_listeners(&server);
    until("it is reported again", || reasons.reported().len() == 2);
    until_listening(&server, 2);
    drop(held);
    drop(other.came()?);
    Ok(())
}

fn a_listener_that_is_unblocked_with_an_error_listens_again() -> Outcome {
    let server = RedisServer::start()?;
    let reasons = Reasons::default();
    let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
    let waiter = Waiter::of(&reasons.of(&server.url(), "k", NOTIFIED)?);
    until_listening(&server, 1);
    let mut connection = connection(&server);
    // As a server does when it becomes a replica.
    let id = listeners(&mut connection).remove(0);
    let _: i64 = redis::cmd("CLIENT").arg(&["UNBLOCK", &id, "ERROR"]).query(&mut connection)?;
    until("it is reported", || reasons.reported().len() == 1);
    assert!(reasons.reported()[0].contains("UNBLOCKED"), "{:?}", reasons.reported());
    until_listening(&server, 1);
    drop(held);
    drop(waiter.came()?);
    Ok(())
}

fn a_server_that_is_restarted() -> Outcome {
    let mut server = RedisServer::start()?;
    let reasons = Reasons::default();
    let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
    let waiter = Waiter::of(&reasons.of(&server.url(), "k", NOTIFIED)?);
    until_listening(&server, 1);
    server.restart()?;
    until_listening(&server, 1);
    assert_eq!(reasons.reported().len(), 1, "{:?}", reasons.reported());
    // The key went with the server.
    drop(elsewhere(&server, "k", NOTIFIED)?.lock()?);
    drop(waiter.came()?);
    drop(held);
    Ok(())
}

fn a_server_that_freezes_and_thaws() -> Outcome {
    let server = RedisServer::start()?;
    let reasons = Reasons::default();
    let locker = Locker::builder(&server.url())?
        .connect_timeout(millis(1000))
        .command_timeout(millis(1000))
        .build()?;
    let waiting = Lock::new(&locker.observed_by(reasons.clone()), "k", NOTIFIED)?;
    let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
    let waiter = Waiter::of(&waiting);
    until_listening(&server, 1);
    server.freeze();
    let reported = std::panic::catch_unwind(|| until("it is reported", || !reasons.reported().is_empty()));
    server.thaw();
    assert!(reported.is_ok() && reasons.reported().len() == 1, "{:?}", reasons.reported());
    until_listening(&server, 1);
    drop(held);
    drop(waiter.came()?);
    Ok(())
}

fn a_lost_notification_delays_no_later_waiter() -> Outcome {
    let mut server = RedisServer::start()?;
    // Another client receives the notification first, and does not use it.
    let mut other = Wire::to(&server.url());
    other.send("BLPOP k:setnx-lock:wake-up 0");
    until_listening(&server, 1);
    let held = elsewhere(&server, "k", expiring())?.lock()?;
    let locker = opened(&server.url())?;
    let waiter = Waiter::of(&Lock::new(&locker, "k", POLLED)?);
    until_listening(&server, 2);
    drop(held);
    let held = waiter.came()?;
    until_listening(&server, 2);
    drop(held);
    assert_eq!(other.answer(), "[k:setnx-lock:wake-up 1]");
    server.restart()?;
    until_listening(&server, 1);
    drop(Waiter::of(&Lock::new(&locker, "k", NOTIFIED)?).came()?);
    Ok(())
}

/// Creates a user with all rights but this one, and returns its URL.
fn url_without(server: &RedisServer, command: &str) -> Result<String, std::io::Error> {
    let rules = ["ACL", "SETUSER", "limited", "on", ">secret", "~*", "+@all", command];
    assert_eq!(server.say(&rules)?, "+OK");
    Ok(format!("redis://limited:secret@127.0.0.1:{}/", server.port()))
}

/// How many rounds a test has in which each could open a connection.
const ROUNDS: usize = 20;

/// Asserts that far fewer connections were opened.
#[track_caller]
fn assert_few_opened(monitor: Monitor, server: &RedisServer) -> Outcome {
    let opened = names(&monitor.recorded(server)?).iter().filter(|name| **name == "INFO").count();
    assert!((1..=ROUNDS / 2).contains(&opened), "{opened} connections");
    Ok(())
}

fn a_user_without_the_right_to_listen_polls() -> Outcome {
    let server = RedisServer::start()?;
    let reasons = Reasons::default();
    let polls = reasons.of(&url_without(&server, "-blpop")?, "k", POLLED)?;
    let monitor = Monitor::on(&server)?;
    let other = elsewhere(&server, "k", NOTIFIED)?;
    for _ in 0..ROUNDS {
        let held = other.lock()?;
        assert!(polls.try_lock_for(millis(5))?.is_none(), "it tries to listen, and sleeps");
        let waiter = Waiter::of(&polls);
        until("it is reported", || !reasons.reported().is_empty());
        drop(held);
        drop(waiter.came()?);
    }
    let reported = reasons.reported();
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert!(reported[0].contains("NOPERM") && reported[0].contains("blpop"), "{reported:?}");
    assert_few_opened(monitor, &server)
}

fn a_user_without_the_right_to_notify_releases_all_the_same() -> Outcome {
    let server = RedisServer::start()?;
    let reasons = Reasons::default();
    let limited = reasons.of(&url_without(&server, "-rpush")?, "k", POLLED)?;
    let other = elsewhere(&server, "k", POLLED)?;
    let monitor = Monitor::on(&server)?;
    for _ in 0..ROUNDS {
        let held = limited.lock()?;
        let waiter = Waiter::of(&other);
        drop(held);
        drop(waiter.came()?);
    }
    let reported = reasons.reported();
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert!(reported[0].contains("NOPERM") && reported[0].contains("rpush"), "{reported:?}");
    assert_few_opened(monitor, &server)
}

fn a_user_without_the_right_to_notify_acquires_a_free_lock_at_once() -> Outcome {
    let server = RedisServer::start()?;
    let limited = Reasons::default().of(&url_without(&server, "-rpush")?, "k", NOTIFIED)?;
    let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
    let waiter = Waiter::of(&limited);
    until_listening(&server, 1);
    drop(held);
    drop(waiter.came()?);
    for _ in 0..3 {
        drop(Waiter::of(&limited).came()?);
    }
    Ok(())
}

fn a_user_without_transactions_leaves_no_list_without_a_ttl() -> Outcome {
    let server = RedisServer::start()?;
    let url = url_without(&server, "+multi")?;
    let reasons = Reasons::default();
    let lock = reasons.of(&url, "k", POLLED)?;
    // The server accepts one transaction before it refuses them.
    drop(lock.lock()?);
    assert_eq!(keys(&server, "*"), ["k:setnx-lock:wake-up"]);
    server.say(&["FLUSHALL"])?;
    assert_eq!(server.say(&["ACL", "SETUSER", "limited", "-multi", "-expire"])?, "+OK");
    for _ in 0..3 {
        drop(lock.lock()?);
    }
    assert_eq!(reasons.reported().len(), 1, "{:?}", reasons.reported());
    assert_eq!(keys(&server, "*"), [""; 0]);
    Ok(())
}

fn a_wake_channel_that_is_not_a_list() -> Outcome {
    let server = RedisServer::start()?;
    let reasons = Reasons::default();
    let mut connection = connection(&server);
    let [first, second] = [reasons.of(&server.url(), "k", POLLED)?, reasons.of(&server.url(), "k", POLLED)?];
    for _ in 0..3 {
        let () = connection.set("k:setnx-lock:wake-up", "a string")?;
        let held = first.lock()?;
        let waiter = Waiter::of(&second);
        until("it is reported", || !reasons.reported().is_empty());
        drop(held);
        drop(waiter.came()?);
    }
    let reported = reasons.reported();
    assert!(reported.iter().all(|reason| reason.contains("WRONGTYPE")), "{reported:?}");
    assert!(reported.len() <= 3, "once by each locker that listens, and by each that notifies: {reported:?}");
    Ok(())
}

fn a_waiter_that_is_stopped_or_killed_blocks_no_other() -> Outcome {
    for signal in ["STOP", "KILL"] {
        let server = RedisServer::start()?;
        let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
        let mut worker = Worker::performing(&["wait", &server.url(), "k"])?;
        until_listening(&server, 1);
        let waiter = Waiter::of(&elsewhere(&server, "k", POLLED)?);
        until_listening(&server, 2);
        worker.signal(signal);
        drop(held);
        let held = waiter.came()?;
        if signal == "STOP" {
            worker.signal("CONT");
            drop(held);
            until("the stopped process acquires the lock later", || worker.has_ended());
            assert!(worker.ends_well()?);
        }
    }
    Ok(())
}
