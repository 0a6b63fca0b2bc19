//! Several locks that are acquired together, all or none.

mod guard;
mod in_order;

use std::sync::Arc;
use std::time::Duration;

use proto::values::Key;

use crate::extend::{HoldKind, Line, ReaderCount, SeveralCall, enclosing, problem};
use crate::{CancelToken, Error, LockOptions, Locker};
pub use guard::MultiLockGuard;
use in_order::acquire_in_order;

/// Several distributed locks on one server that are held together: all, or none.
///
/// Each is an ordinary lock, which other programs may lock separately. If all are free, they are acquired in one
/// round trip. Otherwise they are acquired one at a time in byte order, which prevents deadlock. A waiting call
/// keeps the locks that it has and extends their leases, so callers with fewer keys cannot starve it. One timeout
/// covers the whole call. If the call fails, it releases what it acquired.
///
/// [`documentation::several`](crate::documentation::several#several-keys-at-once) says more, for example [how to
/// avoid deadlock](crate::documentation::several#avoid-deadlock) between calls.
///
/// ```
/// use setnx_lock::{Error, LockOptions, Locker, MultiLock, Protocol};
/// use std::time::Duration;
///
/// let url = "redis://127.0.0.1/";
/// # let server = setnx_lock_testing::TestServer::start();
/// # let url = &server.url();
/// let locker = Locker::open(url)?;
/// let options = LockOptions::expiring_after(Duration::from_secs(15)).protocol(Protocol::Auto);
/// let accounts = MultiLock::new(&locker, ["account:7", "account:9"], options)?;
/// accounts.with(|held| println!("both are held for {:?} more", held.remaining()))?;
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MultiLock {
    locker: Locker,
    /// In byte order; no two are equal.
    keys: Arc<[Key]>,
    options: LockOptions,
    cancel_token: Option<CancelToken>,
    /// If the locks are permits: the queue of their semaphore.
    line: Option<Line>,
    /// If they are a writer's: the number of readers, which all callers must share, and the key by which it is known that
    /// it is next.
    readers: Option<ReaderCount>,
    next_writer: Option<Key>,
}

impl MultiLock {
    /// The most keys that a `MultiLock` can have. The time that a server
    /// takes to watch keys grows with the square of their number.
    pub const MAX_KEYS: usize = 1000;

    /// Returns the locks of these keys, from 1 to [`MAX_KEYS`](Self::MAX_KEYS), in any order. Contacts no server.
    ///
    /// A key that occurs twice counts once. All locks have the same options:
    /// [`max_attempts`](LockOptions::max_attempts) counts for each key, and
    /// [`auto_extend`](LockOptions::auto_extend) and [`hold_at_least`](LockOptions::hold_at_least) start counting
    /// when all locks are held.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for no key or too many, and for anything that [`Lock::new`](crate::Lock::new) refuses.
    pub fn new<K: Into<Key>>(
        locker: &Locker,
        keys: impl IntoIterator<Item = K>,
        options: LockOptions,
    ) -> Result<Self, Error> {
        Self::of_whole_keys(locker, keys.into_iter().map(|key| locker.whole_key(key)), options)
    }

    /// Returns the locks of keys that have the locker's prefix already.
    pub(super) fn of_whole_keys(
        locker: &Locker,
        keys: impl Iterator<Item = Key>,
        options: LockOptions,
    ) -> Result<Self, Error> {
        let mut keys: Vec<Key> = keys.collect();
        keys.sort_unstable_by(|one, other| one.as_bytes().cmp(other.as_bytes()));
        keys.dedup();
        let problem = match &keys[..] {
            [] => Some((Key::from(""), "there is no key; give the names of what the locks protect")),
            [first, ..] if keys.len() > Self::MAX_KEYS => Some((
                first.clone(),
                "it is the first of over 1,000 keys, which is more than `MultiLock` can have; give fewer, or one key for all",
            )),
            keys => keys.iter().find_map(|key| Some((key.clone(), problem(locker, key, &options)?))),
        };
        if let Some((key, problem)) = problem {
            return Err(Error::invalid(key, problem));
        }
        Ok(Self {
            locker: locker.clone(),
            keys: keys.into(),
            options,
            cancel_token: None,
            line: None,
            readers: None,
            next_writer: None,
        })
    }

