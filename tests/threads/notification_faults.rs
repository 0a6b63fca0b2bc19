//! Notifications and faults of servers, networks, users' rights and processes: a waiter polls then, and the observer is
//! notified once. And waiters that end: an unused notification goes on to another process.

use std::thread;
use std::time::Duration;

use redis::Commands as _;
use setnx_lock::{CancelToken, Error, Lock, Locker};
use setnx_lock_testing::TestServer;

use crate::support::notified::{
    NOTIFIED, POLLED, Reasons, Waiter, Worker, connection, elsewhere, keys, list_of, listeners, until,
    until_listening, until_waiting, waiting,
};
use crate::support::scenario::{opened, patient};
use crate::support::sent::{names, recorded};
use crate::support::{AnyServer, LONG, Outcome, millis, trials_of};

trials_of! {
    "notification_faults";
    a_listener_whose_connection_is_cut_reconnects_and_reports_it_once,
    a_server_that_freezes_and_thaws,
    a_lost_notification_costs_a_poll_interval_and_delays_no_later_waiter,
    a_user_without_a_right_polls_and_reports_it_once,
    a_waiting_list_that_is_not_a_list,
    a_process_that_is_stopped_blocks_no_other,
    processes_that_are_killed_are_passed_over,
    a_notification_for_a_process_without_waiters_goes_on_to_another,
    a_notification_is_not_lost_with_waiters_that_are_cancelled_at_that_moment,
}

/// Closes the connections of all listeners.
fn cut_listeners(connection: &mut redis::Connection) {
    for id in listeners(connection) {
        let _: i64 = redis::cmd("CLIENT").arg(&["KILL", "ID", &id]).query(connection).unwrap();
    }
}

