//! Commands that acquire a lock and had no reply: what they may have acquired, and what a key shows of it (I6).

use alloc::vec::Vec;

use super::lease::Lease;
use crate::values::{Now, State};

/// The leases of commands without a reply. Each may have begun, or begin yet. Its value names this client alone (I2), so
/// in the key it proves that the lock was granted, except one of GETSET: that may have overwritten a winner's.
#[derive(Debug, Default)]
pub struct Unresolved(Vec<Unanswered>);

#[derive(Debug)]
struct Unanswered {
    lease: Lease,
    /// What it takes over from, unless it is SETNX.
    from: Option<State>,
    /// False for GETSET.
    proves: bool,
}

impl Unanswered {
    fn is_in(&self, found: Option<&[u8]>) -> bool {
        found == Some(&*self.lease.value)
    }
}

impl Unresolved {
    /// Keeps the lease of a SETNX or an EXEC without a reply, with what EXEC takes over from.
    pub fn add(&mut self, lease: Lease, from: Option<State>, now: Now) {
        self.forget_passed(now);
        self.0.push(Unanswered { lease, from, proves: true });
    }

    /// Keeps the lease of a GETSET without a reply, with what it takes over from.
    pub(super) fn add_getset(&mut self, lease: Lease, from: Option<State>, now: Now) {
        self.forget_passed(now);
        self.0.push(Unanswered { lease, from, proves: false });
    }

    /// Adds those of another.
    pub fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    /// Takes out the lease that the value in the key proves, and what it was taken over from.
    pub fn take(&mut self, found: Option<&[u8]>) -> Option<(Lease, Option<State>)> {
        let Unanswered { lease, from, .. } = self.0.swap_remove(self.position(found)?);
        Some((lease, from))
    }

    /// Returns the lease that the value in the key proves.
    pub(super) fn proven(&self, found: Option<&[u8]>) -> Option<&Lease> {
        Some(&self.0[self.position(found)?].lease)
    }

    fn position(&self, found: Option<&[u8]>) -> Option<usize> {
        self.0.iter().position(|one| one.proves && one.is_in(found))
    }

    /// Returns true if what the key holds leaves the lock in doubt: it is the value of a GETSET, or what a command
    /// would change, which may yet come while its lease has not passed.
    pub(crate) fn leaves_in_doubt(&mut self, found: Option<&[u8]>, now: Now) -> bool {
        self.forget_passed(now);
        if self.is_empty() {
            return false;
        }
        let state = State::of_value(found);
        let changes = |one: &Unanswered| one.from.as_ref().unwrap_or(&State::Absent) == &state;
        self.shows_getset(found) || self.0.iter().any(changes)
    }

    /// Returns true if the key holds the value of a GETSET, which may have overwritten a winner's.
    pub(super) fn shows_getset(&self, found: Option<&[u8]>) -> bool {
        self.0.iter().any(|one| !one.proves && one.is_in(found))
    }

    /// Returns true if there is a lease that has not passed. One that has passed is forgotten.
    pub fn may_hold(&mut self, now: Now) -> bool {
        self.forget_passed(now);
        !self.is_empty()
    }

    fn forget_passed(&mut self, now: Now) {
        self.0.retain(|one| !one.lease.has_passed(now));
    }

    /// Returns the leases of commands that may yet be carried out. A client that finds the
    /// value of one in its key may release that lock, by [`end`](super::hold::end); the reply to the call says
    /// that it is not held. That of a GETSET is not among them: another client may have the lock (I6).
    pub fn into_owed(self) -> impl Iterator<Item = Lease> {
        let owed = self.0.into_iter().filter(|one| one.proves && one.lease.end.is_some());
        owed.map(|one| one.lease.by_own_bytes_only())
    }

    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
