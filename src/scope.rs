//! What `#[locked]` expands to: a lock that is held for a scope of one thread, and released or kept at its end.

use std::fmt;
use std::marker::PhantomData;

use crate::error::Error;
use crate::event;
use crate::guard::LockGuard;
use crate::lock::Lock;

/// A lock that is held until the end of a function. It is a hold as that of [`Lock::with`]: a nested call knows of it.
#[must_use = "if unused, the lock is released at once"]
pub struct Scope {
    /// Taken out at the end.
    guard: Option<LockGuard>,
    /// Whether the lock is left to expire at the end.
    keeps: bool,
    /// A nested call relies on a hold of its own thread.
    not_send: PhantomData<*const ()>,
}

impl Scope {
    /// Acquires the lock, unless it could not be made.
    ///
    /// # Errors
    ///
    /// Those of [`Lock::new`] and [`Lock::with`].
    pub fn enter(lock: Result<Lock, Error>, keeps: bool) -> Result<Self, Error> {
        let guard = lock?.lock_in_scope()?;
        Ok(Self { guard: Some(guard), keeps, not_send: PhantomData })
    }

    /// Ends the hold, and returns what the function returned, or that the lock was lost.
    ///
    /// # Errors
    ///
    /// Those of the function, and [`Error::Lost`].
    pub fn leave<T, E: From<Error>>(mut self, returned: Result<T, E>) -> Result<T, E> {
        let returned = returned?;
        self.end()?;
        Ok(returned)
    }

    fn end(&mut self) -> Result<(), Error> {
        let Some(guard) = self.guard.take() else { return Ok(()) };
        // A call that has joined an enclosing one leaves the end to that one.
        if self.keeps && guard.depth() == 1 {
            guard.leave_to_expire().or_else(Error::unless_lost)
        } else {
            guard.leave()
        }
    }

    /// Returns the guard of the lock.
    pub fn guard(&self) -> &LockGuard {
        let Some(guard) = &self.guard else { unreachable!("the guard is taken out by the drop only") };
        guard
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        // After a panic; a loss has been reported.
        let _ = self.end();
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("guard", &self.guard).finish_non_exhaustive()
    }
}

/// Runs the function's body, which may return from anywhere.
pub fn run<R>(body: impl FnOnce() -> R) -> R {
    body()
}

/// Returns what the function of `on_contention` makes of the error. A closure knows the type of its argument here.
pub fn converted<E>(error: Error, conversion: impl FnOnce(Error) -> E) -> E {
    conversion(error)
}

/// Reports an error that the function's return type does not show.
pub fn report_skipped(function: &str, error: &Error) {
    event::log_skipped(function, error);
}
