//! What is made of ordinary locks: several keys at once, the permits of a semaphore, readers and writers, one key on
//! several servers, a leader, a lock that goes to another process, locks with the gem's names.
//!
//! Each uses the lock as a program does, and besides what `extend` has; `tests/api/layers.rs` sees to that.

pub(crate) mod declared;
mod lead;
mod quorum;
mod rw_lock;
mod semaphore;
mod several;
pub(crate) mod token;

pub use declared::{DeclaredLock, LockId};
pub use quorum::{Quorum, QuorumGuard};
pub use rw_lock::{RwLock, WriteGuard};
pub use semaphore::{Permit, Semaphore};
pub use several::{MultiLock, MultiLockGuard};
pub use token::LockToken;
