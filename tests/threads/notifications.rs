//! Release notifications between processes: a release sends one notification, and the waiting process that is next
//! receives it. In most tests a locker of its own stands for a process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use setnx_lock::{Error, Lock, LockGuard, LockOptions, Locker, Protocol};
use setnx_lock_testing::{ServerVersion, TestServer};

use crate::support::asleep::asleep;
use crate::support::notified::{
    Listening, NEVER, NOTIFIED, POLLED, Reasons, Waiter, connection, elsewhere, keys, list_of, listeners,
    until, until_listening, until_waiting,
};
use crate::support::processes::TaskOutcome;
use crate::support::scenario::{client_pool, opened};
use crate::support::sent::{connected, names, recorded};
use crate::support::target::PROTOCOLS;
use crate::support::{Outcome, chain, expiring, millis, server_of, trials_of};

trials_of! {
    "notifications";
    a_release_notifies_a_waiter_of_another_locker,
    a_release_looks_for_waiting_processes_in_its_trip_and_only_with_the_option,
    processes_are_notified_in_their_order_and_the_others_send_nothing,
    a_process_that_asks_again_at_once_leaves_the_lock_to_the_one_that_it_has_notified,
    a_process_that_has_had_its_time_slice_passes_the_lock_on,
    one_connection_listens_for_all_keys_while_a_thread_waits,
    releases_on_old_servers_notify_from_2_0_on,
    a_waiting_list_has_a_time_to_live_from_its_first_entry_on,
    a_pool_that_cannot_listen_is_refused,
}

pub(crate) fn as_worker(part: &[&str]) -> TaskOutcome {
    let ["wait", url, key] = part else { return Err(format!("no such part: {part:?}").into()) };
    let _held = Lock::new(&opened(url)?, *key, NOTIFIED)?.lock()?;
    println!("acquired");
    Ok(())
}

fn a_release_notifies_a_waiter_of_another_locker() -> Outcome {
    let server = TestServer::start();
    let unexpiring =
        LockOptions::without_expiration().timeout(NEVER).poll_interval(NEVER).notify_waiters(true);
    let all = PROTOCOLS.map(|protocol| NOTIFIED.protocol(protocol)).into_iter().chain([unexpiring]);
    for (place, options) in all.enumerate() {
        let lock = |key: &str| elsewhere(&server, key, options);
        let waiter = |key: &str| -> Result<Waiter, Error> {
            let waiter = Waiter::of(&lock(key)?);
            until_waiting(&server, key, 1);
            Ok(waiter)
        };
        let releases: [fn(LockGuard); 2] = [|held| drop(held.release()), drop];
        for (n, release) in releases.into_iter().enumerate() {
            let key = format!("{place} {n}");
            let held = lock(&key)?.lock()?;
            let waiter = waiter(&key)?;
            assert!(waiter.still_waits());
            release(held);
            drop(waiter.came()?);
        }
        let key = format!("{place} with");
        drop(lock(&key)?.with_result(|_| waiter(&key))?.came()?);
    }
    Ok(())
}

fn a_release_looks_for_waiting_processes_in_its_trip_and_only_with_the_option() -> Outcome {
    let server = TestServer::start();
    for (protocol, release) in [
        (Protocol::Classic, &["DEL k"][..]),
        (Protocol::Watched, &["WATCH k", "GET k", "MULTI", "DEL k", "EXEC"]),
        (Protocol::Ttl, &["WATCH k", "GET k", "MULTI", "DEL k", "EXEC"]),
    ] {
        for notifies in [true, false] {
            let options = expiring().protocol(protocol);
            let options = if notifies { options.notify_waiters(true) } else { options };
            let held = connected(elsewhere(&server, "k", options)?)?.lock()?;
            server.clear_log();
            drop(held);
            let sent: Vec<String> = recorded(&server).iter().map(|command| command.join(" ")).collect();
            let take: &[&str] = if notifies { &["LPOP k:setnx-lock:waiters:{k}"] } else { &[] };
            assert_eq!(sent, [release, take].concat(), "{protocol:?}");
        }
    }
    // A thread that does not wait does not listen.
    let _held = elsewhere(&server, "k", expiring())?.lock()?;
    server.clear_log();
    assert!(elsewhere(&server, "k", NOTIFIED)?.try_lock()?.is_none());
    assert_eq!(names(&recorded(&server)), ["INFO", "SETNX", "GET"]);
    Ok(())
}

