//! What threads wait with, by the names of [`std::sync`]. Nothing is ever poisoned.

pub mod mpsc;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::scheduler::{Nanos, ThreadId, own, scheduler};
use crate::thread;

pub use std::sync::{LockResult, PoisonError, TryLockError, TryLockResult};

/// The threads that wait for something.
#[derive(Debug, Default)]
struct Waiting(std::sync::Mutex<Vec<ThreadId>>);

impl Waiting {
    const fn new() -> Self {
        Self(std::sync::Mutex::new(Vec::new()))
    }

    fn list(&self) -> std::sync::MutexGuard<'_, Vec<ThreadId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self) {
        self.list().push(own());
    }

    /// Ends the wait of one. Which is up to the seed.
    fn wake_one(&self) {
        let mut list = self.list();
        while !list.is_empty() {
            let mut state = scheduler().lock();
            let at = state.random.usize(0..list.len());
            // One whose time is over waits no longer, and another one is woken.
            if state.wake(list.swap_remove(at)) {
                return;
            }
        }
    }

    fn wake_all(&self) {
        let all = std::mem::take(&mut *self.list());
        let mut state = scheduler().lock();
        for id in all {
            state.wake(id);
        }
    }

    fn remove(&self) {
        let own = own();
        self.list().retain(|id| *id != own);
    }
}

/// A mutex.
#[derive(Default)]
pub struct Mutex<T: ?Sized> {
    waiting: Waiting,
    inner: std::sync::Mutex<T>,
}

/// A mutex that is locked.
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    inner: Option<std::sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    /// Returns a mutex that is not locked.
    pub const fn new(value: T) -> Self {
        Self { waiting: Waiting::new(), inner: std::sync::Mutex::new(value) }
    }

    /// Returns what it guards.
    ///
    /// # Errors
    ///
    /// None.
    pub fn into_inner(self) -> LockResult<T> {
        Ok(self.inner.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits until no other thread has locked it.
    ///
    /// # Errors
    ///
    /// None.
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        scheduler().step();
        Ok(self.lock_now())
    }

    fn lock_now(&self) -> MutexGuard<'_, T> {
        loop {
            if let Some(guard) = self.locked() {
                return guard;
            }
            self.waiting.add();
            scheduler().block(None);
        }
    }

    fn locked(&self) -> Option<MutexGuard<'_, T>> {
        let inner = match self.inner.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(MutexGuard { mutex: self, inner: Some(inner) })
    }

    /// Locks it if no other thread has.
    ///
    /// # Errors
    ///
    /// [`TryLockError::WouldBlock`].
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        scheduler().step();
        self.locked().ok_or(TryLockError::WouldBlock)
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.inner.as_deref().expect("it is locked")
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_deref_mut().expect("it is locked")
    }
}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        if self.inner.take().is_some() {
            self.mutex.waiting.wake_one();
            scheduler().step();
        }
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Threads that wait for a change.
#[derive(Debug, Default)]
pub struct Condvar(Waiting);

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Returns true if nobody has notified in the time.
    #[must_use]
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    /// Returns one that no thread waits with.
    #[must_use]
    pub const fn new() -> Self {
        Self(Waiting::new())
    }

    fn wait_until<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        until: Option<Nanos>,
    ) -> (MutexGuard<'a, T>, WaitTimeoutResult) {
        let mutex = guard.mutex;
        self.0.add();
        drop(guard.inner.take());
        mutex.waiting.wake_one();
        let early = scheduler().lock().early(until);
        let is_woken = scheduler().block(early);
        self.0.remove();
        let is_over = !is_woken && until.is_some_and(|until| scheduler().now() >= until);
        (mutex.lock_now(), WaitTimeoutResult(is_over))
    }

    /// Waits until another thread notifies.
    ///
    /// # Errors
    ///
    /// None.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
        Ok(self.wait_until(guard, None).0)
    }

    /// The same, for at most this time.
    ///
    /// # Errors
    ///
    /// None.
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        time: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, WaitTimeoutResult)> {
        Ok(self.wait_until(guard, Some(thread::after(time))))
    }

    /// Ends the wait of one thread.
    pub fn notify_one(&self) {
        self.0.wake_one();
        scheduler().step();
    }

    /// Ends the waits of all threads.
    pub fn notify_all(&self) {
        self.0.wake_all();
        scheduler().step();
    }
}
