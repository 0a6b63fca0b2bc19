//! Acquiring: asks for locks, waits for those that are not granted, and makes the hold: what guard, signals and keeper share of one.

mod call;
mod wait;

use std::mem;
use std::sync::Arc;

use super::engine::Engine;
use super::held::{Acquired, Delivery};
use crate::rules::lease::Lease;
use crate::run::hold::Hold;
use crate::run::thread_holds::{self, HoldKind};
use crate::values::clock::Now;
use crate::values::key::Key;
use crate::values::options::LockOptions;
use crate::wait::HolderTicket;
pub(super) use call::Asked;
pub(crate) use call::{Call, OneOf};

impl Engine {
    /// Makes the hold of a lock that was acquired then.
    pub(super) fn make_hold(
        &self,
        key: Key,
        options: &LockOptions,
        lease: Lease,
        holder: HolderTicket<Delivery>,
        at: Now,
    ) -> Acquired {
        let (observer, changes) = (self.observer.clone(), Arc::clone(&self.changes));
        Acquired { hold: Arc::new(Hold::new(key, *options, at, lease, observer, changes)), holder }
    }

    /// Returns a lock with another hold in place of its own, which began then.
    pub(super) fn begun_anew(
        &self,
        Acquired { hold, holder }: Acquired,
        options: &LockOptions,
        at: Now,
    ) -> Acquired {
        let lease = mem::take(&mut hold.own().lease);
        self.make_hold(hold.key.clone(), options, lease, holder, at)
    }

    /// Writes the holder's names, and has the keeper work on locks that were acquired. With a `kind`, they are noted as locks of this thread.
    pub(super) fn note_begun(self: &Arc<Self>, acquired: &[Acquired], kind: Option<HoldKind>) {
        if self.holder_name.is_some() {
            self.name(acquired);
        }
        for Acquired { hold, .. } in acquired {
            self.keep_by_options(hold);
            if let Some(kind) = kind {
                thread_holds::note(&self.identity, hold, kind);
            }
        }
    }

    /// Writes the holder's name beside each key.
    fn name(&self, acquired: &[Acquired]) {
        let value = |Acquired { hold, .. }: &'_ Acquired| hold.own().lease.value;
        self.write_names(acquired.iter().map(|one| (&one.hold, value(one), one.hold.options.expiration)));
    }
}
