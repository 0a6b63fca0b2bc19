//! Permits: at most so many holders at a time, over all processes.

use std::sync::Arc;
use std::time::Duration;

use super::permit::Permit;
use crate::api::guard::LockGuard;
use crate::api::lock::problem;
use crate::api::locker::Locker;
use crate::report::error::Error;
use crate::run::thread_holds::HoldKind;
use crate::run::{Engine, Permits, ReaderCount};
use crate::values::key::Key;
use crate::values::options::LockOptions;
use crate::values::value::LockState;
use crate::wait::CancelToken;

/// At most so many holders at a time, over all processes: a pool of permits.
///
/// Each permit is an ordinary lock, with the key `NAME:0`, `NAME:1` and so on; to acquire a permit is to acquire one of them, whichever is
/// free. A caller asks for a random one and reads all in the same trip, then asks for one that was free, or takes over an expired one.
/// Threads of one process that wait for one of so many permits of a name are queued, and a release acquires the permit for the first of them
/// that sleeps, in its own trip. Waiters of other processes poll.
///
/// A key among them that holds something else than a string is no permit: the others are acquired.
///
/// All callers of a name should use one number of permits. A caller with a smaller number uses only the first permits: its own holders never
/// exceed its number, those of all callers never exceed the greatest. [`reentrant`](LockOptions::reentrant) has no effect: each call takes a
/// permit. Fencing tokens are counted for each permit by itself.
///
/// [`documentation::several`](crate::documentation::several) says more. The gem has no such thing.
///
/// ```no_run
/// use setnx_lock::{Error, LockOptions, Locker, Semaphore};
/// use std::time::Duration;
///
/// let locker = Locker::open("redis://127.0.0.1/")?;
/// let converters = Semaphore::new(&locker, "converters", 8, LockOptions::expiring_after(Duration::from_secs(60)))?;
/// converters.with(|held| println!("permit {}", held.slot()))?;
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    locker: Locker,
    pub(super) name: Key,
    slots: Arc<[Key]>,
    /// The name of the queue that the permits share.
    queue: Key,
    pub(super) options: LockOptions,
    cancel_token: Option<CancelToken>,
    /// Where they are those of readers: their number, which all callers must share.
    readers: Option<ReaderCount>,
}

impl Semaphore {
    /// The most permits that it can have: a look reads the key of each.
    pub const MAX_PERMITS: usize = 1000;

    /// Returns the semaphore of this name, of which at most `permits` are held at a time: 1 to [`MAX_PERMITS`](Self::MAX_PERMITS). Sends nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for another number, and what [`Lock::new`](crate::Lock::new) refuses; also
    /// [`notify_waiters(true)`](LockOptions::notify_waiters): waiters of other processes poll.
    pub fn new(
        locker: &Locker,
        name: impl Into<Key>,
        permits: usize,
        options: LockOptions,
    ) -> Result<Self, Error> {
        let name = name.into();
        let problem = match permits {
            0 => Some("there is no permit, or no reader at a time; give at least 1"),
            1..=Self::MAX_PERMITS if options.notifies == Some(true) => Some(
                "those that wait for a permit, or to read, poll and are not notified; leave `notify_waiters(true)` out, and choose a shorter poll interval if they wait too long",
            ),
            1..=Self::MAX_PERMITS => problem(locker, &name, &options),
            _ => Some(
                "there are over 1000 permits, or readers at a time, and a look reads the key of each; give fewer",
            ),
        };
        if let Some(problem) = problem {
            return Err(Error::invalid(name, problem));
        }
        let slots = (0..permits).map(|slot| slot_key(&name, slot)).collect();
        let queue = queue_key(&name, permits);
        let options = options.notify_waiters(false);
        Ok(Self { locker: locker.clone(), name, slots, queue, options, cancel_token: None, readers: None })
    }

    /// Returns the key of each permit.
    #[must_use]
    pub fn keys(&self) -> &[Key] {
        &self.slots
    }

    /// Returns the semaphore as one of readers.
    pub(super) fn of_readers(self, readers: &ReaderCount) -> Self {
        Self { readers: Some(readers.clone()), ..self }
    }

    pub(super) fn engine(&self) -> &Arc<Engine> {
        self.locker.engine()
    }

    /// Returns the name of the queue of the threads for which any permit will do; with one permit `None`: that has its own.
    pub(super) fn queue(&self) -> Option<&Key> {
        (self.slots.len() > 1).then_some(&self.queue)
    }

    /// Returns the semaphore with a token that ends its waits: see [`CancelToken`].
    #[must_use]
    pub fn cancelled_by(self, token: &CancelToken) -> Self {
        Self { cancel_token: Some(token.clone()), ..self }
    }

