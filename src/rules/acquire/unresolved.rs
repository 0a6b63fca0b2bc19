//! The commands of an attempt whose replies were lost: what they may have done, and what the key shows of it (I6).

use crate::rules::lease::Lease;
use crate::values::clock::Now;
use crate::values::value::{LockState, ValueBytes};

/// What the commands without a reply may have written. A value is recognised, since it names this client alone (I2).
#[derive(Default)]
pub(super) struct Unresolved {
    /// The leases of a SETNX or an EXEC that may have been carried out, or may still arrive; with what an EXEC took over from. Their value
    /// in the key proves that they were granted.
    leases: Vec<(Lease, Option<LockState>)>,
    /// The value of the last GETSET. In the key it proves nothing: it may have overwritten a winner's.
    takeover: Option<ValueBytes>,
}

impl Unresolved {
    /// Keeps the lease of a SETNX or an EXEC.
    pub(super) fn keep(&mut self, lease: Lease, from: Option<LockState>, now: Now) {
        self.leases.retain(|(lease, _)| !lease.has_passed(now));
        self.leases.push((lease, from));
    }

    /// Keeps the value of a GETSET.
    pub(super) fn keep_takeover(&mut self, value: ValueBytes) {
        self.takeover = Some(value);
    }

    /// Returns the lease that the value in the key proves, and what it was taken over from.
    pub(super) fn resolve(&mut self, found: Option<&[u8]>) -> Option<(Lease, Option<LockState>)> {
        self.position(found).map(|position| self.leases.swap_remove(position))
    }

    /// Returns true if the value is that of a GETSET.
    pub(super) fn is_takeover(&self, found: Option<&[u8]>) -> bool {
        found.is_some() && self.takeover.as_deref() == found
    }

    /// Returns true if the value is that of a lease that is kept.
    pub(super) fn wrote(&self, found: Option<&[u8]>) -> bool {
        self.position(found).is_some()
    }

    /// Returns the leases; `None` if their values might belong to a winner whose value a GETSET has overwritten.
    pub(super) fn into_leases(self) -> Option<impl Iterator<Item = Lease>> {
        self.takeover.is_none().then(|| self.leases.into_iter().map(|(lease, _)| lease))
    }

    fn position(&self, found: Option<&[u8]>) -> Option<usize> {
        self.leases.iter().position(|(lease, _)| Some(&*lease.value) == found)
    }
}
