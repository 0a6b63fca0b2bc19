//! Changing a key by a transaction that fails if any client has written it since it was read.
//! Also another attempt to release a lock, after one that has failed.

use alloc::vec::Vec;

use super::{LOOKS, look, note_overwritten, read};
use crate::fencing::Epoch;
use crate::lease::{End, Lease, Tried, Wrote};
use crate::ownership::{Loss, Ownership};
use crate::task::Io;
use crate::values::Now;
use crate::{Command, Expected, GiveUp, Replies, Reply, Trip};

/// What came of a change by a transaction.
pub(super) enum Changed {
    /// Carried out: over what, how many keys there were to change or counters to keep, and by a server of which epoch.
    Done { replaced: Replaced, count: i64, epoch: Option<Epoch> },
    /// The key holds something else, or a loser's value beyond our lease. It was not changed.
    NotOurs(Loss),
    /// The reply was lost, and the key holds this since, if it could be read.
    Unanswered { replaced: Replaced, holds: Result<Option<Vec<u8>>, GiveUp> },
}

/// What a command of a holder has replaced, or found. A proof lasts only over our own value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Replaced {
    OurValue,
    /// A value of ours from before, after our lease: only to delete it.
    Expired,
    /// A loser's value, or what was not compared.
    Anything,
}

/// What the key was seen to hold, and whose that is.
#[derive(Clone)]
pub(super) struct Seen {
    pub(super) bytes: Vec<u8>,
    pub(super) whose: Ownership,
}

/// Changes the key if it holds our value, unless any client writes it meanwhile: then it looks again. It changes our
/// own bytes also after our lease has passed. If it gives up, the key was not changed. `seen`: what the key was seen to
/// hold, if not our own bytes. `until`: the end of our lease as the key shows it, if it is an earlier one.
pub(super) async fn change_watched(
    io: &Io,
    own: &Lease,
    change: Command,
    seen: Option<Seen>,
    until: &mut Option<End>,
) -> Result<Changed, GiveUp> {
    // Our own bytes, unless something else was seen.
    let (mut seen, mut whose) = match seen {
        Some(Seen { bytes, whose }) => (Some(bytes), whose),
        None => (None, Ownership::Ours),
    };
    let (mut looked_again, mut rewritten) = (false, 0);
    // As often it may hold something else that is ours.
    for _ in 0..2 * LOOKS {
        let replaced = match whose {
            Ownership::Ours => Replaced::OurValue,
            Ownership::Lost(_) => Replaced::Expired,
            Ownership::Unproven | Ownership::Before(_) | Ownership::Overwritten(_) => Replaced::Anything,
        };
        if let Ownership::Before(end) = whose {
            *until = Some(end);
        }
        // A loser's bytes are changed within our lease only; our own at any time. That they were seen soon enough is
        // not checked again: EXEC proves that they still stand.
        let before = if replaced == Replaced::Anything { own.end } else { None };
        let bytes = seen.as_deref().unwrap_or(&own.value);
        let if_holds = Some(Expected { bytes: bytes.to_vec(), without_ttl: false });
        let Replies { found, reply, epoch, .. } =
            io.send(Trip { before, if_holds, ..Trip::of(change.clone()) }).await;
        match (reply, found) {
            (Some(Reply::Executed(Some(count))), _) => {
                if !matches!(change, Command::Count { .. }) {
                    note_overwritten(io, &whose);
                }
                return Ok(Changed::Done { replaced, count, epoch });
            }
            // The key was written since. Our value may be there again, as after EXPIRE.
            (Some(Reply::Executed(None)), _) if rewritten + 1 < LOOKS => rewritten += 1,
            (Some(Reply::Executed(None)), _) => break,
            (Some(failed @ (Reply::Refused(_) | Reply::Unsent)), _) => return Err(failed.gives_up()),
            (Some(_), _) => return Ok(Changed::Unanswered { replaced, holds: read(io).await }),
            // What was expected is not judged again: it may have been changed meanwhile. Either its time has passed, or
            // the thread that was to send it for this one has not.
            (None, Some(Reply::Bulk(found))) if found.as_deref() == Some(bytes) => {
                if replaced == Replaced::Anything && own.has_passed(io.now()) {
                    return Ok(Changed::NotOurs(Loss::Expired));
                }
            }
            (None, Some(Reply::Bulk(found))) => {
                whose = Ownership::judge(own, found.as_deref(), io.now());
                let found = found.unwrap_or_default();
                if let Ownership::Lost(reason) = &whose {
                    // No other client's, so that it can go.
                    let is_left = change == Command::Del && matches!(own.wrote(&found), Wrote::Before(_));
                    if !is_left {
                        return Ok(Changed::NotOurs(reason.clone()));
                    }
                }
                seen = Some(found);
            }
            (None, Some(Reply::Lost)) if !looked_again => looked_again = true,
            (None, failed) => return Err(failed.unwrap_or(Reply::Unsent).gives_up()),
        }
    }
    Err(GiveUp::Rewritten)
}

impl Lease {
    /// Returns the lease as another attempt to release it takes it, after one that gave up for this reason; `None` if
    /// none may follow. `next`: the lease that the key may hold instead, since the lock was to be handed over.
    ///
    /// After a lost reply the first attempt may have been carried out, and another client may have the lock. So the key
    /// is compared with our own bytes then, by a transaction, which takes a value that names its holder. Where nothing
    /// was carried out, Classic reads the key first: a server that comes back may have lost it.
    pub fn again(mut self, gave_up: GiveUp, next: Option<&Lease>, now: Now) -> Option<Self> {
        match gave_up {
            GiveUp::UnknownAlone => return None,
            GiveUp::Unknown if !self.by_transaction() => return None,
            GiveUp::Unknown => {
                self.tried = Some(match self.tried {
                    Some(Tried::OwnBytesOnly { .. }) => Tried::OwnBytesOnly { in_doubt: true },
                    _ => Tried::InDoubt,
                });
            }
            GiveUp::Timeout
            | GiveUp::Refused
            | GiveUp::OverMemory
            | GiveUp::TooOld(_)
            | GiveUp::Io
            | GiveUp::Unsent
            | GiveUp::Rewritten
            | GiveUp::ClockUnset => {
                self.tried.get_or_insert(Tried::NotCarriedOut);
            }
        }
        if let Some(next) = next {
            // No thread has that lease, so its end says nothing.
            let end = self.end;
            self.may_have_become(next, true, now);
            self.end = end;
        }
        (!self.has_passed(now)).then_some(self)
    }

    /// Returns why the lock is not ours any more, as the key shows it before
    /// a later attempt deletes it: another client may have acquired it.
    pub(super) async fn lost_since(&self, io: &Io) -> Result<Option<Loss>, GiveUp> {
        let found = look(io).await?;
        Ok(match self.judge(found.as_deref(), io.now()) {
            Ownership::Lost(reason) => Some(self.loss(reason, io.now())),
            _ => None,
        })
    }

    pub(super) fn is_in_doubt(&self) -> bool {
        matches!(self.tried, Some(Tried::InDoubt | Tried::OwnBytesOnly { in_doubt: true }))
    }

    /// Returns true if it can be handed over: a later attempt only where the key is compared.
    pub fn can_be_handed_over(&self) -> bool {
        self.end.is_some() && (self.tried.is_none() || self.by_transaction())
    }
}
