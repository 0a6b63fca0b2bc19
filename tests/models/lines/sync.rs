//! What the line is made of. Parking is made here: the checker's own returns for no reason now and then, which hides an unpark that
//! is missing. Here that is for the scene to do.

use std::cell::OnceCell;
use std::sync::Arc;

use shuttle::sync::Condvar;
pub(super) use shuttle::sync::{Mutex, MutexGuard, PoisonError};

/// A thread, as the token that it wakes by.
#[derive(Clone, Debug, Default)]
pub(super) struct Thread(Arc<(Mutex<bool>, Condvar)>);

shuttle::thread_local! {
    static CURRENT: OnceCell<Thread> = OnceCell::new();
}

impl Thread {
    pub(super) fn unpark(&self) {
        let (token, there) = &*self.0;
        *token.lock().unwrap_or_else(PoisonError::into_inner) = true;
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
    let (token, there) = &*parked;
    let token = token.lock().unwrap_or_else(PoisonError::into_inner);
    *there.wait_while(token, |token| !*token).unwrap_or_else(PoisonError::into_inner) = false;
}
