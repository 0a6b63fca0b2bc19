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

#[cfg(test)]
mod tests {
    use super::super::fake::{Fake, closed, no};
    use super::*;
    use crate::clock;
    use crate::protocol::Entry;
    use crate::protocol::lease::End;

    /// What became of a command, in short.
    fn short(outcome: &Outcome) -> String {
        match outcome {
            Outcome::Reply(Reply::Integer(n)) => n.to_string(),
            Outcome::Reply(Reply::Bulk(bytes)) => {
                bytes.as_ref().map_or("nil".into(), |bytes| String::from_utf8(bytes.clone()).unwrap())
            }
            Outcome::Reply(other) => unreachable!("{other:?}"),
            Outcome::Refused(refusal) => format!("no: {:?}", refusal.kind()),
            Outcome::Lost(_) => "lost".into(),
            Outcome::Unread => "unread".into(),
        }
    }

    fn load(name: &str, command: Command, before: Option<End>, needs: Protocol) -> Load {
        Load::new(&Key::from(name), &Request { command, before }, needs)
    }

    fn set() -> Command {
        Command::SetNx(Entry { value: b"1".to_vec(), ttl: None })
    }

    /// A SETNX leads, and takes along GET, DEL and SETNX. Returns what becomes of the four, and whether the connection stays.
    fn four(replies: &[Value], ended: Option<RedisError>) -> (String, bool) {
        let replies = replies.to_vec();
        let mut fake = Fake::answering(move |count| {
            assert_eq!(count, 4);
            (replies.clone(), ended.clone())
        });
        let loads =
            [Command::Get, Command::Del, set()].map(|command| load("k", command, None, Protocol::Classic));
        let own = load("own", set(), None, Protocol::Classic);
        let outcomes = go(&mut fake, own.part(), loads.iter(), clock::now, Duration::from_secs(1));
        let all: Vec<_> = outcomes.all().map(short).collect();
        (all.join(", "), outcomes.leave_in_order(own.part()))
    }

    #[test]
    fn each_command_has_its_own_outcome_and_no_answer_after_a_wrong_one_counts() {
        let bulk = || Value::BulkString(b"x".to_vec());
        let (one, zero) = (Value::Int(1), Value::Int(0));
        let usual = [one.clone(), bulk(), zero.clone(), zero.clone()];
        let with = |place: usize, value: Value| {
            let mut replies = usual.clone();
            replies[place] = value;
            replies
        };
        let crowded = || no("ERR max number of clients reached");
        let table = [
            (&usual[..], None, "1, x, 0, 0", true),
            // Refused: the others are not concerned.
            (&with(0, no("OOM command not allowed")), None, "no: OverMemory, x, 0, 0", true),
            (&with(1, no("WRONGTYPE list")), None, "1, no: WrongType, 0, 0", true),
            // A replica: neither are they, but the connection is given up.
            (&with(2, no("READONLY replica")), None, "1, x, no: ReadOnly, 0", false),
            // Of the wrong form: nobody knows whose answers the rest are.
            (&with(0, Value::Okay), None, "lost, lost, lost, lost", false),
            (&with(1, one.clone()), None, "1, lost, lost, lost", false),
            (&with(3, Value::Nil), None, "1, x, 0, lost", false),
            // Cut.
            (&[], Some(closed()), "lost, lost, lost, lost", false),
            (&usual[..2], Some(closed()), "1, x, lost, lost", false),
            (&[no("NOPERM first")], None, "no: NotPermitted, lost, lost, lost", false),
            // Sent away: nothing was read.
            (&[crowded()], None, "no: TooManyClients, unread, unread, unread", false),
            // Or by one of several behind a proxy: what was answered was read.
            (&with(0, crowded()), None, "no: TooManyClients, x, 0, 0", false),
            (&with(1, crowded())[..2], None, "1, no: TooManyClients, lost, lost", false),
        ];
        for (replies, ended, outcomes, in_order) in table {
            assert_eq!(four(replies, ended), (outcomes.to_owned(), in_order), "{replies:?}");
        }
    }

    #[test]
    fn what_may_not_go_is_not_sent() {
        let mut fake = Fake::answering(|count| (vec![Value::Int(1); count], None));
        fake.version = Some(Version::new(2, 4, 0));
        let now = clock::now();
        let (over, later) = (End::of(now, Duration::ZERO), End::of(now, Duration::from_secs(1)));
        let loads = [
            load("too-late", Command::Del, Some(over), Protocol::Classic),
            load("in-time", Command::Del, Some(later), Protocol::Classic),
            load("too-new", set(), None, Protocol::Ttl),
            load("new-enough", set(), None, Protocol::Watched),
        ];
        let own = load("own", Command::Del, None, Protocol::Classic);
        let outcomes = go(&mut fake, own.part(), loads.iter(), || now, Duration::from_secs(1));
        assert_eq!(outcomes.all().map(short).collect::<Vec<_>>(), ["1", "unread", "1", "unread", "1"]);
        assert!(outcomes.leave_in_order(own.part()));
        let sent = fake.sent.lock().unwrap();
        let [(packed, 3)] = sent.as_slice() else { panic!("{sent:?}") };
        let all = [&own, &loads[1], &loads[3]].map(|load| load.packed.clone()).concat();
        assert_eq!(packed.as_bytes(), all);
    }

    #[test]
    fn a_watch_that_is_refused_may_be_watching() {
        let own = load("own", Command::WatchGet, None, Protocol::Watched);
        for (replies, in_order) in
            [(vec![Value::Okay, Value::Nil], true), (vec![Value::Okay, no("WRONGTYPE list")], false)]
        {
            let mut fake = Fake::answering(move |_| (replies.clone(), None));
            let outcomes = go(&mut fake, own.part(), [].iter(), clock::now, Duration::from_secs(1));
            assert_eq!(outcomes.leave_in_order(own.part()), in_order);
        }
    }
}
