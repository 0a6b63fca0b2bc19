//! Connections that are cut again and again, on a slow network.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use setnx_lock::{Error, Locker, MultiLock, MultiLockGuard};
use setnx_lock_testing::Proxy;
use testkit::RedisServer;

use super::{Failure, Work};

/// Many locks are kept while each round trip takes so long, and all connections are cut so often.
const KEPT: usize = 1000;
const LEASE: Duration = Duration::from_secs(3);
const ROUND_TRIP: Duration = Duration::from_millis(100);
const CUT_EVERY: Duration = Duration::from_millis(700);
const KEPT_FOR: Duration = Duration::from_secs(12);

/// Calls on several keys whose replies take nearly half of their time, over few connections.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(1);
const LATE: Duration = Duration::from_millis(450);
const CONNECTIONS: u32 = 16;
const CALLS: usize = 8;
/// What a busy machine may add to the time of a call.
const ALLOWED: Duration = Duration::from_millis(250);

impl Work {
    /// One keeper extends many locks.
    pub(super) fn kept_while_cut(&self) -> Result<(), Failure> {
        let server = RedisServer::start()?;
        let proxy = Proxy::before(server.address())?;
        let locker = self.open(&proxy.url())?;
        let held = self.hold(&locker, (0..KEPT).map(|n| format!("own:{n}")), LEASE)?;
        proxy.delay(ROUND_TRIP);
        thread::scope(|scope| {
            scope.spawn(|| {
                let began = Instant::now();
                while began.elapsed() < KEPT_FOR {
                    thread::sleep(CUT_EVERY);
                    proxy.cut();
                }
                // The locks are released without it.
                proxy.clear_faults();
            });
            self.keep(held, KEPT_FOR + CUT_EVERY);
        });
        Ok(())
    }

    /// Threads extend guards of 3 to 10 keys. A call may fail, and ends within a command timeout.
    pub(super) fn several_with_late_replies(&self) -> Result<(), Failure> {
        let server = RedisServer::start()?;
        let proxy = Proxy::before(server.address())?;
        let builder = Locker::builder(&proxy.url())?.command_timeout(COMMAND_TIMEOUT);
        let locker = builder.pool_size(CONNECTIONS).build()?;
        let held = (0..self.plan.threads).map(|n| {
            let keys = (0..3 + n % 8).map(|key| format!("own:{n}:{key}"));
            MultiLock::new(&locker, keys, self.options())?.lock()
        });
        let held: Vec<MultiLockGuard> = held.collect::<Result<_, Error>>()?;
        proxy.delay(LATE);
        let over = AtomicBool::new(false);
        self.done.store(self.plan.holds.saturating_sub(CALLS * held.len()), Ordering::Relaxed);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    thread::sleep(CUT_EVERY);
                    proxy.cut();
                }
            });
            self.on_threads(held.len(), |n, _| {
                let began = Instant::now();
                let extended = held[n].extend();
                self.took(began.elapsed());
                match extended {
                    Err(error) if error.is_lost() => Err(error),
                    _ => Ok(()),
                }
            });
            over.store(true, Ordering::Relaxed);
        });
        proxy.clear_faults();
        drop(held);
        Ok(())
    }

    /// Notes how long a call has taken.
    fn took(&self, time: Duration) {
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        tally.longest = tally.longest.max(Some(time));
        if time > COMMAND_TIMEOUT + ALLOWED {
            tally
                .failed
                .push(format!("a call took {time:.2?}, and its command timeout is {COMMAND_TIMEOUT:?}"));
        }
    }
}
