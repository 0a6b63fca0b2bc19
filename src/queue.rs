//! Waiting within a process: which of the threads that want one key comes next, what they report to each other, and how a wait
//! is ended from outside. Nothing here talks to a server or asks the time.

mod cancel_token;
mod wait_queue;

use std::time::Duration;

pub use cancel_token::CancelToken;
pub(crate) use wait_queue::{Hint, HolderTicket, Ticket, Turn, WaitQueue, Woken};

use crate::key::Key;
use crate::options::{LockOptions, Protocol};
pub(crate) use crate::protocol::acquire::Observation;
use crate::protocol::lease::Lease;
use crate::sync;
use crate::version::Version;

/// How a thread waits, for a holder that could hand its lock off.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitMode(LockOptions);

impl WaitMode {
    pub(crate) fn of(options: &LockOptions) -> Self {
        // Each thread's timeout is its own.
        Self(options.wait_forever())
    }

    pub(crate) fn expiration(&self) -> Option<Duration> {
        self.0.expiration
    }

    /// Whether a lock of this protocol and kind of lease, on a server of this version, can be handed off to a thread that waits so.
    pub(crate) fn accepts(&self, protocol: Protocol, lease: &Lease, server: Option<Version>) -> bool {
        self.0.protocol.on(server) == protocol && self.0.expiration.is_some() == lease.end.is_some()
    }

    /// Whether one of two threads can look at the lock for both.
    fn waits_as(&self, other: &Self) -> bool {
        self.0 == other.0
    }

    /// Whether a release also comes as a notification, in the order in which all processes wait.
    fn is_notified(&self) -> bool {
        self.0.notifies
    }
}

/// A held lock that passes from one thread to the next.
#[derive(Clone, Debug)]
pub(crate) struct Handoff {
    /// Renewed for the successor.
    pub(crate) lease: Lease,
    pub(crate) protocol: Protocol,
    /// What others may know of it.
    pub(crate) observation: Observation,
    /// How often in a row it has been handed off.
    pub(crate) handoffs: u32,
}
