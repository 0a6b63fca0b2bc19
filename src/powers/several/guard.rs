//! Several locks that are held together.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use proto::values::Key;

use crate::extend::{Acquired, Engine, Hold, Leaving};
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
}

impl MultiLockGuard {
    pub(super) fn new(engine: &Arc<Engine>, acquired: Vec<Acquired>) -> Self {
        let guard = |acquired| LockGuard::new(Arc::clone(engine), acquired);
        Self { guards: acquired.into_iter().map(guard).collect() }
    }

    pub(super) fn nested(engine: &Arc<Engine>, holds: Vec<Arc<Hold>>) -> Self {
        let guard = |hold| LockGuard::nested(Arc::clone(engine), hold);
        Self { guards: holds.into_iter().map(guard).collect() }
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

    fn holds(&self) -> Vec<&Arc<Hold>> {
        self.guards.iter().map(LockGuard::hold).collect()
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
        self.extend_to(None)
    }

    /// Starts new leases that last for `lease` from now: see [`LockGuard::extend_by`].
    ///
    /// # Errors
    ///
    /// Those of [`extend`](Self::extend), and [`Error::Invalid`] if `lease` is out of range.
    pub fn extend_by(&self, lease: Duration) -> Result<(), Error> {
        self.extend_to(Some(lease))
    }

    fn extend_to(&self, lease: Option<Duration>) -> Result<(), Error> {
        // Those of nested calls may have different options.
        self.guards.iter().try_for_each(|guard| guard.lease(lease).map(drop))?;
        Self::first_failure(self.engine()?.extend(&self.holds(), lease))
    }

    /// Asks the server whether all locks are still held: see [`LockGuard::verify`].
    ///
    /// # Errors
    ///
    /// Those of [`LockGuard::verify`], with the first key that is lost, otherwise with the first that failed.
    pub fn verify(&self) -> Result<(), Error> {
        Self::first_failure(self.engine()?.verify(&self.holds()))
    }

    /// Returns the first loss, otherwise the first failure. The guards say what applies to the other keys.
    fn first_failure(outcomes: Vec<Result<(), Error>>) -> Result<(), Error> {
        let mut failures: Vec<Error> = outcomes.into_iter().filter_map(Result::err).collect();
        failures.sort_by_key(|error| !error.is_lost());
        failures.into_iter().next().map_or(Ok(()), Err)
    }

    fn engine(&self) -> Result<&Arc<Engine>, Error> {
        let first = self.first();
        let engine = first.engine();
        if engine.identity.is_this_process() {
            Ok(engine)
        } else {
            Err(Error::Forked { key: first.key().clone() })
        }
    }

    /// Returns a signal that tells the working threads whether one of the locks is lost: see
    /// [`LockGuard::loss_signal`].
    #[must_use]
    pub fn loss_signal(&self) -> LossSignal {
        self.guards.iter().for_each(|guard| guard.engine().watch(guard.hold()));
        LossSignal::of_all(self.guards.iter().map(|guard| Arc::clone(guard.hold())))
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
        let tokens = self.engine()?.fencing_tokens(&self.holds());
        self.guards.iter().zip(tokens).map(|(guard, token)| Ok((guard.key(), token?))).collect()
    }

    /// Ends the hold without releasing the locks: see [`LockGuard::leave_to_expire`].
    ///
    /// # Errors
    ///
    /// Those of [`LockGuard::leave_to_expire`], chosen as in [`release`](Self::release).
    pub fn leave_to_expire(mut self) -> Result<(), Error> {
        LockGuard::end_all(&mut self.guards, Leaving::ToExpire)
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
        LockGuard::end_all(&mut self.guards, Leaving::Release)
    }

    /// Releases all locks in the background, and returns at once: see [`LockGuard::release_later`].
    pub fn release_later(mut self) {
        LockGuard::end_all_later(&mut self.guards);
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
        if self.guards.iter().any(|guard| guard.hold().options.releases_later) {
            return LockGuard::end_all_later(&mut self.guards);
        }
        // A failure has been reported.
        let _ = LockGuard::end_all(&mut self.guards, Leaving::Release);
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
