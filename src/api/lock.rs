//! A lock as its user names it: a key, options, and the calls that acquire it.

use std::sync::Arc;
use std::time::Duration;

use proto::values::Key;

use crate::api::guard::LockGuard;
use crate::api::locker::Locker;
use crate::report::error::Error;
use crate::report::state::{Holder, LockState};
use crate::run::Call;
use crate::run::thread_holds::HoldKind;
use crate::values::options::LockOptions;
use crate::wait::CancelToken;

/// Returns true if a server refuses a key of this length, or
/// one of the longer keys derived from it: the limit is 512 MB.
const fn is_too_long(bytes: usize) -> bool {
    bytes > (256 << 20) - 64
}

/// Returns why there is no lock of this key with these options, in words for the user.
pub(crate) fn problem(locker: &Locker, key: &Key, options: &LockOptions) -> Option<&'static str> {
    if key.as_bytes().is_empty() {
        Some("a lock's key must not be empty; give it the name of what it protects")
    } else if options.notifies == Some(true) && !locker.engine().backend.can_listen() {
        Some(
            "notifications need a connection of their own, which a locker made by `with_pool` cannot open; make it by `open`, or leave `notify_waiters(true)` out",
        )
    } else if options.notifies == Some(true) && !locker.engine().has_side_keys(key) {
        Some(
            "its waiters cannot be notified: it has a brace and no hash tag, so in a cluster their list may be on another node; give a key without braces, or with a hash tag such as {job}:7, or leave `notify_waiters(true)` out",
        )
    } else if is_too_long(key.as_bytes().len()) {
        Some(
            "its key is longer than a server accepts, with the names of the keys beside it; give a shorter one",
        )
    } else {
        options.problem()
    }
}

/// A distributed lock: one key on one server.
///
/// Cheap to create and to clone, and not held by itself. [`with`](Self::with) runs a closure while the lock is
/// held; [`lock`](Self::lock) and [`try_lock`](Self::try_lock) return a guard.
///
/// | call | waits | if another holder keeps the lock |
/// |---|---|---|
/// | [`with`](Self::with), [`with_result`](Self::with_result) | up to the timeout of the options | [`Error::Contended`] |
/// | [`lock`](Self::lock) | up to the timeout of the options | [`Error::Contended`] |
/// | [`try_lock_for`](Self::try_lock_for) | up to the given time | `Ok(None)` |
/// | [`try_lock`](Self::try_lock) | not for the holder | `Ok(None)` |
///
/// ```
/// use setnx_lock::{Error, Lock, LockOptions, Locker, Protocol};
/// use std::time::Duration;
///
/// let url = "redis://127.0.0.1/";
/// # let server = setnx_lock_testing::TestServer::start();
/// # let url = &server.url();
/// let locker = Locker::open(url)?;
/// let options = LockOptions::expiring_after(Duration::from_secs(15)).protocol(Protocol::Auto);
/// let lock = Lock::new(&locker, "report:7", options)?;
/// lock.with(|held| println!("held for {:?} more", held.remaining()))?;
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Lock {
    pub(crate) locker: Locker,
    pub(crate) key: Key,
    pub(crate) options: LockOptions,
    pub(crate) cancel_token: Option<CancelToken>,
}

impl Lock {
    /// Returns the lock of this key, behind the locker's
    /// [prefix](crate::LockerBuilder::key_prefix) if it has one. Contacts no server.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for
    ///
    /// - an empty key, or one longer than a server accepts,
    /// - an expiration or a poll interval below a millisecond or above ten years,
    /// - [`Protocol::Ttl`](crate::Protocol::Ttl) without an expiration,
    /// - zero [`max_attempts`](LockOptions::max_attempts),
    /// - an [`auto_extend`](LockOptions::auto_extend) without an expiration, below it, or above ten years,
    /// - a [`hold_at_least`](LockOptions::hold_at_least) without an expiration, or above it,
    /// - [`notify_waiters(true)`](LockOptions::notify_waiters) on a locker made by [`Locker::with_pool`], or in a
    ///   cluster with a key that has a brace and no hash tag: its waiting list cannot have its slot.
    pub fn new(locker: &Locker, key: impl Into<Key>, options: LockOptions) -> Result<Self, Error> {
        Self::of_whole_key(locker, locker.engine().whole_key(key.into()), options)
    }

