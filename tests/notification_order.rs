//! Several waiting processes: they acquire the lock in the order in which they wait, each of them does, and no update is lost.

use std::fs;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use setnx_lock::{Error, Lock, LockGuard};

use crate::support::asleep::asleep;
use crate::support::notified::{
    IN_TIME, Listening, NEVER, NOTIFIED, Waiter, Worker, connection, elsewhere, keys, until, until_waiting,
    waiting,
};
use crate::support::target::PROTOCOLS;
use crate::support::{Outcome, RedisServer, millis, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "notification_order",
        tests![
            processes_acquire_the_lock_in_the_order_in_which_they_wait,
            a_process_that_asks_again_at_once_leaves_the_lock_to_the_one_that_it_has_notified,
            threads_of_the_releasing_process_wait_for_its_turn,
            threads_of_one_process_pass_the_lock_on_within_a_time_slice,
            threads_of_eight_lockers_all_acquire_and_leave_no_key_behind,
            threads_of_three_processes_all_acquire_and_leave_no_key_behind,
        ],
    )
}

/// When a process that has released the lock waits for it again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Again {
    AtOnce,
    /// After another has acquired it.
    Later,
}

/// Returns which process acquired the lock, one after the other.
fn turns_of(
    server: &Arc<RedisServer>,
    processes: usize,
    rounds: usize,
    again: Again,
) -> Result<Vec<usize>, Box<dyn std::error::Error>> {
    let listening = Listening::start(server, processes)?;
    let held = elsewhere(server, "k", NOTIFIED)?.lock()?;
    let turns = Arc::new(Mutex::new(Vec::new()));
    let (sender, done) = mpsc::channel();
    let [acquired, ended] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    for (n, locker) in listening.lockers.iter().enumerate() {
        let (lock, turns, sender) = (Lock::new(locker, "k", NOTIFIED)?, Arc::clone(&turns), sender.clone());
        let (at, acquired, ended) = (Arc::clone(server), Arc::clone(&acquired), Arc::clone(&ended));
        thread::spawn(move || {
            let outcome = (1..=rounds).try_for_each(|round| {
                let turn = lock.try_with(|_| {
                    let turn = acquired.fetch_add(1, Ordering::SeqCst) + 1;
                    // All others wait again before the next turn.
                    let mut connection = connection(&at);
                    until("the others wait", || {
                        waiting(&mut connection, "k") + ended.load(Ordering::SeqCst) >= processes - 1
                    });
                    if round == rounds {
                        ended.fetch_add(1, Ordering::SeqCst);
                    }
                    turns.lock().unwrap().push(n);
                    Ok::<_, Error>(turn)
                })?;
                until("another has the lock, or has ended", || {
                    again == Again::AtOnce
                        || acquired.load(Ordering::SeqCst) > turn
                        || ended.load(Ordering::SeqCst) >= processes - 1
                });
                Ok::<_, Error>(())
            });
            sender.send(outcome).is_ok()
        });
        until_waiting(server, "k", n + 1);
    }
    drop(held);
    for _ in 0..processes {
        done.recv_timeout(IN_TIME)??;
    }
    let turns = turns.lock().unwrap().clone();
    Ok(turns)
}

fn processes_acquire_the_lock_in_the_order_in_which_they_wait() -> Outcome {
    const PROCESSES: usize = 4;
    const ROUNDS: usize = 10;
    let server = Arc::new(RedisServer::start()?);
    let expected: Vec<usize> = (0..PROCESSES).cycle().take(PROCESSES * ROUNDS).collect();
    assert_eq!(turns_of(&server, PROCESSES, ROUNDS, Again::Later)?, expected);
    Ok(())
}

fn a_process_that_asks_again_at_once_leaves_the_lock_to_the_one_that_it_has_notified() -> Outcome {
    let mut all = Vec::new();
    // On a busy machine a process may lose its turn: its head start is some milliseconds, and it may need longer. It does not lose most.
    for _ in 0..10 {
        let server = Arc::new(RedisServer::start()?);
        let turns = turns_of(&server, 3, 10, Again::AtOnce)?;
        if turns.windows(2).filter(|two| two[0] == two[1]).count() < turns.len() / 2 {
            return Ok(());
        }
        all.push(turns);
    }
    panic!("most often the process that had the lock has it again: {all:?}")
}

