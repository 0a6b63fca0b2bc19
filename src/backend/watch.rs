//! A connection that watches a key, with a transaction open. It returns to its pool only when nothing is watched and no transaction is
//! open, since its next user's transaction would fail.

use std::{fmt, iter};

use redis::{Value, cmd};

use super::codec;
use super::connections::{Checkout, LockConnection, ask, exchange};
use super::errors::Failure;
use super::limits::Limits;
use super::pipelining::{Encoded, Job, JobOutcome, Outcome, PackedNext, send};
use super::{Answers, Next, WatchedConnection};
use crate::clock;
use crate::key::Key;
use crate::protocol::{Command, Reply};

/// A pool's connection after WATCH and MULTI.
pub(super) struct PooledWatch<M: r2d2::ManageConnection>
where
    M::Connection: LockConnection,
{
    /// Taken out when it returns to the pool in good order.
    connection: Option<Checkout<M>>,
}

impl<M: r2d2::ManageConnection> PooledWatch<M>
where
    M::Connection: LockConnection,
{
    pub(super) fn on(connection: Checkout<M>) -> Self {
        Self { connection: Some(connection) }
    }

    /// Ends the transaction and the watch, and returns the connection to its pool if the server carried that out.
    fn discard(mut self, limits: &Limits<'_>) {
        let Some(mut connection) = self.connection.take() else { return };
        let left = limits.answered_by.since(clock::uptime());
        if !matches!(ask(&mut *connection, &cmd("DISCARD"), left), Ok(Ok(Value::Okay))) {
            connection.invalidate();
        }
    }
}

impl<M: r2d2::ManageConnection> WatchedConnection for PooledWatch<M>
where
    M::Connection: LockConnection,
{
    fn exec(
        mut self: Box<Self>,
        key: &Key,
        command: &Command,
        next: Option<&Next>,
        limits: &Limits<'_>,
    ) -> Answers {
        let Some(connection) = &mut self.connection else { unreachable!("it is here until the watch ends") };
        let (packed, replies) = codec::packed(key, command);
        let next = next.map(|next| PackedNext::new(key, next));
        let next = next.as_ref().and_then(|next| next.encoded(connection.server_version(), clock::now()));
        let job = Job { own: Encoded { command, packed: &packed, replies }, next };
        let left = limits.answered_by.since(clock::uptime());
        let outcomes = send(&mut **connection, job, iter::empty(), clock::now, left);
        let is_in_order = outcomes.leave_in_order(job.own);
        match &outcomes.own {
            // Carried out or not, EXEC ends both the transaction and the watch.
            JobOutcome { own: Outcome::Reply(_), .. } if is_in_order => drop(self.connection.take()),
            // Up to 2.4 a server that is over its memory refuses EXEC itself, and the transaction stays open.
            JobOutcome { own: Outcome::Refused(_), next: Outcome::Unread } => self.discard(limits),
            _ => {}
        }
        match outcomes.own.answers() {
            Some(answers) => answers,
            None => unreachable!("it is the first of its batch"),
        }
    }

    fn exec_all(
        mut self: Box<Self>,
        changes: &[(Key, Command)],
        limits: &Limits<'_>,
    ) -> Vec<Result<Reply, Failure>> {
        if changes.is_empty() {
            self.discard(limits);
            return Vec::new();
        }
        let Some(connection) = &mut self.connection else { unreachable!("it is here until the watch ends") };
        let (packed, count) = codec::packed_changes(changes);
        let left = limits.answered_by.since(clock::uptime());
        let read = match exchange(&mut **connection, &packed, count, left).complete() {
            Ok(replies) => codec::read_changes(changes, replies),
            Err(error) => Err(error),
        };
        match read {
            // EXEC ends both the transaction and the watch.
            Ok(replies) if replies.iter().all(Result::is_ok) => {
                drop(self.connection.take());
                replies.into_iter().map(|reply| reply.map_err(Failure::Refused)).collect()
            }
            // Some servers leave the transaction open; this connection is dropped.
            Ok(replies) => replies.into_iter().map(|reply| reply.map_err(Failure::Refused)).collect(),
            Err(error) => changes.iter().map(|_| Err(Failure::Lost(error.clone()))).collect(),
        }
    }

    fn unwatch(self: Box<Self>, limits: &Limits<'_>) {
        self.discard(limits);
    }
}

impl<M: r2d2::ManageConnection> Drop for PooledWatch<M>
where
    M::Connection: LockConnection,
{
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.invalidate();
        }
    }
}

impl<M: r2d2::ManageConnection> fmt::Debug for PooledWatch<M>
where
    M::Connection: LockConnection,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PooledWatch").finish_non_exhaustive()
    }
}