    /// Runs `body` while a permit is held and returns what it returns. Waits up to the timeout of the options. The permit is released
    /// afterwards, also when the body panics. If it was lost meanwhile, that is the error, after `body` has run; any other failure of the
    /// release goes to the log and the observer.
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Self::acquire). [`Error::Nested`] if this thread is inside such calls that hold all permits; that a thread holds
    /// some of them is no error, but it takes them from others. [`Error::Lost`] if the [release](Permit::release) finds that the permit
    /// was lost.
    pub fn with<R>(&self, body: impl FnOnce(&Permit) -> R) -> Result<R, Error> {
        let guard = self.wait(&self.options, HoldKind::Scoped)?;
        let returned = body(&guard);
        guard.leave()?;
        Ok(returned)
    }

    /// The same as [`with`](Self::with) for a body that can fail: returns its result, and the errors of the permit as the body's type of
    /// error.
    ///
    /// # Errors
    ///
    /// The body's own, and those of [`with`](Self::with), converted. If the body fails and the permit is lost, its own is returned.
    pub fn try_with<T, E: From<Error>>(&self, body: impl FnOnce(&Permit) -> Result<T, E>) -> Result<T, E> {
        let guard = self.wait(&self.options, HoldKind::Scoped)?;
        let returned = body(&guard)?;
        guard.leave()?;
        Ok(returned)
    }

    /// Waits for a permit, up to the timeout of the options. [`Permit::slot`] says which it is.
    ///
    /// # Errors
    ///
    /// Those of [`Lock::lock`](crate::Lock::lock), with the name as the key where no permit in particular is meant.
    pub fn acquire(&self) -> Result<Permit, Error> {
        self.wait(&self.options, HoldKind::Movable)
    }

    /// Tries once, without waiting for a holder: returns `None` if all permits are held, or other callers were faster at each that was free.
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Self::acquire), except [`Error::Contended`], which is `None` here.
    pub fn try_acquire(&self) -> Result<Option<Permit>, Error> {
        self.try_acquire_for(Duration::ZERO)
    }

    /// Waits for a permit up to `timeout`, whatever the options say. Returns `None` if none was acquired in that time, or in the allowed
    /// attempts.
    ///
    /// # Errors
    ///
    /// Those of [`acquire`](Self::acquire), except [`Error::Contended`], which is `None` here.
    pub fn try_acquire_for(&self, timeout: Duration) -> Result<Option<Permit>, Error> {
        match self.wait(&self.options.timeout(timeout), HoldKind::Movable) {
            Ok(guard) => Ok(Some(guard)),
            Err(error) if error.is_contention() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns what the key of each permit holds, with one MGET. They may hold something else a moment later: good for looking, not for
    /// deciding. A key that holds something else than a string looks absent. In [`Ttl`](crate::Protocol::Ttl) the server may remove a key up to
    /// 9.5 s before the time that is returned.
    ///
    /// # Errors
    ///
    /// Those of [`Lock::state`](crate::Lock::state).
    pub fn states(&self) -> Result<Vec<LockState>, Error> {
        let found = self.locker.engine().states(&self.name, &self.slots)?;
        Ok(found.iter().map(|found| LockState::of_value(found.as_deref())).collect())
    }

    fn wait(&self, options: &LockOptions, kind: HoldKind) -> Result<Permit, Error> {
        let engine = self.locker.engine();
        let (cancel_token, readers) = (self.cancel_token.as_ref(), self.readers.as_ref());
        let (slot, acquired) = match &*self.slots {
            // One lock, whose queue is its own.
            [only] => (0, engine.acquire(only, options, cancel_token, readers, kind)?),
            _ => {
                let Self { name, slots, queue, .. } = self;
                let wanted = Permits { name, queue, slots, options, cancel_token, readers };
                engine.acquire_permit(wanted, kind)?
            }
        };
        Ok(Permit::new(LockGuard::new(Arc::clone(engine), acquired), slot))
    }
}

/// Returns the key of a permit.
pub(super) fn slot_key(name: &Key, slot: usize) -> Key {
    let mut bytes = name.as_bytes().to_vec();
    bytes.extend_from_slice(format!(":{slot}").as_bytes());
    Key::from(bytes)
}

/// Returns the name of the queue that so many permits share: of none that a lock has, which may have the name of the semaphore, and of none
/// that another number of permits has, since a thread is given those alone that it asks for.
fn queue_key(name: &Key, permits: usize) -> Key {
    let mut bytes = name.as_bytes().to_vec();
    bytes.extend_from_slice(format!(":setnx-lock:permits:{permits}").as_bytes());
    Key::from(bytes)
}
