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

#[cfg(test)]
#[allow(deprecated, reason = "the old names are what is tested")]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::net::scripted::ScriptedBackend;
    use crate::{LockOptions, Locker};

    #[test]
    fn the_old_names_do_what_the_new_ones_do() {
        let locker = Locker::over(ScriptedBackend::granting());
        let options = LockOptions::expiring_after(Duration::from_secs(10));
        let lock = Lock::new(&locker, "k", options).unwrap();
        assert_eq!(lock.try_with(|held| held.ensure_held().map(|()| 1)).unwrap(), 1);
        let locks = MultiLock::new(&locker, ["a", "b"], options).unwrap();
        assert_eq!(locks.try_with(|held| held.ensure_held().map(|()| 2)).unwrap(), 2);
    }
}
