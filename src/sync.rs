//! What the parts that threads wait in are made of; the tests that search for lost wake-ups put a model in its place.

pub(crate) use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError, atomic};
pub(crate) use std::thread::{Thread, current};
