//! Release notifications between processes: a release sends one notification, and the waiting process that is next receives it. In
//! most tests a locker of its own stands for a process.

use std::path::Path;
use std::sync::mpsc;
use std::{fs, io, thread};

use libtest_mimic::Trial;
use redis::Commands as _;
use setnx_lock::{Error, Lock, LockGuard, LockOptions, Locker, Manager, Protocol};

use crate::notification_order::Counting;
use crate::processes::TaskOutcome;
use crate::servers::{Emulated, Position, Proxy};
use crate::support::monitor::{Monitor, connected, names};
use crate::support::notified::{
    IN_TIME, Listening, NEVER, NOTIFIED, POLLED, Reasons, Waiter, Worker, connection, elsewhere, keys,
    list_of, listeners, until, until_listening, until_waiting,
};
use crate::support::scenario::{opened, patient};
use crate::support::target::PROTOCOLS;
use crate::support::{LONG, Outcome, RedisServer, chain, expiring, millis, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "notifications",
        tests![
            a_release_notifies_a_waiter_of_another_locker,
            a_release_notifies_a_waiter_in_another_process,
            a_release_looks_for_waiting_processes_in_its_trip_and_only_with_the_option,
            one_process_is_notified_and_the_others_send_nothing,
            one_connection_listens_for_all_keys_while_a_thread_waits,
            releases_without_a_notification_are_found_by_polling,
            releases_on_old_servers_notify_from_2_0_on,
            a_waiting_list_has_a_time_to_live_from_its_first_entry_on,
            a_pool_that_cannot_listen_is_refused,
            a_pool_of_one_connection_is_enough,
            a_time_limit_of_any_length_can_listen,
        ],
    )
}

pub(crate) fn as_worker(part: &[&str]) -> TaskOutcome {
    match part {
        ["wait", url, key] => {
            let held = Lock::new(&opened(url)?, *key, NOTIFIED)?.lock()?;
            println!("acquired, attempts: {}", held.attempts());
            Ok(())
        }
        ["churn", url, key] => {
            let lock = Lock::new(&opened(url)?, *key, NOTIFIED)?;
            println!("ready");
            loop {
                drop(lock.lock()?);
            }
        }
        ["count", url, key, file] => {
            count(&Lock::new(&opened(url)?, *key, NOTIFIED)?, Path::new(file))?;
            println!("done");
            // A process that exits may have received a notification, which would cost the others a poll interval.
            Ok(io::stdin().read_line(&mut String::new()).map(drop)?)
        }
        _ => Err(format!("no such part: {part:?}").into()),
    }
}

/// Increments the number in a file, in two threads.
fn count(lock: &Lock, file: &Path) -> TaskOutcome {
    let round = || {
        lock.try_with(|_| -> TaskOutcome {
            let number: u32 = fs::read_to_string(file)?.trim().parse()?;
            thread::yield_now();
            Ok(fs::write(file, (number + 1).to_string())?)
        })
    };
    thread::scope(|scope| {
        let threads = [(); 2].map(|()| scope.spawn(|| (0..25).try_for_each(|_| round())));
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    })
}

fn a_release_notifies_a_waiter_of_another_locker() -> Outcome {
    let server = RedisServer::start()?;
    let releases: [fn(LockGuard); 2] = [|held| drop(held.release()), drop];
    for protocol in PROTOCOLS {
        let options = NOTIFIED.protocol(protocol);
        for (n, release) in releases.into_iter().enumerate() {
            let key = format!("{protocol:?}{n}");
            let held = elsewhere(&server, &key, options)?.lock()?;
            let waiter = Waiter::of(&elsewhere(&server, &key, options)?);
            until_waiting(&server, &key, 1);
            assert!(waiter.still_waits());
            release(held);
            assert!(
                waiter.came()?.attempts() <= 3,
                "one at once, one when it listens, and one at the notification"
            );
        }
        let key = format!("{protocol:?}-with");
        let waiter = elsewhere(&server, &key, options)?.try_with(|_| -> Result<Waiter, Error> {
            let waiter = Waiter::of(&elsewhere(&server, &key, options)?);
            until_waiting(&server, &key, 1);
            Ok(waiter)
        })?;
        assert!(waiter.came()?.attempts() <= 3);
    }
    let unexpiring = LockOptions::held_until_released().timeout(NEVER).poll_interval(NEVER).notify_waiters();
    let held = elsewhere(&server, "unexpiring", unexpiring)?.lock()?;
    let waiter = Waiter::of(&elsewhere(&server, "unexpiring", unexpiring)?);
    until_waiting(&server, "unexpiring", 1);
    drop(held);
    assert!(waiter.came()?.attempts() <= 3);
    Ok(())
}

