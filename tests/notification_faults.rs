//! What becomes of wake-ups when servers, networks, users and processes do not do what they should: a poll interval is lost, and
//! somebody is told, once.

use std::time::Duration;

use libtest_mimic::Trial;
use redis::Commands as _;
use setnx_lock::{Lock, LockOptions, Locker};

use crate::support::monitor::{Monitor, names};
use crate::support::notified::{
    NOTIFIED, Reasons, Waiter, Worker, connection, elsewhere, keys, listeners, until, until_listening,
};
use crate::support::raw::Wire;
use crate::support::{LONG, Outcome, RedisServer, expiring, millis, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "notification_faults",
        tests![
            a_listener_that_is_cut_off_comes_back_and_that_is_told_once,
            a_listener_that_is_sent_away_comes_back,
            a_server_that_is_started_anew,
            a_server_that_freezes_and_thaws,
            a_token_that_is_lost_holds_nobody_up_who_comes_after_the_listener_is_back,
            a_user_who_may_not_listen_polls,
            a_user_who_may_not_leave_tokens_does_without,
            a_user_who_may_not_leave_tokens_gets_a_free_lock_at_once,
            a_user_without_transactions_leaves_no_list_without_an_end,
            a_list_that_is_something_else,
            a_waiter_that_is_stopped_or_killed_holds_nobody_up,
        ],
    )
}

/// A lock that is got by polling.
const POLLED: LockOptions =
    LockOptions::expiring_after(LONG).timeout(LONG).poll_interval(Duration::from_millis(20)).notify_waiters();

fn cut_off(server: &RedisServer) {
    let mut connection = connection(server);
    for id in listeners(&mut connection) {
        let _: i64 = redis::cmd("CLIENT").arg(&["KILL", "ID", &id]).query(&mut connection).unwrap();
    }
}

fn a_listener_that_is_cut_off_comes_back_and_that_is_told_once() -> Outcome {
    let server = RedisServer::start()?;
    let whys = Reasons::default();
    let ours = whys.of(&server.url(), "k", NOTIFIED)?;
    let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
    let waiter = Waiter::of(&ours);
    for _ in 0..3 {
        until_listening(&server, 1);
        cut_off(&server);
        until("it is told", || !whys.reported().is_empty());
    }
    until_listening(&server, 1);
    assert!(waiter.still_waits());
    drop(held);
    let held = waiter.came()?;
    let reported = whys.reported();
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert!(reported[0].contains("closed the connection"), "{reported:?}");

    // It has worked meanwhile, so it is news again.
    let others = Waiter::of(&elsewhere(&server, "k", NOTIFIED)?);
    until_listening(&server, 2);
    cut_off(&server);
    until("it is told again", || whys.reported().len() == 2);
    until_listening(&server, 2);
    drop(held);
    drop(others.came()?);
    Ok(())
}

fn a_listener_that_is_sent_away_comes_back() -> Outcome {
    let server = RedisServer::start()?;
    let whys = Reasons::default();
    let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
    let waiter = Waiter::of(&whys.of(&server.url(), "k", NOTIFIED)?);
    until_listening(&server, 1);
    let mut connection = connection(&server);
    // What a server says to those who wait when it becomes a replica.
    let id = listeners(&mut connection).remove(0);
    let _: i64 = redis::cmd("CLIENT").arg(&["UNBLOCK", &id, "ERROR"]).query(&mut connection)?;
    until("it is told", || whys.reported().len() == 1);
    assert!(whys.reported()[0].contains("UNBLOCKED"), "{:?}", whys.reported());
    until_listening(&server, 1);
    drop(held);
    drop(waiter.came()?);
    Ok(())
}

fn a_server_that_is_started_anew() -> Outcome {
    let mut server = RedisServer::start()?;
    let whys = Reasons::default();
    let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
    let waiter = Waiter::of(&whys.of(&server.url(), "k", NOTIFIED)?);
    until_listening(&server, 1);
    server.restart()?;
    until_listening(&server, 1);
    assert_eq!(whys.reported().len(), 1, "{:?}", whys.reported());
    // The key went with the server.
    drop(elsewhere(&server, "k", NOTIFIED)?.lock()?);
    drop(waiter.came()?);
    drop(held);
    Ok(())
}

fn a_server_that_freezes_and_thaws() -> Outcome {
    let server = RedisServer::start()?;
    let whys = Reasons::default();
    let locker =
        Locker::builder(&server.url())?.connect_timeout(millis(300)).command_timeout(millis(300)).build()?;
    let waiting = Lock::new(&locker.observed_by(whys.clone()), "k", NOTIFIED)?;
    let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
    let waiter = Waiter::of(&waiting);
    until_listening(&server, 1);
    server.freeze();
    let reported = std::panic::catch_unwind(|| until("it is told", || !whys.reported().is_empty()));
    server.thaw();
    assert!(reported.is_ok() && whys.reported().len() == 1, "{:?}", whys.reported());
    until_listening(&server, 1);
    drop(held);
    drop(waiter.came()?);
    Ok(())
}

fn a_token_that_is_lost_holds_nobody_up_who_comes_after_the_listener_is_back() -> Outcome {
    let mut server = RedisServer::start()?;
    // Somebody takes a token before us, and does nothing with it.
    let mut thief = Wire::to(&server.url());
    thief.send("BLPOP k:setnx-lock:wake-up 0");
    until_listening(&server, 1);
    let held = elsewhere(&server, "k", expiring())?.lock()?;
    let locker = Locker::open(&server.url())?;
    let waiter = Waiter::of(&Lock::new(&locker, "k", POLLED)?);
    until_listening(&server, 2);
    drop(held);
    let held = waiter.came()?;
    until_listening(&server, 2);
    drop(held);
    assert_eq!(thief.answer(), "[k:setnx-lock:wake-up 1]");
    server.restart()?;
    until_listening(&server, 1);
    drop(Waiter::of(&Lock::new(&locker, "k", NOTIFIED)?).came()?);
    Ok(())
}

