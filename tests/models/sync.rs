//! The synchronization primitives where schedules are random: shuttle's. Parking is implemented here, since shuttle's
//! own returns spuriously now and then, which hides a missing unpark. Spurious returns are left to the scenarios.

use std::cell::OnceCell;
use std::sync::Arc;

pub(super) use super::park::park_until;
use shuttle::sync::{Condvar, PoisonError};
pub(super) use shuttle::sync::{MutexGuard, atomic};

/// Ignores poisoning: the threads of a scenario share one system
/// thread, so that a panic of one poisons the mutexes of all.
#[derive(Debug, Default)]
pub(super) struct Mutex<T>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(super) fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread, as its park token.
#[derive(Clone, Debug, Default)]
pub(super) struct Thread(Arc<(Mutex<bool>, Condvar)>);

shuttle::thread_local! {
    static CURRENT: OnceCell<Thread> = OnceCell::new();
}

impl Thread {
    pub(super) fn unpark(&self) {
        let (token, changed) = &*self.0;
        *token.lock() = true;
        changed.notify_one();
    }

    /// Makes this the handle of the calling thread.
    pub(super) fn enter(self) {
        CURRENT.with(|current| assert!(current.set(self).is_ok(), "a thread has one handle"));
    }
}

pub(super) fn current() -> Thread {
    CURRENT.with(|current| current.get_or_init(Thread::default).clone())
}

pub(super) fn park() {
    let Thread(parked) = current();
    let (token, changed) = &*parked;
    *wait_while(changed, token.lock(), |token| !*token) = false;
}

pub(super) fn wait_while<'a, T>(
    changed: &Condvar,
    guard: MutexGuard<'a, T>,
    condition: impl FnMut(&mut T) -> bool,
) -> MutexGuard<'a, T> {
    changed.wait_while(guard, condition).unwrap_or_else(PoisonError::into_inner)
}
