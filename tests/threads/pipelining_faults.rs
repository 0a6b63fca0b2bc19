//! Faults on a connection that several threads share: each command has an outcome of its own. A command without a reply is resolved by the
//! rules, as if it had been sent alone.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use setnx_lock::{Error, Lock, LockGuard, LockOptions, Locker, LockerBuilder};
use setnx_lock_testing::{Fault, Proxy, Received, TestServer};

use crate::support::contention::{
    LostReplies, assert_nothing_sent_by_two, await_batch_of, contention, contention_with_faults, pairs,
};
use crate::support::scenario::{BRIEF, Scenario, patient};
use crate::support::sent::recorded;
use crate::support::{LONG, Outcome, RedisServer, Target, expiring, millis, tests};
use crate::threads::pipelining::{THREADS, one_connection, with_one_connection};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "pipelining_faults",
        tests![
            a_fault_is_reported_to_each_thread_on_the_wire,
            a_server_that_stops_replying,
            a_server_that_freezes,
            a_release_that_waited_behind_a_lost_reply_is_too_late,
            a_server_with_too_many_clients,
        ],
    )
}

/// How many commands are on the wire at least when the fault happens.
const MIN_BATCH: usize = 4;

/// The place in a batch, the fault, and what is reported with this library's own connections.
const FAULTS: &[(usize, Fault, &str)] = &[
    (1, Fault::CutBefore, CLOSED),
    (1, Fault::CutWithin, CLOSED),
    (3, Fault::CutBefore, CLOSED),
    (3, Fault::CutAfter, CLOSED),
    (3, Fault::CutWithin, CLOSED),
    // Replies that none of the commands can have, with and without a form that the Redis protocol has.
    (2, Fault::Say("+OK\r\n"), NOT_REDIS),
    (3, Fault::Say("HTTP/1.1 400 Bad Request\r\n:1\r\n:1\r\n"), NOT_REDIS),
    (1, Fault::Say("*1\r\n:1\r\n"), NOT_REDIS),
];

const CLOSED: &str = "closed the connection";
const NOT_REDIS: &str = "does not answer as a Redis server does";

/// Applies a fault to the command at this place of a batch. Asserts that this command and all after it have no reply, for this reason,
/// that no command is sent twice, and that each outcome is true. `no_connection` says if a thread may find the only connection in use.
fn assert_reported(
    open: impl Fn(&str) -> LockerBuilder,
    no_connection: bool,
    place: usize,
    fault: &Fault,
    reason: &str,
) -> Outcome {
    let scenario = Scenario::set();
    let lost_replies = LostReplies::default();
    let locker = open(&scenario.server.url()).observer(lost_replies.clone()).build()?;
    let what = format!("{fault:?} at {place}");
    scenario.server.in_batch(place, MIN_BATCH, fault.clone());
    let errors = contention_with_faults(THREADS, &scenario.server, |n| {
        pairs(&scenario.target, &locker, &format!("own:{n}"), expiring(), true)
    });
    for (_, error) in &errors {
        let expected = match error {
            // The lock is acquired in the end, whatever the outcome of the first attempt. A release may stay unknown.
            Error::InDoubt { command, .. } => *command == "DEL",
            Error::Unavailable { .. } => no_connection,
            _ => false,
        };
        assert!(expected, "{what}: {error:?}");
    }
    lost_replies.assert_all_say(reason);
    assert_nothing_sent_by_two(&scenario.server);
    let batches = scenario.server.batches();
    let batch = batches.iter().rfind(|batch| batch[0].connection == 0).expect("it is the first connection");
    let size = batch[0].position.of;
    assert!(size >= MIN_BATCH, "{what}: the connection was used again: {batches:?}");
    let (replied, unreplied) = batch.split_at(place - 1);
    let lost = lost_replies.keys();
    assert_eq!(lost.len(), size + 1 - place, "{what}: {batch:?}, {lost:?}");
    let has_reply = |asked: &Received| !lost.contains(&asked.arguments[0]);
    assert!(replied.iter().all(has_reply) && !unreplied.iter().any(has_reply), "{what}: {batch:?}, {lost:?}");
    Ok(())
}

fn a_fault_is_reported_to_each_thread_on_the_wire() -> Outcome {
    for (place, fault, reason) in FAULTS {
        assert_reported(one_connection, false, *place, fault, reason)?;
    }
    Ok(())
}

