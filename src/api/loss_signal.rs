//! Loss signals, for threads that do not have the guard of a lock.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use proto::values::{Now, Uptime};

use crate::report::state::LossReason;
use crate::run::hold::{self, Hold};
use crate::system::clock;

/// A hold, until it is lost or released.
pub(crate) trait Losable: Send + Sync + UnwindSafe + RefUnwindSafe {
    /// Returns why it is lost; `None` if it is not, or was released before.
    fn loss(&self, now: Now) -> Option<LossReason>;

    /// Returns true if it has not been released, as far as is known.
    fn is_held(&self) -> bool;

    /// Waits until it is lost or released, and at most until then.
    fn wait(&self, until: Uptime);
}

/// Locks that were acquired together: the loss of one is the loss of all.
struct AllHolds(Box<[Arc<Hold>]>);

impl Losable for AllHolds {
    fn loss(&self, now: Now) -> Option<LossReason> {
        self.0.iter().find_map(|hold| {
            let loss = hold.lost(now)?;
            hold.report();
            Some(LossReason::of(loss))
        })
    }

    fn is_held(&self) -> bool {
        self.0.iter().all(|hold| hold.is_held())
    }

    fn wait(&self, until: Uptime) {
        hold::wait_for_loss(&self.0, until);
    }
}

/// Tells threads whether a lock that was held has been lost. Clone it, and give it to the threads that do the
/// protected work.
///
/// Returned by [`LockGuard::loss_signal`](crate::LockGuard::loss_signal), and for several locks at once by
/// [`MultiLockGuard::loss_signal`](crate::MultiLockGuard::loss_signal) and
/// [`QuorumGuard::loss_signal`](crate::QuorumGuard::loss_signal).
///
/// A loss is noticed when the lease ends according to this machine's clocks, by
/// [`extend`](crate::LockGuard::extend) and [`verify`](crate::LockGuard::verify), and by the keeper thread. The
/// keeper reads the key of a lock with an expiration every third of the expiration. A noticed loss is final.
///
/// A signal does not keep the lock held. After a timely release it always reports that nothing was lost.
///
/// ```
/// # use setnx_lock::{Error, LockGuard};
/// # fn work(held: &LockGuard, chunks: Vec<u32>) -> Result<(), Error> {
/// let lost = held.loss_signal();
/// std::thread::scope(|scope| {
///     scope.spawn(move || {
///         for chunk in chunks {
///             if lost.is_lost() {
///                 return eprintln!("stopped: {:?}", lost.reason());
///             }
///             println!("working on {chunk}");
///         }
///     });
/// });
/// held.ensure_held()
/// # }
/// ```
#[derive(Clone)]
pub struct LossSignal(Arc<dyn Losable>);

impl LossSignal {
    /// Returns the signal of locks that were acquired together.
    pub(crate) fn of_all(holds: impl Iterator<Item = Arc<Hold>>) -> Self {
        Self::of(Arc::new(AllHolds(holds.collect())))
    }

    pub(crate) fn of(held: Arc<dyn Losable>) -> Self {
        Self(held)
    }

    /// Returns true if the lock, or one of several, is lost. Reads the clocks; does not block or contact the
    /// server.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.reason().is_some()
    }

    /// Returns why the lock is lost; `None` if it is not, or was released before. If several are lost, returns the
    /// reason of the first in key order.
    #[must_use]
    pub fn reason(&self) -> Option<LossReason> {
        self.0.loss(clock::now())
    }

    /// Returns true if the lock, or each of several, is neither lost nor given up: its release has not begun. Does not
    /// block or contact the server.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.is_lost() && self.0.is_held()
    }

    /// Waits up to `timeout` for a loss. Returns true if the lock, or one of several, is lost.
    ///
    /// Returns early as soon as the lock's release begins, which says itself if the lock was lost before. If the wall
    /// clock is set forward past the end of the lease, this is noticed within a second.
    #[must_use]
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        self.0.wait(clock::uptime().after(timeout));
        self.is_lost()
    }
}

impl fmt::Debug for LossSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LossSignal").field("reason", &self.reason()).finish_non_exhaustive()
    }
}
