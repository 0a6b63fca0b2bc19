//! Semaphores and their permits: at most `n` holders at a time, over all processes.

mod wait;

use std::fmt;
use std::ops::Deref;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use proto::values::Key;

use crate::extend::{HoldKind, Line, ReaderCount, SeveralCall, look_at_all, problem};
use crate::{CancelToken, Error, LockGuard, LockOptions, LockState, Locker};
use wait::PermitWait;

/// A pool of permits: at most `n` holders at a time, over all processes.
///
/// Each permit is an ordinary lock, with the key `NAME:0`, `NAME:1` and so on. A call acquires any permit that is
/// free. Threads of one process are served in order of arrival. With [`notify_waiters`](LockOptions::notify_waiters),
/// and by default in [`Auto`](crate::Protocol::Auto), a released permit wakes the process that has waited longest;
/// otherwise waiters of other processes poll, in no order.
///
/// All callers of a name should use the same number of permits. A caller with a smaller number uses only the first
/// permits, so the greatest number is the effective limit.
///
/// - [`reentrant`](LockOptions::reentrant) has no effect: each call takes another permit.
/// - Fencing tokens of different permits cannot be compared.
/// - A key that holds something other than a string is no permit; the remaining permits can be acquired.
///
/// [`documentation::several`](crate::documentation::several#permits) says more.
///
/// ```
/// use setnx_lock::{Error, LockOptions, Locker, Semaphore};
/// use std::time::Duration;
///
/// let url = "redis://127.0.0.1/";
/// # let server = setnx_lock_testing::TestServer::start();
/// # let url = &server.url();
/// let locker = Locker::open(url)?;
/// let converters = Semaphore::new(&locker, "converters", 8, LockOptions::expiring_after(Duration::from_secs(60)))?;
/// converters.with(|held| println!("permit {}", held.slot()))?;
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    locker: Locker,
    pub(super) name: Key,
    slots: Arc<[Key]>,
    /// What a call looks at: the permits, and what shows readers that a writer is next.
    looks: Arc<[Key]>,
    line: Line,
    pub(super) options: LockOptions,
    cancel_token: Option<CancelToken>,
    /// If they are readers' permits: the number of readers, which all callers must share.
    readers: Option<ReaderCount>,
}

impl Semaphore {
    /// The most permits that a semaphore can have. Each attempt reads the keys of all permits.
    pub const MAX_PERMITS: usize = 1000;

    /// Returns the semaphore of this name with `permits` permits, from 1 to [`MAX_PERMITS`](Self::MAX_PERMITS).
    /// Contacts no server.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for no permit or too many, and for anything that [`Lock::new`](crate::Lock::new) refuses. In
    /// a cluster, [`notify_waiters(true)`](LockOptions::notify_waiters) needs a name with a hash tag, such as
    /// `{converters}`: otherwise the permits are on several nodes.
    pub fn new(
        locker: &Locker,
        name: impl Into<Key>,
        permits: usize,
        options: LockOptions,
    ) -> Result<Self, Error> {
        let name = locker.whole_key(name);
        let problem = match permits {
            0 => Some("there is no permit, or no reader at a time; give at least 1"),
            1..=Self::MAX_PERMITS if options.notifies == Some(true) && !locker.have_one_slot(&name) => Some(
                "those that wait for one of its permits cannot be notified: in a cluster these are on several nodes; give a name with a hash tag, such as {name}, or leave `notify_waiters(true)` out",
            ),
            1..=Self::MAX_PERMITS => problem(locker, &name, &options),
            _ => Some(
                "there are over 1000 permits, or readers at a time, and a look reads the key of each; give fewer",
            ),
        };
        if let Some(problem) = problem {
            return Err(Error::invalid(name, problem));
        }
        let slots: Arc<[Key]> = (0..permits).map(|slot| slot_key(&name, slot)).collect();
        let line = Line::of(locker, queue_key(&name, permits), options.notifies);
        // Those that wait for any permit are notified by the name.
        let options = if permits == 1 { options } else { options.notify_waiters(false) };
        let (locker, looks) = (locker.clone(), Arc::clone(&slots));
        Ok(Self { locker, name, slots, looks, line, options, cancel_token: None, readers: None })
    }

