//! The expansion of `#[locked]`: a lock that is held for a scope of one thread.

use std::fmt;
use std::marker::PhantomData;

use crate::api::guard::LockGuard;
use crate::api::lock::Lock;
use crate::report::error::Error;

/// A lock that is held until the end of a function. Like the hold of [`Lock::with`], it is known to nested calls.
#[must_use = "if unused, the lock is released at once"]
pub struct Scope {
    guard: LockGuard,
    /// A nested call relies on a hold of its own thread.
    not_send: PhantomData<*const ()>,
}

impl Scope {
    /// Acquires the lock, unless it could not be made.
    ///
    /// # Errors
    ///
    /// Those of [`Lock::new`] and [`Lock::with`].
    pub fn enter(lock: Result<Lock, Error>) -> Result<Self, Error> {
        Ok(Self { guard: lock?.lock_in_scope()?, not_send: PhantomData })
    }

    /// Ends the hold, and returns what the function returned, or that the lock was lost.
    ///
    /// # Errors
    ///
    /// Those of the function, and [`Error::Lost`].
    pub fn leave<T, E: From<Error>>(self, returned: Result<T, E>) -> Result<T, E> {
        let returned = returned?;
        self.guard.leave()?;
        Ok(returned)
    }

    /// Returns the guard of the lock.
    pub fn guard(&self) -> &LockGuard {
        &self.guard
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

/// Converts the error by the function of `on_contention`. A closure knows the type of its argument here.
pub fn converted<E>(error: Error, conversion: impl FnOnce(Error) -> E) -> E {
    conversion(error)
}
