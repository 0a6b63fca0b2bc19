//! What the replies to packed commands come to, by what was awaited. One of another form is an error.

use std::io;
use std::time::Duration;

use proto::Reply;
use redis::Value;

use super::errors::{Refusal, TransportError};
use super::packed::{AwaitedReply, Form, Role};
use super::resp::is_queued;

/// The reply to PTTL of a key that the server does not remove by itself.
pub(super) const NO_TTL: i64 = -1;

/// The reply to all commands, or the server's refusal. The error is of
/// replies that have another form than their command's.
pub(crate) type ReadReply = Result<Result<Reply, Refusal>, TransportError>;

/// Reads the replies to commands of this name that depend on nothing.
#[inline]
pub(super) fn read(name: &str, replies: &mut Vec<Value>, awaited: &[AwaitedReply]) -> ReadReply {
    match (replies.as_slice(), awaited) {
        ([Value::Int(n)], [AwaitedReply { form: Form::Integer, .. }]) => Ok(Ok(Reply::Integer(*n))),
        ([_], [one]) => match replies.pop() {
            Some(reply) => read_one(name, reply, *one),
            None => Err(unexpected(name, None)),
        },
        _ => read_several(name, replies.drain(..), awaited),
    }
}

fn read_one(name: &str, reply: Value, awaited: AwaitedReply) -> ReadReply {
    match refusal(&reply) {
        Some(refusal) => Ok(Err(refusal)),
        None => awaited.reply(reply).map(Ok).map_err(|other| unexpected(name, Some(&other))),
    }
}

fn read_several(name: &str, replies: impl Iterator<Item = Value>, awaited: &[AwaitedReply]) -> ReadReply {
    let (mut counted, mut refused, mut is_of_all) = (Vec::new(), None, false);
    for (reply, awaited) in replies.zip(awaited).filter(|(_, awaited)| awaited.role != Role::Ignored) {
        let counts = awaited.role == Role::Counts;
        match refusal(&reply) {
            Some(refusal) => {
                is_of_all |= !counts;
                refused.get_or_insert(refusal);
                counted.extend(counts.then_some(None));
            }
            None if counts => {
                let reply = awaited.reply(reply).map_err(|other| unexpected(name, Some(&other)))?;
                counted.push(Some(reply));
            }
            None => {}
        }
    }
    // Of several, what one has given counts also where another was refused.
    let found_nothing = || counted.iter().all(|reply| matches!(reply, None | Some(Reply::Bulk(None))));
    if let Some(refusal) = refused.filter(|_| is_of_all || found_nothing()) {
        return Ok(Err(refusal));
    }
    match <[Option<Reply>; 1]>::try_from(counted) {
        Ok([Some(reply)]) => Ok(Ok(reply)),
        Err(several) if !several.is_empty() => {
            let found = |reply| if let Some(Reply::Bulk(found)) = reply { found } else { None };
            Ok(Ok(Reply::Bulks(several.into_iter().map(found).collect())))
        }
        _ => Err(unexpected(name, None)),
    }
}

impl AwaitedReply {
    /// Returns what a value says that is no refusal. The error is a value of another form.
    fn reply(self, value: Value) -> Result<Reply, Value> {
        if self.fits(&value) { self.form.reply(value) } else { Err(value) }
    }
}

impl Form {
    /// Returns the reply of a value of this form, which is no refusal. The error is another value.
    fn reply(self, value: Value) -> Result<Reply, Value> {
        Ok(match (self, value) {
            (Self::Integer | Self::IntegerOrOkay, Value::Int(n)) => Reply::Integer(n),
            // Redis 1.x says of a push that it is done.
            (Self::Okay | Self::OkayOrNil | Self::IntegerOrOkay, Value::Okay) => Reply::Integer(1),
            (Self::OkayOrNil, Value::Nil) => Reply::Integer(0),
            (Self::Bulk, value) => Reply::Bulk(found(value)?),
            (Self::List, Value::Array(values)) => {
                Reply::Bulks(values.into_iter().map(found).collect::<Result<_, _>>()?)
            }
            (_, other) => return Err(other),
        })
    }
}

/// Reads the reply to a command that compares: whether the key was changed.
pub(super) fn read_comparing(name: &str, replies: &mut Vec<Value>, awaited: &[AwaitedReply]) -> ReadReply {
    let read = read(name, replies, awaited)?;
    Ok(read.map(|reply| Reply::Executed((reply != Reply::Integer(0)).then_some(1))))
}

