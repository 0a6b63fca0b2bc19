//! Ending waits from outside: a flag, and the threads to wake when it is set.
//!
//! [`CancelToken::cancel`] neither blocks nor allocates, so that it can be called wherever a program
//! learns that it is to stop, in a signal handler too. It sets the flag, then wakes the registered
//! threads, if it gets the list's mutex at once. If it does not, another thread is registering, leaving
//! or cancelling; the thread that has the mutex looks at the flag after releasing it, and wakes the
//! threads then. The two fences make sure of that: either `cancel` finds the mutex free, or the thread
//! that has it finds the flag set. They order the flag too; its own `SeqCst` adds nothing that is needed.
//!
//! `tests/models` runs this file with weakly ordered memory, and
//! with signals that come while their own thread has the mutex.

use std::fmt;
use std::sync::Arc;

use super::sync::atomic::{AtomicBool, Ordering, fence};
use super::sync::{Mutex, Thread, current};

/// Ends waits for locks from another thread.
///
/// Pass the token to [`Lock::cancelled_by`](crate::Lock::cancelled_by), and call
/// [`cancel`](Self::cancel) on it or on a clone. One token serves any number of locks
/// and threads. Cancelling is final. After a fork, create a new token in the child.
///
/// ```
/// # use setnx_lock::{CancelToken, Error, Lock, LockOptions, Locker};
/// # use std::{thread, time::Duration};
/// # fn example(locker: &Locker) -> Result<(), Error> {
/// let stop = CancelToken::new();
/// let lock = Lock::new(locker, "nightly_report", LockOptions::expiring_after(Duration::from_secs(60)))?;
/// let lock = lock.cancelled_by(&stop);
/// let worker = thread::spawn(move || lock.lock().map(drop));
/// stop.cancel(); // for example in the thread that handles signals
/// match worker.join().unwrap() {
///     Err(Error::Cancelled { .. }) => println!("stopped while waiting"),
///     other => other?,
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct CancelToken(Arc<Waits>);

#[derive(Default)]
struct Waits {
    cancelled: AtomicBool,
    waiting: Mutex<Vec<Thread>>,
}

impl CancelToken {
    /// Returns a token that is not cancelled.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends all waits for locks that have this token. Each call fails with
    /// [`Error::Cancelled`](crate::Error::Cancelled), and so does every later one.
    ///
    /// A command that has been sent is not interrupted; if it acquires
    /// the lock, the call succeeds. Locks that are held stay held.
    ///
    /// Neither blocks nor allocates. Inside a signal handler, as opposed to a thread that handles signals, this
    /// relies on [`Thread::unpark`](std::thread::Thread::unpark) doing neither, as on Linux.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.0.wake_all();
    }

    /// Returns true if the token has been cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::SeqCst)
    }

    /// Lets `cancel` wake this thread until the returned value is dropped.
    pub(crate) fn register(&self) -> Registered<'_> {
        self.0.change(|waiting| waiting.push(current()));
        Registered(&self.0)
    }
}

impl Waits {
    fn wake_all(&self) {
        let Some(waiting) = self.waiting.try_lock() else { return };
        for thread in waiting.iter() {
            thread.unpark();
        }
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Thread>)) {
        change(&mut self.waiting.lock());
        fence(Ordering::SeqCst);
        if self.cancelled.load(Ordering::SeqCst) {
            self.wake_all();
        }
    }
}

/// A thread that is woken when its token is cancelled.
pub(crate) struct Registered<'a>(&'a Waits);

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.0.change(|waiting| {
            let own = current().id();
            if let Some(position) = waiting.iter().position(|thread| thread.id() == own) {
                waiting.swap_remove(position);
            }
        });
    }
}

impl fmt::Debug for CancelToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelToken").field("cancelled", &self.is_cancelled()).finish_non_exhaustive()
    }
}
