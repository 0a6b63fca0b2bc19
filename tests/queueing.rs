//! The wait queue of a key: first come, first served among the threads of a process, each by its own options.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use libtest_mimic::Trial;
use setnx_lock::{Error, Lock, LockGuard, LockOptions, Locker, Polling, Protocol, Release};

use crate::support::asleep::asleep;
use crate::support::monitor::{Monitor, connected, names};
use crate::support::scenario::{FOREIGN, QUEUED, opened, patient};
use crate::support::target::PROTOCOLS;
use crate::support::{LONG, Outcome, RedisServer, Target, TestKey, expiring, millis, tests};

pub(crate) fn trials() -> Vec<Trial> {
    crate::support::trials(
        "queueing",
        tests![
            threads_acquire_the_lock_in_the_order_they_came,
            a_release_notifies_the_next_thread_at_once,
            only_the_head_of_the_queue_talks_to_the_server,
            an_acquisition_and_its_release_take_two_commands,
            a_call_that_tries_once_is_not_queued,
            locks_with_different_options_share_a_queue,
            a_waiter_of_another_mode_reads_the_key_itself,
            each_locker_and_key_has_a_queue_of_its_own,
            many_threads_on_many_keys_lose_no_update,
            waiters_back_off_and_still_keep_their_deadline,
        ],
    )
}

/// A server, and a key that threads of one locker are queued for.
pub(crate) struct Scenario {
    pub(crate) server: Arc<RedisServer>,
    pub(crate) key: TestKey,
    pub(crate) locker: Locker,
}

impl Scenario {
    pub(crate) fn new(test: &str) -> Result<Self, Box<dyn std::error::Error>> {
        let server = Arc::new(RedisServer::start()?);
        let key = Target::of(&server).key(test);
        let locker = patient(&server.url())?.build()?;
        // A thread that sleeps waits in the queue then, and not for a connection.
        Lock::new(&locker, "connects", expiring())?.state()?;
        Ok(Self { server, key, locker })
    }

    pub(crate) fn lock(&self, options: LockOptions) -> Result<Lock, Error> {
        Lock::new(&self.locker, &self.key.key, options)
    }
}

/// A thread that waits for a lock, and then releases it.
pub(crate) type Waiter = JoinHandle<Result<Release, Error>>;

/// The names of waiters, in the order in which they acquired the lock.
pub(crate) type Order = Arc<Mutex<Vec<&'static str>>>;

/// Starts a waiter. Returns once it sleeps.
pub(crate) fn waiter(lock: Lock) -> Waiter {
    named_waiter(lock, "", &Order::default())
}

/// Starts a waiter that notes its name in `order` once it has the lock. Returns once it sleeps.
pub(crate) fn named_waiter(lock: Lock, name: &'static str, order: &Order) -> Waiter {
    let order = Arc::clone(order);
    asleep(move || {
        let held = lock.lock()?;
        order.lock().unwrap().push(name);
        held.release()
    })
}

fn threads_acquire_the_lock_in_the_order_they_came() -> Outcome {
    let scenario = Scenario::new("order")?;
    for protocol in PROTOCOLS {
        let lock = scenario.lock(QUEUED.protocol(protocol))?;
        let order = Order::default();
        let held = lock.lock()?;
        let names = ["first", "second", "third", "fourth", "fifth", "sixth"];
        let waiters = names.map(|name| named_waiter(lock.clone(), name, &order));
        assert_eq!(*order.lock().unwrap(), [""; 0]);
        drop(held);
        for waiter in waiters {
            waiter.join().unwrap()?;
        }
        assert_eq!(*order.lock().unwrap(), names, "{protocol:?}");
    }
    Ok(())
}

fn a_release_notifies_the_next_thread_at_once() -> Outcome {
    let scenario = Scenario::new("at_once")?;
    for options in [QUEUED, LockOptions::held_until_released().poll_interval(LONG).timeout(LONG)] {
        let lock = scenario.lock(options)?;
        // By a drop, and by a panic.
        let releases: [fn(LockGuard); 2] = [drop, |held| {
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                let _held = held;
                resume_unwind(Box::new("on purpose"))
            }));
            assert!(panicked.is_err());
        }];
        for release in releases {
            let held = lock.lock()?;
            let next = waiter(lock.clone());
            release(held);
            assert!(matches!(next.join().unwrap()?, Release::Released { .. }));
        }
    }
    Ok(())
}

