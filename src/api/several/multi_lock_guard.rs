//! Several locks that are held together.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::api::guard::LockGuard;
use crate::api::loss_signal::LossSignal;
use crate::report::error::Error;
use crate::rules::ownership::LossReason;
use crate::run::hold::Hold;
use crate::run::{Acquired, Engine, Leaving};
use crate::values::key::Key;

/// Several locks that are held together: released when dropped, also by a panic, in one trip (two in
/// [`Protocol::Watched`](crate::Protocol::Watched) and [`Protocol::Ttl`](crate::Protocol::Ttl), and where
/// [`hold_at_least`](crate::LockOptions::hold_at_least) leaves them to expire).
///
/// What a [`LockGuard`] can do for one lock, this does for all, in as many trips as for one. [`guards`](Self::guards) are those of each key.
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

    /// Releases all but that of one of the keys, and returns that.
    pub(super) fn keep_one(mut self, key: &Key) -> LockGuard {
        let at = self.guards.iter().position(|guard| guard.key() == key);
        let Some(at) = at else { unreachable!("it is one of the keys") };
        let kept = self.guards.remove(at);
        drop(self);
        kept
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

    /// Returns the guard of each key, in the order of the keys.
    #[must_use = "this only returns them"]
    pub fn guards(&self) -> &[LockGuard] {
        &self.guards
    }

    /// Returns how long all locks can still be relied on: the shortest of [`LockGuard::remaining`]; `None` without an expiration.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.guards.iter().filter_map(LockGuard::remaining).min()
    }

    /// Returns when the first lease ends, by the wall clock; `None` without an expiration.
    #[must_use]
    pub fn expires_at(&self) -> Option<DateTime<Utc>> {
        self.guards.iter().filter_map(LockGuard::expires_at).min()
    }

    /// Checks that no lease has passed and that no loss was noticed: see [`LockGuard::ensure_held`].
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] with the first key that is not held any more.
    pub fn ensure_held(&self) -> Result<(), Error> {
        self.guards.iter().try_for_each(LockGuard::ensure_held)
    }

    /// Extends all leases, as [`LockGuard::extend`] does one, in as many trips as for one.
    ///
    /// # Errors
    ///
    /// Those of [`LockGuard::extend`], with the first key that is lost, else the first that failed. Other leases may have been extended:
    /// [`remaining`](Self::remaining) of each guard says for how long.
    pub fn extend(&self) -> Result<(), Error> {
        self.extend_to(None)
    }

    /// Extends all leases to ones of `lease` from now on, as [`LockGuard::extend_by`].
    ///
    /// # Errors
    ///
    /// Those of [`extend`](Self::extend), and [`Error::Invalid`] for a time that is none.
    pub fn extend_by(&self, lease: Duration) -> Result<(), Error> {
        self.extend_to(Some(lease))
    }

    fn extend_to(&self, lease: Option<Duration>) -> Result<(), Error> {
        // Those of nested calls may have different options.
        self.guards.iter().try_for_each(|guard| guard.lease(lease).map(drop))?;
        Self::first_failure(self.engine()?.extend(&self.holds(), lease))
    }

    /// Asks the server whether the locks are still held, in one trip: see [`LockGuard::verify`].
    ///
    /// # Errors
    ///
    /// Those of [`LockGuard::verify`], with the first key that is lost, else the first that failed.
    pub fn verify(&self) -> Result<(), Error> {
        Self::first_failure(self.engine()?.verify(&self.holds()))
    }

    /// Returns the first loss, else the first failure: what holds for the other keys, their guards say.
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
            Err(Error::Forked { key: Some(first.key().clone()) })
        }
    }

    /// Returns a signal that says when one of the locks is lost, for the threads that do the protected work.
    #[must_use]
    pub fn loss_signal(&self) -> LossSignal {
        self.guards.iter().for_each(|guard| guard.engine().watch(guard.hold()));
        LossSignal::of_all(self.guards.iter().map(|guard| Arc::clone(guard.hold())))
    }

    /// Calls `act` with the key when the first of the locks is lost, and at once if one is; never once the locks are released: see
    /// [`LockGuard::on_loss`].
    pub fn on_loss(&self, act: impl FnOnce(&Key, LossReason) + Send + 'static) {
        let act = Arc::new(Mutex::new(Some(act)));
        for guard in &self.guards {
            let (act, key) = (Arc::clone(&act), guard.key().clone());
            guard.on_loss(move |reason| {
                let act = act.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some(act) = act {
                    act(&key, reason);
                }
            });
        }
    }

    /// Returns the fencing token of each key, in the order of the keys: see [`LockGuard::fencing_token`]. Those that are not there yet are
    /// taken in one trip (two in Watched and Ttl).
    ///
    /// # Errors
    ///
    /// Those of [`LockGuard::fencing_token`], with the first key that failed.
    pub fn fencing_tokens(&self) -> Result<Vec<(&Key, u64)>, Error> {
        let tokens = self.engine()?.fencing_tokens(&self.holds());
        self.guards.iter().zip(tokens).map(|(guard, token)| Ok((guard.key(), token?))).collect()
    }

    /// Ends the hold without releasing: see [`LockGuard::leave_to_expire`].
    ///
    /// # Errors
    ///
    /// Those of [`LockGuard::leave_to_expire`], as in [`release`](Self::release).
    pub fn leave_to_expire(mut self) -> Result<(), Error> {
        LockGuard::end_all(&mut self.guards, Leaving::Keep)
    }

    /// Releases all locks together: see [`LockGuard::release`]. Where one of them meets a failure, the others are released all the same.
    ///
    /// # Errors
    ///
    /// Those of [`LockGuard::release`]. If any lock was lost, [`Error::Lost`] with the first such key; else the failure of the first key,
    /// or [`Error::Several`] if more than one failed. Events say what came of each.
    pub fn release(mut self) -> Result<(), Error> {
        LockGuard::end_all(&mut self.guards, Leaving::Release)
    }

    /// Ends the holds of a call with a body: see [`LockGuard::leave`].
    pub(super) fn leave(self) -> Result<(), Error> {
        self.release().or_else(Error::unless_lost)
    }
}

impl Drop for MultiLockGuard {
    /// Releases, and reports a failure to the log and the observer.
    fn drop(&mut self) {
        // Those of a nested call end nothing.
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
