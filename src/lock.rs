//! A lock as its user names it: a key, options, and the ways to get it.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::event::Event;
use crate::guard::LockGuard;
use crate::held::{self, Taken};
use crate::key::Key;
use crate::locker::Locker;
use crate::options::LockOptions;
use crate::value::Content;
use crate::waiting::Canceller;

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
    canceller: Option<Canceller>,
}

impl Lock {
    /// Returns the lock of this key. Sends nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Options`] for an empty key, an expiration or a poll interval below a millisecond, an expiration of more than
    /// ten years, a takeover margin of more than that or without an expiration, no expiration in [`Protocol::Ttl`](crate::Protocol::Ttl),
    /// polling that makes no sense, or wake-ups through a locker that was made [`with_pool`](Locker::with_pool).
    pub fn new(locker: &Locker, key: impl Into<Key>, options: LockOptions) -> Result<Self, Error> {
        let key = key.into();
        let problem = if key.is_empty() {
            Some("a lock's key must not be empty; give it the name of what it protects")
        } else if options.wake_ups && !locker.engine().window.can_listen() {
            Some(
                "wake-ups need a connection of their own, which a locker made by `with_pool` cannot open; make it by `open`, or by \
                 `with_managed_pool`, or leave wake-ups out",
            )
        } else {
            options.problem()
        };
        match problem {
            Some(problem) => Err(Error::Options { key, problem }),
            None => Ok(Self { locker: locker.clone(), key, options, canceller: None }),
        }
    }

    /// Returns the lock's key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns the options that the lock was made with.
    pub fn options(&self) -> LockOptions {
        self.options
    }

    /// Returns the lock with a handle that ends its waits: see [`Canceller`]. Once that has been used, it acquires nothing any more.
    ///
    /// The gem has no such thing.
    #[must_use]
    pub fn cancelled_by(self, canceller: &Canceller) -> Self {
        Self { canceller: Some(canceller.clone()), ..self }
    }

    /// Runs `body` while the lock is held and returns its result untouched. Waits up to the timeout of the options. The
    /// lock is released afterwards, also when the body fails or panics; trouble in releasing is reported to the observer.
    ///
    /// The gem's `lock { … }`.
    ///
    /// # Errors
    ///
    /// Those of [`lock`](Self::lock), made into the body's type of error; the body's own; and [`Error::Nested`] inside
    /// another `with` on the same key by the same thread, through the same locker or a clone of it.
    ///
    /// ```
    /// # use setnx_lock::{Error, Lock, LockOptions, Locker};
    /// # use std::time::Duration;
    /// # fn example(locker: &Locker) -> Result<(), Error> {
    /// let lock = Lock::new(locker, "serialize_stuff", LockOptions::expiring_after(Duration::from_secs(15)))?;
    /// let answer = lock.with(|held| {
    ///     println!("{:?} left", held.remaining());
    ///     Ok::<_, Error>(42)
    /// })?;
    /// assert_eq!(answer, 42);
    /// # Ok(())
    /// # }
    /// ```
    pub fn with<T, E: From<Error>>(&self, body: impl FnOnce(&LockGuard) -> Result<T, E>) -> Result<T, E> {
        let guard = self.acquire(&self.options, Taken::Scoped)?;
        body(&guard)
    }

    /// Waits for the lock, up to the timeout of the options: asks, sleeps the poll interval, and looks again, with a last
    /// try at the deadline. Returns within the timeout and the time of one command, whatever the server does.
    ///
    /// Threads that wait for one key through one [`Locker`] stand in line, and the first looks for all that wait as it does; see
    /// [`docs/waiting.md`](crate::documentation::waiting). A thread whose time is up behind others has not asked itself.
    ///
    /// The gem's `lock` without a block, which it has not got.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if somebody else held it, or was before us, all that time, with what was seen. [`Error::Cancelled`] and
    /// [`Error::ShutDown`] if the wait was ended from outside. [`Error::Nested`] inside a
    /// [`with`](Self::with) on the same key by the same thread. [`Error::Pool`], [`Error::Refused`] and [`Error::Io`] if
    /// the server cannot be reached, says no, or is not understood: the lock is not ours. [`Error::Unsupported`] if the server is
    /// too old for the protocol. [`Error::Forked`] in a child of the process that opened the locker. [`Error::Unknown`] if the
    /// server may have granted the lock and its answer got lost.
    pub fn lock(&self) -> Result<LockGuard, Error> {
        self.acquire(&self.options, Taken::Loose)
    }

    /// Tries once, without waiting for whoever holds the lock: returns `None` then. The server, and a connection where the
    /// pool has none to spare, are waited for, up to the command time-out.
    ///
    /// The gem's lock with `timeout: 0`, where contention is an error.
    ///
    /// # Errors
    ///
    /// Those of [`lock`](Self::lock) but for the timeout.
    pub fn try_lock(&self) -> Result<Option<LockGuard>, Error> {
        self.try_lock_for(Duration::ZERO)
    }

    /// Waits for the lock up to `timeout`, whatever the options say. Returns `None` if somebody else held it, or other threads of this
    /// process were before us, all that time.
    ///
    /// # Errors
    ///
    /// Those of [`lock`](Self::lock) but for the timeout.
    pub fn try_lock_for(&self, timeout: Duration) -> Result<Option<LockGuard>, Error> {
        match self.acquire(&self.options.timeout(timeout), Taken::Loose) {
            Ok(guard) => Ok(Some(guard)),
            Err(Error::Timeout { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns what the key holds, with one GET. Another may hold something else a moment later: good for looking, not for
    /// deciding.
    ///
    /// # Errors
    ///
    /// [`Error::Pool`], [`Error::Refused`] (the key may hold something that is no lock), [`Error::Io`], or [`Error::Forked`].
    pub fn peek(&self) -> Result<Content, Error> {
        self.locker.engine().peek(&self.key)
    }

    /// Returns whether there is such a key, held or left over, with one GET.
    ///
    /// # Errors
    ///
    /// Those of [`peek`](Self::peek).
    pub fn exists(&self) -> Result<bool, Error> {
        Ok(self.peek()? != Content::Absent)
    }

    /// Deletes the key, **whoever holds it**, with one DEL; returns whether there was one. For locks whose holder is known
    /// to be dead.
    ///
    /// The gem's `clear` and `delete`, which return the count.
    ///
    /// # Errors
    ///
    /// [`Error::Pool`], [`Error::Refused`], [`Error::Forked`], or [`Error::Unknown`] if the answer got lost.
    pub fn clear(&self) -> Result<bool, Error> {
        self.locker.engine().clear(&self.key)
    }

    fn acquire(&self, options: &LockOptions, taken: Taken) -> Result<LockGuard, Error> {
        let engine = self.locker.engine();
        let by_this_thread = || held::by_this_thread(&engine.identity, &self.key);
        if by_this_thread() == Some(Taken::Scoped) {
            return Err(Error::Nested { key: self.key.clone() });
        }
        match engine.acquire(&self.key, options, self.canceller.as_ref()) {
            Ok(acquired) => {
                let mark = held::note(&engine.identity, &self.key, taken);
                Ok(LockGuard::new(Arc::clone(engine), self.key.clone(), *options, acquired, mark))
            }
            Err(mut error) => {
                if let Error::Timeout { details, .. } = &mut error {
                    details.taken_by_this_thread = by_this_thread().is_some();
                }
                engine.observer.tell(&Event::NotAcquired { key: &self.key, error: &error });
                Err(error)
            }
        }
    }
}
