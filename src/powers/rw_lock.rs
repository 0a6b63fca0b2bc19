//! Readers and writers: a semaphore of which a reader takes one permit, and a writer takes all.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use proto::values::{Key, SideKey};

use super::semaphore::{Permit, Semaphore, slot_key};
use super::several::{MultiLock, MultiLockGuard};
use crate::extend::{HoldKind, Line, ReaderCount};
use crate::{CancelToken, Error, LockOptions, Locker};

/// A lock for readers and writers: several readers at a time, or one writer.
///
/// A reader holds one permit of a [`Semaphore`]; a writer holds all. A waiting writer is next after the readers that
/// are in: readers of all processes that come later wait, and those that came before another writer was next go ahead
/// of it. So neither side starves. A writer that is killed holds readers up for 2 s at most, and with the permits that
/// it had until their leases end.
///
/// # Number of readers
///
/// **All callers of a name must use the same number of readers, or a writer does not exclude all readers.** The first
/// caller writes the number to `NAME:setnx-lock:readers:{NAME}`. The first call through each locker compares it, and
/// fails with [`Error::Invalid`] if the numbers differ. [`set_readers`](Self::set_readers) changes it.
///
/// # Nested calls
///
/// [`reentrant`](LockOptions::reentrant) has no effect. A thread
/// that reads or writes inside a read may wait for itself.
///
/// [`documentation::several`](crate::documentation::several#readers-and-writers) says more.
///
/// ```
/// use setnx_lock::{Error, LockOptions, Locker, RwLock};
/// use std::time::Duration;
///
/// let url = "redis://127.0.0.1/";
/// # let server = setnx_lock_testing::TestServer::start();
/// # let url = &server.url();
/// let locker = Locker::open(url)?;
/// let catalogue = RwLock::new(&locker, "catalogue", 16, LockOptions::expiring_after(Duration::from_secs(30)))?;
/// catalogue.with_read(|_| println!("up to 16 at a time"))?;
/// let writing = catalogue.write()?;
/// println!("alone");
/// let reading = writing.downgrade(); // others may read now, and none has written meanwhile
/// reading.release()?;
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    semaphore: Semaphore,
    locks: MultiLock,
    readers: ReaderCount,
}

impl RwLock {
    /// Returns the lock of this name for at most `readers` readers at a
    /// time, from 1 to [`Semaphore::MAX_PERMITS`]. Contacts no server.
    ///
    /// A writer holds one key per reader, so choose no more readers than needed.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for anything that [`Semaphore::new`] refuses.
    pub fn new(
        locker: &Locker,
        name: impl Into<Key>,
        readers: usize,
        options: LockOptions,
    ) -> Result<Self, Error> {
        let semaphore = Semaphore::new(locker, name, readers, options)?;
        let count = ReaderCount::new(&semaphore.name, readers);
        // With one reader at a time, both wait for the same lock.
        let next_writer = (readers > 1).then(|| Key::from(SideKey::NextWriter.of(semaphore.name.as_bytes())));
        let semaphore = semaphore.of_readers(&count, options, next_writer.clone());
        let locks = MultiLock::of_whole_keys(locker, semaphore.keys().iter().cloned(), options)?;
        let locks = locks.of_writer(&count, semaphore.line(), next_writer);
        Ok(Self { semaphore, locks, readers: count })
    }

    /// Returns the semaphore whose permits the readers hold.
    #[must_use]
    pub fn semaphore(&self) -> &Semaphore {
        &self.semaphore
    }

    /// Returns the lock with a [`CancelToken`] that ends its waits.
    #[must_use]
    pub fn cancelled_by(self, token: &CancelToken) -> Self {
        let (semaphore, locks) = (self.semaphore.cancelled_by(token), self.locks.cancelled_by(token));
        Self { semaphore, locks, ..self }
    }

