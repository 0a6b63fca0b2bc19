//! Another attempt to release a lock, after one that has failed.

use super::Owned;
use crate::rules::GiveUp;
use crate::rules::lease::Lease;
use crate::values::clock::Now;

impl Owned {
    /// Returns the lock as another attempt to release it takes it, after one that gave up for this reason; `None` if none may follow. `next`: the
    /// lease that the key may hold instead, since the lock was to be handed over.
    ///
    /// After a lost reply the first attempt may have been carried out, and another client may have the lock. So the key is compared with our own
    /// bytes then, which takes a transaction and a value that names its holder. Where nothing was carried out, the lock is as it was.
    pub(crate) fn again(mut self, gave_up: GiveUp, next: Option<&Lease>, now: Now) -> Option<Self> {
        match gave_up {
            GiveUp::Unknown if !self.by_transaction() => return None,
            GiveUp::Unknown => self.in_doubt = true,
            GiveUp::Timeout | GiveUp::Refused | GiveUp::Io | GiveUp::Unsent | GiveUp::Rewritten => {}
        }
        if let Some(next) = next {
            self.lease.may_have_become(next, true, now);
        }
        (!self.lease.has_passed(now)).then_some(self)
    }
}
