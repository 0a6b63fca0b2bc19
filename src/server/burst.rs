//! A connection that watches a key. It goes back to its pool only when nothing is watched and no transaction is open: whoever
//! got it then would have a transaction fail for reasons that are not his.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::{ConnectionLike as _, RedisResult, Value};

use super::carrier::{Carrier, exchanged};
use super::form::{self, Answer};
use super::pool::retire;
use super::{Burst, Failure, Limits, failure_of, refusal_in, refused};
use crate::clock;
use crate::key::Key;
use crate::protocol::{Command, Reply};

/// A pool's connection after WATCH.
pub(super) struct Watching<M: r2d2::ManageConnection>
where
    M::Connection: Carrier,
{
    /// Taken out when it goes back to the pool whole.
    connection: Option<r2d2::PooledConnection<M>>,
    multi_is_known: Arc<AtomicBool>,
}

/// Sends a transaction. Where MULTI is refused, what follows would be carried out at once and unguarded; so the first
/// MULTI goes alone, and only after one was accepted do all go together.
pub(super) fn transact(
    connection: &mut impl Carrier,
    multi_is_known: &AtomicBool,
    packed: &[u8],
    replies: usize,
    limits: &Limits<'_>,
) -> RedisResult<Vec<Value>> {
    let left = || limits.answered_by.since(clock::uptime());
    if multi_is_known.load(Ordering::Relaxed) {
        return exchanged(connection, packed, replies, left());
    }
    let (multi, rest) = packed.split_at(form::MULTI.len());
    let mut all = exchanged(connection, multi, 1, left())?;
    if all == [Value::Okay] {
        multi_is_known.store(true, Ordering::Relaxed);
        all.extend(exchanged(connection, rest, replies - 1, left())?);
    }
    Ok(all)
}

impl<M: r2d2::ManageConnection> Watching<M>
where
    M::Connection: Carrier,
{
    /// `multi_is_known` says whether the server has accepted a MULTI before.
    pub(super) fn on(connection: r2d2::PooledConnection<M>, multi_is_known: Arc<AtomicBool>) -> Self {
        Self { connection: Some(connection), multi_is_known }
    }

    fn transact(&mut self, packed: &[u8], replies: usize, limits: &Limits<'_>) -> RedisResult<Vec<Value>> {
        let Some(connection) = &mut self.connection else { unreachable!("it is here until the burst ends") };
        transact(&mut **connection, &self.multi_is_known, packed, replies, limits)
    }

    /// Sends one command that ends a state of the connection, and gives it back if that is what the server did.
    fn end_with(mut self, name: &str, limits: &Limits<'_>) {
        let Some(mut connection) = self.connection.take() else { return };
        connection.answer_within(limits.answered_by.since(clock::uptime()));
        if !matches!(connection.req_packed_command(&redis::cmd(name).get_packed_command()), Ok(Value::Okay)) {
            retire(connection);
        }
    }
}

impl<M: r2d2::ManageConnection> Burst for Watching<M>
where
    M::Connection: Carrier,
{
    fn exec(
        mut self: Box<Self>,
        key: &Key,
        command: &Command,
        limits: &Limits<'_>,
    ) -> Result<Reply, Failure> {
        let (packed, replies) = form::packed(key, command);
        let answer = self.transact(&packed, replies, limits).and_then(|replies| form::read(command, replies));
        match answer {
            Ok(Answer::Reply(reply)) => {
                // Carried out or not, EXEC ends both the transaction and the watching.
                drop(self.connection.take());
                Ok(reply)
            }
            // Up to 2.4 a server that is over its memory refuses EXEC itself, and MULTI stays open.
            Ok(Answer::Error(error)) => {
                self.end_with("DISCARD", limits);
                Err(refused(&error))
            }
            Err(error) if refusal_in(&error).is_some() => Err(refused(&error)),
            Err(error) => Err(failure_of(error)),
        }
    }

    fn leave(self: Box<Self>, limits: &Limits<'_>) {
        self.end_with("UNWATCH", limits);
    }
}

impl<M: r2d2::ManageConnection> Drop for Watching<M>
where
    M::Connection: Carrier,
{
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            retire(connection);
        }
    }
}

impl<M: r2d2::ManageConnection> fmt::Debug for Watching<M>
where
    M::Connection: Carrier,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watching").finish_non_exhaustive()
    }
}
