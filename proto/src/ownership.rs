//! Whose the lock is, as the bytes in its key show it to a holder.

use super::lease::{End, Lease, Wrote};
use crate::values::{Now, Protocol, State, classic_time};

/// Why a lock was lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The lease has ended according to the wall clock or the monotonic clock, and the server did not prove that no
    /// other client has had the lock since.
    Expired,
    /// The wall clock of this machine was set to a time that cannot be
    /// right, such as 1970: the end of the lease cannot be told by it.
    ClockUnset,
    /// The key is missing: it was cleared, or the server lost it (eviction, a failover, a restart without persistence).
    Gone,
    /// The key holds this value of another client.
    Taken(State),
}

/// What a key shows of a lock to the client that has acquired it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// Our own bytes, which name this holder and no other (I2): no other client has had the lock until they were read.
    Ours,
    /// Our own bytes by a GETSET whose reply was lost, which may have
    /// come late. By the clocks the lock is ours; nothing proves it.
    Unproven,
    /// A value that this hold has replaced since: the server has lost later writes, as in a failover. The lock is ours
    /// until this end; nothing proves it.
    Before(End),
    /// The value of a loser: a client that saw no living holder just before ours was written, and whose GETSET has
    /// replaced it. The lock is ours; nothing proves it.
    Overwritten(State),
    Lost(Loss),
}

impl Ownership {
    /// Judges what was found in the key of a lease.
    pub(crate) fn judge(lease: &Lease, found: Option<&[u8]>, now: Now) -> Self {
        let Some(found) = found else { return Ownership::Lost(Loss::Gone) };
        let wrote = lease.wrote(found);
        match wrote {
            Wrote::Proven => return Ownership::Ours,
            Wrote::Before(end) => {
                let lasts = |end: End| !end.has_passed(now);
                let is_ours = lasts(end) && lease.end.is_some_and(lasts);
                return if is_ours { Ownership::Before(end) } else { Ownership::Lost(Loss::Expired) };
            }
            Wrote::Unproven if lease.has_passed(now) => return Ownership::Lost(Loss::Expired),
            Wrote::Unproven | Wrote::Not => {}
        }
        let state = State::of_value(Some(found));
        let may_be_a_losers = match lease.protocol {
            // Of clients that use Classic, a gem's value is known by its
            // form; those of this library are not ours, and say so.
            Protocol::Watched | Protocol::Ttl => classic_time(found).is_some(),
            Protocol::Auto | Protocol::Classic => {
                matches!(&state, State::Until { until, .. } if *until >= now.wall)
            }
        };
        // Otherwise another client may have acquired the lock since.
        let lasts = |end: Option<End>| lease.tried.is_none() && end.is_some_and(|end| !end.has_passed(now));
        if wrote == Wrote::Unproven && lasts(lease.end) {
            Ownership::Unproven
        } else if may_be_a_losers && lasts(lease.overwritten_until()) {
            Ownership::Overwritten(state)
        } else {
            Ownership::Lost(Loss::Taken(state))
        }
    }
}