fn a_listener_whose_connection_is_cut_reconnects_and_reports_it_once() -> Outcome {
    let server = TestServer::start();
    let mut connection = connection(&server);
    let reasons = Reasons::default();
    let observed = patient(&server.url())?.observer(reasons.clone()).build()?;
    let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
    let waiter = Waiter::of(&Lock::new(&observed, "k", NOTIFIED)?);
    // It listens until the end, however long the rest takes.
    let held_meanwhile = elsewhere(&server, "other", NOTIFIED)?.lock()?;
    let waits_meanwhile = Waiter::of(&Lock::new(&observed, "other", NOTIFIED)?);
    for _ in 0..3 {
        until_listening(&server, 1);
        // The list is lost, too. It is made anew when the process listens again.
        let _: i64 = connection.del(list_of("k"))?;
        cut_listeners(&mut connection);
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

    // It has worked meanwhile, so the next failure is reported
    // again. One who listens again looks at the key, which is gone.
    let other = Waiter::of(&elsewhere(&server, "k", NOTIFIED)?);
    until_listening(&server, 2);
    until_waiting(&server, "k", 1);
    let _: i64 = connection.del("k")?;
    cut_listeners(&mut connection);
    until("it is reported again", || reasons.reported().len() == 2);
    drop(other.came()?);
    drop(held);
    drop(held_meanwhile);
    drop(waits_meanwhile.came()?);
    Ok(())
}

fn a_server_that_freezes_and_thaws() -> Outcome {
    let server = TestServer::start();
    let reasons = Reasons::default();
    let builder = Locker::builder(&server.url())?
        .connect_timeout(millis(1000))
        .command_timeout(millis(1000))
        .retry_for(LONG);
    let waiting = Lock::new(&builder.observer(reasons.clone()).build()?, "k", NOTIFIED)?;
    let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
    let waiter = Waiter::of(&waiting);
    until_waiting(&server, "k", 1);
    server.hang();
    let reported = std::panic::catch_unwind(|| until("it is reported", || !reasons.reported().is_empty()));
    server.resume();
    assert!(reported.is_ok() && reasons.reported().len() == 1, "{:?}", reasons.reported());
    until_waiting(&server, "k", 1);
    drop(held);
    drop(waiter.came()?);
    Ok(())
}

/// As with a releaser that is killed after it has taken the entry of a waiting process.
fn a_lost_notification_costs_a_poll_interval_and_delays_no_later_waiter() -> Outcome {
    let server = TestServer::start();
    let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
    let waiter = Waiter::of(&elsewhere(&server, "k", POLLED)?);
    // An entry that is gone is found missing by a poll, after five seconds.
    for _ in 0..2 {
        until_waiting(&server, "k", 1);
        let taken: String = connection(&server).lpop(list_of("k"), None)?;
        assert!(taken.starts_with("setnx-lock:wake-up:"), "{taken}");
    }
    drop(held);
    let held = waiter.came()?;
    let waiter = Waiter::of(&elsewhere(&server, "k", NOTIFIED)?);
    until_waiting(&server, "k", 1);
    drop(held);
    drop(waiter.came()?);
    Ok(())
}

fn a_user_without_a_right_polls_and_reports_it_once() -> Outcome {
    // In each of them the library could try again, and open a connection.
    const ROUNDS: usize = 20;
    for (rule, user_waits, words) in [
        ("-subscribe", true, "subscribe"),
        ("resetchannels", true, "channel"),
        ("-rpush", true, "rpush"),
        ("-lpop", false, "lpop"),
        ("-publish", false, "publish"),
    ] {
        let server = TestServer::start();
        let mut connection = connection(&server);
        let user = ["ACL", "SETUSER", "limited", "on", ">secret", "~*", "+@all", "allchannels", rule];
        assert_eq!(server.say(&user)?, "+OK");
        let reasons = Reasons::default();
        let url = format!("redis://limited:secret@127.0.0.1:{}/", server.port());
        let (limited, other) = (reasons.of(&url, "k", POLLED)?, elsewhere(&server, "k", POLLED)?);
        let (holds, waits) = if user_waits { (&other, &limited) } else { (&limited, &other) };
        server.clear_log();
        for _ in 0..ROUNDS {
            let held = holds.lock()?;
            let waiter = Waiter::of(waits);
            // The entry of the other is what the user's release finds.
            until("it is reported, or the other waits", || {
                !reasons.reported().is_empty() || !user_waits && waiting(&mut connection, "k") == 1
            });
            drop(held);
            drop(waiter.came()?);
        }
        let reported = reasons.reported();
        assert_eq!(reported.len(), 1, "{reported:?}");
        assert!(reported[0].contains("NOPERM") && reported[0].contains(words), "{reported:?}");
        assert!(reported[0].contains("SUBSCRIBE on the channels setnx-lock:wake-up:*"), "{reported:?}");
        let opened = names(&recorded(&server)).iter().filter(|name| **name == "INFO").count();
        assert!((1..=ROUNDS / 2).contains(&opened), "{rule}: {opened} connections");
    }
    Ok(())
}

fn a_waiting_list_that_is_not_a_list() -> Outcome {
    let server = TestServer::start();
    let reasons = Reasons::default();
    let [first, second] = [reasons.of(&server.url(), "k", POLLED)?, reasons.of(&server.url(), "k", POLLED)?];
    for _ in 0..3 {
        let () = connection(&server).set(list_of("k"), "a string")?;
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

fn a_process_that_is_stopped_blocks_no_other() -> Outcome {
    let server = TestServer::start();
    let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
    let mut worker = Worker::performing(&["notifications", "wait", &server.url(), "k"])?;
    until_waiting(&server, "k", 1);
    let waiter = Waiter::of(&elsewhere(&server, "k", POLLED)?);
    until_waiting(&server, "k", 2);
    worker.signal("STOP");
    drop(held);
    let held = waiter.came()?;
    worker.signal("CONT");
    drop(held);
    assert!(worker.ends_well()?, "it acquires the lock later");
    Ok(())
}

/// Three of four processes that wait are killed.
fn processes_that_are_killed_are_passed_over() -> Outcome {
    let server = TestServer::start();
    let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
    let mut workers = Vec::new();
    for n in 1..=4 {
        workers.push(Worker::performing(&["notifications", "wait", &server.url(), "k"])?);
        until_waiting(&server, "k", n);
    }
    let mut last = workers.pop().expect("there are four");
    drop(workers);
    until_listening(&server, 1);
    server.clear_log();
    drop(held);
    assert_eq!(last.says()?, "acquired");
    assert!(last.ends_well()?);
    let commands = recorded(&server);
    let published = names(&commands).iter().filter(|name| **name == "PUBLISH").count();
    assert_eq!(published, 4, "three that no client received, and one: {commands:?}");
    assert_eq!(keys(&server, "*"), [""; 0]);
    Ok(())
}

fn a_notification_for_a_process_without_waiters_goes_on_to_another() -> Outcome {
    for gives_up in ["timeout", "cancel", "shut down"] {
        let server = TestServer::start();
        let mut connection = connection(&server);
        let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
        let (locker, token) = (opened(&server.url())?, CancelToken::new());
        // Long enough to enter the list on a busy machine.
        let options = if gives_up == "timeout" { NOTIFIED.timeout(millis(2000)) } else { NOTIFIED };
        let first = Waiter::of(&Lock::new(&locker, "k", options)?.cancelled_by(&token));
        until_waiting(&server, "k", 1);
        let channel: Vec<String> = connection.lrange(list_of("k"), 0, -1)?;
        match gives_up {
            "cancel" => token.cancel(),
            "shut down" => locker.shut_down(),
            _ => {}
        }
        let outcome = first.came();
        assert!(
            matches!(
                outcome,
                Err(Error::Contended { .. } | Error::Cancelled { .. } | Error::ShutDown { .. })
            ),
            "{outcome:?}"
        );
        until_waiting(&server, "k", 0);
        // As if it had been notified just before it left: it still listens.
        let _: i64 = connection.lpush(list_of("k"), channel)?;
        let waiter = Waiter::of(&elsewhere(&server, "k", NOTIFIED)?);
        until_waiting(&server, "k", 2);
        drop(held);
        drop(waiter.came()?);
    }
    Ok(())
}

/// Several threads of a process wait, all of them are cancelled as
/// another process releases the lock, and a thread of a third waits on.
fn a_notification_is_not_lost_with_waiters_that_are_cancelled_at_that_moment() -> Outcome {
    let server = TestServer::start();
    for n in 0..40_u64 {
        let key = format!("k{n}");
        let held = elsewhere(&server, &key, NOTIFIED)?.lock()?;
        let token = CancelToken::new();
        let lock = elsewhere(&server, &key, NOTIFIED)?.cancelled_by(&token);
        let cancelled = [(); 3].map(|()| Waiter::of(&lock));
        until_waiting(&server, &key, 1);
        let waiter = Waiter::of(&elsewhere(&server, &key, NOTIFIED)?);
        until_waiting(&server, &key, 2);
        let release = thread::spawn(move || drop(held));
        thread::sleep(Duration::from_micros(n * 17));
        token.cancel();
        release.join().unwrap();
        for waiter in cancelled {
            drop(waiter.came());
        }
        drop(waiter.came()?);
    }
    Ok(())
}
