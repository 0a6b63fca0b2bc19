//! Waiting within a process: which of the threads that want one key comes next, what they report to each other, and how
//! a wait is ended from outside. Nothing here talks to a server or asks the time.

mod cancel_token;
mod key_hash;
mod wait_queue;
mod waiters;

use crate::system::random::HashMap;
use crate::system::sync;
use crate::values::options::LockOptions;
pub use cancel_token::CancelToken;
pub(crate) use cancel_token::Registered;
pub(crate) use key_hash::KeyHash;
pub(crate) use proto::Observation;
use proto::values::{Key, Uptime};
use proto::window::Activity;
pub(crate) use wait_queue::{Called, Hint, HolderTicket, Place, Ticket, WaitQueue, Wake, no_hold};
pub(crate) use waiters::Waiters;

/// How a thread waits, for a holder that hands its lock over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitMode(LockOptions);

impl WaitMode {
    /// `notifies`: whether releases of its key wake other processes.
    pub(crate) fn of(options: &LockOptions, notifies: bool) -> Self {
        // How long each thread waits, and what it does then, is its own.
        Self(options.of_waiting().notify_waiters(notifies))
    }

    pub(crate) fn options(&self) -> &LockOptions {
        &self.0
    }

    /// Returns true if one of two threads can look at the lock for both.
    fn waits_as(&self, other: &Self) -> bool {
        self.0 == other.0
    }

    /// Returns true if a lease that was written for one of two threads will do for the other.
    fn takes_leases_of(&self, other: &Self) -> bool {
        let of = |mode: &Self| (mode.0.protocol, mode.0.terms.expiration, mode.0.terms.allowance);
        of(self) == of(other)
    }

    /// Returns true if a release also comes as a notification, in the order in which all processes wait.
    fn is_notified(&self) -> bool {
        self.0.notifies == Some(true)
    }
}