fn a_release_notifies_a_waiter_in_another_process() -> Outcome {
    let server = RedisServer::start()?;
    let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
    let mut worker = Worker::performing(&["wait", &server.url(), "k"])?;
    until_waiting(&server, "k", 1);
    drop(held);
    assert!(["acquired, attempts: 2", "acquired, attempts: 3"].contains(&worker.says()?.as_str()));
    assert!(worker.ends_well()?);
    Ok(())
}

fn a_release_looks_for_waiting_processes_in_its_trip_and_only_with_the_option() -> Outcome {
    let server = RedisServer::start()?;
    for (protocol, release) in [
        (Protocol::Classic, &["DEL k"][..]),
        (Protocol::Watched, &["WATCH k", "GET k", "MULTI", "DEL k", "EXEC"]),
        (Protocol::Ttl, &["WATCH k", "GET k", "MULTI", "DEL k", "EXEC"]),
    ] {
        for notifies in [true, false] {
            let options = expiring().protocol(protocol);
            let options = if notifies { options.notify_waiters() } else { options };
            let held = connected(elsewhere(&server, "k", options)?)?.lock()?;
            let monitor = Monitor::on(&server)?;
            drop(held);
            let sent: Vec<String> =
                monitor.recorded(&server)?.iter().map(|command| command.join(" ")).collect();
            let take: &[&str] = if notifies { &["LPOP k:setnx-lock:waiters"] } else { &[] };
            let expected = [release, take].concat();
            assert_eq!(sent, expected, "{protocol:?}");
        }
    }
    // A thread that does not wait, or waits without the option, does not listen.
    let held = elsewhere(&server, "k", expiring())?.lock()?;
    let monitor = Monitor::on(&server)?;
    assert!(elsewhere(&server, "k", NOTIFIED)?.try_lock()?.is_none());
    assert!(elsewhere(&server, "k", expiring())?.try_lock_for(millis(50))?.is_none());
    drop(held);
    let commands = monitor.recorded(&server)?;
    assert!(
        names(&commands).iter().all(|name| ["INFO", "SETNX", "GET", "DEL"].contains(name)),
        "{commands:?}"
    );
    Ok(())
}

fn one_process_is_notified_and_the_others_send_nothing() -> Outcome {
    let server = RedisServer::start()?;
    let mut held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
    let (sender, acquired) = mpsc::channel();
    let listening = Listening::start(&server, 4)?;
    for (locker, n) in listening.lockers.iter().zip(1..) {
        let (sender, lock) = (sender.clone(), Lock::new(locker, "k", NOTIFIED)?);
        thread::spawn(move || sender.send(lock.lock()).is_ok());
        until_waiting(&server, "k", n);
    }
    until("the list has a time to live", || {
        let left: i64 = connection(&server).ttl(list_of("k")).unwrap();
        left > 0
    });
    for _ in 0..4 {
        let monitor = Monitor::on(&server)?;
        drop(held);
        held = acquired.recv_timeout(IN_TIME)??;
        let commands = monitor.recorded(&server)?;
        let sent = |name: &str| names(&commands).iter().filter(|sent| **sent == name).count();
        assert_eq!(
            [sent("LPOP"), sent("PUBLISH"), sent("SETNX"), sent("GET"), commands.len()],
            [1, 1, 1, 0, 4 /* and DEL */],
            "{commands:?}"
        );
    }
    Ok(())
}

fn one_connection_listens_for_all_keys_while_a_thread_waits() -> Outcome {
    let server = RedisServer::start()?;
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
        assert!(waiter.came()?.attempts() <= 3);
        assert!(listeners(&mut connection(&server)).len() <= 1);
    }
    until_listening(&server, 0);
    assert_eq!(keys(&server, "*"), [""; 0]);
    // It listens anew when a thread waits again.
    let held = elsewhere(&server, "k1", NOTIFIED)?.lock()?;
    let waiter = Waiter::of(&Lock::new(&locker, "k1", NOTIFIED)?);
    until_listening(&server, 1);
    until_waiting(&server, "k1", 1);
    drop(held);
    assert!(waiter.came()?.attempts() <= 3);
    Ok(())
}

fn releases_without_a_notification_are_found_by_polling() -> Outcome {
    let server = RedisServer::start()?;
    let mut gem = connection(&server);
    let polling = expiring().timeout(LONG).poll_interval(millis(20));
    let notified = elsewhere(&server, "k", polling.notify_waiters())?;
    for _ in 0..3 {
        let () = gem.set("k", "1895000000.5")?;
        let waiter = Waiter::of(&notified);
        until_waiting(&server, "k", 1);
        let () = gem.del("k")?;
        drop(waiter.came()?);
    }
    let plain = elsewhere(&server, "k", polling)?;
    let held = plain.lock()?;
    let waiter = Waiter::of(&notified);
    until_waiting(&server, "k", 1);
    drop(held);
    let held = waiter.came()?;
    let waiter = Waiter::of(&plain);
    drop(held);
    drop(waiter.came()?);
    // Lockers with and without the option lose no update among them.
    let other = Lock::new(&opened(&server.url())?, "k", polling)?;
    Counting::with(&[notified.clone(), other, plain, notified]).assert_complete();
    Ok(())
}

