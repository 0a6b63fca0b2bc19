//! Locks that are held, on their way between the parts of a call. What the program has of one is a
//! [`Hold`](super::hold::Hold).

use std::sync::Arc;

use proto::lease::Lease;
use proto::values::Key;

use super::hold::Hold;
use super::open_debts::DebtId;
use crate::values::options::LockOptions;
use crate::wait::{Hint, HolderTicket, WaitQueue, Waiters};

/// The wait queues of a locker.
pub(crate) type Queue = WaitQueue<Delivery>;

/// The wait queues of a locker by key, and those by the name of several locks. No key is such a name.
#[derive(Clone)]
pub(super) struct Queues {
    pub(super) locks: Arc<Queue>,
    pub(super) lines: Arc<dyn Waiters>,
}

impl Queues {
    /// Gives the head of a queue a hint. Returns whether a thread waits there.
    pub(super) fn notify(&self, name: &Key, hint: Hint) -> bool {
        self.locks.notify(name, hint) || self.lines.notify(name, hint)
    }

    /// Returns true if a thread waits for the key, or for a lock of this name.
    pub(super) fn is_waited_for(&self, name: &Key) -> bool {
        self.locks.is_waited_for(name) || self.lines.is_waited_for(name)
    }
}

/// A lock that a thread of this process has, as its queue knows it.
pub(crate) type Holder = HolderTicket<Delivery>;

/// A lock that was acquired.
pub(crate) struct Acquired {
    pub(crate) hold: Arc<Hold>,
    pub(crate) holder: Holder,
}

/// A held lock, to be released.
pub(super) struct HeldLock<'a> {
    pub(super) key: &'a Key,
    pub(super) options: &'a LockOptions,
    pub(super) lease: Lease,
    pub(super) holder: Holder,
    /// The debt that it is, if the first attempt to release it has failed.
    pub(super) owed: Option<DebtId>,
}

impl<'a> HeldLock<'a> {
    /// The lock as its acquisition has made it.
    pub(super) fn new(key: &'a Key, options: &'a LockOptions, lease: Lease, holder: Holder) -> Self {
        Self { key, options, lease, holder, owed: None }
    }
}

/// A lock that a holder hands over to a thread which waits for it.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) lease: Lease,
    /// True if only the key can tell if the lock was handed over.
    pub(crate) in_doubt: bool,
}
