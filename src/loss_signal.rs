//! That a lock was lost, for threads that do not have its guard.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::clock;
use crate::hold::Hold;
use crate::protocol::ownership::LossReason;

/// Says whether a lock that was held has been lost: of [`LockGuard::lost`](crate::LockGuard::lost). Clone it, and give it to the threads
/// that do the protected work.
///
/// A loss is noticed by the clocks when the lease passes; by [`extend`](crate::LockGuard::extend) and
/// [`verify`](crate::LockGuard::verify); and by the keeper thread, with [`auto_extend`](crate::LockOptions::auto_extend) or
/// [`verify_every`](crate::LockOptions::verify_every). What was noticed stays so. It does not keep the lock: after a release in time it says
/// for ever that nothing was lost.
///
/// ```
/// # use setnx_lock::{Error, LockGuard};
/// # fn work(held: &LockGuard, chunks: Vec<u32>) -> Result<(), Error> {
/// let lost = held.lost();
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
pub struct LossSignal(Arc<Hold>);

impl LossSignal {
    pub(crate) fn of(hold: &Arc<Hold>) -> Self {
        Self(Arc::clone(hold))
    }

    /// Returns whether the lock is lost. Looks at the clocks, and neither waits nor asks the server.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.reason().is_some()
    }

    /// Returns why the lock is lost; `None` if it is not, or was released before.
    #[must_use]
    pub fn reason(&self) -> Option<LossReason> {
        let reason = self.0.lost(clock::now());
        if reason.is_some() {
            self.0.act_on_loss();
        }
        reason
    }

    /// Returns whether the lock is still held: neither lost nor released.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.is_lost() && self.0.is_held()
    }

    /// Waits until the lock is lost, for at most `timeout`, and returns whether it is. Returns early when the lock is released. If the wall
    /// clock is set forward past the end of the lease, that is noticed within a second.
    #[must_use]
    pub fn wait_timeout(&self, timeout: Duration) -> bool {
        self.0.wait_for_loss(clock::uptime().after(timeout));
        self.is_lost()
    }
}

impl fmt::Debug for LossSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LossSignal")
            .field("key", &self.0.key)
            .field("reason", &self.0.noticed_loss())
            .finish_non_exhaustive()
    }
}
