//! Types made of several ordinary locks: several keys at once, the permits
//! of a semaphore, readers and writers, one key on several servers.

mod multi_lock;
mod multi_lock_guard;
mod quorum;
mod quorum_guard;
mod quorum_servers;
mod rw_lock;
mod semaphore;

pub use multi_lock::MultiLock;
pub use multi_lock_guard::MultiLockGuard;
pub use quorum::Quorum;
pub use quorum_guard::QuorumGuard;
pub use rw_lock::{RwLock, WriteGuard};
pub use semaphore::{Permit, Semaphore};
