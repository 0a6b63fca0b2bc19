//! What is made of several ordinary locks: several keys at once, the permits of a semaphore, readers and writers.

mod locks;
mod locks_guard;
mod rw_lock;
mod semaphore;

pub use locks::{Locks, MOST_KEYS};
pub use locks_guard::LocksGuard;
pub use rw_lock::{RwLock, WriteGuard};
pub use semaphore::{MOST_PERMITS, Semaphore};