/// Reads the replies to WATCH, GET, PTTL if that was asked, and MULTI: what the key was found to hold.
pub(super) fn read_look(asks_ttl: bool, replies: &mut Vec<Value>) -> ReadReply {
    if let Some(refusal) = replies.iter().find_map(refusal) {
        return Ok(Err(refusal));
    }
    let mut replies = replies.drain(..);
    let mut next = || replies.next();
    let (watch, found_there) = (next(), next().map(found));
    let ttl = if asks_ttl { next() } else { Some(Value::Int(NO_TTL)) };
    Ok(Ok(match (watch, found_there, ttl, next(), next()) {
        (Some(Value::Okay), Some(Ok(found)), Some(Value::Int(left)), Some(Value::Okay), None) => {
            match (found, u64::try_from(left)) {
                (Some(value), Ok(left)) => Reply::Expiring(Box::new((value, Duration::from_millis(left)))),
                // Without a time to live; or it ended behind GET.
                (found, Err(_)) => Reply::Bulk(found.filter(|_| left == NO_TTL)),
                (None, Ok(_)) => Reply::Bulk(None),
            }
        }
        (Some(Value::Okay), Some(Err(other)), ..) => return Err(unexpected("WATCH", Some(&other))),
        (watch, ..) => return Err(unexpected("WATCH", watch.as_ref())),
    }))
}

/// Reads the replies to the commands of a change in a transaction, each answered by QUEUED, and to EXEC, which is
/// answered by the outcome: nil if the key was written, or a list of exactly as many replies as there were commands.
/// Servers before 2.6.5 carry out the rest when one could not be queued, and answer with a shorter list.
pub(super) fn read_change(replies: &mut Vec<Value>, awaited: &[AwaitedReply]) -> ReadReply {
    let Some(exec) = replies.pop() else { return Err(unexpected("EXEC", None)) };
    let results = match &exec {
        Value::Array(results) => results.as_slice(),
        _ => &[],
    };
    if replies.iter().chain([&exec]).chain(results).any(is_refusal) {
        return read_refused(replies, &exec, results, awaited);
    }
    let awaited = &awaited[..replies.len()];
    let fits = results.len() == awaited.len()
        && results.iter().zip(awaited).all(|(result, awaited)| awaited.fits(result));
    match (exec, awaited) {
        (_, []) => Err(unexpected("EXEC", None)),
        (exec, _) if !replies.iter().all(is_queued) => Err(unexpected("EXEC", Some(&exec))),
        (Value::Nil, _) => Ok(Ok(Reply::Executed(None))),
        (Value::Array(mut results), _) if fits => {
            let read = read("EXEC", &mut results, awaited)?;
            Ok(read.map(|reply| if let Reply::Integer(n) = reply { Reply::Executed(Some(n)) } else { reply }))
        }
        (exec, _) => Err(unexpected("EXEC", Some(&exec))),
    }
}

/// Reads the replies to a change of which something was refused. The first refusal is the reason; EXEC's own only
/// repeats that there was one.
#[cold]
fn read_refused(queued: &[Value], exec: &Value, results: &[Value], awaited: &[AwaitedReply]) -> ReadReply {
    let carried_out = queued.iter().zip(awaited).filter(|(queued, _)| !is_refusal(queued));
    // What a key was given although more was to be done shows when it is read.
    let gave = |(result, (_, awaited)): (&Value, (&Value, &AwaitedReply))| {
        awaited.role == Role::MustSucceed && *result == Value::Okay && awaited.fits(result)
    };
    if results.iter().zip(carried_out).any(gave) {
        return Err(unexpected("EXEC", Some(exec)));
    }
    match queued.iter().chain([exec]).chain(results).find_map(refusal) {
        Some(refusal) => Ok(Err(refusal)),
        None => Err(unexpected("EXEC", Some(exec))),
    }
}

/// What a key was found to hold. The error is of a reply of another form.
fn found(reply: Value) -> Result<Option<Vec<u8>>, Value> {
    match reply {
        Value::BulkString(bytes) => Ok(Some(bytes)),
        Value::Nil => Ok(None),
        other => Err(other),
    }
}

pub(super) fn is_refusal(value: &Value) -> bool {
    matches!(value, Value::ServerError(_))
}

pub(super) fn refusal(value: &Value) -> Option<Refusal> {
    match value {
        Value::ServerError(error) => Some(error.clone().into()),
        _ => None,
    }
}

const NO_REDIS: &str = "the server does not answer as a Redis server does";

/// A reply to the command of this name that has another form, or none.
pub(super) fn unexpected(name: &str, reply: Option<&Value>) -> TransportError {
    TransportError::new(
        io::ErrorKind::InvalidData,
        &match reply {
            // What keys hold is not shown.
            Some(Value::BulkString(bytes)) => format!("{NO_REDIS}: {} bytes to {name}", bytes.len()),
            Some(Value::Array(list)) => format!("{NO_REDIS}: a list of {} to {name}", list.len()),
            Some(reply) => format!("{NO_REDIS}: {reply:?} to {name}"),
            None => format!("{NO_REDIS}: too few replies to {name}"),
        },
    )
}

#[cfg(test)]
mod tests;
