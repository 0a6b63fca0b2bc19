//! The end of a hold. Where a thread of this process is next, the lock is handed over: our value is replaced by one of
//! that thread's, in one command, so that the key is never absent in between. It is judged as an extension is.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;
use core::time::Duration;

use super::release::delete_alone;
use super::{Changed, Release, Replaced, change_watched, note_overwritten, read, release};
use crate::acquire::GETSET_TIME_LIMIT;
use crate::lease::{End, Lease};
use crate::ownership::{Loss, Ownership};
use crate::task::{Io, Rules, Task};
use crate::values::Now;
use crate::{Command, Expected, GiveUp, Note, Replies, Reply, Step, Trip, WhyRefused};

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

/// The end of a hold, begun: a release, or a hand-over to the next thread. It knows the first trip and the usual
/// replies without running the rules; any other reply starts them.
#[derive(Debug)]
pub struct Ending {
    own: Lease,
    /// The lease that the next thread is to have.
    next: Option<Box<Lease>>,
    command_timeout: Duration,
    began: Now,
    rules: Option<Task<HandedOver>>,
}

impl Ending {
    /// Begins to end a hold now. `next`: the lease that the next thread is to have,
    /// if there is one; both have an end then, and one protocol. `command_timeout`:
    /// how late a command is carried out at most whose caller still waits for it.
    #[inline]
    pub fn begin(
        own: Lease,
        next: Option<&Lease>,
        command_timeout: Duration,
        now: Now,
    ) -> (Self, Step<HandedOver>) {
        let next = next.map(|next| Box::new(own.replaced_by(next, now)));
        let mut ending = Self { own, next, command_timeout, began: now, rules: None };
        let first = match &ending.next {
            None => ending.own.first_of_release(now),
            Some(next) => ending.own.first_of_hand_over(next, now),
        };
        let step = first.map_or_else(|| ending.by_rules(), Step::Send);
        (ending, step)
    }

    /// Returns the lease that was to end.
    #[inline]
    pub fn into_own(self) -> Lease {
        self.own
    }

    #[cold]
    fn by_rules(&mut self) -> Step<HandedOver> {
        let (own, next, command_timeout) =
            (self.own.clone(), self.next.as_deref().cloned(), self.command_timeout);
        let code = async move |io: &Io| {
            let ended = match &next {
                Some(next) => hand_over(io, &own, next).await,
                None => release_to_nobody(io, &own).await,
            };
            match ended {
                // The transaction of an earlier attempt may still come, and another client acquire the lock.
                Err(GiveUp::OverMemory) if own.by_transaction() && !own.is_in_doubt() => {
                    delete_alone(io, &own, command_timeout).await.map(to_nobody)
                }
                ended => ended,
            }
        };
        let (task, step) = Task::begin(self.began, code);
        self.rules = Some(task);
        step
    }

    /// Returns the outcome, if these are the usual replies to what is sent
    /// first: it was carried out on our own bytes. DEL does not look.
    #[inline]
    fn usual(&mut self, replies: &Replies, now: Now) -> Option<HandedOver> {
        let Self { own, next, .. } = self;
        let carried_out = match &replies.reply {
            Some(Reply::Integer(1..) | Reply::Executed(Some(1..))) => true,
            Some(Reply::Bulk(Some(replaced))) => own.value == *replaced,
            _ => false,
        };
        match next {
            _ if !carried_out => None,
            None => Some(to_nobody(Release::Released { certified: own.by_transaction() && own.proven })),
            Some(next) if own.by_transaction() && is_late(next, now) => None,
            Some(next) => Some(own.passed_on(mem::take(&mut **next), Replaced::OurValue)),
        }
    }
}

impl Rules for Ending {
    type Outcome = HandedOver;

    #[inline]
    fn resume(&mut self, replies: impl Into<Replies>, now: Now) -> Step<HandedOver> {
        let replies = replies.into();
        if self.rules.is_none() {
            if let Some(handed) = self.usual(&replies, now) {
                return Step::Done(handed);
            }
            let first = self.by_rules();
            debug_assert!(matches!(first, Step::Send(_)), "these are the replies to what they send first");
        }
        let Some(rules) = &mut self.rules else { unreachable!("they were begun") };
        rules.resume(replies, now)
    }

    #[inline]
    fn take_notes(&self) -> Vec<Note> {
        self.rules.as_ref().map_or_else(Vec::new, Task::take_notes)
    }
}

/// Replaces our value by that of `next`, the lease that the next thread is to have. Both leases have an end, and the
/// protocol is the same: Classic does it by GETSET, within both leases, the others by a transaction. If that is
/// refused, or comes too late for the next lease, our lock is released: DEL is allowed where a server lacks memory, or
/// a user the right to write. If it gives up, the next lease was not written; with
/// [`GiveUp::Unknown`] our key may be deleted.
async fn hand_over(io: &Io, own: &Lease, next: &Lease) -> Result<HandedOver, GiveUp> {
    let handed = if own.by_transaction() {
        by_transaction(io, own, next).await?
    } else {
        by_getset(io, own, next).await?
    };
    match handed {
        Some(handed) => Ok(handed),
        None => release_to_nobody(io, own).await,
    }
}

/// Releases our lock, where no thread is next.
async fn release_to_nobody(io: &Io, own: &Lease) -> Result<HandedOver, GiveUp> {
    release(io, own).await.map(to_nobody)
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
    let Some((swap, end)) = own.first_of_hand_over(&lease, io.now()).zip(own.end) else { return Ok(None) };
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
    /// Returns what is sent first to release the lock; `None` if nothing is, or the key is looked at before.
    #[inline]
    fn first_of_release(&self, now: Now) -> Option<Trip> {
        if self.by_transaction() {
            return Some(self.if_ours(Command::Del));
        }
        // I5
        (self.tried.is_none() && !self.has_passed(now)).then(|| self.within_lease(Command::Del))
    }

    /// Returns what is sent first to hand the lock over.
    #[inline]
    fn first_of_hand_over(&self, next: &Lease, now: Now) -> Option<Trip> {
        if self.by_transaction() {
            return Some(self.if_ours(Command::Set(next.new_value())));
        }
        let (end, until) = self.end.zip(next.end)?;
        // Within our lease, as DEL (I5), and soon: the next lease has begun.
        let before = Some(end.min(until).min(End::of(now, GETSET_TIME_LIMIT)));
        (!end.has_passed(now)).then(|| Trip { before, ..Trip::of(Command::GetSet(next.value.clone())) })
    }

    /// Returns a change of the key, if that holds our own bytes.
    fn if_ours(&self, change: Command) -> Trip {
        let if_holds = Some(Expected { bytes: self.value.to_vec(), without_ttl: false });
        Trip { if_holds, ..Trip::of(change) }
    }

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
