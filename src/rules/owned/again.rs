//! Another attempt to release a lock, after one that has failed.

use super::look;
use crate::rules::GiveUp;
use crate::rules::lease::{Lease, Tried};
use crate::rules::ownership::{LossReason, Ownership};
use crate::rules::task::Io;
use crate::values::clock::Now;
use crate::values::value::LockState;

impl Lease {
    /// Returns the lease as another attempt to release it takes it, after one that gave up for this reason; `None` if none may follow. `next`: the
    /// lease that the key may hold instead, since the lock was to be handed over.
    ///
    /// After a lost reply the first attempt may have been carried out, and another client may have the lock. So the key is compared with our own
    /// bytes then, by a transaction, which takes a value that names its holder. Where nothing was carried out, Classic reads the key first: a
    /// server that comes back may have lost it.
    pub(crate) fn again(mut self, gave_up: GiveUp, next: Option<&Lease>, now: Now) -> Option<Self> {
        match gave_up {
            GiveUp::Unknown if !self.by_transaction() => return None,
            GiveUp::Unknown => self.tried = Some(Tried::InDoubt),
            GiveUp::Timeout | GiveUp::Refused | GiveUp::Io | GiveUp::Unsent | GiveUp::Rewritten => {
                self.tried.get_or_insert(Tried::NotCarriedOut);
            }
        }
        if let Some(next) = next {
            // No thread has that lease, so its end says nothing.
            let end = self.end;
            self.may_have_become(next, true, now);
            self.end = end;
        }
        (!self.has_passed(now)).then_some(self)
    }

    /// Returns why the lock is not ours any more, as the key shows it before a later attempt deletes it: another client may have acquired it.
    pub(super) async fn lost_since(&self, io: &Io) -> Result<Option<LossReason>, GiveUp> {
        let found = look(io).await?;
        Ok(match self.judge(found.as_deref(), io.now()) {
            Ownership::Ours => None,
            Ownership::Unproven | Ownership::Overwritten(_) => {
                Some(LossReason::Taken(LockState::of_value(found.as_deref())))
            }
            Ownership::Lost(reason) => Some(self.loss(reason, io.now())),
        })
    }

    pub(super) fn is_in_doubt(&self) -> bool {
        self.tried == Some(Tried::InDoubt)
    }

    /// Returns true if it can be handed over: a later attempt only where the key is compared.
    pub(crate) fn can_be_handed_over(&self) -> bool {
        self.end.is_some() && (self.tried.is_none() || self.by_transaction())
    }
}
