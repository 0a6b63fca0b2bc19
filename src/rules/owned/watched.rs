//! Changing a key by a transaction that fails if any client has written it since it was read.

use super::{LOOKS, note_overwritten, read};
use crate::rules::lease::Lease;
use crate::rules::ownership::{LossReason, Ownership};
use crate::rules::task::Io;
use crate::rules::{Command, Expected, GiveUp, Replies, Reply, Trip};
use crate::values::value::LockState;

/// What came of a change by a transaction.
pub(super) enum Changed {
    /// Carried out: whether our own bytes were found, not those of a loser of the classic takeover, and how many keys there were to change.
    Done { ours: bool, count: i64 },
    /// The key holds something else, or a loser's value beyond our lease. It was not changed.
    NotOurs(LossReason),
    /// The reply was lost, and the key holds this since, if it could be read.
    Unanswered { ours: bool, holds: Result<Option<Vec<u8>>, GiveUp> },
}

/// What the key was seen to hold, and whose that is.
#[derive(Clone)]
pub(super) struct Seen {
    pub(super) bytes: Vec<u8>,
    pub(super) whose: Ownership,
}

/// Changes the key if it holds our value, unless any client writes it meanwhile: then it looks again. It changes our own bytes also after our
/// lease has passed. If it gives up, the key was not changed. `seen`: what the key was seen to hold, if not our own bytes.
pub(super) async fn change_watched(
    io: &Io,
    own: &Lease,
    change: Command,
    seen: Option<Seen>,
) -> Result<Changed, GiveUp> {
    let ours = || Seen { bytes: own.value.to_vec(), whose: Ownership::Ours };
    let Seen { mut bytes, mut whose } = seen.unwrap_or_else(ours);
    let (mut looked_again, mut rewritten) = (false, 0);
    // As often it may hold something else that is ours.
    for _ in 0..2 * LOOKS {
        let ours = whose == Ownership::Ours;
        // A loser's bytes are changed within our lease only; our own at any time. That they were seen soon enough is not checked again: EXEC
        // proves that they still stand.
        let before = if ours { None } else { own.end };
        let if_holds = Some(Expected { bytes: bytes.clone(), without_ttl: false });
        let trip = Trip { before, if_holds, ..Trip::of(change.clone()) };
        let Replies { found, reply, .. } = io.send(trip).await;
        match (reply, found) {
            (Some(Reply::Executed(Some(count))), _) => {
                if change != Command::Count {
                    note_overwritten(io, &whose);
                }
                return Ok(Changed::Done { ours, count });
            }
            // The key was written since. Our value may be there again, as after EXPIRE.
            (Some(Reply::Executed(None)), _) if rewritten + 1 < LOOKS => rewritten += 1,
            (Some(Reply::Executed(None)), _) => break,
            (Some(failed @ (Reply::Refused(_) | Reply::Unsent)), _) => return Err(failed.gives_up()),
            (Some(_), _) => return Ok(Changed::Unanswered { ours, holds: read(io).await }),
            // What was expected is not judged again: it may have been changed meanwhile. Either its time has passed, or the thread that was to
            // send it for this one has not.
            (None, Some(Reply::Bulk(found))) if found.as_ref() == Some(&bytes) => {
                if !ours && own.has_passed(io.now()) {
                    return Ok(Changed::NotOurs(LossReason::Expired));
                }
            }
            (None, Some(Reply::Bulk(found))) => {
                whose = Ownership::judge(own, found.as_deref(), io.now());
                match &whose {
                    // Another client may have acquired the lock since.
                    Ownership::Unproven | Ownership::Overwritten(_) if own.tried.is_some() => {
                        let state = LockState::of_value(found.as_deref());
                        return Ok(Changed::NotOurs(LossReason::Taken(state)));
                    }
                    Ownership::Lost(reason) => return Ok(Changed::NotOurs(reason.clone())),
                    Ownership::Ours | Ownership::Unproven | Ownership::Overwritten(_) => {}
                }
                bytes = found.unwrap_or_default();
            }
            (None, Some(Reply::Lost)) if !looked_again => looked_again = true,
            (None, failed) => return Err(failed.unwrap_or(Reply::Unsent).gives_up()),
        }
    }
    Err(GiveUp::Rewritten)
}
