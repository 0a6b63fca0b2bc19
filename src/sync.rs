//! The synchronization primitives of the wait queue, the cancel token and the combiner. The model-checking tests (`tests/models`) compile
//! those files with a model checker's primitives in the place of this module.

pub(crate) use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError, atomic};
pub(crate) use std::thread::{Thread, current};
