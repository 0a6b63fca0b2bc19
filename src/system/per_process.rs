//! Values that a process has once.

/// A value that all threads of a process share. A simulation has several processes, each with its own.
#[cfg(not(simulate))]
#[derive(Debug)]
pub(crate) struct PerProcess<T>(T);

#[cfg(not(simulate))]
impl<T> PerProcess<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(value)
    }

    #[inline]
    pub(crate) fn get(&'static self) -> &'static T {
        &self.0
    }
}

#[cfg(simulate)]
pub(crate) use setnx_lock_world::process::PerProcess;
