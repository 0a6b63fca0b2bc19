//! A crowd: threads that take locks of their own all the time, through the locker of a test, so that what the test sends goes to the
//! server together with what they send.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use setnx_lock::{Lock, LockGuard, Locker, Release};

use super::{LONG, expiring};

/// How many connections a locker in a crowd has: any two threads share trips then.
pub(crate) const CONNECTIONS: u32 = 1;
/// How the keys begin.
pub(crate) const KEYS: &str = "setnx-lock-companion:";
/// With so many, and so little rest between two locks, most commands of a test have company, and it still finds time to send them.
const THREADS: usize = 3;
const REST: Duration = Duration::from_micros(300);

/// What it puts up with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tolerance {
    /// Nothing: each lock is free, and is given back as it should be.
    Strict,
    /// Whatever happens to servers and connections.
    Patient,
}

/// Its threads have ended once this is dropped.
#[derive(Debug)]
pub(crate) struct LoadThreads {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl LoadThreads {
    /// Gathers around a locker, which has [`CONNECTIONS`].
    pub(crate) fn around(locker: &Locker, temper: Tolerance) -> Self {
        static LOCKS: AtomicUsize = AtomicUsize::new(0);
        let over = Arc::<AtomicBool>::default();
        let one = || {
            let key = format!("{KEYS}{}:{}", process::id(), LOCKS.fetch_add(1, Ordering::Relaxed));
            // Who is patient does not wait for a server that is away.
            let timeout = if temper == Tolerance::Strict { LONG } else { Duration::ZERO };
            let lock = Lock::new(locker, key, expiring().timeout(timeout)).unwrap();
            let over = Arc::clone(&over);
            thread::spawn(move || lock_and_release(&lock, temper, &over))
        };
        Self { threads: (0..THREADS).map(|_| one()).collect(), over }
    }
}

fn lock_and_release(lock: &Lock, temper: Tolerance, over: &AtomicBool) {
    while !over.load(Ordering::Relaxed) {
        match (lock.lock().and_then(LockGuard::release), temper) {
            (Ok(Release::Released { .. }), _) => {}
            (came, Tolerance::Strict) => panic!("a lock that nobody else wants: {came:?}"),
            // What is left of it would be in the way until its time has passed.
            (_, Tolerance::Patient) => drop(lock.clear()),
        }
        thread::sleep(REST);
    }
    // Where it cannot be reached, nothing is left to clear
    let _ = lock.clear();
}

impl Drop for LoadThreads {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let went_well = self.threads.drain(..).map(JoinHandle::join).all(|came| came.is_ok());
        assert!(went_well || thread::panicking(), "something went wrong in the crowd");
    }
}