    /// Returns the keys of the permits, in the order of their [slots](Permit::slot).
    #[must_use]
    pub fn keys(&self) -> &[Key] {
        &self.slots
    }

    /// Returns the semaphore as the readers' part of a lock for readers and writers. A writer waits for each of its
    /// permits, and is known to be next by a key.
    pub(super) fn of_readers(
        self,
        readers: &ReaderCount,
        options: LockOptions,
        next_writer: Option<Key>,
    ) -> Self {
        let looks = self.slots.iter().cloned().chain(next_writer).collect();
        Self { readers: Some(readers.clone()), looks, options, ..self }
    }

    pub(super) fn locker(&self) -> &Locker {
        &self.locker
    }

    /// Returns the queue of the threads that accept any permit.
    pub(super) fn line(&self) -> &Line {
        &self.line
    }

    /// Returns the semaphore with a [`CancelToken`] that ends its waits.
    #[must_use]
    pub fn cancelled_by(self, token: &CancelToken) -> Self {
        Self { cancel_token: Some(token.clone()), ..self }
    }

    /// Runs `body` while a permit is held, and returns its result.
    ///
    /// Waits up to the timeout of the options. The permit is released afterwards, even if `body` panics. A failed
    /// release is an error only if the permit was lost; any other failure goes to the log and the observer.
    ///
    /// # Errors
    ///
    /// - Those of [`acquire`](Self::acquire): `body` has not run.
    /// - [`Error::Nested`] if enclosing `with` calls of this thread hold all permits. If they hold only some, the
    ///   call takes another permit.
    /// - [`Error::Lost`] if the [release](Permit::release) finds that the permit was lost. `body` has run and its
    ///   result is dropped. **Another client may have used the permit at the same time.**
    pub fn with<R>(&self, body: impl FnOnce(&Permit) -> R) -> Result<R, Error> {
        self.with_result(|held| Ok(body(held)))
    }

    /// Runs a `body` that can fail while a permit is held, and returns its result: like [`with`](Self::with).
    ///
    /// # Errors
    ///
    /// The body's own error, and those of [`with`](Self::with), converted into the body's error type. If `body`
    /// fails and the permit is lost, the body's error is returned.
    pub fn with_result<T, E: From<Error>>(&self, body: impl FnOnce(&Permit) -> Result<T, E>) -> Result<T, E> {
        let guard = self.wait(&self.options, HoldKind::Scoped)?;
        let returned = body(&guard)?;
        guard.leave()?;
        Ok(returned)
    }

    /// Waits for a permit, up to the timeout of the options, and returns it.
    ///
    /// # Errors
    ///
    /// Those of [`Lock::lock`](crate::Lock::lock). The key is the
    /// semaphore's name if the error does not concern one permit.
    pub fn acquire(&self) -> Result<Permit, Error> {
        self.wait(&self.options, HoldKind::Movable)
    }

    /// Tries once to acquire a permit. Returns `None` if all permits are held, or if other callers took the free
    /// ones first. Does not wait for a holder.
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Self::acquire), except [`Error::Contended`], for which it returns `None`.
    pub fn try_acquire(&self) -> Result<Option<Permit>, Error> {
        self.try_acquire_for(Duration::ZERO)
    }

    /// Waits for a permit up to `timeout` instead of the timeout of the options. Returns `None` if none was
    /// acquired in that time, or within the allowed [attempts](LockOptions::max_attempts).
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Self::acquire), except [`Error::Contended`], for which it returns `None`.
    pub fn try_acquire_for(&self, timeout: Duration) -> Result<Option<Permit>, Error> {
        Error::unless_contended(self.wait(&self.options.timeout(timeout), HoldKind::Movable))
    }

    /// Returns what the key of each permit holds. The answer may be outdated a moment later, so use it for people
    /// and logs, not for decisions.
    ///
    /// A key that holds something other than a string looks absent. In [`Ttl`](crate::Protocol::Ttl) the server may
    /// remove a key up to 9.5 s before the returned time.
    ///
    /// # Errors
    ///
    /// Those of [`Lock::state`](crate::Lock::state).
    pub fn states(&self) -> Result<Vec<LockState>, Error> {
        look_at_all(&self.locker, &self.name, &self.slots)
    }

    fn wait(&self, options: &LockOptions, kind: HoldKind) -> Result<Permit, Error> {
        let Self { name, slots, looks, line, .. } = self;
        let call = SeveralCall::new(self.locker.call(options, self.cancel_token.as_ref()), Some(line));
        if let [only] = &**slots {
            let _begun = call.begin_one_of(only, slots, self.readers.as_ref())?;
            return Ok(Permit::new(call.acquire_lock(only, kind)?, 0, line.clone()));
        }
        let _begun = call.begin_one_of(name, slots, self.readers.as_ref())?;
        let (slot, guard) = PermitWait::new(&call, name, slots, looks, line).acquire()?;
        call.begun(slice::from_ref(&guard), kind);
        Ok(Permit::new(guard, slot, line.clone()))
    }
}

