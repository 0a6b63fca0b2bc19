//! What a locker holds, and how a program ends its use.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use setnx_lock::{
    Error, Key, Lock, LockGuard, LockOptions, Locker, MultiLock, Protocol, Quorum, RwLock, Semaphore,
};
use setnx_lock_testing::{Fault, TestServer};

use crate::support::asleep::asleep;
use crate::support::notified::until;
use crate::support::scenario::opened;
use crate::support::tool::example;
use crate::support::{LONG, Outcome, expiring, millis, trials_of};

trials_of! {
    "draining";
    what_is_held_is_listed,
    a_hold_that_outlives_its_lease_is_listed_beside_the_next,
    a_drain_waits_for_each_guard_and_ends_all_waits,
    what_is_still_held_is_returned,
    a_call_that_acquires_is_waited_for,
    a_quorum_is_waited_for_until_its_servers_have_released,
    releases_are_tried_until_the_server_is_back,
    releases_are_tried_while_the_server_refuses_for_now,
    a_thousand_kept_locks_of_many_threads_are_drained,
    a_worker_that_is_told_to_end_leaves_no_lock,
}

fn keys(locker: &Locker) -> Vec<String> {
    locker.held().iter().map(|held| held.key.to_string()).collect()
}

fn what_is_held_is_listed() -> Outcome {
    let server = TestServer::start();
    let locker = opened(&server.url())?;
    let lock = |key: &str, options| Lock::new(&locker, key, options);
    assert!(locker.held().is_empty());
    let short = lock("b", expiring().protocol(Protocol::Auto))?.lock()?;
    let endless = lock("a", LockOptions::without_expiration())?.lock()?;
    let [first, second] = locker.held().try_into().expect("two are held");
    assert_eq!((first.key, first.remaining, first.protocol), ("a".into(), None, Protocol::Classic));
    assert_eq!((&second.key, second.protocol), (&Key::from("b"), Protocol::Ttl));
    assert!(second.remaining.expect("it expires") <= LONG && second.held < LONG);
    short.extend_by(10 * LONG)?;
    assert!(locker.clone().held()[1].remaining > Some(2 * LONG), "as it is now");
    assert!(opened(&server.url())?.held().is_empty(), "another locker's");
    // It was cleared, and its guard lives.
    server.delete("b");
    assert!(short.verify().is_err());
    assert_eq!(locker.held()[1].remaining, Some(Duration::ZERO));
    assert!(short.release().is_err());
    assert_eq!(keys(&locker), ["a"]);
    endless.release()?;
    lock("c", expiring())?.with(|_| assert_eq!(keys(&locker), ["c"]))?;
    lock("c", expiring())?.lock()?.leave_to_expire()?;
    server.delete("c");
    let token = lock("c", expiring())?.lock()?.into_token()?;
    assert!(locker.held().is_empty(), "another process goes on with it");
    let resumed = lock("c", expiring())?.resume(&token)?;
    assert_eq!(keys(&locker), ["c"]);
    drop(resumed);
    // Several keys, permits, readers.
    let several = MultiLock::new(&locker, ["y", "x"], expiring())?.lock()?;
    let permit = Semaphore::new(&locker, "permits", 1, expiring())?.acquire()?;
    let writer = RwLock::new(&locker, "readers", 2, expiring())?.write()?;
    assert_eq!(keys(&locker), ["permits:0", "readers:0", "readers:1", "x", "y"]);
    drop((several, permit, writer));
    // Waited for, then held.
    server.hold("x", LONG);
    let waiting = asleep({
        let several = MultiLock::new(&locker, ["w", "x"], expiring())?;
        move || several.lock()
    });
    assert_eq!(keys(&locker), ["w"], "during the wait for the other");
    server.delete("x");
    let held = waiting.join().unwrap()?;
    assert_eq!(keys(&locker), ["w", "x"]);
    drop(held);
    assert!(locker.held().is_empty());
    Ok(())
}

