//! The end of a hold. Where a thread of this process is next, the lock is handed over: our value is replaced by one of
//! that thread's, in one command, so that the key is never absent in between. It is judged as an extension is.

use core::time::Duration;

use super::release::delete_alone;
use super::{Changed, Release, Replaced, change_watched, note_overwritten, read, release};
use crate::acquire::GETSET_TIME_LIMIT;
use crate::lease::{End, Lease};
use crate::ownership::{Loss, Ownership};
use crate::task::Io;
use crate::values::Now;
use crate::{Command, GiveUp, Reply, Trip, WhyRefused};

/// The outcome of handing over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandedOver {
    /// What came of our own hold.
    pub release: Result<Release, GiveUp>,
    /// The next thread's lease, if that has the lock, or may have it. It looks whether the lease has passed (I3).
    pub next: Option<Lease>,
    /// True if only the key can tell if the next thread has the
    /// lock: the reply was lost, and the command may still come.
    pub in_doubt: bool,
}

/// Ends a hold: hands the lock over to the thread that is `next`, or releases it. Both leases have an end then, and one
/// protocol. If it gives up, the next lease was not written; with [`GiveUp::Unknown`] our key may be deleted.
/// `command_timeout`: how late a command is carried out at most whose caller still waits for it.
///
/// # Errors
///
/// Why the key was not changed, or that this is unknown.
pub async fn end(
    io: &Io,
    own: &Lease,
    next: Option<&Lease>,
    command_timeout: Duration,
) -> Result<HandedOver, GiveUp> {
    let ended = match next {
        Some(next) => hand_over(io, own, next).await,
        None => release(io, own).await.map(to_nobody),
    };
    match ended {
        // The transaction of an earlier attempt may still come, and another client acquire the lock.
        Err(GiveUp::OverMemory) if own.by_transaction() && !own.is_in_doubt() => {
            delete_alone(io, own, command_timeout).await.map(to_nobody)
        }
        ended => ended,
    }
}

/// Replaces our value by that of `next`: Classic by GETSET, within both leases, the others by a transaction. If that is
/// refused, or comes too late for the next lease, our lock is released: DEL is allowed where a server lacks memory, or
/// a user the right to write.
async fn hand_over(io: &Io, own: &Lease, next: &Lease) -> Result<HandedOver, GiveUp> {
    let handed = if own.by_transaction() {
        by_transaction(io, own, next).await?
    } else {
        by_getset(io, own, next).await?
    };
    match handed {
        Some(handed) => Ok(handed),
        None => release(io, own).await.map(to_nobody),
    }
}

/// `None` if nothing was written, and our lock is to be released.
async fn by_transaction(io: &Io, own: &Lease, next: &Lease) -> Result<Option<HandedOver>, GiveUp> {
    let lease = own.replaced_by(next, io.now());
    Ok(Some(match change_watched(io, own, Command::Set(lease.new_value()), None, &mut None).await {
        // The transaction has waited for its connection. No thread
        // has that lease, and the key would be held until it expires.
        Ok(Changed::Done { replaced, .. }) if is_late(&lease, io.now()) => {
            let mut late = lease.clone();
            late.tried = own.tried;
            let _ = release(io, &late).await;
            HandedOver { next: None, ..own.passed_on(lease, replaced) }
        }
        Ok(Changed::Done { replaced, .. }) => own.passed_on(lease, replaced),
        Ok(Changed::NotOurs(Loss::Gone)) if own.is_in_doubt() => {
            return own.deleted_if_absent(&Ok(None), io.now()).map(|release| Some(to_nobody(release)));
        }
        Ok(Changed::NotOurs(reason)) => to_nobody(own.lost(reason, io.now())),
        // A transaction writes it over our own value only, even if it comes late.
        Ok(Changed::Unanswered { replaced, holds: Ok(Some(holds)) }) if holds == lease.value => {
            own.passed_on(lease, replaced)
        }
        Ok(Changed::Unanswered { holds, .. }) => in_doubt(own.deleted_if_absent(&holds, io.now()), lease),
        Err(GiveUp::Refused | GiveUp::OverMemory | GiveUp::TooOld(_)) => return Ok(None),
        Err(reason) => return Err(reason),
    }))
}

/// Hands the lock over by GETSET, in Classic. `None` if the lease leaves no time for it.
async fn by_getset(io: &Io, own: &Lease, next: &Lease) -> Result<Option<HandedOver>, GiveUp> {
    let lease = own.replaced_by(next, io.now());
    let Some((end, until)) = own.end.zip(lease.end).filter(|_| !own.has_passed(io.now())) else {
        return Ok(None);
    };
    // Within our lease, as DEL (I5), and soon: the next lease has begun.
    let before = Some(end.min(until).min(End::of(io.now(), GETSET_TIME_LIMIT)));
    let swap = Trip { before, ..Trip::of(Command::GetSet(lease.value.clone())) };
    Ok(Some(match io.send(swap).await.plain() {
        Reply::Bulk(replaced) => own.replaced_by_next(io, lease, replaced.as_deref()),
        Reply::Unsent if end.has_passed(io.now()) => to_nobody(Release::Lost(Loss::Expired)),
        Reply::Refused(WhyRefused::NoLock) => return Err(GiveUp::Refused),
        Reply::Refused(_) | Reply::TooLate => return Ok(None),
        Reply::Unsent => return Err(GiveUp::Unsent),
        // What it has replaced is unknown, so nothing is proven. Our own bytes say nothing: it may still come (I6).
        _ => match read(io).await {
            Ok(Some(holds)) if holds == lease.value && !end.has_passed(io.now()) => {
                own.passed_on(lease, Replaced::Anything)
            }
            _ => in_doubt(Err(GiveUp::Unknown), lease),
        },
    }))
}

/// Returns true if it is too late to use a lease, or to have it in the key.
fn is_late(lease: &Lease, now: Now) -> bool {
    lease.sent_before().is_some_and(|end| end.has_passed(now))
}

#[inline]
fn to_nobody(release: Release) -> HandedOver {
    HandedOver { release: Ok(release), next: None, in_doubt: false }
}

fn in_doubt(release: Result<Release, GiveUp>, next: Lease) -> HandedOver {
    HandedOver { release, next: Some(next), in_doubt: true }
}

impl Lease {
    /// A proof lasts for the next thread as well.
    fn passed_on(&self, mut next: Lease, replaced: Replaced) -> HandedOver {
        let certified = self.is_certified(replaced);
        next.proven = certified;
        let release = Ok(Release::Released { certified });
        HandedOver { release, next: Some(next), in_doubt: false }
    }

    /// Judges what GETSET has replaced.
    fn replaced_by_next(&self, io: &Io, next: Lease, found: Option<&[u8]>) -> HandedOver {
        let replaced = self.judge(found, io.now());
        note_overwritten(io, &replaced);
        match replaced {
            Ownership::Ours => self.passed_on(next, Replaced::OurValue),
            Ownership::Unproven | Ownership::Before(_) | Ownership::Overwritten(_) => {
                self.passed_on(next, Replaced::Anything)
            }
            Ownership::Lost(reason) => HandedOver {
                release: Ok(self.lost(reason, io.now())),
                // An absent key is acquired (I1).
                next: found.is_none().then_some(next),
                in_doubt: false,
            },
        }
    }
}
