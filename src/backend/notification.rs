//! Release notifications between processes, as they go over the wire: an entry in a list beside the key, and a connection of its own
//! that waits for one.

use std::io;
use std::time::Duration;

use redis::{Value, cmd};

use super::Listener;
use super::connections::{Connection, LockConnection, ask, exchange};
use super::errors::{Failure, Refusal, TransportError};
use super::limits::Limits;
use crate::clock;
use crate::version::Version;

/// The first version that has BLPOP, and MULTI.
pub(super) const NEEDS: Version = Version::new(2, 0, 0);

/// How long a notification that is not taken stays, in seconds: longer than a waiter needs from looking at a lock to waiting for a
/// notification, and so short that few waiters take an outdated one.
const NOTIFICATION_TTL: u32 = 2;

/// How long one BLPOP waits, in seconds: servers before 6 understand whole ones only.
const WAIT: u32 = 5;

/// How long the reply to a BLPOP may take beyond the time of any other command.
pub(super) const EXTRA_TIMEOUT: Duration = Duration::from_secs(WAIT as u64);

/// Leaves a notification in a list. It is a transaction, so that no list stays without a time to live; MULTI goes first, alone, since
/// what follows would be carried out at once where it is refused. Returns the server's refusal, if there is one. After an error, or a
/// refusal, a transaction may be open on the connection.
pub(super) fn send(
    connection: &mut impl LockConnection,
    list: &[u8],
    limits: &Limits<'_>,
) -> Result<Result<(), Refusal>, TransportError> {
    let left = || limits.answered_by.since(clock::uptime());
    if let Err(refusal) = ask(connection, &cmd("MULTI"), left())? {
        return Ok(Err(refusal));
    }
    let (packed, replies) = packed(list);
    let replies = exchange(connection, &packed, replies, left()).complete()?;
    Ok(refusal(replies).map_or(Ok(()), Err))
}

/// Packs what leaves a notification in a list, after MULTI, and returns how many replies there will be. One entry serves any number of
/// releases that no waiter has acted upon, so a list is never longer. Before 2.2, changing a list that has a time to live removes the
/// list first, so that the new one can be given one.
fn packed(list: &[u8]) -> (Vec<u8>, usize) {
    let mut packed = Vec::new();
    let commands = [
        cmd("RPUSH").arg(list).arg("1").clone(),
        cmd("LTRIM").arg(list).arg(0).arg(0).clone(),
        cmd("EXPIRE").arg(list).arg(NOTIFICATION_TTL).clone(),
        cmd("EXEC"),
    ];
    for command in &commands {
        command.write_packed_command(&mut packed);
    }
    (packed, commands.len())
}

/// Returns the first refusal among the replies of a transaction.
fn refusal(replies: Vec<Value>) -> Option<Refusal> {
    let mut all = replies.into_iter().flat_map(|reply| match reply {
        Value::Array(results) => results,
        other => vec![other],
    });
    all.find_map(|reply| match reply {
        Value::ServerError(error) => Some(error.into()),
        _ => None,
    })
}

/// A connection that is used for nothing but BLPOP.
#[derive(Debug)]
pub(super) struct BlpopListener(Connection);

impl BlpopListener {
    /// Waits on this connection, whose timeout is longer than a BLPOP waits.
    pub(super) fn on(connection: Connection) -> Result<Self, Failure> {
        match connection.server_version().filter(|version| *version < NEEDS) {
            Some(version) => Err(Failure::TooOld(version)),
            None => Ok(Self(connection)),
        }
    }
}

impl Listener for BlpopListener {
    fn next_notification(&mut self, lists: &[&[u8]]) -> Result<Option<Vec<u8>>, Failure> {
        match ask(&mut self.0, cmd("BLPOP").arg(lists).arg(WAIT), Duration::MAX) {
            Ok(Ok(Value::Nil)) => Ok(None),
            Ok(Ok(Value::Array(parts))) if matches!(parts.first(), Some(Value::BulkString(_))) => {
                let Some(Value::BulkString(list)) = parts.into_iter().next() else {
                    unreachable!("it was just looked at")
                };
                Ok(Some(list))
            }
            Ok(Ok(other)) => Err(Failure::Lost(TransportError::new(
                io::ErrorKind::InvalidData,
                &format!("the reply is none to BLPOP: {other:?}"),
            ))),
            Ok(Err(refusal)) => Err(Failure::Refused(refusal)),
            Err(error) => Err(Failure::Lost(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notification_is_left_with_its_time_to_live_or_not_at_all() {
        let (packed, replies) = packed(b"k:setnx-lock:wake-up");
        let text = String::from_utf8(packed).unwrap();
        let words: Vec<_> = text.split("\r\n").filter(|line| !line.starts_with(['*', '$'])).collect();
        assert_eq!(
            words.join(" "),
            "RPUSH k:setnx-lock:wake-up 1 LTRIM k:setnx-lock:wake-up 0 0 EXPIRE k:setnx-lock:wake-up 2 EXEC "
        );
        assert_eq!(replies, 4);
    }
}