    /// Sets the number of readers that all callers of the name must use to this lock's number.
    ///
    /// If another number is set, this waits until nobody reads or writes, up to the timeout of the options, and
    /// excludes everybody during the change.
    ///
    /// **Stop the callers that use the old number first.** Waiting calls, and lockers that have already compared
    /// the number, do not check it again.
    ///
    /// # Errors
    ///
    /// Those of [`write`](Self::write): the number is unchanged. [`Error::InDoubt`] with
    /// the key of the number if the reply to the change was lost: call it again. After
    /// an error with the key of a permit, from the release, the number is changed.
    pub fn set_readers(&self) -> Result<(), Error> {
        let locker = self.semaphore.locker();
        let Some(found) = locker.other_readers(&self.readers)? else { return Ok(()) };
        // Those that read by the greater number are waited for.
        let most = found.max(self.semaphore.keys().len()).min(Semaphore::MAX_PERMITS);
        let all = self.locks.of((0..most).map(|slot| slot_key(&self.semaphore.name, slot)))?.lock()?;
        all.ensure_held()?;
        locker.set_readers(&self.readers)?;
        all.release()
    }

    /// Runs `body` as a reader, and returns its result: see [`Semaphore::with`].
    ///
    /// # Errors
    ///
    /// Those of [`Semaphore::with`] and [`read`](Self::read). [`Error::Nested`] inside
    /// [`with_write`](Self::with_write) by the same thread.
    pub fn with_read<R>(&self, body: impl FnOnce(&Permit) -> R) -> Result<R, Error> {
        self.semaphore.with(body)
    }

    /// Runs `body` as the writer, and returns its result: see [`MultiLock::with`].
    ///
    /// # Errors
    ///
    /// Those of [`write`](Self::write), and [`Error::Lost`] as for [`MultiLock::with`]. [`Error::Nested`] inside
    /// [`with_read`](Self::with_read) by the same thread, which would wait for itself.
    pub fn with_write<R>(&self, body: impl FnOnce(&MultiLockGuard) -> R) -> Result<R, Error> {
        self.with_write_result(|held| Ok(body(held)))
    }

    /// Runs a `body` that can fail as a reader, and returns its result: like [`with_read`](Self::with_read).
    ///
    /// # Errors
    ///
    /// The body's own error, and those of [`with_read`](Self::with_read), converted into the body's error type.
    pub fn with_read_result<T, E: From<Error>>(
        &self,
        body: impl FnOnce(&Permit) -> Result<T, E>,
    ) -> Result<T, E> {
        self.semaphore.with_result(body)
    }

    /// Runs a `body` that can fail as the writer, and returns its result: like [`with_write`](Self::with_write).
    ///
    /// # Errors
    ///
    /// The body's own error, and those of [`with_write`](Self::with_write), converted into the body's error type.
    pub fn with_write_result<T, E: From<Error>>(
        &self,
        body: impl FnOnce(&MultiLockGuard) -> Result<T, E>,
    ) -> Result<T, E> {
        let guard = self.locks.acquire(&self.semaphore.options, HoldKind::Scoped)?;
        let returned = body(&guard)?;
        guard.leave()?;
        Ok(returned)
    }

    /// Waits until this caller can read, up to the timeout of the options: see [`Semaphore::acquire`].
    ///
    /// # Errors
    ///
    /// Those of [`Semaphore::acquire`], and [`Error::Invalid`] if other callers use another number of readers.
    pub fn read(&self) -> Result<Permit, Error> {
        self.semaphore.acquire()
    }

    /// Tries once to read. Returns `None` while a writer holds the lock or is next, or the maximum number of readers
    /// hold it.
    ///
    /// # Errors
    ///
    /// Those of [`read`](Self::read), except [`Error::Contended`], for which it returns `None`.
    pub fn try_read(&self) -> Result<Option<Permit>, Error> {
        self.semaphore.try_acquire()
    }

