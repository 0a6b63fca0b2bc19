//! Changing a key by a transaction that fails if any client has written it since it was read.

use super::{LOOKS, Owned, note_overwritten, read};
use crate::rules::ownership::{LossReason, Ownership};
use crate::rules::task::Io;
use crate::rules::{Change, Command, GiveUp, Reply, Request, WhyRefused};
use crate::values::options::Protocol;
use crate::values::value::LockState;

/// What came of a change by a transaction.
pub(super) enum Changed {
    /// Carried out: whether our own bytes were found, not those of a loser of the classic takeover, and how many keys there were to change.
    Done { ours: bool, count: i64 },
    /// The key holds something else. It was not changed.
    NotOurs(LossReason),
    /// The reply was lost, and the key holds this since, if it could be read.
    Unanswered { ours: bool, holds: Result<Option<Vec<u8>>, GiveUp> },
    /// The server refuses transactions, and Auto does without.
    NoTransactions,
}

/// What the key is expected to hold, and whose that is.
#[derive(Clone)]
pub(super) struct Expected {
    pub(super) bytes: Vec<u8>,
    pub(super) whose: Ownership,
}

/// Reads the key and changes it, unless any client writes it in between: then it reads the key again. It changes our own bytes also after our
/// lease has passed. If it gives up, the key was not changed. `seen`: what the key was seen to hold, if not our own bytes.
pub(super) async fn change_watched(
    io: &Io,
    own: &Owned,
    change: Change,
    seen: Option<Expected>,
) -> Result<Changed, GiveUp> {
    let ours = || Expected { bytes: own.lease.value.to_vec(), whose: Ownership::Ours };
    let Expected { bytes: mut expected, mut whose } = seen.unwrap_or_else(ours);
    let (mut looked_again, mut rewritten) = (false, 0);
    // As often it may hold something else that is ours.
    for _ in 0..2 * LOOKS {
        let is_ours = whose == Ownership::Ours;
        // A loser's bytes are changed within our lease only; our own at any time. That they were seen soon enough is not checked again: EXEC
        // proves that they still stand.
        let before = if is_ours { None } else { own.lease.end };
        let exec = Request { command: Command::Exec(change), before };
        let found = match io.watch(Command::WatchGet, &expected, exec.clone()).await {
            Reply::Bulk(found) => found,
            Reply::Refused(WhyRefused::Command) if own.asked == Protocol::Auto => {
                return Ok(Changed::NoTransactions);
            }
            Reply::Refused(_) => return Err(GiveUp::Refused),
            Reply::Unsent | Reply::TooLate => return Err(GiveUp::Unsent),
            _ if looked_again => return Err(GiveUp::Io),
            _ => {
                looked_again = true;
                continue;
            }
        };
        // What was expected is not judged again: it may have been changed with WATCH.
        if found.as_ref() != Some(&expected) {
            whose = Ownership::judge(&own.lease, Protocol::Watched, found.as_deref(), io.now());
            match &whose {
                // Another client may have acquired the lock since.
                Ownership::Unproven | Ownership::Overwritten(_) if own.tried.is_some() => {
                    return Ok(Changed::NotOurs(LossReason::Taken(LockState::of_value(found.as_deref()))));
                }
                Ownership::Lost(reason) => return Ok(Changed::NotOurs(reason.clone())),
                Ownership::Ours | Ownership::Unproven | Ownership::Overwritten(_) => {}
            }
            expected = found.unwrap_or_default();
            continue;
        }
        match io.send(exec).await {
            Reply::Executed(Some(count)) => {
                if change != Change::Count {
                    note_overwritten(io, &whose);
                }
                return Ok(Changed::Done { ours: is_ours, count });
            }
            // The key was written since. Our value may be there again, as after EXPIRE.
            Reply::Executed(None) if rewritten + 1 < LOOKS => rewritten += 1,
            Reply::Executed(None) => break,
            Reply::TooLate if !is_ours => return Ok(Changed::NotOurs(LossReason::Expired)),
            Reply::TooLate => {}
            Reply::Refused(_) => return Err(GiveUp::Refused),
            Reply::Unsent => return Err(GiveUp::Unsent),
            _ => return Ok(Changed::Unanswered { ours: is_ours, holds: read(io).await }),
        }
    }
    Err(GiveUp::Rewritten)
}
