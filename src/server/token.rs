//! Wake-ups between processes, as they go over the wire: a token in a list beside the key, and a connection of its own that waits
//! for one.

use redis::Value;

use super::carrier::{Carrier as _, exchanged};
use super::connection::Connection;
use super::refusal::Refusal;
use super::{Ear, Failure, failure_of, refused};
use crate::version::Version;

/// The first version that has BLPOP, and MULTI.
pub(super) const NEEDS: Version = Version::new(2, 0, 0);

/// How long a token that nobody takes stays, in seconds: longer than it takes to get from looking at a lock to waiting for a token,
/// and so short that few find one that means nothing any more.
const TOKEN_LASTS: u32 = 2;

/// How long one BLPOP waits, in seconds: whole ones are all that servers before 6 understand.
pub(super) const WAITS: u32 = 5;

/// Packs what leaves a token in a list, and returns how many replies there will be. In a transaction, so that no list is ever left
/// without its end. One token is enough for as many releases as nobody has acted upon, so that a list is never longer. Before 2.2
/// changing a list that has an end removes that list first, so that the new one can be given one.
pub(super) fn packed(list: &[u8]) -> (Vec<u8>, usize) {
    let mut packed = Vec::new();
    let commands = [
        redis::cmd("MULTI"),
        redis::cmd("RPUSH").arg(list).arg("1").clone(),
        redis::cmd("LTRIM").arg(list).arg(0).arg(0).clone(),
        redis::cmd("EXPIRE").arg(list).arg(TOKEN_LASTS).clone(),
        redis::cmd("EXEC"),
    ];
    for command in &commands {
        command.write_packed_command(&mut packed);
    }
    (packed, commands.len())
}

/// Returns what the server had against it, if anything.
pub(super) fn objection(replies: Vec<Value>) -> Option<Refusal> {
    let all = replies.into_iter().flat_map(|reply| match reply {
        Value::Array(results) => results,
        other => vec![other],
    });
    let mut errors = all.filter_map(|reply| match reply {
        Value::ServerError(error) => super::refusal_in(&error.into()),
        _ => None,
    });
    errors.next()
}

/// A connection that is used for nothing else.
#[derive(Debug)]
pub(super) struct Listener(Connection);

impl Listener {
    /// Waits on this connection, whose time-out is longer than a BLPOP waits.
    pub(super) fn on(connection: Connection) -> Result<Self, Failure> {
        match connection.server_version().filter(|version| *version < NEEDS) {
            Some(version) => Err(Failure::TooOld(version)),
            None => Ok(Self(connection)),
        }
    }
}

impl Ear for Listener {
    fn hear(&mut self, lists: &[&[u8]]) -> Result<Option<Vec<u8>>, Failure> {
        let packed = redis::cmd("BLPOP").arg(lists).arg(WAITS).get_packed_command();
        let reply = exchanged(&mut self.0, &packed, 1, std::time::Duration::MAX).map_err(|error| {
            if super::refusal_in(&error).is_some() { refused(&error) } else { failure_of(error) }
        })?;
        match reply.into_iter().next() {
            Some(Value::Nil) => Ok(None),
            Some(Value::Array(mut parts)) if matches!(parts.first(), Some(Value::BulkString(_))) => {
                let Value::BulkString(list) = parts.swap_remove(0) else {
                    unreachable!("it was just looked at")
                };
                Ok(Some(list))
            }
            Some(Value::ServerError(error)) => Err(refused(&error.into())),
            other => Err(failure_of(
                (redis::ErrorKind::UnexpectedReturnType, "no answer to BLPOP", format!("{other:?}")).into(),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_left_with_its_end_or_not_at_all() {
        let (packed, replies) = packed(b"k:setnx-lock:wake-up");
        let text = String::from_utf8(packed).unwrap();
        let words: Vec<_> = text.split("\r\n").filter(|line| !line.starts_with(['*', '$'])).collect();
        assert_eq!(
            words.join(" "),
            "MULTI RPUSH k:setnx-lock:wake-up 1 LTRIM k:setnx-lock:wake-up 0 0 EXPIRE k:setnx-lock:wake-up 2 EXEC "
        );
        assert_eq!(replies, 5);
        assert!(text.starts_with(std::str::from_utf8(super::super::form::MULTI).unwrap()));
    }
}
