//! That a lock was lost, for threads that do not have its guard.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::clock;
use crate::hold::{self, Hold};
use crate::key::Key;
use crate::protocol::ownership::LossReason;

/// Says whether a lock that was held has been lost: of [`LockGuard::loss_signal`](crate::LockGuard::loss_signal), and for several locks at once of
/// [`MultiLockGuard::loss_signal`](crate::MultiLockGuard::loss_signal). Clone it, and give it to the threads that do the protected work.
///
/// A loss is noticed by the clocks when the lease passes, by [`extend`](crate::LockGuard::extend) and
/// [`verify`](crate::LockGuard::verify), and by the keeper thread, which looks at the key of a lock with an expiration every third of that.
/// What was noticed stays so. A signal does not keep the lock held: after a timely release it always reports that nothing was lost.
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
pub struct LossSignal(Arc<[Arc<Hold>]>);

impl LossSignal {
    /// Of locks that were acquired together.
    pub(crate) fn of(holds: impl Iterator<Item = Arc<Hold>>) -> Self {
        Self(holds.collect())
    }

    /// Returns true if the lock, or one of several, is lost. Reads the clocks; neither waits nor asks the server.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.reason().is_some()
    }

    /// Returns why the lock is lost; `None` if it is not, or was released before. Of several that are lost, the first in the order of their
    /// keys.
    #[must_use]
    pub fn reason(&self) -> Option<LossReason> {
        self.loss().map(|(_, reason)| reason)
    }

    fn loss(&self) -> Option<(&Key, LossReason)> {
        let now = clock::now();
        self.0.iter().find_map(|hold| {
            let reason = hold.lost(now)?;
            hold.report();
            Some((&hold.key, reason))
        })
    }

    /// Returns true if the lock, or each of several, is neither lost nor released.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.is_lost() && self.0.iter().all(|hold| hold.is_held())
    }

    /// Waits up to `timeout` for the loss of the lock, or of one of several; returns true if it is lost. Returns early when the lock is
    /// released. If the wall clock is set forward past the end of the lease, that is noticed within a second.
    #[must_use]
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        hold::wait_for_loss(&self.0, clock::uptime().after(timeout));
        self.is_lost()
    }
}

impl fmt::Debug for LossSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("LossSignal");
        for hold in self.0.iter() {
            shown.field("key", &hold.key).field("reason", &hold.noticed_loss());
        }
        shown.finish_non_exhaustive()
    }
}
