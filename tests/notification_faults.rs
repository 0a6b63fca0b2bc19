//! Notifications and faults of servers, networks, users' rights and processes: a waiter polls then, and the observer is notified once.

use libtest_mimic::Trial;
use redis::Commands as _;
use setnx_lock::{Lock, Locker};

use crate::support::monitor::{Monitor, names};
use crate::support::notified::{
    NOTIFIED, POLLED, Reasons, Waiter, Worker, connection, elsewhere, list_of, listeners, until,
    until_listening, until_waiting,
};
use crate::support::scenario::opened;
use crate::support::{LONG, Outcome, RedisServer, expiring, millis, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "notification_faults",
        tests![
            a_listener_whose_connection_is_cut_reconnects_and_reports_it_once,
            a_server_that_is_restarted,
            a_list_that_is_lost_is_made_anew_when_its_process_listens_again,
            a_server_that_freezes_and_thaws,
            a_lost_notification_costs_a_poll_interval_and_delays_no_later_waiter,
            a_poll_enters_a_list_that_was_removed,
            a_user_without_the_right_to_listen_polls,
            a_user_without_the_right_to_notify_releases_all_the_same,
            a_user_without_the_right_to_enter_a_list_polls,
            a_waiting_list_that_is_not_a_list,
            a_waiter_that_is_stopped_or_killed_blocks_no_other,
        ],
    )
}

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
    until_waiting(&server, "k", 1);
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

fn a_server_that_is_restarted() -> Outcome {
    let mut server = RedisServer::start()?;
    let reasons = Reasons::default();
    let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
    let waiter = Waiter::of(&reasons.of(&server.url(), "k", NOTIFIED)?);
    until_waiting(&server, "k", 1);
    server.restart()?;
    // The key went with the server, which the waiter sees when it listens again.
    let held_anew = waiter.came()?;
    assert_eq!(reasons.reported().len(), 1, "{:?}", reasons.reported());
    let waiter = Waiter::of(&elsewhere(&server, "k", NOTIFIED)?);
    until_waiting(&server, "k", 1);
    drop(held_anew);
    drop(waiter.came()?);
    drop(held);
    Ok(())
}

/// Only the list is lost: it expired while the process was stopped, say.
fn a_list_that_is_lost_is_made_anew_when_its_process_listens_again() -> Outcome {
    let server = RedisServer::start()?;
    let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
    let waiter = Waiter::of(&elsewhere(&server, "k", NOTIFIED)?);
    until_waiting(&server, "k", 1);
    let _: i64 = connection(&server).del(list_of("k"))?;
    cut_listeners(&server);
    until_waiting(&server, "k", 1);
    drop(held);
    drop(waiter.came()?);
    Ok(())
}

fn a_server_that_freezes_and_thaws() -> Outcome {
    let server = RedisServer::start()?;
    let reasons = Reasons::default();
    let locker = Locker::builder(&server.url())?
        .connect_timeout(millis(1000))
        .command_timeout(millis(1000))
        .unreachable_timeout(LONG)
        .build()?;
    let waiting = Lock::new(&locker.observed_by(reasons.clone()), "k", NOTIFIED)?;
    let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
    let waiter = Waiter::of(&waiting);
    until_waiting(&server, "k", 1);
    server.freeze();
    let reported = std::panic::catch_unwind(|| until("it is reported", || !reasons.reported().is_empty()));
    server.thaw();
    assert!(reported.is_ok() && reasons.reported().len() == 1, "{:?}", reasons.reported());
    until_waiting(&server, "k", 1);
    drop(held);
    drop(waiter.came()?);
    Ok(())
}

fn a_lost_notification_costs_a_poll_interval_and_delays_no_later_waiter() -> Outcome {
    let server = RedisServer::start()?;
    let locker = opened(&server.url())?;
    for _ in 0..3 {
        let held = elsewhere(&server, "k", expiring())?.lock()?;
        let waiter = Waiter::of(&Lock::new(&locker, "k", POLLED)?);
        until_waiting(&server, "k", 1);
        // As a releaser that is killed after it has taken the entry.
        let taken: String = connection(&server).lpop(list_of("k"), None)?;
        assert!(taken.starts_with("setnx-lock:wake-up:"), "{taken}");
        drop(held);
        let held = waiter.came()?;
        let waiter = Waiter::of(&elsewhere(&server, "k", NOTIFIED)?);
        until_waiting(&server, "k", 1);
        drop(held);
        drop(waiter.came()?);
    }
    Ok(())
}