fn a_hold_that_outlives_its_lease_is_listed_beside_the_next() -> Outcome {
    let server = TestServer::start();
    let locker = opened(&server.url())?;
    let first = Lock::new(&locker, "k", LockOptions::expiring_after(millis(50)).timeout(LONG))?.lock()?;
    let second = Lock::new(&locker, "k", expiring())?.lock()?;
    assert_eq!(keys(&locker), ["k", "k"]);
    drop(second);
    assert_eq!((keys(&locker), locker.held()[0].remaining), (vec!["k".into()], Some(Duration::ZERO)));
    drop(first);
    assert!(locker.held().is_empty());
    Ok(())
}

fn a_drain_waits_for_each_guard_and_ends_all_waits() -> Outcome {
    let server = TestServer::start();
    let locker = opened(&server.url())?;
    let lock = Lock::new(&locker, "k", expiring().poll_interval(LONG))?;
    let held = lock.lock()?;
    let waiting = asleep({
        let lock = lock.clone();
        move || lock.lock().map(drop)
    });
    let draining = thread::spawn({
        let locker = locker.clone();
        move || locker.drain(LONG)
    });
    let error = waiting.join().unwrap().expect_err("the locker is drained");
    assert!(matches!(error, Error::ShutDown { .. }), "{error:?}");
    assert!(matches!(lock.try_lock(), Err(Error::ShutDown { .. })));
    assert!(!draining.is_finished());
    // What is held goes on.
    held.extend()?;
    drop(held);
    let drained = draining.join().unwrap();
    assert!(drained.still_held.is_empty() && drained.waited < LONG, "{drained:?}");
    assert_eq!(server.get("k"), None);
    assert!(locker.drain(LONG).waited < LONG, "nothing is left to wait for");
    Ok(())
}

fn what_is_still_held_is_returned() -> Outcome {
    let server = TestServer::start();
    let locker = opened(&server.url())?;
    let held = Lock::new(&locker, "k", expiring())?.lock()?;
    let drained = locker.drain(millis(30));
    let [still] = &drained.still_held[..] else { panic!("{drained:?}") };
    assert!(drained.waited >= millis(30) && still.remaining > Some(Duration::ZERO));
    assert_eq!(still.key, "k");
    held.verify()?;
    held.release()?;
    assert_eq!(server.get("k"), None, "it was not released before, and can be");
    Ok(())
}

/// Its command was sent before, so it gets its lock.
fn a_call_that_acquires_is_waited_for() -> Outcome {
    let server = TestServer::start();
    let locker = opened(&server.url())?;
    let lock = Lock::new(&locker, "k", expiring())?;
    lock.state()?;
    let asked = server.pause("SETNX", 1);
    let acquiring = thread::spawn(move || {
        let held = lock.lock()?;
        thread::sleep(millis(50));
        held.release()
    });
    asked.reached();
    let draining = thread::spawn({
        let locker = locker.clone();
        move || locker.drain(LONG)
    });
    thread::sleep(millis(20));
    assert!(!draining.is_finished() && locker.held().is_empty());
    asked.go_on();
    acquiring.join().unwrap()?;
    assert!(draining.join().unwrap().still_held.is_empty());
    assert_eq!(server.get("k"), None);
    Ok(())
}

fn a_quorum_is_waited_for_until_its_servers_have_released() -> Outcome {
    let servers = [(); 3].map(|()| TestServer::start());
    let lockers: Vec<Locker> =
        servers.iter().map(|server| opened(&server.url())).collect::<Result<_, Error>>()?;
    let held = Quorum::new(&lockers, "k", expiring())?.lock()?;
    until("all have granted", || servers.iter().all(|server| server.get("k").is_some()));
    servers[2].delay(millis(300));
    drop(held);
    for (server, locker) in servers.iter().zip(&lockers) {
        assert!(locker.drain(LONG).still_held.is_empty());
        assert_eq!(server.get("k"), None);
    }
    Ok(())
}

