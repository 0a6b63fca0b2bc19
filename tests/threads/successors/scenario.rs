//! A server that injects faults, and a key that threads of one locker are queued for.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::SystemTime;

use setnx_lock::{Error, Lock, LockGuard, LockOptions, Locker, Protocol};
use setnx_lock_testing::{ServerVersion, TestServer};

use crate::support::asleep::Sleeper;
use crate::support::scenario::patient;
use crate::support::{Release, Target, TestKey, server_of, shown_later};

pub(crate) struct Scenario {
    pub(crate) server: Arc<TestServer>,
    pub(crate) key: TestKey,
    pub(crate) locker: Locker,
    /// The protocol of its locks.
    pub(crate) protocol: Protocol,
}

impl Scenario {
    pub(crate) fn new(protocol: Protocol) -> Result<Self, Box<dyn StdError>> {
        Self::emulating(ServerVersion::V7, protocol)
    }

    /// A scenario on a server of this version.
    pub(crate) fn emulating(version: ServerVersion, protocol: Protocol) -> Result<Self, Box<dyn StdError>> {
        let server = Arc::new(server_of(version));
        let key = Target::of(&server).key("successor");
        // No command times out while the server holds it, and no wait for a connection on a busy machine.
        let locker = patient(&server.url())?.build()?;
        Ok(Self { server, key, locker, protocol })
    }

    /// A lock of the scenario's protocol.
    pub(crate) fn lock(&self, options: LockOptions) -> Lock {
        Lock::new(&self.locker, &self.key.key, options.protocol(self.protocol)).unwrap()
    }

    /// Asserts that the key holds the value of this lease.
    #[track_caller]
    pub(crate) fn assert_holds(&self, held: &LockGuard) {
        held.ensure_held().unwrap();
        let lease = held.expires_at().map(SystemTime::from).unwrap();
        assert_eq!(self.key.until(), Some(lease + shown_later(held.protocol())));
    }

    /// The outcome of a release that deletes the key.
    pub(crate) fn released(&self) -> Release {
        Release::Released { certified: self.protocol != Protocol::Classic }
    }
}

/// A queued thread. It ends with the lock or with an error.
pub(crate) type Successor = Sleeper<Result<LockGuard, Error>>;

/// Starts a thread that waits for the lock. Returns once it sleeps in the queue.
pub(crate) fn successor(lock: &Lock) -> Successor {
    let lock = lock.clone();
    let successor = Sleeper::start(move || lock.lock());
    successor.rests();
    successor
}

#[track_caller]
pub(crate) fn assert_cancelled(successor: Successor) {
    let error = successor.join().expect_err("the wait was cancelled");
    assert!(matches!(error, Error::Cancelled { .. }), "{error:?}");
}
