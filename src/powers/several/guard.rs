//! Several locks that are held together.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use proto::values::Key;

use crate::extend::{Leaving, Line, extend_all, fencing_tokens, loss_signal_of_all, verify_all};
use crate::system::sync::Mutex;
use crate::{Error, LockGuard, LossReason, LossSignal};

/// Several locks that are held together. They are released when dropped, even by a panic.
///
/// Its methods do for all locks what those of a [`LockGuard`] do for one, in the same number of round trips. The
/// loss of one lock counts as the loss of all.
#[must_use = "if unused, the locks are released at once"]
pub struct MultiLockGuard {
    /// In the order of their keys; at least one.
    guards: Vec<LockGuard>,
    /// If the locks are permits: the queue of their semaphore.
    line: Option<Line>,
}

impl MultiLockGuard {
    pub(super) fn of(guards: Vec<LockGuard>, line: Option<Line>) -> Self {
        Self { guards, line }
    }

    /// Ends the holds. Threads that wait for one of several permits get those that they can.
    fn end(&mut self) -> Result<(), Error> {
        let mut guards = mem::take(&mut self.guards);
        let handed_on = self.line.as_ref().map_or(Ok(()), |line| line.hand_on(&mut guards));
        let released = LockGuard::end_all(&mut guards, Leaving::Release);
        Error::of_all([released, handed_on].into_iter())
    }

    /// Releases all locks except the one of this key, and returns its guard.
    pub(crate) fn release_except(mut self, key: &Key) -> LockGuard {
        let at = self.guards.iter().position(|guard| guard.key() == key);
        let Some(at) = at else { unreachable!("it is one of the keys") };
        let other = self.guards.remove(at);
        drop(self);
        other
    }

    fn first(&self) -> &LockGuard {
        match self.guards.first() {
            Some(first) => first,
            None => unreachable!("there is at least one lock"),
        }
    }

    /// Returns the guard of each key, in key order.
    #[must_use = "if unused, the call has no effect"]
    pub fn guards(&self) -> &[LockGuard] {
        &self.guards
    }

    /// Returns how much longer all locks can be relied on, which is the
    /// shortest [`LockGuard::remaining`]; `None` without an expiration.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.guards.iter().filter_map(LockGuard::remaining).min()
    }

    /// Returns the end of the first lease to end, by the wall clock; `None` without an expiration.
    #[must_use]
    pub fn expires_at(&self) -> Option<DateTime<Utc>> {
        self.guards.iter().filter_map(LockGuard::expires_at).min()
    }

    /// Checks that no lease has ended and that no loss was noticed: see [`LockGuard::ensure_held`].
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] with the first key that is no longer held.
    pub fn ensure_held(&self) -> Result<(), Error> {
        self.guards.iter().try_for_each(LockGuard::ensure_held)
    }

    /// Extends all leases: see [`LockGuard::extend`].
    ///
    /// # Errors
    ///
    /// Those of [`LockGuard::extend`], with the first key that is lost, otherwise with the
    /// first that failed. Other leases may have been extended: [`LockGuard::remaining`] of
    /// each of the [`guards`](Self::guards) says for how long.
    pub fn extend(&self) -> Result<(), Error> {
        extend_all(&self.guards, None)
    }

    /// Starts new leases that last for `lease` from now: see [`LockGuard::extend_by`].
    ///
    /// # Errors
    ///
    /// Those of [`extend`](Self::extend), and [`Error::Invalid`] if `lease` is out of range.
    pub fn extend_by(&self, lease: Duration) -> Result<(), Error> {
        extend_all(&self.guards, Some(lease))
    }

    /// Asks the server whether all locks are still held: see [`LockGuard::verify`].
    ///
    /// # Errors
    ///
    /// Those of [`LockGuard::verify`], with the first key that is lost, otherwise with the first that failed.
    pub fn verify(&self) -> Result<(), Error> {
        verify_all(&self.guards)
    }

    /// Returns a signal that tells the working threads whether one of the locks is lost: see
    /// [`LockGuard::loss_signal`].
    #[must_use]
    pub fn loss_signal(&self) -> LossSignal {
        loss_signal_of_all(&self.guards)
    }

    /// Calls `act` with the key when the first of the locks is lost, or at once if one is lost already. After a
    /// timely release `act` never runs: see [`LockGuard::on_loss`].
    pub fn on_loss(&self, act: impl FnOnce(&Key, LossReason) + Send + 'static) {
        let act = Arc::new(Mutex::new(Some(act)));
        for guard in &self.guards {
            let (act, key) = (Arc::clone(&act), guard.key().clone());
            guard.on_loss(move |reason| {
                let act = act.lock().take();
                if let Some(act) = act {
                    act(&key, reason);
                }
            });
        }
    }

    /// Returns the fencing token of each key, in key order: see [`LockGuard::fencing_token`].
    ///
    /// # Errors
    ///
    /// Those of [`LockGuard::fencing_token`], with the first key that failed.
    pub fn fencing_tokens(&self) -> Result<Vec<(&Key, u64)>, Error> {
        let tokens = fencing_tokens(&self.guards)?;
        self.guards.iter().zip(tokens).map(|(guard, token)| Ok((guard.key(), token?))).collect()
    }

    /// Ends the hold without releasing the locks: see [`LockGuard::leave_to_expire`].
    ///
    /// # Errors
    ///
    /// Those of [`LockGuard::leave_to_expire`], chosen as in [`release`](Self::release).
    pub fn leave_to_expire(mut self) -> Result<(), Error> {
        LockGuard::end_all(&mut mem::take(&mut self.guards), Leaving::ToExpire)
    }

    /// Releases all locks and reports the outcome: see [`LockGuard::release`]. If one release fails, the other
    /// locks are released all the same.
    ///
    /// # Errors
    ///
    /// Those of [`LockGuard::release`]. If any lock was lost, [`Error::Lost`] with the
    /// first such key. Otherwise the error of the key that failed, or [`Error::Several`]
    /// if more than one failed. Events report the outcome of each key.
    pub fn release(mut self) -> Result<(), Error> {
        self.end()
    }

    /// Releases all locks in the background, and returns at once: see [`LockGuard::release_later`].
    pub fn release_later(mut self) {
        LockGuard::end_all_later(&mut mem::take(&mut self.guards));
    }

    /// Ends the holds of a call with a body: see [`LockGuard::leave`].
    pub(crate) fn leave(self) -> Result<(), Error> {
        self.release().or_else(Error::unless_lost)
    }
}

impl Drop for MultiLockGuard {
    /// Releases the locks, and reports a failure to the log and the observer.
    fn drop(&mut self) {
        // Those of a nested call end nothing.
        if self.guards.iter().any(|guard| guard.options().releases_later) {
            return LockGuard::end_all_later(&mut self.guards);
        }
        // A failure has been reported.
        let _ = self.end();
    }
}

impl fmt::Debug for MultiLockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiLockGuard")
            .field("keys", &self.guards.iter().map(LockGuard::key).collect::<Vec<_>>())
            .field("protocol", &self.first().protocol())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
