//! Clients in the random search that release what their calls have left in doubt.

use std::mem;
use std::sync::PoisonError;

use super::{Conditions, Run, one_in};
use crate::Owed;
use setnx_lock_proto::GiveUp;
use setnx_lock_proto::lease::Lease;
use setnx_lock_proto::values::Now;

/// What a client owes.
#[derive(Debug, Default)]
pub(super) struct Debts {
    /// What its attempt owes when it has ended.
    pub(super) of_attempt: Owed,
    leases: Vec<Lease>,
    /// Which of them it releases now.
    pays: Option<Lease>,
    /// How many were held, and are released.
    pub(super) paid: u64,
}

impl Debts {
    pub(super) fn pays(&self) -> bool {
        self.pays.is_some()
    }

    /// The lock was released.
    pub(super) fn end(&mut self) {
        self.paid += u64::from(self.pays.take().is_some());
    }

    /// The key has not shown the lock. Its command may come yet.
    pub(super) fn is_not_held(&mut self) {
        self.leases.extend(self.pays.take());
    }

    pub(super) fn gave_up(&mut self, reason: GiveUp, now: Now) {
        self.leases.extend(self.pays.take().and_then(|debt| debt.again(reason, None, now)));
    }
}

impl Run {
    /// Returns true if a request is lost now.
    pub(super) fn loses_request(&self, choice: u8) -> bool {
        let Conditions { reliable, doubts, .. } = self.conditions;
        !reliable && one_in(if doubts { 2 } else { 8 }, choice)
    }

    /// How often a lock was released that a call had left in doubt.
    pub(in crate::lock) fn paid(&self) -> u64 {
        self.clients.iter().map(|client| client.debts.paid).sum()
    }

    /// Takes in what an attempt owes that has ended.
    pub(super) fn take_owed(&mut self, n: usize) {
        let debts = &mut self.clients[n].debts;
        let owed = mem::take(&mut *debts.of_attempt.lock().unwrap_or_else(PoisonError::into_inner));
        if self.conditions.doubts {
            debts.leases.extend(owed);
        }
    }

    /// Begins to release a lock that a call has left in doubt, if its key shows that it is held. Returns false if there
    /// is none whose lease lasts.
    pub(super) fn pay(&mut self, n: usize, now: Now) -> bool {
        let debts = &mut self.clients[n].debts;
        debts.leases.retain(|debt| !debt.has_passed(now));
        let Some(debt) = debts.leases.pop() else { return false };
        debts.pays = Some(debt.clone());
        self.release(n, debt, now);
        true
    }
}