    /// Returns the lock of a key that has the locker's prefix already.
    pub(crate) fn of_whole_key(locker: &Locker, key: Key, options: LockOptions) -> Result<Self, Error> {
        match problem(locker, &key, &options) {
            Some(problem) => Err(Error::invalid(key, problem)),
            None => Ok(Self { locker: locker.clone(), key, options, cancel_token: None }),
        }
    }

    /// Returns the lock's key, with the locker's [prefix](crate::LockerBuilder::key_prefix).
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the lock with a [`CancelToken`] that ends its waits. Once the token is cancelled, the lock is no
    /// longer acquired.
    #[must_use]
    pub fn cancelled_by(self, token: &CancelToken) -> Self {
        Self { cancel_token: Some(token.clone()), ..self }
    }

    /// Runs `body` while the lock is held, and returns its result.
    ///
    /// Waits up to the timeout of the options. The lock is released afterwards, even if `body` panics (with
    /// `panic = "abort"` the process ends at once, and the lock stays held until it expires). A failed
    /// release is an error only if the lock was lost; any other failure goes to the log and the observer. For a
    /// body that returns a `Result`, use [`with_result`](Self::with_result).
    ///
    /// # Errors
    ///
    /// - Those of [`lock`](Self::lock): `body` has not run.
    /// - [`Error::Nested`] inside another `with` on the same key, by the same thread and through the same locker or
    ///   a clone of it. If both have the option [`reentrant`](LockOptions::reentrant), the call joins the outer one
    ///   instead, and fails with [`Error::Lost`] if that has lost the lock.
    /// - [`Error::Lost`] if the [release](LockGuard::release) finds that the lock was lost. `body` has run and its
    ///   result is dropped. **Another client may have worked at the same time.**
    ///
    /// ```
    /// # use setnx_lock::{Error, Lock, LockOptions, Locker};
    /// # use std::time::Duration;
    /// # fn example(locker: &Locker) -> Result<(), Error> {
    /// let lock = Lock::new(locker, "serialize_stuff", LockOptions::expiring_after(Duration::from_secs(15)))?;
    /// let answer = lock.with(|held| {
    ///     println!("{:?} left", held.remaining());
    ///     42
    /// })?;
    /// assert_eq!(answer, 42);
    /// # Ok(())
    /// # }
    /// ```
    pub fn with<R>(&self, body: impl FnOnce(&LockGuard) -> R) -> Result<R, Error> {
        self.with_result(|held| Ok(body(held)))
    }

    /// Runs a `body` that can fail while the lock is held, and returns its result: like [`with`](Self::with).
    ///
    /// # Errors
    ///
    /// The body's own error, and those of [`with`](Self::with), converted into the body's error type. If `body`
    /// fails and the lock is lost, the body's error is returned.
    ///
    /// ```
    /// # use setnx_lock::{Error, Lock, LockOptions, Locker};
    /// # fn example(lock: &Lock) -> Result<(), Error> {
    /// lock.with_result(|held| {
    ///     held.ensure_held()?; // before a step that must not happen twice
    ///     Ok::<_, Error>(())
    /// })
    /// # }
    /// ```
    pub fn with_result<T, E: From<Error>>(
        &self,
        body: impl FnOnce(&LockGuard) -> Result<T, E>,
    ) -> Result<T, E> {
        let guard = self.lock_in_scope()?;
        let returned = body(&guard)?;
        guard.leave()?;
        Ok(returned)
    }

    /// Waits for the lock, up to the timeout of the options, and returns its guard.
    ///
    /// Polls the server at the poll interval, with a last attempt at the deadline. Returns at most one command
    /// timeout after the deadline, with [exceptions](crate::documentation::limits#how-long-a-call-takes).
    ///
    /// Threads that wait for one key through one [`Locker`] or its clones form a queue, whose first thread polls:
    /// see [the guide](crate::documentation::guide#waiting-and-fairness). A thread that times out behind others has
    /// usually not asked the server.
    ///
    /// # Errors
    ///
    /// - [`Error::Contended`] if another holder had the lock, or other threads were queued ahead, until the timeout
    ///   or the last [attempt](LockOptions::max_attempts).
    /// - [`Error::Cancelled`] or [`Error::ShutDown`] if a [`CancelToken`] or [`Locker::shut_down`] ended the wait.
    /// - [`Error::Nested`] inside a [`with`](Self::with) on the same key by the same thread.
    /// - [`Error::Unavailable`] if the server is unreachable or its reply is not understood: the lock is not held.
    /// - [`Error::Refused`] if the server refuses, or is too old for the protocol: the lock is not held. If the refusal
    ///   [may pass](crate::Refusal::is_transient), it is the error only at the deadline.
    /// - [`Error::InDoubt`] if the reply was lost: the server may have granted the lock.
    /// - [`Error::Forked`] in a child of the process that opened the locker.
    /// - [`Error::Invalid`] if TLS has no crypto provider.
    pub fn lock(&self) -> Result<LockGuard, Error> {
        self.acquire(&self.options, Some(HoldKind::Movable))
    }

