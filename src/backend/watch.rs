//! A connection that watches a key. It returns to its pool only when nothing is watched and no transaction is open, since its next
//! user's transaction would fail.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::{Value, cmd};

use super::WatchedConnection;
use super::codec;
use super::connections::{LockConnection, ask, exchange, invalidate};
use super::errors::{Failure, TransportError};
use super::limits::Limits;
use crate::clock;
use crate::key::Key;
use crate::protocol::{Command, Reply};

/// A pool's connection after WATCH.
pub(super) struct PooledWatch<M: r2d2::ManageConnection>
where
    M::Connection: LockConnection,
{
    /// Taken out when it returns to the pool in good order.
    connection: Option<r2d2::PooledConnection<M>>,
    multi_is_known: Arc<AtomicBool>,
}

/// Sends a transaction. Where MULTI is refused, what follows would be carried out at once and unguarded; so the first
/// MULTI goes alone, and all go together only after one was accepted.
pub(super) fn transact(
    connection: &mut impl LockConnection,
    multi_is_known: &AtomicBool,
    packed: &[u8],
    replies: usize,
    limits: &Limits<'_>,
) -> Result<Vec<Value>, TransportError> {
    let mut send = |packed: &[u8], replies| {
        let left = limits.answered_by.since(clock::uptime());
        exchange(connection, packed, replies, left).complete()
    };
    if multi_is_known.load(Ordering::Relaxed) {
        return send(packed, replies);
    }
    let (multi, rest) = packed.split_at(codec::MULTI.len());
    let mut all = send(multi, 1)?;
    if all == [Value::Okay] {
        multi_is_known.store(true, Ordering::Relaxed);
        all.extend(send(rest, replies - 1)?);
    }
    Ok(all)
}

impl<M: r2d2::ManageConnection> PooledWatch<M>
where
    M::Connection: LockConnection,
{
    /// `multi_is_known` says whether the server has accepted a MULTI before.
    pub(super) fn on(connection: r2d2::PooledConnection<M>, multi_is_known: Arc<AtomicBool>) -> Self {
        Self { connection: Some(connection), multi_is_known }
    }

    /// Sends one command that ends a state of the connection, and returns the connection to its pool if the server carried it out.
    fn end_with(mut self, name: &str, limits: &Limits<'_>) {
        let Some(mut connection) = self.connection.take() else { return };
        let left = limits.answered_by.since(clock::uptime());
        if !matches!(ask(&mut *connection, &cmd(name), left), Ok(Ok(Value::Okay))) {
            invalidate(connection);
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
        let replies = transact(&mut **connection, &self.multi_is_known, &packed, replies, limits);
        match replies.and_then(|replies| codec::read(command, replies)) {
            Ok(Ok(reply)) => {
                // Carried out or not, EXEC ends both the transaction and the watch.
                drop(self.connection.take());
                Ok(reply)
            }
            // Up to 2.4 a server that is over its memory refuses EXEC itself, and MULTI stays open.
            Ok(Err(refusal)) => {
                self.end_with("DISCARD", limits);
                Err(Failure::Refused(refusal))
            }
            Err(error) => Err(Failure::Lost(error)),
        }
    }

    fn unwatch(self: Box<Self>, limits: &Limits<'_>) {
        self.end_with("UNWATCH", limits);
    }
}

impl<M: r2d2::ManageConnection> Drop for PooledWatch<M>
where
    M::Connection: LockConnection,
{
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            invalidate(connection);
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