fn only_the_head_of_the_queue_talks_to_the_server() -> Outcome {
    const WAITERS: usize = 16;
    let scenario = Scenario::new("head")?;
    scenario.key.set(FOREIGN);
    let timeout = millis(2000);
    let options = expiring().poll_interval(millis(20)).timeout(timeout);
    let lock = connected(scenario.lock(options)?)?;
    let monitor = Monitor::on(&scenario.server)?;
    // They start at the same time, so that none comes when the others have given up and the queue is empty.
    let start = Arc::new(Barrier::new(WAITERS));
    let waiters: Vec<_> = (0..WAITERS)
        .map(|_| {
            let (lock, start) = (lock.clone(), Arc::clone(&start));
            thread::spawn(move || {
                start.wait();
                lock.lock().map(|held| held.attempts())
            })
        })
        .collect();
    let mut attempts = 0;
    for waiter in waiters {
        let Err(Error::Timeout { details, .. }) = waiter.join().unwrap() else { panic!("the lock is held") };
        attempts += details.attempts;
        assert!(details.waited >= timeout, "{details:?}");
    }
    let commands = monitor.recorded(&scenario.server)?;
    // The first head sends SETNX and GET. From then on each attempt of a head is one GET.
    assert_eq!(names(&commands)[..2], ["SETNX", "GET"]);
    assert!(names(&commands)[2..].iter().all(|name| *name == "GET"), "{commands:?}");
    assert_eq!(u32::try_from(commands.len())?, attempts + 1, "{commands:?}");
    Ok(())
}

fn an_acquisition_and_its_release_take_two_commands() -> Outcome {
    let scenario = Scenario::new("two")?;
    let lock = connected(scenario.lock(QUEUED)?)?;
    let held = lock.lock()?;
    let monitor = Monitor::on(&scenario.server)?;
    let waiters: Vec<_> = (0..5).map(|_| waiter(lock.clone())).collect();
    drop(held);
    for waiter in waiters {
        waiter.join().unwrap()?;
    }
    let commands = monitor.recorded(&scenario.server)?;
    let expected: Vec<&str> = ["DEL"].into_iter().chain(["SETNX", "DEL"].repeat(5)).collect();
    assert_eq!(names(&commands), expected);
    Ok(())
}

fn a_call_that_tries_once_is_not_queued() -> Outcome {
    let scenario = Scenario::new("tries_once")?;
    let lock = connected(scenario.lock(QUEUED)?)?;
    let held = lock.lock()?;
    let waiting = waiter(lock.clone());
    let monitor = Monitor::on(&scenario.server)?;
    assert!(lock.try_lock()?.is_none());
    let error = scenario.lock(QUEUED.timeout(Duration::ZERO))?.lock().expect_err("the lock is held");
    assert!(error.to_string().contains("not acquired without waiting after 1 attempt;"), "{error}");
    assert_eq!(names(&monitor.recorded(&scenario.server)?), ["SETNX", "GET"].repeat(2));
    drop(held);
    waiting.join().unwrap()?;
    // A lock that such a call has acquired is waited for, and its release notifies the waiter.
    let held = lock.try_lock()?.expect("the lock is free");
    let waiting = waiter(lock.clone());
    drop(held);
    waiting.join().unwrap()?;
    Ok(())
}

fn locks_with_different_options_share_a_queue() -> Outcome {
    let scenario = Scenario::new("options")?;
    let all = [
        QUEUED,
        QUEUED.protocol(Protocol::Watched),
        LockOptions::held_until_released().poll_interval(LONG).timeout(LONG),
        LockOptions::expiring_after(millis(30_000)).wait_forever().poll_interval(LONG),
        QUEUED.protocol(Protocol::Ttl),
        QUEUED.takeover_margin(millis(5)),
    ];
    let names = ["plain", "watched", "unexpiring", "without a timeout", "ttl", "margin"];
    for first in all {
        let held = scenario.lock(first)?.lock()?;
        let order = Order::default();
        let waiters: Vec<_> = all
            .iter()
            .zip(names)
            .map(|(options, name)| Ok(named_waiter(scenario.lock(*options)?, name, &order)))
            .collect::<Result<_, Error>>()?;
        drop(held);
        for waiter in waiters {
            waiter.join().unwrap()?;
        }
        assert_eq!(*order.lock().unwrap(), names, "after {first:?}");
        assert_eq!(scenario.key.value(), None);
    }
    Ok(())
}