fn a_thousand_kept_locks_of_many_threads_are_drained() -> Outcome {
    const THREADS: usize = 128;
    let server = TestServer::start();
    server.delay(millis(1));
    let locker = opened(&server.url())?;
    let options = LockOptions::expiring_after(LONG / 4).auto_extend(LONG).protocol(Protocol::Auto);
    let (started, starts) = mpsc::channel();
    let workers: Vec<_> = (0..THREADS)
        .map(|thread| {
            let (locker, started) = (locker.clone(), started.clone());
            thread::spawn(move || -> Result<usize, Error> {
                let lock = |n: usize| Lock::new(&locker, format!("k:{thread}:{n}"), options);
                let held = (0..8).map(|n| lock(n)?.lock()).collect::<Result<Vec<LockGuard>, Error>>()?;
                started.send(()).unwrap();
                // Other keys, until the end.
                let shared = Lock::new(&locker, format!("shared:{}", thread % 16), options.timeout(LONG))?;
                let mut rounds = 0;
                while shared.with(|_| thread::sleep(millis(1))).is_ok() {
                    rounds += 1;
                }
                held.into_iter().try_for_each(LockGuard::release)?;
                Ok(rounds)
            })
        })
        .collect();
    for _ in 0..THREADS {
        starts.recv_timeout(LONG)?;
    }
    assert!(locker.held().len() >= 8 * THREADS);
    let drained = locker.drain(LONG);
    assert!(drained.still_held.is_empty(), "{drained:?}");
    for worker in workers {
        worker.join().unwrap()?;
    }
    let none = server.run(&["KEYS", "none"]);
    assert_eq!(server.run(&["KEYS", "*"]), none, "no key is left, nor a list of waiters");
    Ok(())
}

fn a_worker_that_is_told_to_end_leaves_no_lock() -> Outcome {
    for signal in [Signal::TERM, Signal::INT, Signal::KILL] {
        let server = TestServer::start();
        server.delay(millis(1));
        let mut worker = Command::new(example("worker"))
            .args([server.url().as_str(), "128"])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut lines = BufReader::new(worker.stdout.take().expect("it is piped")).lines();
        assert_eq!(lines.next().transpose()?.as_deref(), Some("working"));
        let none = server.run(&["KEYS", "none"]);
        let left = || server.run(&["KEYS", "record:*"]) != none;
        until("it works", left);
        // In the middle of it. One reply is lost as well.
        server.next("EXEC", Fault::CutAfter);
        thread::sleep(millis(100));
        let began = Instant::now();
        kill_process(Pid::from_child(&worker), signal)?;
        let status = worker.wait()?;
        let output: Vec<String> = lines.collect::<Result<_, _>>()?;
        if signal == Signal::KILL {
            assert!(left(), "SIGKILL costs the leases");
            continue;
        }
        assert!(status.success(), "{signal:?}: {status} {output:?}");
        assert!(began.elapsed() < LONG);
        assert!(output[0].starts_with("drained in "), "{output:?}");
        for line in ["setnx_lock_waiting 0", "setnx_lock_held "] {
            assert!(output.iter().any(|output| output.starts_with(line)), "{line}: {output:?}");
        }
        // The release whose reply was lost has been carried out, or its lock expires.
        assert!(!left(), "{signal:?}: {}", server.run(&["KEYS", "record:*"]));
    }
    Ok(())
}

/// However shortly before connecting has failed, and whenever the server is back.
fn releases_are_tried_until_the_server_is_back() -> Outcome {
    for away in [0, 1, 60, 300] {
        let server = TestServer::start();
        let locker = opened(&server.url())?;
        let names = ["a", "b", "c", "d"];
        let options = expiring().protocol(Protocol::Watched);
        let lock = |name| Lock::new(&locker, name, options)?.lock();
        let held = names.into_iter().map(lock).collect::<Result<Vec<_>, Error>>()?;
        server.stop();
        for held in held {
            assert!(held.release().is_err(), "the server is away");
        }
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(millis(away));
                server.start_again();
            });
            assert!(locker.drain(LONG).still_held.is_empty());
        });
        assert!(names.iter().all(|name| server.get(name).is_none()), "after {away} ms");
    }
    Ok(())
}

fn releases_are_tried_while_the_server_refuses_for_now() -> Outcome {
    let server = TestServer::start();
    let locker = opened(&server.url())?;
    let lock = Lock::new(&locker, "k", expiring())?;
    let held = lock.lock()?;
    for _ in 0..3 {
        server.next("DEL", Fault::Refuse("NOREPLICAS Not enough good replicas to write.".into()));
    }
    assert!(held.release().is_err());
    assert!(locker.drain(LONG).still_held.is_empty());
    assert_eq!((server.faults_left(), server.get("k")), (0, None));
    Ok(())
}
