//! What threads wait with. The tests that search for lost wake-ups replace it by a model checker's.

mod park;

use std::time::Duration;

pub(crate) use super::per_process::PerProcess;
use super::source::sync::{self, PoisonError, TryLockError};
pub(crate) use super::source::sync::{Condvar, MutexGuard, mpsc};
pub(crate) use super::source::thread::{Thread, current};
pub(crate) use park::park_until;
pub(crate) use std::sync::atomic;

/// A mutex that can be locked even after a panic: what it guards is never left half changed.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `None` if it is locked.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(crate) fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits until another thread that has locked such a mutex notifies, or for this time.
#[inline]
pub(crate) fn wait_timeout<'a, T>(
    changed: &Condvar,
    guard: MutexGuard<'a, T>,
    time: Duration,
) -> MutexGuard<'a, T> {
    changed.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner).0
}
