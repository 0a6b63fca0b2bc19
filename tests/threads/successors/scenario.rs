//! A server that injects faults, and a key that threads of one locker are queued for.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::SystemTime;

use setnx_lock::{Error, Lock, LockGuard, LockOptions, Locker, Protocol};
use setnx_lock_testing::{ServerVersion, TestServer};

use crate::api::events::EventLog;
use crate::support::asleep::Sleeper;
use crate::support::load_threads::{self, LoadThreads, Tolerance};
use crate::support::scenario::patient;
use crate::support::{Load, Release, Target, TestKey, expiring, server_of, shown_later};

pub(crate) struct Scenario {
    /// They end before the server does.
    _load_threads: Option<LoadThreads>,
    pub(crate) server: Arc<TestServer>,
    pub(crate) key: TestKey,
    pub(crate) locker: Locker,
    pub(crate) events: EventLog,
    /// The protocol of its locks.
    pub(crate) protocol: Protocol,
}

impl Scenario {
    pub(crate) fn new(protocol: Protocol) -> Result<Self, Box<dyn StdError>> {
        Self::of(protocol, ServerVersion::V7, Load::Any)
    }

    pub(crate) fn under_load(protocol: Protocol, load: Load) -> Result<Self, Box<dyn StdError>> {
        Self::of(protocol, ServerVersion::V7, load)
    }

    /// A scenario on a server of this version.
    pub(crate) fn emulating(version: ServerVersion, protocol: Protocol) -> Result<Self, Box<dyn StdError>> {
        Self::of(protocol, version, Load::Any)
    }

    fn of(protocol: Protocol, version: ServerVersion, load: Load) -> Result<Self, Box<dyn StdError>> {
        let server = Arc::new(server_of(version));
        let key = Target::of(&server).key("successor");
        let events = EventLog::default();
        // No command times out while the server holds it, and no wait for a connection on a busy machine.
        let builder = patient(&server.url())?.observer(events.clone());
        let builder = if load == Load::Contended { builder.pool_size(2) } else { builder };
        let (locker, load_threads) = load.join(builder.build()?, Tolerance::Patient);
        server.overlook(load_threads::KEYS);
        Ok(Self { server, key, locker, events, protocol, _load_threads: load_threads })
    }

    /// A lock of the scenario's protocol.
    pub(crate) fn lock(&self, options: LockOptions) -> Lock {
        Lock::new(&self.locker, &self.key.key, options.protocol(self.protocol)).unwrap()
    }

    /// The same lock through another locker, as another process has it.
    pub(crate) fn lock_of_another_process(&self) -> Result<Lock, Error> {
        Lock::new(
            &patient(&self.server.url_to_look())?.build()?,
            &self.key.key,
            expiring().protocol(self.protocol),
        )
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
