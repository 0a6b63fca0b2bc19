//! What is made of several ordinary locks: several keys at once, the permits of a semaphore, readers and writers.

mod locks;
mod locks_guard;

pub use locks::Locks;
pub use locks_guard::LocksGuard;
