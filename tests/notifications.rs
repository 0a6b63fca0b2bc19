//! Wake-ups between processes: a release leaves a token, and it wakes the one process that has waited longest. A process is played
//! by a locker of its own, or is one.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::{fs, io, thread};

use libtest_mimic::Trial;
use redis::Commands as _;
use setnx_lock::{Error, Lock, LockGuard, LockOptions, Locker, Manager, Protocol};

use crate::processes::Played;
use crate::support::monitor::{Monitor, connected, names};
use crate::support::notified::{
    IN_TIME, NEVER, NOTIFIED, Waiter, Worker, connection, elsewhere, keys, listeners, until, until_listening,
};
use crate::support::{LONG, Outcome, RedisServer, expiring, millis, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "notifications",
        tests![
            a_release_wakes_a_waiter_in_another_process,
            a_release_wakes_a_real_process,
            a_release_sends_one_token_and_only_with_the_option,
            one_process_is_woken_and_the_others_send_nothing,
            processes_are_served_in_the_order_in_which_they_wait,
            the_releaser_s_own_threads_wait_for_the_turn_of_their_process,
            threads_of_many_processes_all_get_their_turn_and_leave_nothing_behind,
            real_processes_all_get_their_turn,
            one_connection_listens_for_all_keys_as_long_as_somebody_waits,
            peers_that_leave_no_tokens_cost_a_poll,
            a_pool_that_cannot_listen_is_refused,
            a_pool_of_one_connection_is_enough,
        ],
    )
}

const PROTOCOLS: [Protocol; 3] = [Protocol::Classic, Protocol::Watched, Protocol::Ttl];

pub(crate) fn as_worker(part: &[&str]) -> Played {
    match part {
        ["wait", url, key] => {
            let held = Lock::new(&Locker::open(url)?, *key, NOTIFIED)?.lock()?;
            println!("got it, looks: {}", held.attempts());
            Ok(())
        }
        ["churn", url, key] => {
            let lock = Lock::new(&Locker::open(url)?, *key, NOTIFIED)?;
            println!("ready");
            loop {
                drop(lock.lock()?);
            }
        }
        ["count", url, key, file] => {
            count(&Lock::new(&Locker::open(url)?, *key, NOTIFIED)?, Path::new(file))?;
            println!("done");
            // One that ends may take a token with it, which costs the others a poll interval.
            Ok(io::stdin().read_line(&mut String::new()).map(drop)?)
        }
        _ => Err(format!("no such part: {part:?}").into()),
    }
}

