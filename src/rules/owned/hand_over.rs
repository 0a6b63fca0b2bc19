//! Handing a lock over to the next thread of this process: our value is replaced by one of that thread's, in one command, so that the key is
//! never absent in between. It is judged as an extension is.

use super::{Changed, Release, change_watched, note_overwritten, read, release};
use crate::rules::acquire::GETSET_TIME_LIMIT;
use crate::rules::lease::{End, Lease};
use crate::rules::ownership::{LossReason, Ownership};
use crate::rules::task::Io;
use crate::rules::{Command, GiveUp, Reply, Trip, WhyRefused};
use crate::values::clock::Now;

/// The outcome of handing over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HandedOver {
    /// What came of our own hold.
    pub(crate) release: Result<Release, GiveUp>,
    /// The next thread's lease, if that has the lock, or may have it. It looks whether the lease has passed (I3).
    pub(crate) next: Option<Lease>,
    /// True if only the key can tell if the next thread has the lock: the reply was lost, and the command may still come.
    pub(crate) in_doubt: bool,
}

/// Replaces our value by that of `next`, the lease that the next thread is to have. Both leases have an end, and the protocol is the same: Classic
/// does it by GETSET, within both leases, the others by a transaction. If that is refused, or comes too late for the next lease, our lock is
/// released: DEL is allowed where a server lacks memory, or a user the right to write. If it gives up, nothing was written.
pub(crate) async fn hand_over(io: &Io, own: &Lease, next: &Lease) -> Result<HandedOver, GiveUp> {
    let handed = if own.by_transaction() {
        by_transaction(io, own, next).await?
    } else {
        by_getset(io, own, next).await?
    };
    match handed {
        Some(handed) => Ok(handed),
        None => end(io, own).await,
    }
}

/// Releases our lock, where no thread is next.
pub(crate) async fn end(io: &Io, own: &Lease) -> Result<HandedOver, GiveUp> {
    release(io, own).await.map(to_nobody)
}

/// `None` if nothing was written, and our lock is to be released.
async fn by_transaction(io: &Io, own: &Lease, next: &Lease) -> Result<Option<HandedOver>, GiveUp> {
    let lease = own.replaced_by(next, io.now());
    Ok(Some(match change_watched(io, own, Command::Set(lease.new_value()), None).await {
        // The transaction has waited for its connection. No thread has that lease, and the key would be held until it expires.
        Ok(Changed::Done { ours, .. }) if is_late(&lease, io.now()) => {
            let mut late = lease.clone();
            late.tried = own.tried;
            let _ = release(io, &late).await;
            HandedOver { next: None, ..own.passed_on(lease, ours) }
        }
        Ok(Changed::Done { ours, .. }) => own.passed_on(lease, ours),
        Ok(Changed::NotOurs(LossReason::Gone)) if own.is_in_doubt() => {
            return own.deleted_if_absent(&Ok(None), io.now()).map(|release| Some(to_nobody(release)));
        }
        Ok(Changed::NotOurs(reason)) => to_nobody(Release::Lost(own.loss(reason, io.now()))),
        // A transaction writes it over our own value only, even if it comes late.
        Ok(Changed::Unanswered { ours, holds: Ok(Some(holds)) }) if holds == lease.value => {
            own.passed_on(lease, ours)
        }
        Ok(Changed::Unanswered { holds, .. }) => in_doubt(own.deleted_if_absent(&holds, io.now()), lease),
        Ok(Changed::NoTransactions) | Err(GiveUp::Refused) => return Ok(None),
        Err(reason) => return Err(reason),
    }))
}

/// The same.
async fn by_getset(io: &Io, own: &Lease, next: &Lease) -> Result<Option<HandedOver>, GiveUp> {
    let lease = own.replaced_by(next, io.now());
    let Some((end, until)) = own.end.zip(lease.end) else { return Ok(None) };
    if end.has_passed(io.now()) {
        return Ok(None);
    }
    // Within our lease, as DEL (I5), and soon: the next lease has begun.
    let before = end.min(until).min(End::of(io.now(), GETSET_TIME_LIMIT));
    let swap = Trip { before: Some(before), ..Trip::of(Command::GetSet(lease.value)) };
    Ok(Some(match io.send(swap).await.own() {
        Reply::Bulk(replaced) => own.replaced_by_next(io, lease, replaced.as_deref()),
        Reply::Unsent if end.has_passed(io.now()) => to_nobody(Release::Lost(LossReason::Expired)),
        Reply::Refused(WhyRefused::NoLock) => return Err(GiveUp::Refused),
        Reply::Refused(_) | Reply::TooLate => return Ok(None),
        Reply::Unsent => return Err(GiveUp::Unsent),
        // What it has replaced is unknown, so nothing is proven. Our own bytes say nothing: it may still come (I6).
        _ => match read(io).await {
            Ok(Some(holds)) if holds == lease.value && !end.has_passed(io.now()) => {
                own.passed_on(lease, false)
            }
            _ => in_doubt(Err(GiveUp::Unknown), lease),
        },
    }))
}

/// Returns true if it is too late to use a lease, or to have it in the key.
fn is_late(lease: &Lease, now: Now) -> bool {
    lease.sent_before().is_some_and(|end| end.has_passed(now))
}

fn to_nobody(release: Release) -> HandedOver {
    HandedOver { release: Ok(release), next: None, in_doubt: false }
}

fn in_doubt(release: Result<Release, GiveUp>, next: Lease) -> HandedOver {
    HandedOver { release, next: Some(next), in_doubt: true }
}

impl Lease {
    /// `replaced`: our own bytes were replaced. Only then does a proof last, for us and for the next thread.
    fn passed_on(&self, mut next: Lease, replaced: bool) -> HandedOver {
        let certified = replaced && self.proven;
        next.proven = certified;
        let release = Ok(Release::Released { certified });
        HandedOver { release, next: Some(next), in_doubt: false }
    }

    /// Judges what GETSET has replaced.
    fn replaced_by_next(&self, io: &Io, next: Lease, found: Option<&[u8]>) -> HandedOver {
        let replaced = self.judge(found, io.now());
        note_overwritten(io, &replaced);
        match replaced {
            Ownership::Ours => self.passed_on(next, true),
            Ownership::Unproven | Ownership::Overwritten(_) => self.passed_on(next, false),
            Ownership::Lost(reason) => HandedOver {
                release: Ok(Release::Lost(self.loss(reason, io.now()))),
                // An absent key is acquired (I1).
                next: found.is_none().then_some(next),
                in_doubt: false,
            },
        }
    }
}