    /// Returns the locks as a writer's. `line` is the queue of the threads that accept any of the permits. A writer is
    /// known to be next by a key.
    pub(super) fn of_writer(self, readers: &ReaderCount, line: &Line, next_writer: Option<Key>) -> Self {
        Self { readers: Some(readers.clone()), line: Some(line.clone()), next_writer, ..self }
    }

    /// Returns the locks of other permits, with the same options and the same token, for no writer.
    pub(super) fn of(&self, keys: impl IntoIterator<Item = Key>) -> Result<Self, Error> {
        let locks = Self::of_whole_keys(&self.locker, keys.into_iter(), self.options)?;
        Ok(Self { cancel_token: self.cancel_token.clone(), ..locks })
    }

    /// Returns the locks with a [`CancelToken`] that ends their waits.
    #[must_use]
    pub fn cancelled_by(self, token: &CancelToken) -> Self {
        Self { cancel_token: Some(token.clone()), ..self }
    }

    /// Runs `body` while all locks are held, and returns its result.
    ///
    /// Waits up to the timeout of the options. The locks are released afterwards, even if `body` panics. A failed
    /// release is an error only if a lock was lost; any other failure goes to the log and the observer.
    ///
    /// # Errors
    ///
    /// - Those of [`lock`](Self::lock): `body` has not run.
    /// - [`Error::Nested`] inside a `with` on one of the keys by the same thread. If the enclosing calls hold all
    ///   keys, and every lock has the option [`reentrant`](LockOptions::reentrant), the call joins them instead,
    ///   and fails with [`Error::Lost`] if a lock was lost.
    /// - [`Error::Lost`] if the [release](MultiLockGuard::release) finds that a lock was lost. `body` has run and
    ///   its result is dropped. **Another client may have worked at the same time.**
    pub fn with<R>(&self, body: impl FnOnce(&MultiLockGuard) -> R) -> Result<R, Error> {
        self.with_result(|held| Ok(body(held)))
    }

    /// Runs a `body` that can fail while all locks are held, and returns its result: like [`with`](Self::with).
    ///
    /// # Errors
    ///
    /// The body's own error, and those of [`with`](Self::with), converted into the body's error type. If `body`
    /// fails and a lock is lost, the body's error is returned.
    pub fn with_result<T, E: From<Error>>(
        &self,
        body: impl FnOnce(&MultiLockGuard) -> Result<T, E>,
    ) -> Result<T, E> {
        let guard = self.lock_in_scope()?;
        let returned = body(&guard)?;
        guard.leave()?;
        Ok(returned)
    }

    fn lock_in_scope(&self) -> Result<MultiLockGuard, Error> {
        match self.enclosing() {
            Some(guard) => guard.ensure_held().map(|()| guard),
            None => self.acquire(&self.options, HoldKind::Scoped),
        }
    }

    /// Waits until all locks are held, up to the timeout of the options, and returns their guard. Each lock is
    /// polled like a [`Lock`](crate::Lock::lock).
    ///
    /// # Errors
    ///
    /// Those of [`Lock::lock`](crate::Lock::lock), with the key that could not be acquired, and
    ///
    /// - [`Error::Lost`] if a lock was lost during the wait for others, and no time was left to start over.
    /// - [`Error::Several`] if several keys are in doubt after a lost
    ///   reply, or if an acquired lock could not be released again.
    ///
    /// No lock is held after an error, except that the keys of [`Error::InDoubt`] and [`Error::Several`] may be.
    pub fn lock(&self) -> Result<MultiLockGuard, Error> {
        self.acquire(&self.options, HoldKind::Movable)
    }