    /// Waits until this caller can read, up to `timeout` instead of the timeout of the options. Returns `None` if
    /// that did not happen in that time, or within the allowed [attempts](LockOptions::max_attempts).
    ///
    /// # Errors
    ///
    /// Those of [`read`](Self::read), except [`Error::Contended`], for which it returns `None`.
    pub fn try_read_for(&self, timeout: Duration) -> Result<Option<Permit>, Error> {
        self.semaphore.try_acquire_for(timeout)
    }

    /// Waits until this caller can write, up to the timeout of the options: see [`MultiLock::lock`].
    ///
    /// # Errors
    ///
    /// Those of [`MultiLock::lock`], and [`Error::Invalid`] if other callers use another number of readers.
    pub fn write(&self) -> Result<WriteGuard, Error> {
        Ok(self.writing(self.locks.lock()?))
    }

    /// Tries once to write. Returns `None` while there is a reader or a writer.
    ///
    /// # Errors
    ///
    /// Those of [`write`](Self::write), except [`Error::Contended`], for which it returns `None`.
    pub fn try_write(&self) -> Result<Option<WriteGuard>, Error> {
        Ok(self.locks.try_lock()?.map(|guard| self.writing(guard)))
    }

    /// Waits until this caller can write, up to `timeout` instead of the timeout of the options. Returns `None` if
    /// that did not happen in that time, or within the allowed [attempts](LockOptions::max_attempts).
    ///
    /// # Errors
    ///
    /// Those of [`write`](Self::write), except [`Error::Contended`], for which it returns `None`.
    pub fn try_write_for(&self, timeout: Duration) -> Result<Option<WriteGuard>, Error> {
        Ok(self.locks.try_lock_for(timeout)?.map(|guard| self.writing(guard)))
    }

    fn writing(&self, guard: MultiLockGuard) -> WriteGuard {
        let reader = self.semaphore.keys().len() - 1;
        let (key, line) = (self.semaphore.keys()[reader].clone(), self.semaphore.line().clone());
        WriteGuard { guard, reader, key, line }
    }
}

/// The hold of an [`RwLock`]'s writer, with the locks of all its permits. It is released when dropped, even by a panic.
#[must_use = "if unused, the lock is released at once"]
pub struct WriteGuard {
    guard: MultiLockGuard,
    /// The number of the permit that a reader keeps.
    reader: usize,
    key: Key,
    line: Line,
}

impl WriteGuard {
    /// Turns the writer into a reader: keeps one permit and releases the others.
    ///
    /// While the returned permit is [held](crate::LockGuard::ensure_held), no other client has written since. A
    /// failure to release goes to the log and the observer.
    ///
    /// There is no way back: a reader that wants to write must release
    /// first, because two such readers would wait for each other.
    pub fn downgrade(self) -> Permit {
        let Self { guard, reader, key, line } = self;
        Permit::new(guard.release_except(&key), reader, line)
    }

    /// Releases the lock and reports the outcome: see [`MultiLockGuard::release`].
    ///
    /// # Errors
    ///
    /// Those of [`MultiLockGuard::release`].
    pub fn release(self) -> Result<(), Error> {
        self.guard.release()
    }

    /// Releases the lock in the background, and returns at once: see
    /// [`LockGuard::release_later`](crate::LockGuard::release_later).
    pub fn release_later(self) {
        self.guard.release_later();
    }

    /// Ends the hold without releasing the lock: see [`MultiLockGuard::leave_to_expire`].
    ///
    /// # Errors
    ///
    /// Those of [`MultiLockGuard::leave_to_expire`].
    pub fn leave_to_expire(self) -> Result<(), Error> {
        self.guard.leave_to_expire()
    }
}

impl Deref for WriteGuard {
    type Target = MultiLockGuard;

    fn deref(&self) -> &MultiLockGuard {
        &self.guard
    }
}

impl fmt::Debug for WriteGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WriteGuard").field(&self.guard).finish()
    }
}
