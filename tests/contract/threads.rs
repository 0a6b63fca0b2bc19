//! Threads that contend for a lock lose no update.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use setnx_lock::{Error, Lock};

use crate::support::scenario::patient;
use crate::support::{LONG, Outcome, Target, expiring, millis, tests};

pub(super) const TESTS: super::Tests =
    tests![eight_threads_on_a_pool_of_one_lose_no_update, separate_pools_lose_no_update,];

/// Increments a number under the lock: reads it, pauses, and writes it back. Returns the number, and what it must be.
fn count(locks: Vec<Lock>, rounds: u32) -> Result<(u32, u32), Error> {
    let number = AtomicU32::new(0);
    let threads = u32::try_from(locks.len()).unwrap();
    let start = Barrier::new(locks.len());
    let (number, start) = (&number, &start);
    thread::scope(|scope| {
        let threads: Vec<_> = locks
            .into_iter()
            .map(|lock| {
                scope.spawn(move || {
                    start.wait();
                    for _ in 0..rounds {
                        lock.with(|_| {
                            let read = number.load(Ordering::SeqCst);
                            thread::sleep(millis(1));
                            number.store(read + 1, Ordering::SeqCst);
                        })?;
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    })?;
    Ok((number.load(Ordering::SeqCst), threads * rounds))
}

fn eight_threads_on_a_pool_of_one_lose_no_update(target: &Target) -> Outcome {
    let key = target.key("pool-of-one");
    let locker = target.variant.load.pipelining(patient(&target.url)?.pool_size(1).build()?);
    let lock = target.lock_through(&locker, &key, expiring().timeout(LONG).poll_interval(millis(2)));
    let (counted, expected) = count(vec![lock; 8], 20)?;
    assert_eq!(counted, expected);
    assert_eq!(key.value(), None);
    Ok(())
}

fn separate_pools_lose_no_update(target: &Target) -> Outcome {
    let key = target.key("pools");
    let options = expiring().timeout(LONG).poll_interval(millis(2));
    let (counted, expected) = count((0..4).map(|_| target.lock(&key, options)).collect(), 25)?;
    assert_eq!(counted, expected);
    Ok(())
}
