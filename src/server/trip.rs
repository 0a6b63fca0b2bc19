//! One trip to the server: the commands that go over a connection together, and what becomes of each.

use std::time::Duration;
use std::{io, iter, vec};

use redis::{RedisError, Value};

use super::carrier::Carrier;
use super::form::{self, Answer};
use super::refusal::{Refusal, RefusalKind};
use super::{Failure, failure_of, refusal_in, refused};
use crate::clock::Now;
use crate::key::Key;
use crate::options::Protocol;
use crate::protocol::{Command, Reply, Request};
use crate::version::Version;

/// A command that another thread may take along.
#[derive(Debug)]
pub(super) struct Load {
    key: Key,
    request: Request,
    packed: Vec<u8>,
    replies: usize,
    /// A server that is known to be too old for this gets nothing sent.
    needs: Protocol,
}

impl Load {
    pub(super) fn new(key: &Key, request: &Request, needs: Protocol) -> Self {
        let (packed, replies) = form::packed(key, &request.command);
        Self { key: key.clone(), request: request.clone(), packed, replies, needs }
    }

    /// Whether it may still be sent, and to this server. Its own thread is to find out why not.
    fn may_go(&self, server: Option<Version>, now: Now) -> bool {
        let too_old = server.is_some_and(|version| version < self.needs.needs());
        !too_old && self.request.before.is_none_or(|end| !end.has_passed(now))
    }

    fn part(&self) -> Part<'_> {
        Part { command: &self.request.command, packed: &self.packed, replies: self.replies }
    }
}

/// A command in the form that it has on the wire.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'a> {
    pub(super) command: &'a Command,
    pub(super) packed: &'a [u8],
    pub(super) replies: usize,
}

/// What became of a command.
#[derive(Debug)]
pub(super) enum Outcome {
    Reply(Reply),
    Refused(Refusal),
    /// It may have been carried out.
    Lost(RedisError),
    /// It was not: it has not left, or the server had no room and has read nothing.
    Unread,
}

impl Outcome {
    /// As the window tells it; nothing if its own thread is to send it.
    pub(super) fn told(self) -> Option<Result<Reply, Failure>> {
        match self {
            Outcome::Reply(reply) => Some(Ok(reply)),
            Outcome::Refused(refusal) => Some(Err(Failure::Refused(refusal))),
            Outcome::Lost(error) => Some(Err(failure_of(error))),
            Outcome::Unread => None,
        }
    }
}

/// What is told by a thread whose command another has sent, and has not come back with an answer to.
pub(super) fn unanswered() -> RedisError {
    let text =
        "it went together with another thread's command, which has not come back with an answer in time";
    io::Error::new(io::ErrorKind::TimedOut, text).into()
}

/// Tells of an answer whose thread did not wait for it any longer, where the key was changed. That thread has told its caller that the
/// outcome is unknown, or found out by reading the key (I6).
pub(super) fn orphaned(load: &Load, outcome: &Outcome) {
    let command = &load.request.command;
    let so = match (command, outcome) {
        (Command::SetNx(_), Outcome::Reply(Reply::Integer(1))) => {
            "unless that has found out by reading, nobody holds this lock until it expires, or is cleared if it does not expire"
        }
        (Command::GetSet(_), Outcome::Reply(_)) => {
            "unless that has found out by reading, nobody holds this lock until it expires, or another does who took it over"
        }
        (Command::Del, Outcome::Reply(Reply::Integer(1))) => {
            "if its lease had passed before that, the lock was another's"
        }
        _ => return,
    };
    let (key, name) = (&load.key, command.name());
    log::warn!(
        target: "setnx_lock",
        "{key}: {name} was carried out for a thread that had given up waiting for the answer; {so}"
    );
}

/// What became of the commands of a trip.
#[derive(Debug)]
pub(super) struct Outcomes {
    /// The leader's.
    pub(super) own: Outcome,
    /// Those of the ones that were taken along, in their order.
    pub(super) others: Vec<Outcome>,
}

impl Outcomes {
    fn all(&self) -> impl Iterator<Item = &Outcome> {
        iter::once(&self.own).chain(&self.others)
    }

