//! The wait queue of a key: first come, first served among the threads of a process, each by its own options. And its
//! faults: waiters that give up, unreachable servers, forgotten guards and cleared keys.

use std::mem;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use setnx_lock::{Error, Lock, LockOptions, LockState, Locker, Protocol};
use setnx_lock_testing::{Fault, TestServer};

use crate::support::asleep::asleep;
use crate::support::scenario::{FOREIGN, QUEUED, closed_port, opened};
use crate::support::sent::{connected, names, recorded};
use crate::support::{LONG, Outcome, Target, TestKey, chain, expiring, millis, trials_of};

trials_of! {
    "queueing";
    only_the_head_of_the_queue_talks_to_the_server,
    locks_with_different_options_share_a_queue_in_the_order_they_came,
    a_waiter_of_another_mode_reads_the_key_itself,
    a_thread_behind_others_times_out_with_what_they_saw,
    a_thread_behind_others_that_saw_nothing_asks_at_its_deadline,
    threads_of_a_queue_wait_for_an_unreachable_server_together_and_each_for_its_own_time,
    the_head_notices_that_a_lock_of_its_process_has_expired_or_was_cleared,
}

/// A server, and a key that threads of one locker are queued for.
struct Scenario {
    server: Arc<TestServer>,
    key: TestKey,
    locker: Locker,
}

impl Scenario {
    fn new(test: &str) -> Result<Self, Box<dyn std::error::Error>> {
        let server = Arc::new(TestServer::start());
        let key = Target::of(&server).key(test);
        let locker = opened(&server.url())?;
        // A thread that sleeps waits in the queue then, and not for a connection.
        Lock::new(&locker, "connects", expiring())?.state()?;
        Ok(Self { server, key, locker })
    }

    fn lock(&self, options: LockOptions) -> Result<Lock, Error> {
        Lock::new(&self.locker, &self.key.key, options)
    }
}

/// A thread that waits for a lock, and then releases it.
type Waiter = JoinHandle<Result<(), Error>>;

/// The names of waiters, in the order in which they acquired the lock.
type Order = Arc<Mutex<Vec<&'static str>>>;

/// Starts a waiter. Returns once it sleeps.
fn waiter(lock: Lock) -> Waiter {
    named_waiter(lock, "", &Order::default())
}

/// Starts a waiter that notes its name in `order` once it has the lock. Returns once it sleeps.
fn named_waiter(lock: Lock, name: &'static str, order: &Order) -> Waiter {
    let order = Arc::clone(order);
    asleep(move || {
        let held = lock.lock()?;
        order.lock().unwrap().push(name);
        held.release()
    })
}

fn only_the_head_of_the_queue_talks_to_the_server() -> Outcome {
    const INTERVAL: Duration = millis(20);
    let scenario = Scenario::new("head")?;
    scenario.key.set(FOREIGN);
    let lock = connected(scenario.lock(expiring().poll_interval(INTERVAL))?)?;
    scenario.server.clear_log();
    let began = Instant::now();
    let waiters = [(); 16].map(|()| waiter(lock.clone()));
    let commands = recorded(&scenario.server);
    let intervals = usize::try_from(began.elapsed().as_millis() / INTERVAL.as_millis())?;
    assert_eq!(names(&commands)[..2], ["SETNX", "GET"]);
    assert!(names(&commands)[2..].iter().all(|name| *name == "GET"), "{commands:?}");
    assert!(commands.len() <= 2 * intervals + 3, "{} in {intervals} intervals of a head", commands.len());
    scenario.locker.shut_down();
    for waiter in waiters {
        assert!(matches!(waiter.join().unwrap(), Err(Error::ShutDown { .. })));
    }
    Ok(())
}

fn locks_with_different_options_share_a_queue_in_the_order_they_came() -> Outcome {
    let scenario = Scenario::new("options")?;
    let all = [
        ("plain", QUEUED),
        // Waits as the one before. Further behind it would become a head
        // as that leaves, and ask by itself if it woke after a release.
        ("once", QUEUED.max_attempts(1000)),
        // Is not asked for along with a transaction.
        ("unexpiring", LockOptions::without_expiration().poll_interval(LONG).timeout(LONG)),
        ("watched", QUEUED.protocol(Protocol::Watched)),
        ("without a timeout", LockOptions::expiring_after(millis(30_000)).wait_forever().poll_interval(LONG)),
        ("ttl", QUEUED.protocol(Protocol::Ttl)),
    ];
    for (_, first) in all {
        let held = scenario.lock(first)?.lock()?;
        let order = Order::default();
        let mut waiters = Vec::new();
        for (name, options) in all {
            waiters.push(named_waiter(scenario.lock(options)?, name, &order));
        }
        drop(held);
        for waiter in waiters {
            waiter.join().unwrap()?;
        }
        assert_eq!(*order.lock().unwrap(), all.map(|(name, _)| name), "after {first:?}");
        assert_eq!(scenario.key.value(), None);
    }
    Ok(())
}

