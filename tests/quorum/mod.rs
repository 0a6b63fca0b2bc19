//! A lock on several independent servers.
//!
//! | file | what it tests |
//! |---|---|
//! | `calls` | acquiring: who gets the lock, what is given back, what is refused |
//! | `guard` | what a holder can do, and how it learns of a loss |
//! | `faults` | servers and networks that fail |
//! | `restarts` | servers that restart without their locks |
//!
//! Clocks that differ are tested in `faults/clocks`, killed processes by the simulation.

pub(crate) mod calls;
pub(crate) mod faults;
pub(crate) mod guard;
pub(crate) mod restarts;

use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use setnx_lock::{Error, LockOptions, Locker, LockerBuilder, Protocol, Quorum, QuorumGuard};
use setnx_lock_testing::TestServer;

use crate::support::LONG;
use crate::support::notified::{until, within};
use crate::support::scenario::{BRIEF, patient};

/// The key of each lock: the servers are the test's own.
pub(crate) const KEY: &str = "quorum";

/// A lease that no test outlives by accident, and a timeout that no pause of a busy machine exceeds.
pub(crate) const OPTIONS: LockOptions = LockOptions::expiring_after(LONG)
    .timeout(LONG)
    .protocol(Protocol::Auto)
    .poll_interval(Duration::from_millis(10));

pub(crate) fn trials() -> Vec<Trial> {
    [calls::trials(), guard::trials(), faults::trials(), restarts::trials()].into_iter().flatten().collect()
}

/// Servers that know nothing of each other.
pub(crate) struct Servers(pub(crate) Vec<TestServer>);

impl Servers {
    pub(crate) fn start(count: usize) -> Self {
        Self((0..count).map(|_| TestServer::start()).collect())
    }

    /// Opens a locker for each server, as another program has them.
    pub(crate) fn lockers(&self) -> Result<Vec<Locker>, Error> {
        self.lockers_by(|builder| builder)
    }

    pub(crate) fn lockers_by(
        &self,
        set: impl Fn(LockerBuilder) -> LockerBuilder,
    ) -> Result<Vec<Locker>, Error> {
        self.0.iter().map(|server| set(patient(&server.url())?).build()).collect()
    }

    /// Returns the lock, as another program has it.
    pub(crate) fn lock(&self, options: LockOptions) -> Result<Quorum, Error> {
        Quorum::new(self.lockers()?, KEY, options)
    }

    /// Acquires the lock, on all servers: the guard has each of them, too. One may refuse it for a moment, since what
    /// it has granted too late is only about to be given back; then all are asked again.
    pub(crate) fn held(&self, lock: &Quorum) -> Result<QuorumGuard, Error> {
        let end = Instant::now() + LONG;
        loop {
            let held = lock.lock()?;
            let all = format!("granted: Some({})", self.0.len());
            if within(BRIEF, || format!("{held:?}").contains(&all)) {
                return Ok(held);
            }
            assert!(Instant::now() < end, "never: each server has granted it");
            held.release()?;
            self.until_holding(0);
        }
    }

    /// Returns what each server's key holds.
    pub(crate) fn values(&self) -> Vec<Option<String>> {
        self.0.iter().map(|server| server.get(KEY)).collect()
    }

    pub(crate) fn value(&self, server: usize) -> Option<String> {
        self.0[server].get(KEY)
    }

    /// How many servers have the key.
    pub(crate) fn holding(&self) -> usize {
        self.values().iter().flatten().count()
    }

    pub(crate) fn set(&self, server: usize, value: &str) {
        self.0[server].run(&["SET", KEY, value]);
    }

    pub(crate) fn delete(&self, server: usize) {
        self.0[server].delete(KEY);
    }

    /// Waits until so many servers have the key: those that are
    /// not needed for a majority grant and release a little later.
    pub(crate) fn until_holding(&self, count: usize) {
        until("so many servers have the key", || self.holding() == count);
    }
}