fn processes_are_notified_in_their_order_and_the_others_send_nothing() -> Outcome {
    let server = TestServer::start();
    let mut held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
    let listening = Listening::start(&server, 4)?;
    let mut waiters = Vec::new();
    for locker in &listening.lockers {
        waiters.push(Waiter::of(&Lock::new(locker, "k", NOTIFIED)?));
        until_waiting(&server, "k", waiters.len());
    }
    for waiter in waiters {
        server.clear_log();
        drop(held);
        held = waiter.came()?;
        let commands = recorded(&server);
        let mut sent = names(&commands);
        sent.sort_unstable();
        let in_a_window = ["DEL", "EXPIRE", "GET", "LPOP", "PUBLISH", "RPUSH", "SETNX"];
        // One that has been busy for long looks first, and enters the list again, if it is notified in a window.
        assert!(sent == ["DEL", "LPOP", "PUBLISH", "SETNX"] || sent == in_a_window, "{commands:?}");
        let word =
            |name: &str, at: usize| commands.iter().find(|command| command[0] == name).map(|one| &one[at]);
        assert!(word("RPUSH", 2).is_none_or(|channel| Some(channel) == word("PUBLISH", 1)), "{commands:?}");
    }
    Ok(())
}

fn a_process_that_asks_again_at_once_leaves_the_lock_to_the_one_that_it_has_notified() -> Outcome {
    /// The head start. On a busy machine the other may need longer, and lose its turn; but not earlier.
    const LEFT: Duration = Duration::from_millis(10);
    let server = TestServer::start();
    let listening = Listening::start(&server, 2)?;
    for n in 0..30 {
        let lock = |process: usize| Lock::new(&listening.lockers[process], format!("k{n}"), NOTIFIED);
        let (own, other) = (lock(0)?, lock(1)?);
        let held = own.lock()?;
        let acquired = Arc::new(AtomicBool::new(false));
        let there = Arc::clone(&acquired);
        let waiter = thread::spawn(move || other.with(|_| there.store(true, Ordering::SeqCst)));
        until_waiting(&server, &format!("k{n}"), 1);
        let released = Instant::now();
        drop(held);
        let again = own.lock()?;
        let after = released.elapsed();
        assert!(acquired.load(Ordering::SeqCst) || after >= LEFT, "it had the lock again after {after:?}");
        drop(again);
        waiter.join().unwrap()?;
    }
    Ok(())
}

/// A thread of another process waits, and then another of the holder's. After the time slice the first of them is next.
fn a_process_that_has_had_its_time_slice_passes_the_lock_on() -> Outcome {
    let server = TestServer::start();
    let listening = Listening::start(&server, 1)?;
    let own = Lock::new(&listening.lockers[0], "k", NOTIFIED)?;
    let held = own.lock()?;
    let other = Waiter::of(&elsewhere(&server, "k", NOTIFIED)?);
    until_waiting(&server, "k", 1);
    let next = asleep(move || own.lock());
    thread::sleep(millis(20));
    drop(held);
    let held = other.came()?;
    assert!(!next.is_finished());
    until_waiting(&server, "k", 1);
    drop(held);
    drop(next.join().unwrap()?);
    Ok(())
}

