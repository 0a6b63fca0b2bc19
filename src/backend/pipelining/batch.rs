//! One batch on a connection: the commands that go together, and the outcome of each.

use std::time::Duration;
use std::{io, iter, vec};

use redis::Value;

use crate::backend::codec;
use crate::backend::connections::{Exchange, LockConnection, exchange};
use crate::backend::errors::{Failure, Refusal, RefusalKind, TransportError};
use crate::backend::limits::{Incident, Limits, Report};
use crate::backend::resp::Packed;
use crate::backend::{Answers, Next};
use crate::clock::Now;
use crate::key::Key;
use crate::options::Protocol;
use crate::protocol::{Change, Command, Reply, Request};
use crate::version::Version;

/// A command that another thread may send.
#[derive(Debug)]
pub(in crate::backend) struct QueuedCommand {
    key: Key,
    request: Request,
    packed: Vec<u8>,
    replies: usize,
    /// A server that is known to be too old for this protocol gets nothing sent.
    needs: Protocol,
    next: Option<PackedNext>,
}

/// The command behind another.
#[derive(Clone, Debug)]
pub(in crate::backend) struct PackedNext {
    next: Next,
    packed: Vec<u8>,
    replies: usize,
}

impl PackedNext {
    pub(in crate::backend) fn new(key: &Key, next: &Next) -> Self {
        let Packed { bytes: packed, count: replies } = codec::packed(key, &next.request.command);
        Self { next: next.clone(), packed, replies }
    }

    /// Returns it if it may still be sent, and to this server.
    pub(in crate::backend) fn encoded(&self, server: Option<Version>, now: Now) -> Option<Encoded<'_>> {
        let Next { request, needs } = &self.next;
        let encoded = Encoded { command: &request.command, packed: &self.packed, replies: self.replies };
        may_be_sent(request, *needs, server, now).then_some(encoded)
    }
}

fn may_be_sent(request: &Request, needs: Protocol, server: Option<Version>, now: Now) -> bool {
    let too_old = server.is_some_and(|version| version < needs.needs());
    !too_old && request.before.is_none_or(|end| !end.has_passed(now))
}

impl QueuedCommand {
    pub(in crate::backend) fn new(
        key: &Key,
        request: &Request,
        next: Option<PackedNext>,
        limits: &Limits<'_>,
    ) -> Self {
        let Packed { bytes: packed, count: replies } = codec::packed(key, &request.command);
        Self { key: key.clone(), request: request.clone(), packed, replies, needs: limits.needs, next }
    }

    /// A change that goes between MULTI and EXEC, with those of other threads.
    pub(in crate::backend) fn change(
        key: &Key,
        change: &Change,
        next: Option<PackedNext>,
        limits: &Limits<'_>,
    ) -> Self {
        let Packed { bytes: packed, count: replies } = codec::packed_change(key, change);
        let request = Request::at_any_time(Command::Exec(change.clone()));
        Self { key: key.clone(), request, packed, replies, needs: limits.needs, next }
    }

    pub(in crate::backend) fn key(&self) -> &Key {
        &self.key
    }

    pub(in crate::backend) fn command(&self) -> &Command {
        &self.request.command
    }

    /// Returns it if it may still be sent, and to this server. If not, its own thread finds out why.
    pub(in crate::backend) fn job(&self, server: Option<Version>, now: Now) -> Option<Job<'_>> {
        if !may_be_sent(&self.request, self.needs, server, now) {
            return None;
        }
        Some(self.sent_job(self.next_now(server, now).is_some()))
    }

    /// Returns what goes behind it, if it may still be sent, and to this server.
    pub(in crate::backend) fn next_now(&self, server: Option<Version>, now: Now) -> Option<Encoded<'_>> {
        self.next.as_ref()?.encoded(server, now)
    }

    /// Returns what was sent of it.
    pub(in crate::backend) fn sent_job(&self, with_next: bool) -> Job<'_> {
        let own = Encoded { command: &self.request.command, packed: &self.packed, replies: self.replies };
        let next = self.next.as_ref().filter(|_| with_next).map(|next| Encoded {
            command: &next.next.request.command,
            packed: &next.packed,
            replies: next.replies,
        });
        Job { own, next }
    }
}

/// A command as it goes over the wire.
#[derive(Clone, Copy, Debug)]
pub(in crate::backend) struct Encoded<'a> {
    pub(in crate::backend) command: &'a Command,
    pub(in crate::backend) packed: &'a [u8],
    pub(in crate::backend) replies: usize,
}

/// What one thread has sent: a command, and the one behind it.
#[derive(Clone, Copy, Debug)]
pub(in crate::backend) struct Job<'a> {
    pub(in crate::backend) own: Encoded<'a>,
    pub(in crate::backend) next: Option<Encoded<'a>>,
}