fn a_waiter_of_another_mode_reads_the_key_itself() -> Outcome {
    let scenario = Scenario::new("modes")?;
    let never_takes_over = LockOptions::without_expiration().poll_interval(LONG).timeout(LONG);
    // An expired lock of a crashed holder.
    scenario.key.set("1532000016.5000000000000001");
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

fn a_thread_behind_others_that_saw_nothing_asks_at_its_deadline() -> Outcome {
    let scenario = Scenario::new("saw_nothing")?;
    // Others are faster again and again, until the head sleeps.
    scenario.key.set(FOREIGN);
    (0..4).for_each(|_| scenario.server.next("GET", Fault::Say("$-1\r\n")));
    let head = waiter(scenario.lock(QUEUED)?);
    assert_eq!(scenario.server.faults_left(), 0);
    let error = scenario.lock(QUEUED.timeout(millis(50)))?.lock().expect_err("another client has it");
    let Error::Contended { details, .. } = &error else { panic!("{error:?}") };
    assert!(matches!(details.seen, Some(LockState::Until { .. })), "{details:?}");
    assert_eq!((details.attempts, details.ahead), (1, 0), "it has asked");
    scenario.locker.shut_down();
    assert!(matches!(head.join().unwrap(), Err(Error::ShutDown { .. })));
    Ok(())
}

fn a_thread_behind_others_times_out_with_what_they_saw() -> Outcome {
    let scenario = Scenario::new("behind")?;
    scenario.key.set(FOREIGN);
    let head = waiter(scenario.lock(QUEUED)?);
    let error = scenario.lock(QUEUED.timeout(millis(50)))?.lock().expect_err("the lock is held");
    let text = chain(&error);
    let Error::Contended { details, .. } = error else { panic!("{text}") };
    assert_eq!((details.attempts, details.ahead), (0, 1));
    let expected = "after 0 attempts: other threads of this process were queued ahead, and 1 still are; \
                    last seen: held until 2030-";
    assert!(text.contains(expected), "{text}");
    scenario.locker.shut_down();
    assert!(matches!(head.join().unwrap(), Err(Error::ShutDown { .. })));
    Ok(())
}

/// A locker for a port that no server listens on, which it finds out after two seconds.
fn unreachable() -> Result<Locker, Box<dyn std::error::Error>> {
    let builder = Locker::builder(&format!("redis://127.0.0.1:{}/", closed_port()?))?;
    Ok(builder.retry_for(millis(2000)).build()?)
}

#[track_caller]
fn assert_no_connection(outcome: Result<impl Sized, Error>) {
    let error = outcome.map(drop).expect_err("there is no server");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
}

fn threads_of_a_queue_wait_for_an_unreachable_server_together_and_each_for_its_own_time() -> Outcome {
    let locker = unreachable()?;
    let lock = |options| Lock::new(&locker, "down", options);
    let began = Instant::now();
    let head = waiter(lock(QUEUED.timeout(millis(700)))?);
    // One that gives up earlier reports the server as well.
    assert_no_connection(lock(QUEUED)?.try_lock_for(millis(20)));
    let others = vec![lock(QUEUED.wait_forever())?; 100];
    let others: Vec<_> = others.into_iter().map(|lock| thread::spawn(move || lock.lock())).collect();
    for other in others {
        assert_no_connection(other.join().unwrap());
    }
    assert!(began.elapsed() >= millis(1900), "their unreachable timeout is 2 s: {:?}", began.elapsed());
    assert!(began.elapsed() < LONG, "one after the other would take 200 s: {:?}", began.elapsed());
    assert_no_connection(head.join().unwrap());
    Ok(())
}

fn the_head_notices_that_a_lock_of_its_process_has_expired_or_was_cleared() -> Outcome {
    let scenario = Scenario::new("forgotten")?;
    let brief = LockOptions::expiring_after(millis(100)).timeout(LONG).poll_interval(LONG);
    for _ in 0..2 {
        mem::forget(scenario.lock(brief)?.lock()?);
    }
    let held = scenario.lock(expiring())?.lock()?;
    let next = waiter(scenario.lock(expiring().poll_interval(millis(20)))?);
    assert!(scenario.lock(QUEUED)?.clear()?);
    next.join().unwrap()?;
    assert_eq!(scenario.key.value(), None);
    drop(held);
    Ok(())
}
