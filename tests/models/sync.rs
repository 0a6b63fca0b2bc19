//! What the files are made of where schedules are tried at random. Parking is made here: the checker's own returns for no reason now
//! and then, which hides an unpark that is missing. Here that is for the scene to do.

use std::cell::OnceCell;
use std::sync::Arc;

use shuttle::sync::Condvar;
pub(super) use shuttle::sync::{Mutex, MutexGuard, PoisonError, atomic};

/// A thread, as the token that it wakes by.
#[derive(Clone, Debug, Default)]
pub(super) struct Thread(Arc<(Mutex<bool>, Condvar)>);

shuttle::thread_local! {
    static CURRENT: OnceCell<Thread> = OnceCell::new();
}

impl Thread {
    pub(super) fn unpark(&self) {
        let (notification, there) = &*self.0;
        *lock(notification) = true;
        there.notify_one();
    }

    /// Has this thread known as that one.
    pub(super) fn enter(self) {
        CURRENT.with(|current| assert!(current.set(self).is_ok(), "one name for each thread"));
    }
}

pub(super) fn current() -> Thread {
    CURRENT.with(|current| current.get_or_init(Thread::default).clone())
}

pub(super) fn park() {
    let Thread(parked) = current();
    let (notification, there) = &*parked;
    *wait_while(there, lock(notification), |notification| !*notification) = false;
}

/// Threads of a scene share one of the system's, so that the panic of one seems to be everybody's.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn wait_while<'a, T>(
    changed: &Condvar,
    guard: MutexGuard<'a, T>,
    condition: impl FnMut(&mut T) -> bool,
) -> MutexGuard<'a, T> {
    changed.wait_while(guard, condition).unwrap_or_else(PoisonError::into_inner)
}
