//! Waiting within a process: whose turn it is among the threads that want one key, what they let each other know, and how a wait
//! is ended from outside. Nothing here talks to a server or asks the time.

mod cancel;
mod line;

use std::time::Duration;

pub use cancel::Canceller;
pub(crate) use line::{Hold, Lines, News, Place, Turn, Woken};

use crate::key::Key;
use crate::options::{LockOptions, Protocol};
pub(crate) use crate::protocol::acquire::Sighting;
use crate::protocol::lease::Lease;
use crate::sync;

/// What a waiter wants of the lock, for a holder who could pass his on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish(LockOptions);

impl Wish {
    pub(crate) fn of(options: &LockOptions) -> Self {
        // How long each waits is its own affair.
        Self(options.wait_forever())
    }

    pub(crate) fn expiration(&self) -> Option<Duration> {
        self.0.expiration
    }

    /// Whether a lock of this kind can be passed on to whoever has the wish.
    pub(crate) fn is_met_by(&self, protocol: Protocol, lease: &Lease) -> bool {
        self.0.protocol == protocol && self.0.expiration.is_some() == lease.end.is_some()
    }

    /// Whether one of the two can look at the lock for both.
    fn waits_as(&self, other: &Self) -> bool {
        self.0 == other.0
    }

    /// Whether news of a release also comes as a token, in the order in which all processes wait.
    fn takes_tokens(&self) -> bool {
        self.0.wake_ups
    }
}

/// A held lock that passes from one thread to the next.
#[derive(Clone, Debug)]
pub(crate) struct Gift {
    /// Renewed for whoever gets it.
    pub(crate) lease: Lease,
    /// What others are to know of it.
    pub(crate) sighting: Sighting,
    /// How often in a row it has passed on.
    pub(crate) passed: u32,
}
