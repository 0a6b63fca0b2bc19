//! What is owed now, for those who ask: each debt has an entry until it is settled, or its lease has passed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use proto::lease::End;
use proto::values::{Key, Now, Uptime};

use crate::report::error::Error;
use crate::system::sync::Mutex;

/// Names a debt, and says since when it is owed.
#[derive(Clone, Copy)]
pub(crate) struct DebtId {
    number: u64,
    pub(super) since: Uptime,
}

/// A lock that may still be held although it was given up.
#[derive(Clone)]
pub(crate) struct OpenDebt {
    pub(crate) key: Key,
    /// The end of its lease.
    pub(crate) end: Option<End>,
    /// Why it could not be released; `None` if the key has not shown it.
    pub(crate) why: Option<Error>,
}

impl OpenDebt {
    fn matters(&self, now: Now) -> bool {
        self.end.is_none_or(|end| !end.has_passed(now))
    }
}

/// The debts of a locker.
#[derive(Default)]
pub(super) struct OpenDebts {
    open: Mutex<BTreeMap<u64, OpenDebt>>,
    /// How many there have been.
    count: AtomicU64,
}

impl OpenDebts {
    /// Enters a debt.
    pub(super) fn enter(&self, key: Key, end: Option<End>, now: Now) -> DebtId {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        self.open.lock().insert(number, OpenDebt { key, end, why: None });
        DebtId { number, since: now.uptime }
    }

    /// Notes why a debt could not be paid for now.
    pub(super) fn note(&self, owed: DebtId, why: &Error) {
        if let Some(debt) = self.open.lock().get_mut(&owed.number) {
            debt.why = Some(why.clone());
        }
    }

    /// Removes a debt that is settled.
    pub(super) fn remove(&self, owed: DebtId) {
        self.open.lock().remove(&owed.number);
    }

    /// Returns the debts whose leases have not passed.
    pub(super) fn list(&self, now: Now) -> Vec<OpenDebt> {
        self.open.lock().values().filter(|debt| debt.matters(now)).cloned().collect()
    }
}
