//! Hand-over in a crowd: threads that take a lock again and again lose no update, whatever it passes through, and let other processes
//! have it as well.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use setnx_lock::{Error, Lock, Locker, Protocol};

use crate::events::EventLog;
use crate::handoffs::{Stage, of_each_protocol};
use crate::support::{LONG, Outcome, expiring, millis};

pub(crate) fn trials() -> Vec<Trial> {
    of_each_protocol(
        "handoff_contention",
        &[
            ("all_processes_get_their_turn", all_processes),
            ("one_connection_serves_eight_threads", one_connection),
        ],
    )
}

/// A number that is read and written in two steps.
#[derive(Default)]
struct Counter {
    number: AtomicU32,
    inside: AtomicBool,
}

impl Counter {
    fn count(&self) {
        assert!(!self.inside.swap(true, Ordering::SeqCst), "two inside");
        let number = self.number.load(Ordering::SeqCst);
        thread::sleep(Duration::from_micros(300));
        self.number.store(number + 1, Ordering::SeqCst);
        self.inside.store(false, Ordering::SeqCst);
    }
}

fn all_processes(protocol: Protocol) -> Outcome {
    const ENOUGH: u32 = 25;
    for wake_ups in [false, true] {
        let stage = Stage::set(protocol)?;
        let options = expiring().poll_interval(millis(2)).timeout(LONG).handoff(3).protocol(protocol);
        let options = if wake_ups { options.notify_waiters() } else { options };
        let diaries = [EventLog::default(), EventLog::default()];
        let counter = Counter::default();
        let served = [AtomicU32::new(0), AtomicU32::new(0)];
        let end = Instant::now() + LONG;
        let go_on =
            || served.iter().any(|served| served.load(Ordering::SeqCst) < ENOUGH) && Instant::now() < end;
        thread::scope(|scope| {
            for (events, served) in diaries.iter().zip(&served) {
                let locker = Locker::open(&stage.server.url()).unwrap().observed_by(events.clone());
                let lock = Lock::new(&locker, &stage.key.key, options).unwrap();
                for _ in 0..3 {
                    let (lock, counter, go_on) = (lock.clone(), &counter, &go_on);
                    scope.spawn(move || {
                        while go_on() {
                            let held = lock.lock().unwrap();
                            counter.count();
                            served.fetch_add(1, Ordering::SeqCst);
                            drop(held);
                        }
                    });
                }
            }
        });
        let served = served.map(AtomicU32::into_inner);
        assert!(served.iter().all(|served| *served >= ENOUGH), "{served:?}, with wake-ups: {wake_ups}");
        assert_eq!(counter.number.into_inner(), served.iter().sum::<u32>(), "an update was lost");
        for events in diaries {
            assert!(events.lines().iter().any(|line| line.contains("HandedOff")), "none was handed over");
        }
    }
    Ok(())
}

fn one_connection(protocol: Protocol) -> Outcome {
    const ROUNDS: u32 = 25;
    let stage = Stage::set(protocol)?;
    let events = EventLog::default();
    let locker = Locker::builder(&stage.proxy.url())?.pool_size(1).build()?.observed_by(events.clone());
    let options = expiring().protocol(protocol).timeout(LONG).handoff(3);
    let lock = Lock::new(&locker, &stage.key.key, options)?;
    let counter = Counter::default();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    lock.try_with(|_| {
                        counter.count();
                        Ok::<_, Error>(())
                    })
                    .unwrap();
                }
            });
        }
    });
    assert_eq!(counter.number.into_inner(), 8 * ROUNDS, "an update was lost");
    assert!(events.lines().iter().any(|line| line.contains("HandedOff")), "none was handed over");
    let connections = stage.proxy.asked().iter().map(|asked| asked.connection).max();
    assert_eq!(connections, Some(0));
    assert_eq!(stage.key.value(), None);
    Ok(())
}