/// An entry that is gone is found missing by a poll, after some seconds.
fn a_poll_enters_a_list_that_was_removed() -> Outcome {
    let server = RedisServer::start()?;
    let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
    let waiter = Waiter::of(&elsewhere(&server, "k", POLLED)?);
    until_waiting(&server, "k", 1);
    let _: i64 = connection(&server).del(list_of("k"))?;
    until_waiting(&server, "k", 1);
    drop(held);
    drop(waiter.came()?);
    Ok(())
}

/// Creates a user with all rights and channels but what these rules take away, and returns its URL.
fn url_with(server: &RedisServer, rules: &[&str]) -> Result<String, std::io::Error> {
    let all = ["ACL", "SETUSER", "limited", "on", ">secret", "~*", "+@all", "allchannels"];
    assert_eq!(server.say(&[&all, rules].concat())?, "+OK");
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
    for (rule, words) in [("-subscribe", "subscribe"), ("resetchannels", "channel")] {
        let server = RedisServer::start()?;
        let reasons = Reasons::default();
        let polls = reasons.of(&url_with(&server, &[rule])?, "k", POLLED)?;
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
        assert!(reported[0].contains("NOPERM") && reported[0].contains(words), "{reported:?}");
        assert!(reported[0].contains("SUBSCRIBE on the channels setnx-lock:wake-up:*"), "{reported:?}");
        assert_few_opened(monitor, &server)?;
    }
    Ok(())
}

fn a_user_without_the_right_to_notify_releases_all_the_same() -> Outcome {
    for rule in ["-lpop", "-publish"] {
        let server = RedisServer::start()?;
        let reasons = Reasons::default();
        let limited = reasons.of(&url_with(&server, &[rule])?, "k", POLLED)?;
        let other = elsewhere(&server, "k", POLLED)?;
        let monitor = Monitor::on(&server)?;
        for _ in 0..ROUNDS {
            let held = limited.lock()?;
            let waiter = Waiter::of(&other);
            // Its entry is what the release finds.
            if reasons.reported().is_empty() {
                until_waiting(&server, "k", 1);
            }
            drop(held);
            drop(waiter.came()?);
        }
        let reported = reasons.reported();
        assert_eq!(reported.len(), 1, "{reported:?}");
        assert!(reported[0].contains("NOPERM") && reported[0].contains(&rule[1..]), "{reported:?}");
        assert_few_opened(monitor, &server)?;
    }
    Ok(())
}

fn a_user_without_the_right_to_enter_a_list_polls() -> Outcome {
    let server = RedisServer::start()?;
    let reasons = Reasons::default();
    let limited = reasons.of(&url_with(&server, &["-rpush"])?, "k", POLLED)?;
    for _ in 0..ROUNDS {
        let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
        let waiter = Waiter::of(&limited);
        until("it is reported", || !reasons.reported().is_empty());
        drop(held);
        drop(waiter.came()?);
        drop(limited.lock()?);
    }
    let reported = reasons.reported();
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert!(reported[0].contains("NOPERM") && reported[0].contains("rpush"), "{reported:?}");
    Ok(())
}

fn a_waiting_list_that_is_not_a_list() -> Outcome {
    let server = RedisServer::start()?;
    let reasons = Reasons::default();
    let mut connection = connection(&server);
    let [first, second] = [reasons.of(&server.url(), "k", POLLED)?, reasons.of(&server.url(), "k", POLLED)?];
    for _ in 0..3 {
        let () = connection.set(list_of("k"), "a string")?;
        let held = first.lock()?;
        let waiter = Waiter::of(&second);
        until("it is reported", || !reasons.reported().is_empty());
        drop(held);
        drop(waiter.came()?);
    }
    let reported = reasons.reported();
    assert!(reported.iter().all(|reason| reason.contains("WRONGTYPE")), "{reported:?}");
    assert!(reported.len() <= 2, "once by each locker: {reported:?}");
    Ok(())
}

fn a_waiter_that_is_stopped_or_killed_blocks_no_other() -> Outcome {
    for signal in ["STOP", "KILL"] {
        let server = RedisServer::start()?;
        let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
        let mut worker = Worker::performing(&["wait", &server.url(), "k"])?;
        until_waiting(&server, "k", 1);
        let waiter = Waiter::of(&elsewhere(&server, "k", POLLED)?);
        until_waiting(&server, "k", 2);
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
