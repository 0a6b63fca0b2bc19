//! The program's own code, such as an observer or what it does at a loss: a panic in it goes no further (I10).

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code of the program. A panic in it is dropped.
pub(crate) fn contained(act: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(act)) {
        // What the panic carries may panic when it is dropped; what that panic carries is not dropped.
        mem::forget(catch_unwind(AssertUnwindSafe(|| drop(panic))));
    }
}

/// A value of the program. A panic when it is dropped goes no further.
pub(crate) struct Contained<T>(Option<T>);

impl<T> Contained<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Some(value))
    }

    pub(crate) fn get(&self) -> Option<&T> {
        self.0.as_ref()
    }

    pub(crate) fn take(mut self) -> Option<T> {
        self.0.take()
    }
}

impl<T: Clone> Clone for Contained<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Drop for Contained<T> {
    fn drop(&mut self) {
        if let Some(value) = self.0.take() {
            contained(|| drop(value));
        }
    }
}