/// Increments the number in a file, in two threads.
fn count(lock: &Lock, file: &Path) -> Played {
    let round = || {
        lock.try_with(|_| -> Played {
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

fn a_release_wakes_a_waiter_in_another_process() -> Outcome {
    let server = RedisServer::start()?;
    let mut monitor = Monitor::on(&server)?;
    let variants: [fn(LockGuard); 2] = [|held| drop(held.release()), drop];
    for protocol in PROTOCOLS {
        let options = NOTIFIED.protocol(protocol);
        for (n, variant) in variants.into_iter().enumerate() {
            let key = format!("{protocol:?}{n}");
            let held = elsewhere(&server, &key, options)?.lock()?;
            let waiter = Waiter::of(&elsewhere(&server, &key, options)?);
            monitor.wait_for_a_listener(&key);
            assert!(waiter.still_waits());
            variant(held);
            assert_eq!(waiter.came()?.attempts(), 2, "once, and when it was woken");
        }
        let key = format!("{protocol:?}-with");
        let waiter = elsewhere(&server, &key, options)?.try_with(|_| -> Result<Waiter, Error> {
            let waiter = Waiter::of(&elsewhere(&server, &key, options)?);
            monitor.wait_for_a_listener(&key);
            Ok(waiter)
        })?;
        assert_eq!(waiter.came()?.attempts(), 2);
    }
    let endless = LockOptions::held_until_released().timeout(NEVER).poll_interval(NEVER).notify_waiters();
    let held = elsewhere(&server, "endless", endless)?.lock()?;
    let waiter = Waiter::of(&elsewhere(&server, "endless", endless)?);
    monitor.wait_for_a_listener("endless");
    drop(held);
    assert_eq!(waiter.came()?.attempts(), 2);
    Ok(())
}

fn a_release_wakes_a_real_process() -> Outcome {
    let server = RedisServer::start()?;
    let held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
    let mut worker = Worker::playing(&["wait", &server.url(), "k"])?;
    until_listening(&server, 1);
    drop(held);
    assert_eq!(worker.says()?, "got it, looks: 2");
    assert!(worker.ends_well()?);
    Ok(())
}

fn a_release_sends_one_token_and_only_with_the_option() -> Outcome {
    let server = RedisServer::start()?;
    let token = [
        "MULTI",
        "RPUSH k:setnx-lock:wake-up 1",
        "LTRIM k:setnx-lock:wake-up 0 0",
        "EXPIRE k:setnx-lock:wake-up 2",
        "EXEC",
    ];
    for (protocol, released) in [
        (Protocol::Classic, &["DEL k"][..]),
        (Protocol::Watched, &["WATCH k", "GET k", "MULTI", "DEL k", "EXEC"]),
        (Protocol::Ttl, &["WATCH k", "GET k", "MULTI", "DEL k", "EXEC"]),
    ] {
        for wakes in [true, false] {
            let options = expiring().protocol(protocol);
            let options = if wakes { options.notify_waiters() } else { options };
            let held = connected(elsewhere(&server, "k", options)?)?.lock()?;
            let monitor = Monitor::on(&server)?;
            drop(held);
            let sent: Vec<String> =
                monitor.recorded(&server)?.iter().map(|command| command.join(" ")).collect();
            let expected = [released, if wakes { &token } else { &[] }].concat();
            assert_eq!(sent, expected, "{protocol:?}");
        }
    }
    // Who waits for nobody, or is not let wait, listens for nothing.
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

fn one_process_is_woken_and_the_others_send_nothing() -> Outcome {
    let server = RedisServer::start()?;
    let mut held = elsewhere(&server, "k", NOTIFIED)?.lock()?;
    let (sender, came) = mpsc::channel();
    for n in 1..=4 {
        let (sender, lock) = (sender.clone(), elsewhere(&server, "k", NOTIFIED)?);
        thread::spawn(move || sender.send(lock.lock()).is_ok());
        until_listening(&server, n);
    }
    for _ in 0..4 {
        let monitor = Monitor::on(&server)?;
        drop(held);
        held = came.recv_timeout(IN_TIME)??;
        let commands = monitor.recorded(&server)?;
        let sent = |name: &str| names(&commands).iter().filter(|sent| **sent == name).count();
        assert_eq!([sent("RPUSH"), sent("SETNX"), sent("GET")], [1, 1, 0], "{commands:?}");
    }
    Ok(())
}

/// Which processes got it, one after the other, while each wants it again as soon as it has given it back.
fn in_turn(
    server: &Arc<RedisServer>,
    processes: usize,
    rounds: usize,
) -> Result<Vec<usize>, Box<dyn std::error::Error>> {
    let held = elsewhere(server, "k", NOTIFIED)?.lock()?;
    let turns = Arc::new(Mutex::new(Vec::new()));
    let (sender, done) = mpsc::channel();
    for n in 0..processes {
        let (lock, turns, sender) = (elsewhere(server, "k", NOTIFIED)?, Arc::clone(&turns), sender.clone());
        let at = Arc::clone(server);
        thread::spawn(move || {
            let came = (1..=rounds).try_for_each(|round| {
                lock.try_with(|_| {
                    // Its own listener is back in its place, behind the others. The last time it may not be wanted any more.
                    if round < rounds {
                        until_listening(&at, processes);
                    }
                    turns.lock().unwrap().push(n);
                    Ok::<_, Error>(())
                })
            });
            sender.send(came).is_ok()
        });
        until_listening(server, n + 1);
    }
    drop(held);
    for _ in 0..processes {
        done.recv_timeout(IN_TIME)??;
    }
    let turns = turns.lock().unwrap().clone();
    Ok(turns)
}

fn processes_are_served_in_the_order_in_which_they_wait() -> Outcome {
    const PROCESSES: usize = 4;
    const ROUNDS: usize = 10;
    let expected: Vec<usize> = (0..PROCESSES).cycle().take(PROCESSES * ROUNDS).collect();
    let mut turns = Vec::new();
    for _ in 0..5 {
        let server = Arc::new(RedisServer::start()?);
        turns = in_turn(&server, PROCESSES, ROUNDS)?;
        // On a busy machine one may lose its place: it waits anew after five seconds, or is slow to wait again. Not time after time.
        if turns == expected {
            break;
        }
    }
    assert_eq!(turns, expected);
    Ok(())
}

fn the_releaser_s_own_threads_wait_for_the_turn_of_their_process() -> Outcome {
    let server = RedisServer::start()?;
    let own = elsewhere(&server, "k", NOTIFIED)?;
    let held = own.lock()?;
    let other = Waiter::of(&elsewhere(&server, "k", NOTIFIED)?);
    until_listening(&server, 1);
    let next = Waiter::of(&own);
    until_listening(&server, 2);
    drop(held);
    let held = other.came()?;
    assert!(next.still_waits());
    drop(held);
    assert_eq!(next.came()?.attempts(), 1, "it was woken when it was its turn, and not before");
    Ok(())
}

/// Increments a number under the lock, so often in each of so many threads.
struct Counting {
    number: Arc<AtomicU32>,
    done: mpsc::Receiver<Result<(), Error>>,
    threads: u32,
}

const TIMES: u32 = 10;

impl Counting {
    fn with(locks: &[Lock]) -> Self {
        let number = Arc::new(AtomicU32::new(0));
        let (sender, done) = mpsc::channel();
        for lock in locks {
            let (lock, number, sender) = (lock.clone(), Arc::clone(&number), sender.clone());
            thread::spawn(move || {
                let came = (0..TIMES).try_for_each(|_| {
                    lock.try_with(|_| {
                        let before = number.load(Ordering::Relaxed);
                        thread::sleep(millis(1));
                        number.store(before + 1, Ordering::Relaxed);
                        Ok::<_, Error>(())
                    })
                });
                sender.send(came).is_ok()
            });
        }
        let threads = u32::try_from(locks.len()).unwrap();
        Self { number, done, threads }
    }

    #[track_caller]
    fn ends_well(self) {
        for _ in 0..self.threads {
            self.done.recv_timeout(IN_TIME).expect("somebody waits for ever").unwrap();
        }
        assert_eq!(self.number.load(Ordering::Relaxed), self.threads * TIMES, "an update was lost");
    }
}

fn threads_of_many_processes_all_get_their_turn_and_leave_nothing_behind() -> Outcome {
    for protocol in PROTOCOLS {
        let server = RedisServer::start()?;
        let mut locks = Vec::new();
        for n in 0..8 {
            let lock = elsewhere(&server, "k", NOTIFIED.protocol(protocol).handoff(n % 2))?;
            locks.extend([lock.clone(), lock.clone(), lock]);
        }
        Counting::with(&locks).ends_well();
        until("nothing is left", || keys(&server, "*").is_empty());
    }
    Ok(())
}

fn real_processes_all_get_their_turn() -> Outcome {
    let server = RedisServer::start()?;
    let file = server.folder().join("number");
    fs::write(&file, "0")?;
    let part = ["count", &server.url(), "k", &file.display().to_string()];
    let mut workers = [Worker::playing(&part)?, Worker::playing(&part)?, Worker::playing(&part)?];
    for worker in &mut workers {
        assert_eq!(worker.says()?, "done");
    }
    assert_eq!(fs::read_to_string(&file)?, "150");
    for worker in &mut workers {
        worker.kill();
    }
    until("nothing is left", || keys(&server, "*").is_empty());
    Ok(())
}

fn one_connection_listens_for_all_keys_as_long_as_somebody_waits() -> Outcome {
    let server = RedisServer::start()?;
    let locker = Locker::open(&server.url())?;
    let mut monitor = Monitor::on(&server)?;
    let mut waiting = Vec::new();
    for n in 0..5 {
        let key = format!("k{n}");
        let held = elsewhere(&server, &key, NOTIFIED)?.lock()?;
        waiting.push((held, Waiter::of(&Lock::new(&locker, key.as_str(), NOTIFIED)?)));
        monitor.wait_for_a_listener(&key);
        until_listening(&server, 1);
    }
    // Each key but the first was new to a thread that was waiting for others.
    let monitored = Monitor::on(&server)?;
    let held = elsewhere(&server, "last", NOTIFIED)?.lock()?;
    let waiter = Waiter::of(&Lock::new(&locker, "last", NOTIFIED)?);
    monitor
        .wait_for("the bell", |words| words[0] == "RPUSH" && words[1].starts_with("setnx-lock:interrupt:"));
    monitor.wait_for_a_listener("last");
    waiting.push((held, waiter));
    let commands = monitored.recorded(&server)?;
    let bell = commands.iter().filter(|words| words[0] != "BLPOP" && words.len() > 1);
    let bell =
        bell.filter(|words| words[1].starts_with("setnx-lock:interrupt:")).map(|words| words[0].as_str());
    assert_eq!(bell.collect::<Vec<_>>(), ["RPUSH", "LTRIM", "EXPIRE"], "{commands:?}");
    for (held, waiter) in waiting.into_iter().rev() {
        drop(held);
        assert_eq!(waiter.came()?.attempts(), 2);
        assert!(listeners(&mut connection(&server)).len() <= 1);
    }
    until_listening(&server, 0);
    until("nothing is left", || keys(&server, "*").is_empty());
    // And anew when somebody waits again.
    let held = elsewhere(&server, "k1", NOTIFIED)?.lock()?;
    let waiter = Waiter::of(&Lock::new(&locker, "k1", NOTIFIED)?);
    until_listening(&server, 1);
    drop(held);
    assert_eq!(waiter.came()?.attempts(), 2);
    Ok(())
}

fn peers_that_leave_no_tokens_cost_a_poll() -> Outcome {
    let server = RedisServer::start()?;
    let mut gem = connection(&server);
    let polling = expiring().timeout(LONG).poll_interval(millis(20));
    let ours = elsewhere(&server, "k", polling.notify_waiters())?;
    for _ in 0..3 {
        let () = gem.set("k", "1895000000.5")?;
        let waiter = Waiter::of(&ours);
        until_listening(&server, 1);
        let () = gem.del("k")?;
        drop(waiter.came()?);
    }
    let plain = elsewhere(&server, "k", polling)?;
    let held = plain.lock()?;
    let waiter = Waiter::of(&ours);
    until_listening(&server, 1);
    drop(held);
    let held = waiter.came()?;
    let waiter = Waiter::of(&plain);
    drop(held);
    drop(waiter.came()?);
    // In one process, too: the line does not ask what its head has.
    let mixed = [ours.clone(), Lock::new(&Locker::open(&server.url())?, "k", polling)?];
    Counting::with(&[mixed.as_slice(), &[plain, ours]].concat()).ends_well();
    Ok(())
}

fn a_pool_that_cannot_listen_is_refused() -> Outcome {
    let server = RedisServer::start()?;
    let pool = r2d2::Pool::builder().build_unchecked(redis::Client::open(server.url())?);
    let error = Lock::new(&Locker::with_pool(pool), "k", NOTIFIED).expect_err("no connection of its own");
    assert!(matches!(error, Error::Options { .. }), "{error:?}");
    let text = crate::support::chain(&error);
    assert!(text.contains("`with_pool`") && text.contains("`with_managed_pool`"), "{text}");
    Ok(())
}

fn a_pool_of_one_connection_is_enough() -> Outcome {
    let server = RedisServer::start()?;
    let own = Locker::builder(&server.url())?.pool_size(1).build()?;
    let manager = Manager::new(redis::Client::open(server.url())?);
    let pool = r2d2::Pool::builder().max_size(1).min_idle(Some(0)).test_on_check_out(false);
    let shared = Locker::with_managed_pool(pool.build_unchecked(manager.clone()), &manager);
    let mut locks = Vec::new();
    for locker in [own, shared] {
        let lock = Lock::new(&locker, "k", NOTIFIED)?;
        locks.extend([lock.clone(), lock.clone(), lock]);
    }
    Counting::with(&locks).ends_well();
    until_listening(&server, 0);
    Ok(())
}