fn a_server_that_stops_replying() -> Outcome {
    // Long enough for every other command under load.
    let limited = |url: &str| patient(url).unwrap().pool_size(1).command_timeout(BRIEF);
    assert_reported(limited, true, 2, &Fault::Hang, "")
}

fn a_server_that_freezes() -> Outcome {
    let server = Arc::new(RedisServer::start()?);
    let (target, proxy) = (Target::of(&server), Proxy::before(server.address())?);
    let limit = millis(500);
    let builder = Locker::builder(&proxy.url())?.pool_size(1).command_timeout(limit);
    let locker = builder.connect_timeout(limit).retry_for(limit).build()?;
    await_batch_of(&proxy, MIN_BATCH);
    let brief = LockOptions::expiring_after(millis(1500));
    let errors = contention(
        THREADS,
        "a batch, and then a frozen server",
        || {
            let ready = proxy.faults_left() == 0;
            if ready {
                server.freeze();
            }
            ready
        },
        |n| {
            let timeout = [Duration::ZERO, millis(200), millis(900)][n % 3];
            let lock = Lock::new(&locker, format!("own:{n}"), brief.timeout(timeout)).unwrap();
            move || lock.lock().and_then(LockGuard::release).map(drop)
        },
    );
    server.thaw();
    let is_expected = |error: &Error| {
        matches!(error, Error::InDoubt { .. } | Error::Unavailable { .. } | Error::Contended { .. })
    };
    assert!(!errors.is_empty() && errors.iter().all(|(_, error)| is_expected(error)), "{errors:?}");
    // Once the server replies again, it has executed the commands in its buffers.
    server.say(&["PING"])?;
    let longer = with_one_connection(&proxy.url());
    await_batch_of(&proxy, MIN_BATCH);
    let errors = contention_with_faults(THREADS, &proxy, |n| {
        pairs(&target, &longer, &format!("own:{n}"), expiring(), true)
    });
    assert!(errors.is_empty(), "{errors:?}");
    assert_nothing_sent_by_two(&proxy);
    Ok(())
}

/// A release waits behind a command that gets no reply, for longer than its lease. It leads then, and must not send DEL.
fn a_release_that_waited_behind_a_lost_reply_is_too_late() -> Outcome {
    let server = TestServer::start();
    let builder = Locker::builder(&server.url())?.pool_size(1).command_timeout(millis(1000));
    let locker = builder.retry_for(LONG).build()?;
    let late = Lock::new(&locker, "own:late", LockOptions::expiring_after(millis(900)))?;
    let other = Lock::new(&locker, "own:other", expiring())?;
    let guard = late.lock()?;
    server.hang();
    thread::scope(|scope| {
        let lost = scope.spawn(|| other.try_lock().map(drop));
        thread::sleep(millis(500));
        let released = scope.spawn(|| guard.release());
        assert!(lost.join().unwrap().is_err());
        server.resume();
        assert!(released.join().unwrap().is_err());
    });
    assert!(server.get("own:late").is_some(), "a contender may have it by now");
    Ok(())
}

fn a_server_with_too_many_clients() -> Outcome {
    const ROUNDS: usize = 10;
    let server = TestServer::start();
    // The first command of a new connection is refused. It is not the INFO of the server check.
    let locker = patient(&server.url())?.skip_server_check().pool_size(3).build()?;
    assert!(!Lock::new(&locker, "own:0", expiring())?.state()?.is_held());
    server.clear_log();
    assert_eq!(server.run(&["CONFIG", "SET", "maxclients", "3"]), "OK");
    thread::scope(|scope| {
        for n in 0..THREADS {
            let lock = Lock::new(&locker, format!("own:{n}"), expiring()).unwrap();
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    lock.lock().unwrap().release().unwrap();
                }
            });
        }
    });
    let recorded = recorded(&server);
    let mut values: Vec<_> =
        recorded.iter().filter(|words| words[0] == "SETNX").map(|words| &words[2]).collect();
    values.sort();
    values.dedup();
    let count = |name: &str| recorded.iter().filter(|words| words[0] == name).count();
    let each = THREADS * ROUNDS;
    assert_eq!((values.len(), count("SETNX"), count("DEL")), (each, each, each), "each was sent once");
    Ok(())
}
