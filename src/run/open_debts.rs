//! What is owed now, for those who ask: a lock that was given up has an entry until it is known that it is not held, or
//! its lease has passed. So does one that could not be released, and is not tried again.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry::{Occupied, Vacant};
use std::sync::atomic::{AtomicUsize, Ordering};

use proto::lease::End;
use proto::values::{Key, Now, Uptime};

use crate::report::error::Error;
use crate::system::clock;
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
    /// Why it could last not be released, or its key not be read; `None` if that has not failed so far.
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

/// How many are listed at most that never expire.
const MOST_UNEXPIRING: usize = 1000;

/// The debts of a locker.
#[derive(Default)]
pub(super) struct OpenDebts {
    entries: Mutex<OpenEntries>,
    /// How many entries there are, for those who need not look.
    count: AtomicUsize,
}

struct OpenEntry {
    key: Key,
    debt: OpenDebt,
    /// True if nothing more is tried.
    is_left: bool,
}

#[derive(Default)]
struct OpenEntries {
    open: BTreeMap<u64, OpenEntry>,
    /// The number of the last.
    last: u64,
    /// How many were left when those were last removed whose leases have passed.
    left: usize,
}

impl OpenDebts {
    /// Enters a debt.
    pub(super) fn enter(&self, key: Key, end: Option<End>, now: Now) -> DebtId {
        let entry = OpenEntry { key, debt: OpenDebt { end, why: None }, is_left: false };
        self.change(|entries| {
            // Now and then, so that it takes no longer for many.
            if entries.open.len() > 2 * entries.left.max(64) {
                entries.forget_passed(now);
            }
            entries.last += 1;
            entries.open.insert(entries.last, entry);
            DebtId { number: entries.last, since: now.uptime }
        })
    }

    /// Notes why a debt could not be paid for now.
    pub(super) fn note(&self, owed: DebtId, why: &Error) {
        if let Some(entry) = self.entries.lock().open.get_mut(&owed.number) {
            entry.debt.why = Some(why.clone());
        }
    }

    /// Notes that nothing more is tried.
    pub(super) fn leave(&self, owed: DebtId) {
        if let Some(entry) = self.entries.lock().open.get_mut(&owed.number) {
            entry.is_left = true;
        }
    }

    /// Removes a debt that is settled.
    pub(super) fn remove(&self, owed: DebtId) {
        self.change(|entries| entries.open.remove(&owed.number));
    }

    /// Notes that a lock was acquired since, and released: what was left of it before is no more.
    #[inline]
    pub(super) fn released(&self, key: &Key) {
        if self.count.load(Ordering::Relaxed) > 0 {
            self.change(|entries| {
                entries.open.retain(|_, entry| !(entry.is_left && entry.key == *key));
                entries.forget_passed(clock::now());
            });
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut OpenEntries) -> T) -> T {
        let mut entries = self.entries.lock();
        let changed = change(&mut entries);
        self.count.store(entries.open.len(), Ordering::Relaxed);
        changed
    }

    /// Returns the locks whose leases have not passed, with these, and without what was left of those that are `held`.
    pub(super) fn list(
        &self,
        others: Vec<(Key, OpenDebt)>,
        held: impl Fn(&Key) -> bool,
        now: Now,
    ) -> BTreeMap<Key, OpenDebt> {
        let entries = self.entries.lock();
        let open = entries.open.values().filter(|entry| !(entry.is_left && held(&entry.key)));
        let open: Vec<_> = open.map(|entry| (entry.key.clone(), entry.debt.clone())).collect();
        drop(entries);
        let mut listed: BTreeMap<Key, OpenDebt> = BTreeMap::new();
        for (key, debt) in others.into_iter().chain(open).filter(|(_, debt)| debt.matters(now)) {
            match listed.entry(key) {
                Occupied(one) => one.into_mut().and(debt, now),
                Vacant(place) => _ = place.insert(debt),
            }
        }
        listed
    }
}

impl OpenEntries {
    fn forget_passed(&mut self, now: Now) {
        let unexpiring = self.open.values().filter(|entry| entry.debt.end.is_none()).count();
        let mut too_many = unexpiring.saturating_sub(MOST_UNEXPIRING);
        self.open.retain(|_, OpenEntry { debt, .. }| {
            let is_one_too_many = debt.end.is_none() && too_many > 0;
            too_many -= usize::from(is_one_too_many);
            debt.matters(now) && !is_one_too_many
        });
        self.left = self.open.len();
    }
}
