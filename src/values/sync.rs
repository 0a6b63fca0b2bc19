//! The primitives that threads wait with. The tests that search for lost wake-ups replace them by a model checker's.

mod park;

pub(crate) use park::park_until;
pub(crate) use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError, atomic};
pub(crate) use std::thread::{Thread, current};