    /// Tries once to acquire the lock. Returns `None` if another holder has it.
    ///
    /// Does not wait for the holder; waits for the server, and for a free connection, for at most the command
    /// timeout.
    ///
    /// # Errors
    ///
    /// Those of [`lock`](Self::lock), except [`Error::Contended`], for which it returns `None`.
    pub fn try_lock(&self) -> Result<Option<LockGuard>, Error> {
        self.try_lock_for(Duration::ZERO)
    }

    /// Waits for the lock up to `timeout` instead of the timeout of the options. Returns `None` if the lock was not
    /// acquired in that time, or within the allowed [attempts](LockOptions::max_attempts).
    ///
    /// # Errors
    ///
    /// Those of [`lock`](Self::lock), except [`Error::Contended`], for which it returns `None`.
    pub fn try_lock_for(&self, timeout: Duration) -> Result<Option<LockGuard>, Error> {
        Error::unless_contended(self.acquire(&self.options.timeout(timeout), Some(HoldKind::Movable)))
    }

    /// Returns what the key holds. The answer may be outdated a moment
    /// later, so use it for people and logs, not for decisions.
    ///
    /// If the key has a time to live, the returned state ends when the server removes the key. This needs Redis 2.6.12;
    /// the time is measured anew at each call, so it varies slightly.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`], [`Error::Forked`], or [`Error::Refused`], for example because the key holds
    /// something that is no lock.
    pub fn state(&self) -> Result<LockState, Error> {
        self.locker.engine().state(&self.key)
    }

    /// Returns who holds the lock and since when, if its holder's locker has a
    /// [`holder_name`](crate::LockerBuilder::holder_name).
    ///
    /// Returns `None` for any other holder, and if the lock is free or expired. The answer may be outdated a moment
    /// later, so use it for people and logs, not for decisions.
    ///
    /// # Errors
    ///
    /// Those of [`state`](Self::state).
    pub fn holder(&self) -> Result<Option<Holder>, Error> {
        let state = self.state()?;
        Ok(state.holder().filter(|_| state.is_held()).cloned())
    }

    /// Deletes the key, **even if a living holder has the lock**. Returns true if there was a key.
    ///
    /// Call it only if the holder is known to have crashed. To release a lock that another process has acquired, have
    /// that pass on a [token](LockGuard::into_token), and use [`Locker::release_token`].
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`], [`Error::Refused`], [`Error::Forked`], or [`Error::InDoubt`] if the reply was lost.
    pub fn clear(&self) -> Result<bool, Error> {
        self.locker.engine().clear(&self.key)
    }

    /// Acquires the lock for a scope of this thread, or joins the enclosing one if both are reentrant. The guard
    /// must not leave the thread, and must be dropped.
    pub(crate) fn lock_in_scope(&self) -> Result<LockGuard, Error> {
        match self.enclosing() {
            Some(guard) => guard.ensure_held().map(|()| guard),
            None => self.acquire(&self.options, Some(HoldKind::Scoped)),
        }
    }

    pub(crate) fn locker(&self) -> &Locker {
        &self.locker
    }

    /// Acquires the lock. With a `kind`, the hold is noted for this thread.
    pub(crate) fn acquire(&self, options: &LockOptions, kind: Option<HoldKind>) -> Result<LockGuard, Error> {
        let engine = self.locker.engine();
        let call = Call::new(engine, options, self.cancel_token.as_ref());
        Ok(LockGuard::new(Arc::clone(engine), call.acquire(&self.key, kind)?))
    }

    /// Joins the enclosing `with` of this thread on this key if both are reentrant.
    fn enclosing(&self) -> Option<LockGuard> {
        let enclosing = || LockGuard::enclosing(self.locker.engine(), &self.key);
        self.options.reentrant.then(enclosing)?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::values::SideKey;

    #[test]
    fn a_key_leaves_room_for_the_names_of_those_beside_it() {
        let longest = (256 << 20) - 64;
        assert!(!is_too_long(longest) && is_too_long(longest + 1));
        assert!(SideKey::Waiters.of(&vec![b'k'; longest]).len() <= 512 << 20);
    }
}
