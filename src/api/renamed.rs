//! Methods by the names that they had, for one version more.

use super::guard::LockGuard;
use super::lock::Lock;
use super::several::{MultiLock, MultiLockGuard, Permit, Quorum, QuorumGuard, RwLock, Semaphore};
use crate::report::error::Error;

macro_rules! renamed {
    ($($type:ty: $old:ident, now $new:ident, $guard:ty, $note:literal;)+) => {$(
        impl $type {
            #[doc(hidden)]
            #[deprecated(note = $note)]
            pub fn $old<T, E: From<Error>>(&self, body: impl FnOnce(&$guard) -> Result<T, E>) -> Result<T, E> {
                self.$new(body)
            }
        }
    )+};
}

renamed! {
    Lock: try_with, now with_result, LockGuard, "renamed `with_result`, since it waits for the lock";
    MultiLock: try_with, now with_result, MultiLockGuard, "renamed `with_result`, since it waits for the locks";
    Quorum: try_with, now with_result, QuorumGuard, "renamed `with_result`, since it waits for the lock";
    Semaphore: try_with, now with_result, Permit, "renamed `with_result`, since it waits for a permit";
    RwLock: try_with_read, now with_read_result, Permit, "renamed `with_read_result`, since it waits for the lock";
    RwLock: try_with_write, now with_write_result, MultiLockGuard, "renamed `with_write_result`, since it waits for the lock";
}