fn a_waiter_of_another_mode_reads_the_key_itself() -> Outcome {
    let scenario = Scenario::new("modes")?;
    let never_takes_over = LockOptions::held_until_released().poll_interval(LONG).timeout(LONG);
    // An expired lock of a crashed holder.
    scenario.key.set("1532000016.5");
    let first = waiter(scenario.lock(never_takes_over)?);
    let held = scenario.lock(QUEUED)?.try_lock_for(LONG)?.expect("it takes over the expired lock");
    assert!(!first.is_finished());
    drop(held);
    first.join().unwrap()?;

    // A lock that another process clears. One waiter polls rarely, the other often.
    scenario.key.set(FOREIGN);
    let rarely = waiter(scenario.lock(QUEUED)?);
    let often = waiter(scenario.lock(QUEUED.poll_interval(millis(10)))?);
    scenario.key.delete();
    often.join().unwrap()?;
    rarely.join().unwrap()?;
    Ok(())
}

fn each_locker_and_key_has_a_queue_of_its_own() -> Outcome {
    let scenario = Scenario::new("own")?;
    let other_key = Lock::new(&scenario.locker, "another", QUEUED)?;
    let other_locker = opened(&scenario.server.url())?;
    let elsewhere = Lock::new(&other_locker, &scenario.key.key, QUEUED.poll_interval(millis(1000)))?;
    let held = scenario.lock(QUEUED)?.lock()?;
    // The other locker may be faster, and gives no hint.
    let waiting = waiter(scenario.lock(QUEUED.poll_interval(millis(1000)))?);
    drop(other_key.lock()?);
    let elsewhere = asleep(move || elsewhere.lock().map(drop));
    drop(held);
    waiting.join().unwrap()?;
    elsewhere.join().unwrap()?;
    Ok(())
}

fn many_threads_on_many_keys_lose_no_update() -> Outcome {
    const KEYS: usize = 3;
    const THREADS: usize = 12;
    const ROUNDS: u32 = 40;
    let scenario = Scenario::new("many")?;
    let numbers: [AtomicU32; KEYS] = Default::default();
    let locks: Vec<Lock> = (0..KEYS)
        .map(|n| Lock::new(&scenario.locker, format!("many:{n}"), QUEUED))
        .collect::<Result<_, _>>()?;
    thread::scope(|scope| -> Result<(), Error> {
        let threads: Vec<_> = (0..THREADS)
            .map(|n| {
                let (locks, numbers) = (&locks, &numbers);
                scope.spawn(move || {
                    (0..ROUNDS).try_for_each(|round| {
                        let key = (n + round as usize) % KEYS;
                        locks[key].try_with(|_| {
                            let read = numbers[key].load(Ordering::Relaxed);
                            thread::yield_now();
                            numbers[key].store(read + 1, Ordering::Relaxed);
                            Ok(())
                        })
                    })
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    })?;
    let counted: u32 = numbers.iter().map(|number| number.load(Ordering::Relaxed)).sum();
    assert_eq!(counted, u32::try_from(THREADS)? * ROUNDS);
    Ok(())
}

fn waiters_back_off_and_still_keep_their_deadline() -> Outcome {
    let scenario = Scenario::new("back_off")?;
    scenario.key.set(FOREIGN);
    let polling = Polling::every(millis(2)).backing_off_to(LONG).jittered_by(50);
    let lock = connected(scenario.lock(expiring().timeout(millis(600)).polling(polling))?)?;
    let monitor = Monitor::on(&scenario.server)?;
    let Err(Error::Timeout { details, .. }) = lock.lock() else { panic!("the lock is held") };
    assert!(details.waited >= millis(600), "{details:?}");
    // Pauses of 1 to 2 ms, 2 to 4, 4 to 8 …: ten of them are longer than the timeout. One more attempt is made at the deadline.
    let commands = monitor.recorded(&scenario.server)?;
    assert!(commands.len() <= 13, "{commands:?}");
    Ok(())
}
