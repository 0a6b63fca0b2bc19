//! What is owed now, for those who ask: a lock that was given up has an entry until it is known that it is not held, or
//! its lease has passed. So does one that could not be released, and is not tried again.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

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
    /// The end of its lease.
    pub(crate) end: Option<End>,
    /// Why it could not be released; `None` if that was not tried yet, or the key has not shown it.
    pub(crate) why: Option<Error>,
}

impl DebtId {
    /// Of a debt without an entry.
    pub(super) fn unlisted(now: Now) -> Self {
        Self { number: 0, since: now.uptime }
    }
}

impl OpenDebt {
    fn matters(&self, now: Now) -> bool {
        self.end.is_none_or(|end| !end.has_passed(now))
    }

    /// Adds another of the same key.
    fn and(&mut self, other: Self, now: Now) {
        self.end = self
            .end
            .zip(other.end)
            .map(|(end, other)| if end.remaining(now) < other.remaining(now) { other } else { end });
        self.why = other.why.or_else(|| self.why.take());
    }
}

/// The debts of a locker.
#[derive(Default)]
pub(super) struct OpenDebts(Mutex<OpenEntries>);

#[derive(Default)]
struct OpenEntries {
    open: BTreeMap<u64, (Key, OpenDebt)>,
    /// How many there have been.
    count: u64,
    /// How many were left when those were last removed whose leases have passed.
    left: usize,
}

impl OpenDebts {
    /// Enters a debt.
    pub(super) fn enter(&self, key: Key, end: Option<End>, now: Now) -> DebtId {
        let mut entries = self.0.lock();
        // Now and then, so that it takes no longer for many.
        if entries.open.len() > 2 * entries.left.max(64) {
            entries.open.retain(|_, (_, debt)| debt.matters(now));
            entries.left = entries.open.len();
        }
        entries.count += 1;
        let number = entries.count;
        entries.open.insert(number, (key, OpenDebt { end, why: None }));
        DebtId { number, since: now.uptime }
    }

    /// Notes why a debt could not be paid for now.
    pub(super) fn note(&self, owed: DebtId, why: &Error) {
        if let Some((_, debt)) = self.0.lock().open.get_mut(&owed.number) {
            debt.why = Some(why.clone());
        }
    }

    /// Removes a debt that is settled.
    pub(super) fn remove(&self, owed: DebtId) {
        self.0.lock().open.remove(&owed.number);
    }

    /// Returns the locks whose leases have not passed, with these.
    pub(super) fn list(
        &self,
        others: impl Iterator<Item = (Key, OpenDebt)>,
        now: Now,
    ) -> BTreeMap<Key, OpenDebt> {
        let entries: Vec<_> = self.0.lock().open.values().cloned().collect();
        let mut listed: BTreeMap<Key, OpenDebt> = BTreeMap::new();
        for (key, debt) in others.chain(entries).filter(|(_, debt)| debt.matters(now)) {
            match listed.entry(key) {
                Entry::Occupied(one) => one.into_mut().and(debt, now),
                Entry::Vacant(place) => _ = place.insert(debt),
            }
        }
        listed
    }
}
