//! What a holder does with its lock: releases it, extends its lease, asks whether it is still held, takes a fencing
//! token. Each is code for one key, run by a [`Task`](super::task::Task).
//!
//! In Classic the clocks decide, and what a GET has found: these servers have no command that compares and changes. In
//! Watched and Ttl the key is read, and changed by a transaction that fails if any client has written it since: our own
//! bytes there prove that no other client had the lock. A lease without an end has a value that names no holder, so
//! that its key is never compared.

mod count;
mod extend;
mod hand_over;
mod release;
mod resume;
mod watched;

use alloc::vec::Vec;
pub use count::{Counted, count};
use extend::replace;
pub use extend::{Extension, extend};
pub use hand_over::{HandedOver, end};
pub use release::Release;
use release::release;
pub use resume::{resume, settle};
use watched::{Changed, Replaced, Seen, change_watched};

use core::time::Duration;

use super::lease::Lease;
use super::ownership::{Loss, Ownership};
use super::task::Io;
use super::{Command, GiveUp, Note, Reply, Trip};
use crate::values::{Nonce, Now, Protocol};

/// How many transactions in a row may fail because another client wrote the key.
pub const LOOKS: u32 = 3;

/// What the server says of a held lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verification {
    /// The key holds this holder's value.
    Held {
        /// True if that proves that no other client has had the lock from its acquisition until the server answered,
        /// whatever the clocks did. `false` without an expiration, where the value `1` names no holder, and after an
        /// extension that was not certified.
        certified: bool,
    },
    /// A loser of the classic takeover has overwritten this holder's value, or the server has lost it, and what came of
    /// writing it again. The server proves nothing.
    Overwritten(Result<Extension, GiveUp>),
    /// The lock is not held any more.
    Lost(Loss),
}

/// Asks the server whether the lock is still held, by one look. A loser's value, and an earlier one of ours, is
/// replaced by our own, with the same lease and `nonce`: when the time there has passed, which may be before our lease
/// does, another client would take the lock over.
///
/// # Errors
///
/// Why the server could not be asked.
pub async fn verify(io: &Io, own: &Lease, nonce: Nonce) -> Result<Verification, GiveUp> {
    let found = look(io).await?;
    Ok(match own.judge(found.as_deref(), io.now()) {
        Ownership::Ours => Verification::Held { certified: own.proven },
        Ownership::Unproven => Verification::Held { certified: false },
        whose @ (Ownership::Overwritten(_) | Ownership::Before(_)) => {
            let again = own.written_again(nonce, io.now());
            let seen = Seen { bytes: found.unwrap_or_default(), whose };
            Verification::Overwritten(replace(io, own, again, Some(seen), None).await)
        }
        Ownership::Lost(reason) => Verification::Lost(own.loss(reason, io.now())),
    })
}

/// Does something by the protocol of a lease. If the server is too old for it, as after a restart or a failover, does
/// it by the server's protocol, within the same lease.
async fn by_what_it_has<T>(
    own: &Lease,
    by: impl AsyncFn(&Lease, Option<Protocol>) -> Result<T, GiveUp>,
) -> Result<T, GiveUp> {
    let (mut outcome, mut is_classic) = (by(own, None).await, !own.by_transaction());
    while let Err(GiveUp::TooOld(has)) = outcome
        && !is_classic
    {
        let older = own.clone().on(Some(has));
        is_classic = !older.by_transaction();
        outcome = by(&older, Some(has)).await;
    }
    outcome
}

/// Reads the key.
async fn look(io: &Io) -> Result<Option<Vec<u8>>, GiveUp> {
    match ask(io, Trip::of(Command::Get)).await {
        Reply::Bulk(found) => Ok(found),
        failed => Err(failed.gives_up()),
    }
}

/// Makes a trip that may be made twice; once more if the reply
/// is lost, as that of a connection that the server has closed.
async fn ask(io: &Io, trip: Trip) -> Reply {
    match io.send(trip.clone()).await.plain() {
        Reply::Lost => io.send(trip).await.plain(),
        reply => reply,
    }
}

/// Reads the key after a command whose reply was lost, which is never sent again (I6).
async fn read(io: &Io) -> Result<Option<Vec<u8>>, GiveUp> {
    match io.send(Trip::of(Command::Get)).await.plain() {
        Reply::Bulk(holds) => Ok(holds),
        _ => Err(GiveUp::Unknown),
    }
}

/// Notes that a value was replaced, or deleted, which was another client's.
fn note_overwritten(io: &Io, replaced: &Ownership) {
    match replaced {
        Ownership::Overwritten(state) => io.note(Note::WasOverwritten(state.clone())),
        Ownership::Lost(Loss::Taken(state)) => io.note(Note::ValueOverwritten(state.clone())),
        Ownership::Before(_) => io.note(Note::WentBack),
        Ownership::Ours | Ownership::Unproven | Ownership::Lost(_) => {}
    }
}

impl Lease {
    #[inline]
    fn by_transaction(&self) -> bool {
        matches!(self.protocol, Protocol::Watched | Protocol::Ttl) && self.end.is_some()
    }

    #[inline]
    fn within_lease(&self, command: Command) -> Trip {
        Trip { before: self.end, ..Trip::of(command) }
    }

    fn judge(&self, found: Option<&[u8]>, now: Now) -> Ownership {
        Ownership::judge(self, found, now)
    }

    /// The reason of a loss that was noticed now.
    fn loss(&self, reason: Loss, now: Now) -> Loss {
        if self.has_passed(now) { Loss::Expired } else { reason }
    }

    /// Returns how long a counter is kept that is forgotten after this time, but not within the lease.
    fn kept_for(&self, counter: Option<Duration>, now: Now) -> Option<Duration> {
        let left = self.end.map(|end| end.remaining(now));
        counter.max(counter.and(left))
    }

    /// Returns true if a command that has replaced this proves that no other client has had the lock.
    fn is_certified(&self, replaced: Replaced) -> bool {
        replaced == Replaced::OurValue && self.proven
    }
}

#[cfg(test)]
mod tests;