impl<'a> Job<'a> {
    pub(in crate::backend) fn commands(self) -> impl Iterator<Item = Encoded<'a>> {
        iter::once(self.own).chain(self.next)
    }
}

/// The outcome of what one thread has sent.
#[derive(Debug)]
pub(in crate::backend) struct JobOutcome {
    pub(in crate::backend) own: Outcome,
    pub(in crate::backend) next: Outcome,
}

impl JobOutcome {
    /// Returns what the backend returns for it; `None` if the thread is to send it itself.
    pub(in crate::backend) fn answers(self) -> Option<Answers> {
        Some(Answers { own: self.own.result()?, next: self.next.result() })
    }

    /// Returns the refusal of a connection for which the server has no room: it has not read the commands.
    pub(in crate::backend) fn found_no_room(&self) -> Option<&Refusal> {
        match self {
            Self { own: Outcome::Refused(refusal), next: Outcome::Unread } if refusal.closes_connection() => {
                Some(refusal)
            }
            _ => None,
        }
    }
}

/// The outcome of a command.
#[derive(Debug)]
pub(in crate::backend) enum Outcome {
    Reply(Reply),
    Refused(Refusal),
    /// It may have been carried out.
    Lost(TransportError),
    /// It was not carried out: there is none, it was not sent, or the server had no room for the client and has read nothing.
    Unread,
}

impl Outcome {
    /// Whether the server said that it is no master.
    pub(in crate::backend) fn is_read_only(&self) -> bool {
        matches!(self, Outcome::Refused(refusal) if refusal.kind() == RefusalKind::ReadOnly)
    }

    /// Whether the connection must not be used again (I8).
    pub(in crate::backend) fn ends_connection(&self) -> bool {
        match self {
            Outcome::Lost(_) => true,
            Outcome::Refused(refusal) => refusal.closes_connection(),
            Outcome::Reply(_) | Outcome::Unread => false,
        }
    }

    /// Returns what the backend returns for it; `None` if the command's own thread is to send it.
    pub(in crate::backend) fn result(self) -> Option<Result<Reply, Failure>> {
        match self {
            Outcome::Reply(reply) => Some(Ok(reply)),
            Outcome::Refused(refusal) => Some(Err(Failure::Refused(refusal))),
            Outcome::Lost(error) => Some(Err(Failure::Lost(error))),
            Outcome::Unread => None,
        }
    }
}

/// The error of a command that another thread has sent without returning its outcome in time.
pub(in crate::backend) fn lost_in_batch() -> TransportError {
    TransportError::new(
        io::ErrorKind::TimedOut,
        "it was pipelined with another thread's command, and that thread returned no reply in time",
    )
}

/// Reports a command that changed the key after its thread had given up. That thread has reported the outcome as unknown, or found it out
/// by reading the key (I6).
pub(in crate::backend) fn report_abandoned(queued: &QueuedCommand, outcome: &JobOutcome, report: Report<'_>) {
    let next = queued.next.as_ref().map(|next| (&next.next.request.command, &outcome.next));
    for (command, outcome) in iter::once((&queued.request.command, &outcome.own)).chain(next) {
        let reply = match outcome {
            Outcome::Reply(Reply::Fenced(reply, _)) => reply,
            Outcome::Reply(reply) => reply,
            Outcome::Refused(_) | Outcome::Lost(_) | Outcome::Unread => continue,
        };
        let changed = match command.unfenced() {
            Command::SetNx(_) | Command::SetNxAll(..) | Command::Del => *reply == Reply::Integer(1),
            Command::GetSet(_) => true,
            Command::Exec(Change::Set(_) | Change::Del) => *reply == Reply::Executed(Some(1)),
            _ => false,
        };
        if changed {
            report.incident(Incident::CarriedOutLate { key: &queued.key, command: command.name() });
        }
    }
}

/// The outcomes of the commands of a batch.
#[derive(Debug)]
pub(in crate::backend) struct Outcomes {
    /// The leader's.
    pub(in crate::backend) own: JobOutcome,
    /// Those of the other threads, in their order.
    pub(in crate::backend) others: Vec<JobOutcome>,
}

impl Outcomes {
    fn all(&self) -> impl Iterator<Item = &Outcome> {
        iter::once(&self.own).chain(&self.others).flat_map(|outcome| [&outcome.own, &outcome.next])
    }

    /// Whether the connection may be used again (I8). One whose WATCH was refused may be watching.
    pub(in crate::backend) fn leave_in_order(&self, own: Encoded<'_>) -> bool {
        let watches = matches!(own.command, Command::WatchGet | Command::WatchGetTtl);
        let may_watch = watches && matches!(self.own.own, Outcome::Refused(_));
        !may_watch && !self.any_read_only() && !self.all().any(Outcome::ends_connection)
    }

