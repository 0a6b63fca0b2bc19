//! A lock as its user names it: a key, options, and the ways to acquire it.

use std::sync::Arc;
use std::time::Duration;

use crate::api::guard::LockGuard;
use crate::api::locker::Locker;
use crate::report::error::Error;
use crate::run::MaybeHeld;
use crate::run::thread_holds::{self, HoldKind};
use crate::values::key::Key;
use crate::values::options::LockOptions;
use crate::values::value::LockState;
use crate::wait::CancelToken;

/// Whether a server refuses a key of so many bytes, or one beside it, which has a longer name: it takes 512 MB.
const fn is_too_long(bytes: usize) -> bool {
    bytes > (512 << 20) - 64
}

/// Returns why there is no lock of this key with these options, in words for the user.
pub(crate) fn problem(locker: &Locker, key: &Key, options: &LockOptions) -> Option<&'static str> {
    if key.as_bytes().is_empty() {
        Some("a lock's key must not be empty; give it the name of what it protects")
    } else if options.notifies == Some(true) && !locker.engine().backend.can_listen() {
        Some(
            "notifications need a connection of their own, which a locker made by `with_pool` cannot open; make it by `open`, or leave `notify_waiters(true)` out",
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
/// Cheap to clone and to make; it holds nothing by itself. [`with`](Self::with) runs a closure under the lock,
/// [`lock`](Self::lock) returns a guard.
///
/// The gem's `Redis::Lock`.
#[derive(Clone, Debug)]
pub struct Lock {
    locker: Locker,
    key: Key,
    options: LockOptions,
    cancel_token: Option<CancelToken>,
}

impl Lock {
    /// Returns the lock of this key. Sends nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a key that is empty or longer than a server takes, and for invalid options: an expiration or poll interval below a
    /// millisecond or above ten years, no expiration in [`Protocol::Ttl`](crate::Protocol::Ttl), zero `max_attempts`, an `auto_extend` or
    /// `hold_at_least` that does not fit the expiration, or `notify_waiters(true)` on a locker made [`with_pool`](Locker::with_pool).
    pub fn new(locker: &Locker, key: impl Into<Key>, options: LockOptions) -> Result<Self, Error> {
        let key = key.into();
        match problem(locker, &key, &options) {
            Some(problem) => Err(Error::invalid(key, problem)),
            None => Ok(Self { locker: locker.clone(), key, options, cancel_token: None }),
        }
    }

    /// Returns the lock's key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the lock with a token that ends its waits: see [`CancelToken`]. Once that is cancelled, the lock is not acquired any more.
    ///
    /// The gem has no such thing.
    #[must_use]
    pub fn cancelled_by(self, token: &CancelToken) -> Self {
        Self { cancel_token: Some(token.clone()), ..self }
    }

    /// Runs `body` while the lock is held and returns what it returns. Waits up to the timeout of the options. The lock is released afterwards,
    /// even if the body panics. If the lock was lost meanwhile, the call returns [`Error::Lost`] after `body` has run, and drops its result; any
    /// other failure of the release goes to the log and the observer.
    ///
    /// For a body that returns a `Result`, [`try_with`](Self::try_with) merges its error with those of the lock.
    ///
    /// The gem's `lock { … }`.
    ///
    /// # Errors
    ///
    /// Those of [`lock`](Self::lock), and [`Error::Nested`] inside another `with` on the same key by the same thread, through the
    /// same locker or a clone of it. If both have the option [`reentrant`](LockOptions::reentrant) it joins that one instead, and fails
    /// with [`Error::Lost`] if that has lost the lock.
    ///
    /// [`Error::Lost`] if the [release](LockGuard::release) finds that the lock was lost: `body` has run, and another client may have
    /// worked at the same time.
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
        let guard = self.lock_in_scope()?;
        let returned = body(&guard);
        guard.leave()?;
        Ok(returned)
    }

    /// The same as [`with`](Self::with) for a body that can fail, with the same wait: returns its result, and the lock's errors as the body's type of error.
    ///
    /// # Errors
    ///
    /// The body's own, and those of [`with`](Self::with), converted. If the body fails and the lock is lost, its own is returned.
    ///
    /// ```
    /// # use setnx_lock::{Error, Lock, LockOptions, Locker};
    /// # fn example(lock: &Lock) -> Result<(), Error> {
    /// lock.try_with(|held| {
    ///     held.ensure_held()?; // before a step that must not happen twice
    ///     Ok::<_, Error>(())
    /// })
    /// # }
    /// ```
    pub fn try_with<T, E: From<Error>>(&self, body: impl FnOnce(&LockGuard) -> Result<T, E>) -> Result<T, E> {
        let guard = self.lock_in_scope()?;
        let returned = body(&guard)?;
        guard.leave()?;
        Ok(returned)
    }

    /// Waits for the lock, up to the timeout of the options: asks the server, looks again at each poll interval, and tries once more at the
    /// deadline. Returns at most one command timeout later ([exceptions](crate::documentation::limits)).
    ///
    /// Threads that wait for one key through one [`Locker`] form a queue. Its first thread polls for all that have the same options: see
    /// [the guide](crate::documentation::guide#waiting-and-fairness). A thread that times out behind others has usually not asked the server.
    ///
    /// The gem's `lock` always takes a block.
    ///
    /// # Errors
    ///
    /// [`Error::Contended`] if another holder had the lock, or other threads were queued ahead, until the timeout or until the [allowed
    /// attempts](LockOptions::max_attempts) were used up; it says what was seen. [`Error::Cancelled`] if the wait was ended from outside.
    /// [`Error::Nested`] inside a [`with`](Self::with) on the same key by the same thread. [`Error::Unavailable`] and [`Error::Refused`] if the
    /// server is unreachable, is not understood, refuses, or is too old for the protocol: the lock is not held. [`Error::Forked`] in a child of
    /// the process that opened the locker. [`Error::InDoubt`] if the server may have granted the lock and the reply was lost. [`Error::Invalid`]
    /// if TLS has no crypto provider.
    pub fn lock(&self) -> Result<LockGuard, Error> {
        self.acquire(&self.options, HoldKind::Movable)
    }

    /// Tries once, without waiting for the holder: returns `None` if there is one. Waits for the server, and for a connection where the
    /// pool has none to spare, up to the command timeout.
    ///
    /// The gem's lock with `timeout: 0`, where contention is an error.
    ///
    /// # Errors
    ///
    /// Those of [`lock`](Self::lock), except [`Error::Contended`], which is `None` here.
    pub fn try_lock(&self) -> Result<Option<LockGuard>, Error> {
        self.try_lock_for(Duration::ZERO)
    }

    /// Waits for the lock up to `timeout`, whatever the options say. Returns `None` if it was not acquired in that time, or in the allowed
    /// attempts.
    ///
    /// # Errors
    ///
    /// Those of [`lock`](Self::lock), except [`Error::Contended`], which is `None` here.
    pub fn try_lock_for(&self, timeout: Duration) -> Result<Option<LockGuard>, Error> {
        match self.acquire(&self.options.timeout(timeout), HoldKind::Movable) {
            Ok(guard) => Ok(Some(guard)),
            Err(error) if error.is_contention() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns what the key holds, with GET and, where the server reported version 2.6.12 or later, PTTL in one trip. If the server removes the
    /// key earlier than its value says, the state that is returned ends then; this time is measured at each call, so it varies slightly. The key
    /// may hold something else a moment later: good for looking, not for deciding.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`], [`Error::Refused`] (the key may hold something that is no lock), or [`Error::Forked`].
    pub fn state(&self) -> Result<LockState, Error> {
        self.locker.engine().state(&self.key)
    }

    /// Returns the name that the holder has written, if its locker has a [`holder_name`](crate::LockerBuilder::holder_name) and it still holds the
    /// lock as far as the key says; `None` for every other holder, gems among them, and if there is none. Two GETs in one trip. Good for
    /// looking, not for deciding.
    ///
    /// # Errors
    ///
    /// Those of [`state`](Self::state).
    pub fn holder(&self) -> Result<Option<String>, Error> {
        self.locker.engine().holder(&self.key)
    }

    /// Deletes the key, **whatever holds it**, with one DEL; returns true if there was one. For locks whose holder is known
    /// to have crashed.
    ///
    /// The gem's `clear` and `delete`, which return the count.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`], [`Error::Refused`], [`Error::Forked`], or [`Error::InDoubt`] if the reply was lost.
    pub fn clear(&self) -> Result<bool, Error> {
        self.locker.engine().clear(&self.key)
    }

    /// Acquires the lock for a scope of this thread, or joins the one that the thread is in, if both may be nested. The guard must not
    /// leave the thread, and must be dropped.
    pub(crate) fn lock_in_scope(&self) -> Result<LockGuard, Error> {
        match self.enclosing() {
            Some(guard) => guard.ensure_held().map(|()| guard),
            None => self.acquire(&self.options, HoldKind::Scoped),
        }
    }

    /// Tries once. If a reply was lost, returns the lock that may be held as well.
    pub(crate) fn try_once(&self) -> (Result<LockGuard, Error>, Option<MaybeHeld>) {
        let engine = self.locker.engine();
        let (acquired, maybe) = engine.acquire_once(&self.key, &self.options.timeout(Duration::ZERO));
        (acquired.map(|acquired| LockGuard::new(Arc::clone(engine), acquired)), maybe)
    }

    pub(crate) fn locker(&self) -> &Locker {
        &self.locker
    }

    fn acquire(&self, options: &LockOptions, kind: HoldKind) -> Result<LockGuard, Error> {
        let engine = self.locker.engine();
        let acquired = engine.acquire(&self.key, options, self.cancel_token.as_ref(), None, kind)?;
        Ok(LockGuard::new(Arc::clone(engine), acquired))
    }

    /// Joins the `with` that this thread is in on this key, if both may be nested.
    fn enclosing(&self) -> Option<LockGuard> {
        if !self.options.reentrant {
            return None;
        }
        let engine = self.locker.engine();
        let hold = thread_holds::scoped(&engine.identity, &self.key).filter(|hold| hold.options.reentrant)?;
        engine.identity.is_this_process().then(|| LockGuard::nested(Arc::clone(engine), hold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_leaves_room_for_the_names_of_those_beside_it() {
        let beside = b":setnx-lock:waiters".len();
        assert!(!is_too_long(1 << 20));
        assert!(is_too_long((512 << 20) - beside));
    }
}
