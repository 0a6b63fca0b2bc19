//! A permit that is held.

use std::fmt;
use std::ops::Deref;

use crate::api::guard::LockGuard;
use crate::report::error::Error;

/// A permit that is held, of a [`Semaphore`](crate::Semaphore) or as a reader of an [`RwLock`](crate::RwLock). It
/// is released when dropped, even by a panic.
///
/// It is the guard of an ordinary lock, and has all methods of a [`LockGuard`].
#[must_use = "if unused, the permit is released at once"]
pub struct Permit {
    guard: LockGuard,
    slot: usize,
}

impl Permit {
    pub(super) fn new(guard: LockGuard, slot: usize) -> Self {
        Self { guard, slot }
    }

    /// Returns the number of this permit, counted from 0. While their leases last, no two holders have the same
    /// number.
    #[must_use]
    pub fn slot(&self) -> usize {
        self.slot
    }

    /// Releases the permit and reports the outcome: see [`LockGuard::release`].
    ///
    /// # Errors
    ///
    /// Those of [`LockGuard::release`].
    pub fn release(self) -> Result<(), Error> {
        self.guard.release()
    }

    /// Ends the hold without releasing the permit: see [`LockGuard::leave_to_expire`].
    ///
    /// # Errors
    ///
    /// Those of [`LockGuard::leave_to_expire`].
    pub fn leave_to_expire(self) -> Result<(), Error> {
        self.guard.leave_to_expire()
    }

    pub(super) fn leave(self) -> Result<(), Error> {
        self.guard.leave()
    }
}

impl Deref for Permit {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.guard
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("slot", &self.slot).field("guard", &self.guard).finish()
    }
}