fn releases_on_old_servers_notify_from_2_0_on() -> Outcome {
    for version in Emulated::ALL {
        let server = RedisServer::start()?;
        let proxy = Proxy::emulating(version, server.address())?;
        let lock = |options| Lock::new(&opened(&proxy.url()).unwrap(), "k", options);
        if version < Emulated::V2_0 {
            let held = lock(NOTIFIED)?.lock()?;
            let reasons = Reasons::default();
            let waiter = Waiter::of(&reasons.of(&proxy.url(), "k", POLLED)?);
            until("it is reported", || !reasons.reported().is_empty());
            assert!(reasons.reported()[0].contains("notifications need 2.0"), "{:?}", reasons.reported());
            drop(held);
            drop(waiter.came()?);
            assert!(
                !proxy.names().iter().any(|name| ["SUBSCRIBE", "LPOP", "RPUSH"].contains(&name.as_str()))
            );
            continue;
        }
        let held = lock(NOTIFIED)?.lock()?;
        let mut waiters = Vec::new();
        for n in 1..=2 {
            let lock = lock(NOTIFIED)?;
            waiters.push(thread::spawn(move || lock.lock().map(drop)));
            until_waiting(&server, "k", n);
        }
        drop(held);
        // In any order: through the proxy the look of the second may come after the release.
        waiters.into_iter().try_for_each(|waiter| waiter.join().unwrap())?;
        assert_eq!(keys(&server, "*"), [""; 0]);
        // Before 2.2 a push would remove a list that has a time to live.
        let expires = proxy.names().iter().any(|name| name == "EXPIRE");
        assert_eq!(expires, version >= Emulated::V2_2, "{version:?}");
    }
    Ok(())
}

fn a_waiting_list_has_a_time_to_live_from_its_first_entry_on() -> Outcome {
    let server = RedisServer::start()?;
    let proxy = Proxy::before(server.address())?;
    let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
    let waiter = Waiter::of(&Lock::new(&opened(&proxy.url())?, "k", NOTIFIED)?);
    until_waiting(&server, "k", 1);
    let left = || -> i64 { redis::cmd("TTL").arg(list_of("k")).query(&mut connection(&server)).unwrap() };
    until("it lives for ten minutes", || left() > 500);
    let entered = proxy.asked().into_iter().filter(|asked| asked.name == "RPUSH");
    let trips: Vec<_> = entered.map(|asked| asked.position).collect();
    assert_eq!(trips, [Position { place: 1, of: 3 }], "with EXPIRE and GET");
    // A list that was left without one has it again once another process enters.
    let () = redis::cmd("PERSIST").arg(list_of("k")).query(&mut connection(&server))?;
    let another = Waiter::of(&elsewhere(&server, "k", NOTIFIED)?);
    until("it lives for ten minutes again", || left() > 500);
    drop(held);
    drop((waiter.came()?, another));
    Ok(())
}

fn a_pool_that_cannot_listen_is_refused() -> Outcome {
    let server = RedisServer::start()?;
    let pool = r2d2::Pool::builder().build_unchecked(redis::Client::open(server.url())?);
    let error =
        Lock::new(&Locker::with_pool(pool), "k", NOTIFIED).expect_err("it opens no connection of its own");
    assert!(matches!(error, Error::Options { .. }), "{error:?}");
    let text = chain(&error);
    assert!(text.contains("`with_pool`") && text.contains("`with_managed_pool`"), "{text}");
    Ok(())
}

fn a_pool_of_one_connection_is_enough() -> Outcome {
    let server = RedisServer::start()?;
    let own = patient(&server.url())?.pool_size(1).build()?;
    let manager = Manager::new(redis::Client::open(server.url())?).command_timeout(LONG);
    let pool = r2d2::Pool::builder().max_size(1).min_idle(Some(0)).test_on_check_out(false);
    let shared = Locker::with_managed_pool(pool.build_unchecked(manager.clone()), &manager);
    let mut locks = Vec::new();
    for locker in [own, shared] {
        let lock = Lock::new(&locker, "k", NOTIFIED)?;
        locks.extend([lock.clone(), lock.clone(), lock]);
    }
    Counting::with(&locks).assert_complete();
    until_listening(&server, 0);
    Ok(())
}

fn a_time_limit_of_any_length_can_listen() -> Outcome {
    let server = RedisServer::start()?;
    let locker = patient(&server.url())?.command_timeout(std::time::Duration::MAX).build()?;
    let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
    let waiter = Waiter::of(&Lock::new(&locker, "k", NOTIFIED)?);
    until_waiting(&server, "k", 1);
    drop(held);
    drop(waiter.came()?);
    Ok(())
}