    /// Returns the refusal of a connection for which the server has no room, if none of the commands was read.
    pub(in crate::backend) fn found_no_room(&self) -> Option<&Refusal> {
        let is_unread = |outcome: &JobOutcome| matches!(outcome.own, Outcome::Unread);
        self.own.found_no_room().filter(|_| self.others.iter().all(is_unread))
    }

    /// Whether the server said that it is no master.
    pub(in crate::backend) fn any_read_only(&self) -> bool {
        self.all().any(Outcome::is_read_only)
    }
}

/// Sends what a thread has to send, and with it what other threads have that may be sent now. All replies together may take `limit`.
pub(in crate::backend) fn send<'a>(
    connection: &mut impl LockConnection,
    own: Job<'_>,
    others: impl Iterator<Item = &'a QueuedCommand>,
    now: impl FnOnce() -> Now,
    limit: Duration,
) -> Outcomes {
    let mut others = others.peekable();
    if others.peek().is_none() && own.next.is_none() {
        let Encoded { packed, replies, .. } = own.own;
        let own = Replies::to(packed, replies, limit, connection).job_outcome(own);
        return Outcomes { own, others: Vec::new() };
    }
    let (server, now) = (connection.server_version(), now());
    let others: Vec<_> = others.map(|queued| queued.job(server, now)).collect();
    let (mut packed, mut count) = (Vec::new(), 0);
    for encoded in iter::once(own).chain(others.iter().flatten().copied()).flat_map(Job::commands) {
        packed.extend_from_slice(encoded.packed);
        count += encoded.replies;
    }
    let mut replies = Replies::to(&packed, count, limit, connection);
    let own = replies.job_outcome(own);
    let unread = || JobOutcome { own: Outcome::Unread, next: Outcome::Unread };
    let others = others.into_iter().map(|job| job.map_or_else(unread, |job| replies.job_outcome(job)));
    Outcomes { own, others: others.collect() }
}

/// The replies of a batch, which go to the commands one after the other.
pub(in crate::backend) struct Replies {
    values: vec::IntoIter<Value>,
    /// Why there are no more than these.
    ended: Option<TransportError>,
    /// Whether there is only one, after which the server hung up. More may follow one that came in time, as the others did not.
    only: bool,
    /// Whether that one refused the client for lack of room: the server has read nothing else.
    no_room: bool,
    /// Set once a reply was missing or unreadable: which command a later one belongs to is unknown.
    broken: Option<TransportError>,
}

impl Replies {
    fn to(packed: &[u8], count: usize, limit: Duration, connection: &mut impl LockConnection) -> Self {
        let Exchange { replies, ended } = exchange(connection, packed, count, limit);
        Self::of(replies, ended)
    }

    /// Those that were received, and why there are no more.
    pub(in crate::backend) fn of(replies: Vec<Value>, ended: Option<TransportError>) -> Self {
        let only = replies.len() == 1 && ended.is_none();
        Self { values: replies.into_iter(), ended, only, no_room: false, broken: None }
    }

    pub(in crate::backend) fn job_outcome(&mut self, job: Job<'_>) -> JobOutcome {
        let own = self.outcome(job.own);
        JobOutcome { own, next: job.next.map_or(Outcome::Unread, |next| self.outcome(next)) }
    }

    pub(in crate::backend) fn outcome(&mut self, encoded: Encoded<'_>) -> Outcome {
        match self.take(encoded.replies) {
            Ok(replies) => self.judged(codec::read(encoded.command, replies)),
            Err(outcome) => outcome,
        }
    }

    /// Takes the next so many replies, unless they are missing. A refused first reply may be the only one.
    pub(in crate::backend) fn take(&mut self, count: usize) -> Result<Vec<Value>, Outcome> {
        if self.no_room {
            return Err(Outcome::Unread);
        }
        if let Some(error) = &self.broken {
            return Err(Outcome::Lost(error.clone()));
        }
        let replies: Vec<_> = self.values.by_ref().take(count).collect();
        if replies.len() == count || matches!(replies.first(), Some(Value::ServerError(_))) {
            return Ok(replies);
        }
        let error = self.ended.take().unwrap_or_else(hung_up);
        Err(self.judged(Err(error)))
    }

    /// Returns the outcome of a command whose replies were read.
    pub(in crate::backend) fn judged(
        &mut self,
        read: Result<Result<Reply, Refusal>, TransportError>,
    ) -> Outcome {
        match read {
            Ok(Ok(reply)) => Outcome::Reply(reply),
            Ok(Err(refusal)) => {
                self.no_room = self.only && refusal.closes_connection();
                Outcome::Refused(refusal)
            }
            Err(error) => {
                self.broken = Some(error.clone());
                Outcome::Lost(error)
            }
        }
    }
}

pub(in crate::backend) fn hung_up() -> TransportError {
    TransportError::new(
        io::ErrorKind::ConnectionReset,
        "the server closed the connection after it had refused an earlier command",
    )
}

#[cfg(test)]
mod tests;