/// Returns where a user goes who may do all but this.
fn url_without(server: &RedisServer, command: &str) -> Result<String, std::io::Error> {
    let rules = ["ACL", "SETUSER", "lesser", "on", ">secret", "~*", "+@all", command];
    assert_eq!(server.say(&rules)?, "+OK");
    Ok(format!("redis://lesser:secret@127.0.0.1:{}/", server.port()))
}

/// How often something is done in which each time a connection could be opened.
const OFTEN: usize = 20;

/// Asserts that far fewer connections were opened.
#[track_caller]
fn assert_few_opened(monitor: Monitor, server: &RedisServer) -> Outcome {
    let opened = names(&monitor.recorded(server)?).iter().filter(|name| **name == "INFO").count();
    assert!((1..=OFTEN / 2).contains(&opened), "{opened} connections");
    Ok(())
}

fn a_user_who_may_not_listen_polls() -> Outcome {
    let server = RedisServer::start()?;
    let whys = Reasons::default();
    let deaf = whys.of(&url_without(&server, "-blpop")?, "k", POLLED)?;
    let monitor = Monitor::on(&server)?;
    let other = elsewhere(&server, "k", NOTIFIED)?;
    for _ in 0..OFTEN {
        let held = other.lock()?;
        assert!(deaf.try_lock_for(millis(5))?.is_none(), "it wants tokens, and sleeps");
        let waiter = Waiter::of(&deaf);
        until("it is told", || !whys.reported().is_empty());
        drop(held);
        drop(waiter.came()?);
    }
    let reported = whys.reported();
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert!(reported[0].contains("NOPERM") && reported[0].contains("blpop"), "{reported:?}");
    assert_few_opened(monitor, &server)
}

fn a_user_who_may_not_leave_tokens_does_without() -> Outcome {
    let server = RedisServer::start()?;
    let whys = Reasons::default();
    let mute = whys.of(&url_without(&server, "-rpush")?, "k", POLLED)?;
    let other = elsewhere(&server, "k", POLLED)?;
    let monitor = Monitor::on(&server)?;
    for _ in 0..OFTEN {
        let held = mute.lock()?;
        let waiter = Waiter::of(&other);
        drop(held);
        drop(waiter.came()?);
    }
    let reported = whys.reported();
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert!(reported[0].contains("NOPERM") && reported[0].contains("rpush"), "{reported:?}");
    assert_few_opened(monitor, &server)
}

fn a_user_who_may_not_leave_tokens_gets_a_free_lock_at_once() -> Outcome {
    let server = RedisServer::start()?;
    let mute = Reasons::default().of(&url_without(&server, "-rpush")?, "k", NOTIFIED)?;
    let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
    let waiter = Waiter::of(&mute);
    until_listening(&server, 1);
    drop(held);
    drop(waiter.came()?);
    for _ in 0..3 {
        drop(Waiter::of(&mute).came()?);
    }
    Ok(())
}

fn a_user_without_transactions_leaves_no_list_without_an_end() -> Outcome {
    let server = RedisServer::start()?;
    let url = url_without(&server, "-multi")?;
    assert_eq!(server.say(&["ACL", "SETUSER", "lesser", "-expire"])?, "+OK");
    let whys = Reasons::default();
    let lock = whys.of(&url, "k", POLLED)?;
    for _ in 0..3 {
        drop(lock.lock()?);
    }
    assert_eq!(whys.reported().len(), 1, "{:?}", whys.reported());
    assert_eq!(keys(&server, "*"), [""; 0]);
    Ok(())
}

fn a_list_that_is_something_else() -> Outcome {
    let server = RedisServer::start()?;
    let whys = Reasons::default();
    let mut connection = connection(&server);
    let [one, other] = [whys.of(&server.url(), "k", POLLED)?, whys.of(&server.url(), "k", POLLED)?];
    for _ in 0..3 {
        let () = connection.set("k:setnx-lock:wake-up", "theirs")?;
        let held = one.lock()?;
        let waiter = Waiter::of(&other);
        until("it is told", || !whys.reported().is_empty());
        drop(held);
        drop(waiter.came()?);
    }
    let reported = whys.reported();
    assert!(reported.iter().all(|why| why.contains("WRONGTYPE")), "{reported:?}");
    assert!(reported.len() <= 3, "once by each locker that listens, and that leaves tokens: {reported:?}");
    Ok(())
}

fn a_waiter_that_is_stopped_or_killed_holds_nobody_up() -> Outcome {
    for signal in ["STOP", "KILL"] {
        let server = RedisServer::start()?;
        let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
        let mut worker = Worker::playing(&["wait", &server.url(), "k"])?;
        until_listening(&server, 1);
        let waiter = Waiter::of(&elsewhere(&server, "k", POLLED)?);
        until_listening(&server, 2);
        worker.signal(signal);
        drop(held);
        let held = waiter.came()?;
        if signal == "STOP" {
            worker.signal("CONT");
            drop(held);
            until("the one that was stopped gets it later", || worker.has_ended());
            assert!(worker.ends_well()?);
        }
    }
    Ok(())
}
