//! Extends a lease: our value is replaced by another of ours.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use super::watched::{Changed, Replaced, Seen, change_watched};
use super::{ask, by_what_it_has, look, note_overwritten, read, release};
use crate::acquire::GETSET_TIME_LIMIT;
use crate::lease::{End, Lease};
use crate::ownership::{Loss, Ownership};
use crate::task::Io;
use crate::values::Now;
use crate::{Command, GiveUp, Reply, Trip};

/// The outcome of an extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Extension {
    /// This lease is ours from now on. The caller checks whether it still lasts (I3).
    Extended(Lease),
    /// The lock is not held any more.
    Lost(Loss),
    /// The reply was lost, and reading the key did not settle it: either lease may be in the key (I6).
    Unknown {
        /// The lease that may have begun.
        lease: Lease,
        /// True if the new value in the key proves that no other client has
        /// had the lock: a transaction writes it over our own value only.
        proves: bool,
    },
}

/// Replaces our value by that of `new`, a lease of [`Lease::next`]. If it gives up, the old lease stands. Until the
/// outcome is known the lease counts that ends first, the old or the new one: another client may see either in the key.
/// `counter`: how long the server keeps the key's counter, if this holder took a number from it and it has a time to
/// live. It must outlast both leases.
///
/// # Errors
///
/// Why nothing was written.
pub async fn extend(
    io: &Io,
    own: &Lease,
    new: Lease,
    counter: Option<Duration>,
) -> Result<Extension, GiveUp> {
    if !io.now().is_plausible() {
        return Ok(Extension::Lost(Loss::ClockUnset));
    }
    let counter = Counter::of(own, &new, counter, io.now());
    replace(io, own, new, None, counter).await
}

/// A counter that is to be kept with the lock, for so long.
#[derive(Clone, Copy)]
pub(super) struct Counter {
    pub(super) time: Duration,
    /// True if there must be one also within the lease that is replaced.
    pub(super) must_exist: bool,
}

impl Counter {
    /// At least as long as both leases, if the counter is one that
    /// is forgotten so long after a token: the old one may stand.
    pub(super) fn of(own: &Lease, new: &Lease, counter: Option<Duration>, now: Now) -> Option<Self> {
        let time = own.kept_for(new.kept_for(counter, now), now)?;
        Some(Self { time, must_exist: false })
    }

    /// Has it kept, right after the key was seen to be ours: EXPIRE may shorten another holder's time. Returns false if
    /// there is none: its time was over, or it was deleted.
    pub(super) async fn keep(self, io: &Io, before: Option<End>) -> Result<bool, Reply> {
        match ask(io, Trip { before, ..Trip::of(Command::ForgetAfter(self.time)) }).await {
            Reply::Integer(kept) => Ok(kept > 0),
            failed => Err(failed),
        }
    }
}

/// Extends the lease, after the key was `seen` to hold a loser's value or an earlier one of ours. If an earlier one
/// stays there, other clients see the end that it shows, and so our lease has no later one.
pub(super) async fn replace(
    io: &Io,
    own: &Lease,
    new: Lease,
    seen: Option<Seen>,
    counter: Option<Counter>,
) -> Result<Extension, GiveUp> {
    by_what_it_has(own, async |own, older| {
        // On another server it is looked at again.
        let seen = seen.clone().filter(|_| older.is_none());
        replace_by_protocol(io, own, new.clone().on(older), seen, counter).await
    })
    .await
}

/// The same by the protocol of the lease.
pub(super) async fn replace_by_protocol(
    io: &Io,
    own: &Lease,
    new: Lease,
    seen: Option<Seen>,
    counter: Option<Counter>,
) -> Result<Extension, GiveUp> {
    let mut until = None;
    let replaced = if own.by_transaction() {
        by_transaction(io, own, new, seen, counter, &mut until).await
    } else {
        by_getset(io, own, new, seen, counter, &mut until).await
    };
    match (until, replaced) {
        // What was seen is looked at again.
        (_, replaced @ Err(GiveUp::TooOld(_))) => replaced,
        (Some(until), Err(_)) => {
            Ok(Extension::Unknown { lease: own.clone().ending_by(until), proves: false })
        }
        (Some(until), Ok(Extension::Unknown { lease, proves })) => {
            Ok(Extension::Unknown { lease: lease.ending_by(until), proves })
        }
        (_, replaced) => replaced,
    }
}

async fn by_transaction(
    io: &Io,
    own: &Lease,
    new: Lease,
    seen: Option<Seen>,
    counter: Option<Counter>,
    until: &mut Option<End>,
) -> Result<Extension, GiveUp> {
    let set = || Command::Set(new.new_value());
    let changed = match counter {
        None => change_watched(io, own, set(), seen, until).await?,
        Some(counter) => {
            let renew = Command::Renew(Box::new((new.new_value(), counter.time)));
            let (changed, exists) = match change_watched(io, own, renew, seen, until).await {
                Ok(Changed::Unanswered { replaced, holds: Ok(Some(holds)) }) if holds == new.value => {
                    let Ok(exists) = counter.keep(io, new.end).await else {
                        return Ok(Extension::Unknown { lease: new, proves: replaced == Replaced::OurValue });
                    };
                    // Another client may have acquired the lock since that was read.
                    (Changed::Unanswered { replaced, holds: read(io).await }, exists)
                }
                // While a slot of a cluster moves, the counter may be on another node.
                Err(GiveUp::Refused) => {
                    let found = look(io).await?;
                    let whose = own.judge(found.as_deref(), io.now());
                    if let Ownership::Lost(reason) = whose {
                        return Ok(own.not_extended(reason, io.now()));
                    }
                    let kept = counter.keep(io, new.end).await;
                    let exists = kept.map_err(|failed| failed.gives_up())?;
                    let seen = Some(Seen { bytes: found.unwrap_or_default(), whose });
                    (change_watched(io, own, set(), seen, until).await?, exists)
                }
                changed => {
                    let changed = changed?;
                    let exists = !matches!(changed, Changed::Done { count: 0, .. });
                    (changed, exists)
                }
            };
            // The next holder may get the same number. Our key would be held until it expires.
            let is_gone = !exists && (counter.must_exist || own.has_passed(io.now()));
            if is_gone && !matches!(changed, Changed::NotOurs(_)) {
                let _ = release(io, &new).await;
                return Ok(Extension::Lost(Loss::Expired));
            }
            changed
        }
    };
    Ok(match changed {
        // The server's time to live may have ended, and no client has acquired the lock since.
        Changed::Done { replaced, .. } => own.extended(new, replaced),
        Changed::NotOurs(reason) => own.not_extended(reason, io.now()),
        Changed::Unanswered { replaced, holds } => own.extended_if_found(new, replaced, &holds, io.now()),
    })
}

