//! Releasing a lock: deleting its key.

use alloc::vec::Vec;
use core::time::Duration;

use super::{Changed, Loss, Replaced, change_watched, look, note_overwritten, read};
use crate::acquire::GETSET_TIME_LIMIT;
use crate::lease::{End, Lease, Tried};
use crate::ownership::Ownership;
use crate::task::Io;
use crate::values::Now;
use crate::{Command, GiveUp, Reply, Trip, WhyRefused};

/// The outcome of a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Release {
    /// The key was deleted, so that the next contender can acquire the lock, or the lock was handed over.
    Released {
        /// True if the key still held this holder's own bytes, which proves
        /// that no other client had the lock. DEL in Classic does not look.
        certified: bool,
    },
    /// The lock was lost before. Nothing was deleted.
    Lost(Loss),
}

/// Deletes the key: in Classic only before our own lease has passed, otherwise only our
/// own bytes, and within our lease what a loser of the classic takeover wrote over them
/// (I5). A plain DEL after a transaction that failed could delete another client's key.
pub(super) async fn release(io: &Io, own: &Lease) -> Result<Release, GiveUp> {
    if own.by_transaction() { by_transaction(io, own).await } else { by_del(io, own).await }
}

async fn by_transaction(io: &Io, own: &Lease) -> Result<Release, GiveUp> {
    match change_watched(io, own, Command::Del, None, &mut None).await {
        // The server's time to live was over.
        Ok(Changed::Done { count: 0, .. }) => Ok(own.lost(Loss::Gone, io.now())),
        Ok(Changed::Done { replaced: Replaced::Expired, .. }) => Ok(Release::Lost(Loss::Expired)),
        Ok(Changed::Done { replaced, .. }) => Ok(Release::Released { certified: own.is_certified(replaced) }),
        Ok(Changed::NotOurs(Loss::Gone)) if own.is_in_doubt() => own.deleted_if_absent(&Ok(None), io.now()),
        Ok(Changed::NotOurs(reason)) => Ok(own.lost(reason, io.now())),
        Ok(Changed::Unanswered { holds, .. }) => own.deleted_if_absent(&holds, io.now()),
        // I5. What an earlier attempt has sent went to another server, and cannot reach this one.
        Err(GiveUp::TooOld(has)) => {
            let mut older = own.clone().on(Some(has));
            older.tried.get_or_insert(Tried::NotCarriedOut);
            let alone = |reason| if reason == GiveUp::Unknown { GiveUp::UnknownAlone } else { reason };
            by_del(io, &older).await.map_err(alone)
        }
        Err(reason) => Err(reason),
    }
}

/// Deletes the key by a command alone, before our own lease has passed.
async fn by_del(io: &Io, own: &Lease) -> Result<Release, GiveUp> {
    if own.has_passed(io.now()) {
        return Ok(Release::Lost(Loss::Expired)); // I5
    }
    if own.tried.is_some() {
        match own.lost_since(io).await? {
            Some(Loss::Gone) if own.is_in_doubt() => return own.deleted_if_absent(&Ok(None), io.now()),
            Some(reason) => return Ok(Release::Lost(reason)),
            None => {}
        }
    }
    match io.send(own.within_lease(Command::Del)).await.plain() {
        Reply::Integer(0) => Ok(Release::Lost(Loss::Gone)),
        Reply::Integer(_) => Ok(Release::Released { certified: false }),
        Reply::TooLate => Ok(Release::Lost(Loss::Expired)),
        Reply::Unsent if own.has_passed(io.now()) => Ok(Release::Lost(Loss::Expired)),
        failed @ (Reply::Refused(_) | Reply::Unsent) => Err(failed.gives_up()),
        _ if own.end.is_none() => Err(GiveUp::Unknown),
        _ => own.deleted_if_absent(&read(io).await, io.now()), // I6
    }
}

/// Deletes the key by a command alone, where the server has no memory to queue one for a transaction: if the key holds
/// our own bytes, as a look shows just before, and so early that it is carried out within our lease, or comes later
/// than its caller waits for it (I5). What the key held then is known only from a server with GETDEL, since 6.2. Unless
/// it gives up with [`GiveUp::UnknownAlone`], the key was not changed.
pub(super) async fn delete_alone(io: &Io, own: &Lease, command_timeout: Duration) -> Result<Release, GiveUp> {
    let found = look(io).await?;
    let end = match own.judge(found.as_deref(), io.now()) {
        Ownership::Ours | Ownership::Unproven => own.end,
        Ownership::Before(end) => own.end.map(|own| own.min(end)),
        Ownership::Overwritten(_) => return Err(GiveUp::OverMemory),
        Ownership::Lost(reason) => return Ok(own.lost(reason, io.now())),
    };
    // Soon after the look, too.
    let before = |now| end.map(|end| end.earlier_by(command_timeout).min(End::of(now, GETSET_TIME_LIMIT)));
    let delete =
        async |command| io.send(Trip { before: before(io.now()), ..Trip::of(command) }).await.plain();
    let reply = match delete(Command::GetDel).await {
        Reply::Refused(WhyRefused::Command) => delete(Command::Del).await,
        reply => reply,
    };
    match reply {
        Reply::Bulk(deleted) => {
            let whose = own.judge(deleted.as_deref(), io.now());
            note_overwritten(io, &whose);
            Ok(match whose {
                Ownership::Lost(reason) => own.lost(reason, io.now()),
                _ => Release::Released { certified: false },
            })
        }
        Reply::Integer(0) => Ok(own.lost(Loss::Gone, io.now())),
        Reply::Integer(_) => Ok(Release::Released { certified: false }),
        Reply::TooLate => Err(GiveUp::OverMemory),
        failed @ (Reply::Refused(_) | Reply::Unsent) => Err(failed.gives_up()),
        // I6
        _ => own.deleted_if_absent(&read(io).await, io.now()).map_err(|_| GiveUp::UnknownAlone),
    }
}

impl Lease {
    /// The outcome of a release that has found this. After the lease, an absent key has expired; another client's value
    /// may have been there before.
    pub(super) fn lost(&self, reason: Loss, now: Now) -> Release {
        Release::Lost(if reason == Loss::Gone { self.loss(reason, now) } else { reason })
    }

    /// Judges what the key holds after the reply to the command that deletes it was lost. It may still come, and a
    /// loser's bytes may stand for our lock.
    pub(super) fn deleted_if_absent(
        &self,
        holds: &Result<Option<Vec<u8>>, GiveUp>,
        now: Now,
    ) -> Result<Release, GiveUp> {
        match holds {
            Ok(None) if !self.has_passed(now) => Ok(Release::Released { certified: false }),
            _ => Err(GiveUp::Unknown),
        }
    }
}
