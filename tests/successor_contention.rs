//! Threads that acquire a lock in a loop lose no update, while releases ask for the next thread, and other processes acquire it as well.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use setnx_lock::{Error, Lock, Protocol};

use crate::successors::{Scenario, for_each_protocol};
use crate::support::scenario::patient;
use crate::support::{LONG, Outcome, expiring, millis, tests};

pub(crate) fn trials() -> Vec<Trial> {
    for_each_protocol(
        "successor_contention",
        tests![two_processes_both_acquire_the_lock, eight_threads_share_one_connection],
    )
}

/// A number that is read and written in two steps.
#[derive(Default)]
struct Counter {
    number: AtomicU32,
    inside: AtomicBool,
}

impl Counter {
    fn increment(&self) {
        assert!(!self.inside.swap(true, Ordering::SeqCst), "two threads hold the lock");
        let number = self.number.load(Ordering::SeqCst);
        thread::sleep(Duration::from_micros(300));
        self.number.store(number + 1, Ordering::SeqCst);
        self.inside.store(false, Ordering::SeqCst);
    }
}

fn two_processes_both_acquire_the_lock(protocol: Protocol) -> Outcome {
    const ENOUGH: u32 = 25;
    for notifications in [false, true] {
        let scenario = Scenario::new(protocol)?;
        let options = expiring().poll_interval(millis(2)).timeout(LONG).protocol(protocol);
        let options = if notifications { options.notify_waiters() } else { options };
        let counter = Counter::default();
        let acquired = [AtomicU32::new(0), AtomicU32::new(0)];
        let end = Instant::now() + LONG;
        let go_on = || {
            acquired.iter().any(|acquired| acquired.load(Ordering::SeqCst) < ENOUGH) && Instant::now() < end
        };
        thread::scope(|scope| {
            for acquired in &acquired {
                let locker = patient(&scenario.server.url()).unwrap().build().unwrap();
                let lock = Lock::new(&locker, &scenario.key.key, options).unwrap();
                for _ in 0..3 {
                    let (lock, counter, go_on) = (lock.clone(), &counter, &go_on);
                    scope.spawn(move || {
                        while go_on() {
                            let held = lock.lock().unwrap();
                            counter.increment();
                            acquired.fetch_add(1, Ordering::SeqCst);
                            drop(held);
                        }
                    });
                }
            }
        });
        let acquired = acquired.map(AtomicU32::into_inner);
        assert!(
            acquired.iter().all(|acquired| *acquired >= ENOUGH),
            "{acquired:?}, with notifications: {notifications}"
        );
        assert_eq!(counter.number.into_inner(), acquired.iter().sum::<u32>(), "an update was lost");
    }
    Ok(())
}

fn eight_threads_share_one_connection(protocol: Protocol) -> Outcome {
    const ROUNDS: u32 = 25;
    let scenario = Scenario::new(protocol)?;
    let locker = patient(&scenario.proxy.url())?.pool_size(1).build()?;
    let options = expiring().protocol(protocol).timeout(LONG);
    let lock = Lock::new(&locker, &scenario.key.key, options)?;
    let counter = Counter::default();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    lock.try_with(|_| {
                        counter.increment();
                        Ok::<_, Error>(())
                    })
                    .unwrap();
                }
            });
        }
    });
    assert_eq!(counter.number.into_inner(), 8 * ROUNDS, "an update was lost");
    let connections = scenario.proxy.asked().iter().map(|asked| asked.connection).max();
    assert_eq!(connections, Some(0));
    assert_eq!(scenario.key.value(), None);
    Ok(())
}