fn one_connection_listens_for_all_keys_while_a_thread_waits() -> Outcome {
    let server = TestServer::start();
    let locker = opened(&server.url())?;
    let mut held = Vec::new();
    for n in 0..5 {
        let key = format!("k{n}");
        let lock = elsewhere(&server, &key, NOTIFIED)?.lock()?;
        held.push((lock, Waiter::of(&Lock::new(&locker, key.as_str(), NOTIFIED)?)));
        until_waiting(&server, &key, 1);
        until_listening(&server, 1);
    }
    for (held, waiter) in held.into_iter().rev() {
        drop(held);
        drop(waiter.came()?);
        assert!(listeners(&mut connection(&server)).len() <= 1);
    }
    // After five seconds.
    until_listening(&server, 0);
    assert_eq!(keys(&server, "*"), [""; 0]);
    // It listens anew when a thread waits again.
    let held = elsewhere(&server, "k1", NOTIFIED)?.lock()?;
    let waiter = Waiter::of(&Lock::new(&locker, "k1", NOTIFIED)?);
    until_listening(&server, 1);
    until_waiting(&server, "k1", 1);
    drop(held);
    drop(waiter.came()?);
    Ok(())
}

fn releases_on_old_servers_notify_from_2_0_on() -> Outcome {
    for version in ServerVersion::OLD {
        let server = server_of(version);
        let lock = |options| Lock::new(&opened(&server.url()).unwrap(), "k", options);
        let held = lock(NOTIFIED)?.lock()?;
        if version < ServerVersion::V2_0 {
            let reasons = Reasons::default();
            let waiter = Waiter::of(&reasons.of(&server.url(), "k", POLLED)?);
            until("it is reported", || !reasons.reported().is_empty());
            assert!(reasons.reported()[0].contains("notifications need 2.0"), "{:?}", reasons.reported());
            drop(held);
            drop(waiter.came()?);
            assert!(
                !server.names().iter().any(|name| ["SUBSCRIBE", "LPOP", "RPUSH"].contains(&name.as_str()))
            );
            continue;
        }
        let mut waiters = Vec::new();
        for n in 1..=2 {
            let lock = lock(NOTIFIED)?;
            waiters.push(thread::spawn(move || lock.lock().map(drop)));
            until_waiting(&server, "k", n);
        }
        drop(held);
        // In any order: through the server the look of the second may come after the release.
        waiters.into_iter().try_for_each(|waiter| waiter.join().unwrap())?;
        assert_eq!(keys(&server, "*"), [""; 0]);
        // Before 2.2 a push would remove a list that has a time to live.
        let expires = server.names().iter().any(|name| name == "EXPIRE");
        assert_eq!(expires, version >= ServerVersion::V2_2, "{version:?}");
    }
    Ok(())
}

fn a_waiting_list_has_a_time_to_live_from_its_first_entry_on() -> Outcome {
    let server = TestServer::start();
    let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
    let waiter = Waiter::of(&Lock::new(&opened(&server.url())?, "k", NOTIFIED)?);
    until_waiting(&server, "k", 1);
    let left = || -> i64 { redis::cmd("TTL").arg(list_of("k")).query(&mut connection(&server)).unwrap() };
    until("it lives for ten minutes", || left() > 500);
    let entered = server.log().into_iter().filter(|asked| asked.name == "RPUSH");
    let trips: Vec<_> = entered.map(|asked| (asked.position.place, asked.position.of)).collect();
    assert_eq!(trips, [(1, 3)], "with EXPIRE and GET");
    drop(held);
    drop(waiter.came()?);
    Ok(())
}

fn a_pool_that_cannot_listen_is_refused() -> Outcome {
    let server = TestServer::start();
    let pool = client_pool(&server.url());
    let error = Lock::new(&Locker::with_pool(pool).build()?, "k", NOTIFIED)
        .expect_err("it opens no connection of its own");
    assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
    let text = chain(&error);
    assert!(text.contains("`with_pool`"), "{text}");
    Ok(())
}
