//! Threads that acquire and release locks of their own all the time, through the locker of a test, so that the test's
//! commands are pipelined with theirs.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use setnx_lock::{Lock, LockGuard, Locker};

use super::{LONG, expiring};

/// How many connections a locker under load has. With one, the commands of any two threads are pipelined together.
pub(crate) const CONNECTIONS: u32 = 1;
/// The prefix of their keys.
pub(crate) const KEYS: &str = "setnx-lock-load:";
/// With so many threads and pauses so short, most commands of a test share a batch, and the test still makes progress.
const THREADS: usize = 3;
const PAUSE: Duration = Duration::from_micros(300);

/// What the threads tolerate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tolerance {
    /// Nothing: each lock is acquired and released without an error.
    Strict,
    /// Any failure of servers and connections.
    Patient,
}

/// The threads. Dropping this ends them and waits for them.
#[derive(Debug)]
pub(crate) struct LoadThreads {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl LoadThreads {
    /// Starts the threads on a locker that has [`CONNECTIONS`].
    pub(crate) fn around(locker: &Locker, tolerance: Tolerance) -> Self {
        static LOCKS: AtomicUsize = AtomicUsize::new(0);
        let over = Arc::<AtomicBool>::default();
        let one = || {
            let key = format!("{KEYS}{}:{}", process::id(), LOCKS.fetch_add(1, Ordering::Relaxed));
            // A patient thread does not wait for an unreachable server.
            let timeout = if tolerance == Tolerance::Strict { LONG } else { Duration::ZERO };
            let lock = Lock::new(locker, key, expiring().timeout(timeout)).unwrap();
            let over = Arc::clone(&over);
            thread::spawn(move || lock_and_release(&lock, tolerance, &over))
        };
        Self { threads: (0..THREADS).map(|_| one()).collect(), over }
    }
}

fn lock_and_release(lock: &Lock, tolerance: Tolerance, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        match (lock.lock().and_then(LockGuard::release), tolerance) {
            (Ok(()), _) => {}
            (outcome, Tolerance::Strict) => panic!("a lock without contenders: {outcome:?}"),
            // A key that is left behind would block the next round until it expires.
            (_, Tolerance::Patient) => drop(lock.clear()),
        }
        thread::sleep(PAUSE);
    }
    // An unreachable server has no key to clear.
    let _ = lock.clear();
}

impl Drop for LoadThreads {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let succeeded = self.threads.drain(..).map(JoinHandle::join).all(|ended| ended.is_ok());
        assert!(succeeded || thread::panicking(), "a load thread panicked");
    }
}