/// A thread of another process that waits, and then another of the holder's.
struct Waiting {
    other: Waiter,
    next: thread::JoinHandle<Result<LockGuard, Error>>,
    _listening: Listening,
}

impl Waiting {
    fn after_a_release(server: &RedisServer, time_slice: Duration) -> Result<Self, Error> {
        let listening = Listening::start(server, 1)?;
        let own = Lock::new(&listening.lockers[0], "k", NOTIFIED.time_slice(time_slice))?;
        let held = own.lock()?;
        let other = Waiter::of(&elsewhere(server, "k", NOTIFIED)?);
        until_waiting(server, "k", 1);
        let next = asleep(move || own.lock());
        drop(held);
        Ok(Self { other, next, _listening: listening })
    }
}

fn threads_of_the_releasing_process_wait_for_its_turn() -> Outcome {
    let server = RedisServer::start()?;
    let Waiting { other, next, _listening } = Waiting::after_a_release(&server, Duration::ZERO)?;
    let held = other.came()?;
    assert!(!next.is_finished());
    until_waiting(&server, "k", 1);
    drop(held);
    drop(next.join().unwrap()?);
    Ok(())
}

fn threads_of_one_process_pass_the_lock_on_within_a_time_slice() -> Outcome {
    let server = RedisServer::start()?;
    let Waiting { other, next, _listening } = Waiting::after_a_release(&server, NEVER)?;
    let held = next.join().unwrap()?;
    assert!(other.still_waits());
    drop(held);
    drop(other.came()?);
    Ok(())
}

/// Threads that increment a number under a lock.
pub(crate) struct Counting {
    number: Arc<AtomicU32>,
    done: mpsc::Receiver<Result<(), Error>>,
    threads: u32,
}

/// How often each thread increments it.
const TIMES: u32 = 10;

impl Counting {
    /// Starts one thread for each lock.
    pub(crate) fn with(locks: &[Lock]) -> Self {
        let number = Arc::new(AtomicU32::new(0));
        let (sender, done) = mpsc::channel();
        for lock in locks {
            let (lock, number, sender) = (lock.clone(), Arc::clone(&number), sender.clone());
            thread::spawn(move || {
                let outcome = (0..TIMES).try_for_each(|_| {
                    lock.try_with(|_| {
                        let before = number.load(Ordering::Relaxed);
                        thread::sleep(millis(1));
                        number.store(before + 1, Ordering::Relaxed);
                        Ok::<_, Error>(())
                    })
                });
                sender.send(outcome).is_ok()
            });
        }
        let threads = u32::try_from(locks.len()).unwrap();
        Self { number, done, threads }
    }

    /// Asserts that all threads end in time, and that no update was lost.
    #[track_caller]
    pub(crate) fn assert_complete(self) {
        for _ in 0..self.threads {
            self.done.recv_timeout(IN_TIME).expect("a thread still waits").unwrap();
        }
        assert_eq!(self.number.load(Ordering::Relaxed), self.threads * TIMES, "an update was lost");
    }
}

fn threads_of_eight_lockers_all_acquire_and_leave_no_key_behind() -> Outcome {
    for protocol in PROTOCOLS {
        let server = RedisServer::start()?;
        let mut locks = Vec::new();
        for _ in 0..8 {
            let lock = elsewhere(&server, "k", NOTIFIED.protocol(protocol))?;
            locks.extend([lock.clone(), lock.clone(), lock]);
        }
        Counting::with(&locks).assert_complete();
        until("no key is left", || keys(&server, "*").is_empty());
    }
    Ok(())
}

fn threads_of_three_processes_all_acquire_and_leave_no_key_behind() -> Outcome {
    let server = RedisServer::start()?;
    let file = server.folder().join("number");
    fs::write(&file, "0")?;
    let part = ["count", &server.url(), "k", &file.display().to_string()];
    let mut workers = [Worker::performing(&part)?, Worker::performing(&part)?, Worker::performing(&part)?];
    for worker in &mut workers {
        assert_eq!(worker.says()?, "done");
    }
    assert_eq!(fs::read_to_string(&file)?, "150");
    for worker in &mut workers {
        worker.kill();
    }
    until("no key is left", || keys(&server, "*").is_empty());
    Ok(())
}