/// Returns the key of a permit.
pub(super) fn slot_key(name: &Key, slot: usize) -> Key {
    let mut bytes = name.as_bytes().to_vec();
    bytes.extend_from_slice(format!(":{slot}").as_bytes());
    Key::from(bytes)
}

/// Returns the name of the queue that the permits share. It differs from every lock's queue, since a lock may have the
/// semaphore's name. It also differs for each number of permits, since a thread is given only permits that it asks for.
fn queue_key(name: &Key, permits: usize) -> Key {
    let mut bytes = name.as_bytes().to_vec();
    bytes.extend_from_slice(format!(":setnx-lock:permits:{permits}").as_bytes());
    Key::from(bytes)
}

/// A permit that is held, of a [`Semaphore`](crate::Semaphore) or as a reader of an [`RwLock`](crate::RwLock). It
/// is released when dropped, even by a panic.
///
/// It is the guard of an ordinary lock, and has all methods of a [`LockGuard`].
#[must_use = "if unused, the permit is released at once"]
pub struct Permit {
    /// `None` once it is released.
    guard: Option<LockGuard>,
    slot: usize,
    line: Line,
}

impl Permit {
    pub(super) fn new(guard: LockGuard, slot: usize, line: Line) -> Self {
        Self { guard: Some(guard), slot, line }
    }

    /// Returns the number of this permit, counted from 0. While their leases last, no two holders have the same
    /// number.
    #[must_use]
    pub fn slot(&self) -> usize {
        self.slot
    }

    fn take(&mut self) -> LockGuard {
        self.guard.take().unwrap_or_else(|| unreachable!("a permit is released once"))
    }

    /// Releases the permit and reports the outcome: see [`LockGuard::release`].
    ///
    /// # Errors
    ///
    /// Those of [`LockGuard::release`].
    pub fn release(mut self) -> Result<(), Error> {
        let guard = self.take();
        self.line.release(guard)
    }

    /// Releases the permit in the background, and returns at once: see [`LockGuard::release_later`].
    pub fn release_later(mut self) {
        self.take().release_later();
    }

    /// Ends the hold without releasing the permit: see [`LockGuard::leave_to_expire`].
    ///
    /// # Errors
    ///
    /// Those of [`LockGuard::leave_to_expire`].
    pub fn leave_to_expire(mut self) -> Result<(), Error> {
        self.take().leave_to_expire()
    }

    fn leave(self) -> Result<(), Error> {
        self.release().or_else(Error::unless_lost)
    }
}

impl Deref for Permit {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        self.guard.as_ref().unwrap_or_else(|| unreachable!("it is there until the permit is gone"))
    }
}

impl Drop for Permit {
    /// Releases the permit, and reports a failure to the log and the observer.
    fn drop(&mut self) {
        // One that is to be released later does that as it is dropped.
        if let Some(guard) = self.guard.take().filter(|guard| !guard.options().releases_later) {
            // A failure has been reported.
            let _ = self.line.release(guard);
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("slot", &self.slot).field("guard", &self.guard).finish_non_exhaustive()
    }
}