async fn by_getset(
    io: &Io,
    own: &Lease,
    new: Lease,
    mut seen: Option<Seen>,
    mut counter: Option<Counter>,
    until: &mut Option<End>,
) -> Result<Extension, GiveUp> {
    loop {
        let Some(end) = own.end.filter(|end| !end.has_passed(io.now())) else {
            return Ok(own.not_extended(Loss::Expired, io.now()));
        };
        let Seen { bytes, whose } = match seen.take() {
            Some(seen) => seen,
            None => {
                let found = look(io).await?;
                if own.has_passed(io.now()) {
                    return Ok(own.not_extended(Loss::Expired, io.now()));
                }
                Seen { whose: own.judge(found.as_deref(), io.now()), bytes: found.unwrap_or_default() }
            }
        };
        // Neither after our lease (I5) nor after the time limit of a
        // GETSET (I4): by then another client may hold the lock.
        let end = match &whose {
            Ownership::Lost(reason) => return Ok(own.not_extended(reason.clone(), io.now())),
            Ownership::Overwritten(_) => own.overwritten_until().unwrap_or(end),
            Ownership::Before(shown) => {
                *until = Some(*shown);
                end.min(*shown)
            }
            Ownership::Ours | Ownership::Unproven => end,
        };
        let time = end.remaining(io.now()).min(GETSET_TIME_LIMIT);
        let soon = End::of(io.now(), time);
        if let Some(kept) = counter {
            match kept.keep(io, Some(soon)).await {
                Ok(_) => counter = None,
                Err(Reply::TooLate) => continue,
                Err(failed) => return Err(failed.gives_up()),
            }
        }
        let swap = Trip { before: Some(soon), ..Trip::of(Command::GetSet(new.value.clone())) };
        match io.send(swap).await.plain() {
            Reply::Bulk(replaced) => {
                // What was seen is not judged again: the reply may come late.
                let whose = if replaced.as_ref() == Some(&bytes) {
                    whose
                } else {
                    own.judge(replaced.as_deref(), io.now())
                };
                return Ok(own.swapped(io, new, whose));
            }
            // What was read may no longer be so.
            Reply::TooLate => {}
            failed @ (Reply::Refused(_) | Reply::Unsent) => return Err(failed.gives_up()),
            _ => {
                let holds = read(io).await;
                return Ok(own.extended_if_found(new, Replaced::Anything, &holds, io.now()));
            }
        }
    }
}

impl Lease {
    pub(super) fn extended(&self, mut lease: Lease, replaced: Replaced) -> Extension {
        lease.proven = self.is_certified(replaced);
        Extension::Extended(lease)
    }

    pub(super) fn not_extended(&self, reason: Loss, now: Now) -> Extension {
        Extension::Lost(self.loss(reason, now))
    }

    /// Judges what GETSET has replaced.
    fn swapped(&self, io: &Io, new: Lease, replaced: Ownership) -> Extension {
        let now = io.now();
        note_overwritten(io, &replaced);
        match replaced {
            Ownership::Ours => self.extended(new, Replaced::OurValue),
            // Another client may have had the lock since, and released it.
            Ownership::Lost(Loss::Gone) if self.has_passed(now) => self.not_extended(Loss::Gone, now),
            // Cleared in between, and not acquired by another client since: it is ours anew (I1).
            Ownership::Unproven
            | Ownership::Before(_)
            | Ownership::Overwritten(_)
            | Ownership::Lost(Loss::Gone) => self.extended(new, Replaced::Anything),
            Ownership::Lost(reason) => Extension::Lost(reason),
        }
    }

    /// Judges what the key holds after the reply to the command that changes it was lost. Our new bytes there show that
    /// it was carried out; where a transaction has replaced our own, also after the old lease. An old value says
    /// nothing: the command may still arrive.
    fn extended_if_found(
        &self,
        new: Lease,
        replaced: Replaced,
        holds: &Result<Option<Vec<u8>>, GiveUp>,
        now: Now,
    ) -> Extension {
        let is_new = matches!(holds, Ok(Some(holds)) if *holds == new.value);
        let proves = replaced == Replaced::OurValue;
        if is_new && (proves || !self.has_passed(now)) {
            return self.extended(new, replaced);
        }
        match holds.as_ref().map(|holds| self.judge(holds.as_deref(), now)) {
            Ok(Ownership::Lost(reason)) if !is_new => Extension::Lost(reason),
            _ => Extension::Unknown { lease: new, proves },
        }
    }
}