    /// Whether the connection may be used again (I8). One whose WATCH was refused may be watching.
    pub(super) fn leave_in_order(&self, own: Part<'_>) -> bool {
        let lost = |outcome: &Outcome| match outcome {
            Outcome::Lost(_) => true,
            Outcome::Refused(refusal) => refusal.ends_the_connection(),
            Outcome::Reply(_) | Outcome::Unread => false,
        };
        let may_watch = own.replies > 1 && matches!(self.own, Outcome::Refused(_));
        !may_watch && !self.any_read_only() && !self.all().any(lost)
    }

    /// Whether the server said that it is no master.
    pub(super) fn any_read_only(&self) -> bool {
        self.all().any(|outcome| match outcome {
            Outcome::Refused(refusal) => refusal.kind() == RefusalKind::ReadOnly,
            _ => false,
        })
    }
}

/// Sends a command, and with it what others want, as far as it may go now. All the answers together may take `limit`.
pub(super) fn go<'a>(
    connection: &mut impl Carrier,
    own: Part<'_>,
    others: impl Iterator<Item = &'a Load>,
    now: impl FnOnce() -> Now,
    limit: Duration,
) -> Outcomes {
    let mut others = others.peekable();
    if others.peek().is_none() {
        let own = Answers::to(own.packed, own.replies, limit, connection).of(own);
        return Outcomes { own, others: Vec::new() };
    }
    let (server, now) = (connection.server_version(), now());
    let others: Vec<_> = others.map(|load| load.may_go(server, now).then(|| load.part())).collect();
    let (mut packed, mut count) = (Vec::new(), 0);
    for part in iter::once(&own).chain(others.iter().flatten()) {
        packed.extend_from_slice(part.packed);
        count += part.replies;
    }
    let mut answers = Answers::to(&packed, count, limit, connection);
    let own = answers.of(own);
    let others = others.into_iter().map(|part| part.map_or(Outcome::Unread, |part| answers.of(part)));
    Outcomes { own, others: others.collect() }
}

/// The answers of a trip, which are given to the commands one after the other.
struct Answers {
    replies: vec::IntoIter<Value>,
    /// Why there are no more than these.
    ended: Option<RedisError>,
    /// Whether they are to one command.
    alone: bool,
    /// Whether the server has said one thing, and no more.
    one: bool,
    /// Whether that was that it takes no more clients: it has read nothing then.
    crowded: bool,
    /// Set once an answer did not come, or was none: what follows it cannot be trusted to be anybody's.
    broken: Option<RedisError>,
}

impl Answers {
    fn to(packed: &[u8], count: usize, limit: Duration, connection: &mut impl Carrier) -> Self {
        let mut replies = Vec::with_capacity(count);
        let ended = connection.exchange(packed, count, limit, &mut replies).err();
        let (alone, one) = (count == 1, replies.len() == 1);
        Self { replies: replies.into_iter(), ended, alone, one, crowded: false, broken: None }
    }

    fn of(&mut self, part: Part<'_>) -> Outcome {
        if self.crowded {
            return Outcome::Unread;
        }
        if let Some(error) = &self.broken {
            return Outcome::Lost(error.clone());
        }
        let replies: Vec<_> = self.replies.by_ref().take(part.replies).collect();
        // Who says no at first has nothing to add.
        let all = replies.len() == part.replies || matches!(replies.first(), Some(Value::ServerError(_)));
        let answer = if all {
            form::read(part.command, replies)
        } else {
            match self.ended.take().unwrap_or_else(hung_up) {
                // As an error is returned what the only command was refused with.
                error if self.alone && refusal_in(&error).is_some() => Ok(Answer::Error(error)),
                error => Err(error),
            }
        };
        match answer {
            Ok(Answer::Reply(reply)) => Outcome::Reply(reply),
            Ok(Answer::Error(error)) => {
                let Failure::Refused(refusal) = refused(&error) else { unreachable!("it was just made") };
                self.crowded = self.one && refusal.ends_the_connection();
                Outcome::Refused(refusal)
            }
            Err(error) => {
                self.broken = Some(error.clone());
                Outcome::Lost(error)
            }
        }
    }
}

fn hung_up() -> RedisError {
    io::Error::new(
        io::ErrorKind::ConnectionReset,
        "the server hung up after it had said no to a command before this",
    )
    .into()
}