    /// Tries once to acquire all locks. Returns `None` if another holder has one of them.
    ///
    /// Does not wait for a holder, only for [the server](crate::documentation::limits#how-long-a-call-takes).
    ///
    /// # Errors
    ///
    /// Those of [`lock`](Self::lock), except [`Error::Contended`], for which it returns `None`.
    pub fn try_lock(&self) -> Result<Option<MultiLockGuard>, Error> {
        self.try_lock_for(Duration::ZERO)
    }

    /// Waits for all locks up to `timeout` instead of the timeout of the options. Returns `None` if they were not
    /// acquired in that time, or within the allowed [attempts](LockOptions::max_attempts).
    ///
    /// # Errors
    ///
    /// Those of [`lock`](Self::lock), except [`Error::Contended`], for which it returns `None`.
    pub fn try_lock_for(&self, timeout: Duration) -> Result<Option<MultiLockGuard>, Error> {
        Error::unless_contended(self.acquire(&self.options.timeout(timeout), HoldKind::Movable))
    }

    pub(super) fn acquire(&self, options: &LockOptions, kind: HoldKind) -> Result<MultiLockGuard, Error> {
        let call = self.locker.call(options, self.cancel_token.as_ref());
        let call = SeveralCall::new(call, self.line.as_ref());
        let _begun = call.begin_all(&self.keys, self.readers.as_ref())?;
        let (guards, announced) = acquire_in_order(&call, &self.keys, self.next_writer.as_ref())?;
        call.begun(&guards, kind);
        call.retract(announced, false);
        Ok(MultiLockGuard::of(guards, self.line.clone()))
    }

    /// Joins the enclosing calls of this thread on all keys if all are reentrant.
    fn enclosing(&self) -> Option<MultiLockGuard> {
        let of_key = |key| enclosing(&self.locker, key);
        let guards = || self.keys.iter().map(of_key).collect::<Option<_>>();
        self.options.reentrant.then(guards)?.map(|guards| MultiLockGuard::of(guards, None))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn there_are_at_most_as_many_keys_as_a_server_can_watch() {
        let locker = Locker::open("redis://127.0.0.1:1/").unwrap();
        let options = LockOptions::expiring_after(Duration::from_secs(1));
        let locks = |keys: usize| MultiLock::new(&locker, (0..keys).map(|n| format!("k{n}")), options);
        assert_eq!(locks(MultiLock::MAX_KEYS).unwrap().keys.len(), MultiLock::MAX_KEYS);
        let twice = (0..2 * MultiLock::MAX_KEYS).map(|n| format!("k{}", n / 2));
        assert!(MultiLock::new(&locker, twice, options).is_ok(), "a key that comes twice counts once");
        let error = locks(MultiLock::MAX_KEYS + 1).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }), "{error:?}");
        let text = error.to_string();
        assert!(text.starts_with("lock k0: it is the first of over 1,000 keys"), "{text}");
    }

    proptest! {
        #[test]
        fn keys_are_in_the_order_of_their_bytes_and_each_comes_once(
            keys in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..4), 1..20),
        ) {
            // Nothing listens there, and nothing is sent.
            let locker = Locker::open("redis://127.0.0.1:1/").unwrap();
            let options = LockOptions::expiring_after(Duration::from_secs(1));
            let given = || keys.iter().map(|key| Key::from(key.as_slice()));
            let locks = MultiLock::new(&locker, given(), options).unwrap();
            let expected: std::collections::BTreeSet<Vec<u8>> = keys.iter().cloned().collect();
            let found: Vec<Vec<u8>> = locks.keys.iter().map(|key| key.as_bytes().to_vec()).collect();
            prop_assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
            let reversed = MultiLock::new(&locker, given().rev(), options).unwrap();
            prop_assert_eq!(&reversed.keys, &locks.keys);
            let other = locks.of(locks.keys.iter().rev().cloned()).unwrap();
            prop_assert_eq!(&other.keys, &locks.keys);
        }
    }
}
