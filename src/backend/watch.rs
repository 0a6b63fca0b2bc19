//! A connection that watches a key, with a transaction open. It returns to its pool only when nothing is watched and no transaction is
//! open, since its next user's transaction would fail.

use std::fmt;

use redis::{Value, cmd};

use super::WatchedConnection;
use super::codec;
use super::connections::{Checkout, LockConnection, ask, exchange};
use super::errors::Failure;
use super::limits::Limits;
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
        limits: &Limits<'_>,
    ) -> Result<Reply, Failure> {
        let (packed, replies) = codec::packed(key, command);
        let Some(connection) = &mut self.connection else { unreachable!("it is here until the watch ends") };
        let left = limits.answered_by.since(clock::uptime());
        let replies = exchange(&mut **connection, &packed, replies, left).complete();
        match replies.and_then(|replies| codec::read(command, replies)) {
            Ok(Ok(reply)) => {
                // Carried out or not, EXEC ends both the transaction and the watch.
                drop(self.connection.take());
                Ok(reply)
            }
            // Up to 2.4 a server that is over its memory refuses EXEC itself, and the transaction stays open.
            Ok(Err(refusal)) => {
                self.discard(limits);
                Err(Failure::Refused(refusal))
            }
            Err(error) => Err(Failure::Lost(error)),
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
