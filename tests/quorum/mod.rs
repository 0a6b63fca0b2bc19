//! A lock on several independent servers.
//!
//! | file | what it tests |
//! |---|---|
//! | `calls` | acquiring: who gets the lock, what is given back, what is refused |
//! | `guard` | what a holder can do, and how it learns of a loss |
//! | `faults` | servers and networks that fail |
//! | `restarts` | servers that restart without their locks |
//!
//! Clocks that differ are tested in `faults/clocks`, killed processes in `faults/stress`.

pub(crate) mod calls;
pub(crate) mod faults;
pub(crate) mod guard;
pub(crate) mod restarts;

use std::io;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;
use redis::Commands as _;
use setnx_lock::{Error, LockOptions, Locker, LockerBuilder, Protocol, Quorum, QuorumGuard};
use setnx_lock_testing::Proxy;

use crate::support::notified::{until, within};
use crate::support::scenario::{BRIEF, opened, patient};
use crate::support::{LONG, RedisServer};

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
pub(crate) struct Servers(pub(crate) Vec<RedisServer>);

impl Servers {
    pub(crate) fn start(count: usize) -> io::Result<Self> {
        (0..count).map(|_| RedisServer::start()).collect::<io::Result<_>>().map(Self)
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

    /// Acquires the lock, on all servers: the guard has each of them, too. One may refuse it for a moment, since what it has granted too late
    /// is only about to be given back; then all are asked again.
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

    /// Returns a proxy before each server.
    pub(crate) fn proxies(&self) -> io::Result<Vec<Proxy>> {
        self.0.iter().map(|server| Proxy::before(server.address())).collect()
    }

    /// Returns what each server's key holds.
    pub(crate) fn values(&self) -> Vec<Option<String>> {
        (0..self.0.len()).map(|server| self.value(server)).collect()
    }

    pub(crate) fn value(&self, server: usize) -> Option<String> {
        self.connection(server).get(KEY).unwrap()
    }

    /// How many servers have the key.
    pub(crate) fn holding(&self) -> usize {
        self.values().iter().flatten().count()
    }

    pub(crate) fn set(&self, server: usize, value: &str) {
        self.connection(server).set::<_, _, ()>(KEY, value).unwrap();
    }

    pub(crate) fn delete(&self, server: usize) {
        self.connection(server).del::<_, ()>(KEY).unwrap();
    }

    fn connection(&self, server: usize) -> redis::Connection {
        redis::Client::open(self.0[server].url()).unwrap().get_connection().unwrap()
    }

    /// Waits until so many servers have the key: those that are not needed for a majority grant and release a little later.
    pub(crate) fn until_holding(&self, count: usize) {
        until("so many servers have the key", || self.holding() == count);
    }
}

/// Returns the lock through these proxies, as another program has it.
pub(crate) fn lock_through(proxies: &[Proxy], options: LockOptions) -> Result<Quorum, Error> {
    let lockers = proxies.iter().map(|proxy| opened(&proxy.url())).collect::<Result<Vec<_>, _>>()?;
    Quorum::new(lockers, KEY, options)
}
