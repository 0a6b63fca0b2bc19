//! The next holder's SETNX, which travels with a release: when a thread is queued, the holder sends its own DEL and that thread's SETNX in one
//! trip, and hands over the answer. What comes of it is the other thread's: its lease, its deadline, its lost reply.

use std::io;
use std::time::Duration;

use crate::backend::{Failure, Next, TransportError};
use crate::clock::Now;
use crate::identity::Identity;
use crate::key::Key;
use crate::protocol::acquire::first_command;
use crate::protocol::lease::{End, Lease};
use crate::protocol::{Command, Reply};
use crate::queue::{self, HolderTicket};
use crate::version::Version;

/// What the server has answered to a SETNX that was sent before the wait for the lock, or by another thread meanwhile.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// The lock that was asked for.
    pub(super) key: Key,
    /// What it acquires.
    pub(super) lease: Lease,
    pub(super) command: &'static str,
    pub(super) reply: Result<Reply, Failure>,
}

impl Answer {
    /// Whether the lock was acquired.
    pub(super) fn is_granted(&self) -> bool {
        matches!(self.reply, Ok(Reply::Integer(granted)) if granted > 0)
    }

    /// Whether the command may have been carried out, or may be still.
    pub(super) fn is_lost(&self) -> bool {
        matches!(self.reply, Err(Failure::Lost(_)))
    }
}

/// The thread that is next, and the command that is sent for it.
pub(super) struct Successor {
    claim: queue::Claim<Answer>,
    key: Key,
    lease: Lease,
    pub(super) next: Next,
}

impl Successor {
    /// Claims the head of the queue, for a command that is sent within the given time or not at all, unless it is to ask itself: the server may be too old for its protocol, or a lost reply could not be
    /// resolved for which a transaction that `release` ends may be the reason.
    pub(super) fn claim(
        holder: &HolderTicket<Answer>,
        key: &Key,
        release: &Command,
        identity: &Identity,
        server: Option<Version>,
        sent_within: Duration,
        now: Now,
    ) -> Option<Self> {
        let mut made = None;
        let claim = holder.claim(|mode| {
            let options = mode.options();
            let needs = options.protocol.on(None);
            let too_old = server.is_some_and(|version| version < needs.min_version());
            // A server that refuses EXEC itself may have the transaction open, and SETNX only queued.
            let unresolvable = matches!(release, Command::Exec(_)) && options.expiration.is_none();
            if too_old || unresolvable {
                return None;
            }
            let (lease, mut request) = first_command(options, identity.next_nonce(), now);
            // The release may be sent much later, when the thread waits for the answer no more.
            let sent = End::of(now, sent_within);
            request.before = Some(request.before.map_or(sent, |end| end.min(sent)));
            let lost = TransportError::new(
                io::ErrorKind::TimedOut,
                "it was sent with another thread's release, and that thread returned no reply in time",
            );
            let command = request.command.name();
            made = Some((lease.clone(), Next { request, needs }));
            Some(Answer { key: key.clone(), lease, command, reply: Err(Failure::Lost(lost)) })
        })?;
        let (lease, next) = made?;
        Some(Self { claim, key: key.clone(), lease, next })
    }

    /// Hands over the answer; without one the command was not sent. Returns whether the thread has it.
    pub(super) fn end(self, reply: Option<Result<Reply, Failure>>) -> bool {
        let Self { claim, key, lease, next } = self;
        match reply {
            Some(reply) => claim.answer(Answer { key, lease, command: next.request.command.name(), reply }),
            None => {
                claim.withdraw();
                false
            }
        }
    }
}
