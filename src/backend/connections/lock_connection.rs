//! What a pooled connection must be able to do beyond carrying commands, and the one exchange of commands for replies that the
//! library's commands go through: refusals are replies there, whatever the connection makes of them.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use redis::{
    Cmd, ConnectionAddr, ConnectionLike as _, IntoConnectionInfo, RedisConnectionInfo, RedisResult, Value,
};

use crate::backend::errors::{ConnectError, Refusal, TransportError};
use crate::version::Version;

/// A connection of a pool that a [`Locker`](crate::Locker) can work with.
///
/// After an I/O or protocol error a connection must never be used again: a late reply would be taken for the next command's, and
/// for SETNX that would grant a lock twice. The redis crate's own connection stays in use after some such errors, so the
/// library must be able to invalidate it.
///
/// Implemented for [`redis::Connection`], so pools of [`redis::Client`] and of sentinel clients work as they are, and for
/// this library's own [`Connection`](crate::Connection). For another type, wrap it and implement this trait: keep a flag, set
/// it in `invalidate`, and return it from your manager's [`has_broken`](r2d2::ManageConnection::has_broken).
pub trait LockConnection: redis::ConnectionLike + Send + 'static {
    /// Whether commands on different keys may be packed one behind the other, as those of a call for several keys are.
    /// Not where keys live on different servers, as in a cluster.
    ///
    /// A type that sets this should have an [`exchange`](Self::exchange) of its own that stops at the first missing reply and
    /// keeps those before it. The default one calls `req_packed_commands` of the redis crate, which may wait for each reply and keeps
    /// none.
    const PIPELINES: bool = false;

    /// Whether the connection is open as far as is known, so that a command can be sent without [`connect`](Self::connect).
    fn is_connected(&self) -> bool {
        true
    }

    /// Opens the connection, if it opens itself when it is first used. May block for as long as connecting may take, and so does the call
    /// that needs it.
    ///
    /// # Errors
    ///
    /// Why it could not be opened. The connection is returned to its pool then.
    fn connect(&mut self) -> Result<(), ConnectError> {
        Ok(())
    }

    /// Takes the connection out of use: from now on its pool's manager must find it broken. Returns whether that succeeded; if
    /// not, the library never returns the connection to its pool, which has one less from then on.
    fn invalidate(&mut self) -> bool;

    /// Whether the connection is likely closed and should be invalidated rather than used.
    fn is_suspect(&self) -> bool {
        false
    }

    /// Returns the version of the server, if it was asked when the connection was opened. With it, a command that the server is too
    /// old for is refused before anything is sent.
    fn server_version(&self) -> Option<Version> {
        None
    }

    /// Limits the wait for the next reply to `limit`, if the connection supports a shorter limit than its own.
    fn set_reply_timeout(&mut self, _limit: Duration) {}

    /// Sends packed commands and appends their replies to `replies`, refusals among them as [`Value::ServerError`]. All `count`
    /// replies together may take `limit`, where the connection supports limits.
    ///
    /// # Errors
    ///
    /// The error that ended the replies; a refusal of the only command may be returned so, too. The replies before it count. The
    /// library invalidates the connection, unless the error is a refusal.
    fn exchange(
        &mut self,
        packed: &[u8],
        count: usize,
        limit: Duration,
        replies: &mut Vec<Value>,
    ) -> RedisResult<()> {
        self.set_reply_timeout(limit);
        if count == 1 {
            replies.push(self.req_packed_command(packed)?);
        } else {
            replies.extend(self.req_packed_commands(packed, 0, count)?);
        }
        Ok(())
    }
}

/// The replies to packed commands, in their order.
#[derive(Debug)]
pub(in crate::backend) struct Exchange {
    /// Refusals are among them.
    pub(in crate::backend) replies: Vec<Value>,
    /// Why there are fewer than expected, if an error is the reason.
    pub(in crate::backend) ended: Option<TransportError>,
}

impl Exchange {
    /// Returns the replies if nothing ended them early.
    pub(in crate::backend) fn complete(self) -> Result<Vec<Value>, TransportError> {
        self.ended.map_or(Ok(self.replies), Err)
    }
}

/// Sends packed commands and receives their replies: the one place where a connection's errors and a server's refusals are kept apart.
pub(in crate::backend) fn exchange(
    connection: &mut impl LockConnection,
    packed: &[u8],
    count: usize,
    limit: Duration,
) -> Exchange {
    let mut replies = Vec::with_capacity(count);
    let exchanged = {
        let mut guarded = InvalidatedByPanic { connection, returned: false };
        let exchanged = guarded.connection.exchange(packed, count, limit, &mut replies);
        guarded.returned = true;
        exchanged
    };
    let Err(error) = exchanged else {
        return Exchange { replies, ended: None };
    };
    // Of several commands it would be unknown which was refused.
    if let Some(refusal) = Refusal::of(&error)
        && count == 1
        && replies.is_empty()
        && let Ok(reply) = redis::parse_redis_value(format!("-{}\r\n", refusal.text()).as_bytes())
    {
        return Exchange { replies: vec![reply], ended: None };
    }
    Exchange { replies, ended: Some(error.into()) }
}

/// A connection during an exchange. After a panic there, replies may be left that would be taken for those of the next command (I8).
struct InvalidatedByPanic<'a, C: LockConnection> {
    connection: &'a mut C,
    /// Whether the exchange has returned.
    returned: bool,
}

impl<C: LockConnection> Drop for InvalidatedByPanic<'_, C> {
    fn drop(&mut self) {
        if !self.returned {
            self.connection.invalidate();
        }
    }
}

/// Sends one command and returns its reply, or the server's refusal.
pub(in crate::backend) fn ask(
    connection: &mut impl LockConnection,
    command: &Cmd,
    limit: Duration,
) -> Result<Result<Value, Refusal>, TransportError> {
    let replies = exchange(connection, &command.get_packed_command(), 1, limit).complete()?;
    match replies.into_iter().next() {
        Some(Value::ServerError(error)) => Ok(Err(error.into())),
        Some(reply) => Ok(Ok(reply)),
        None => Err(TransportError::new(io::ErrorKind::InvalidData, "the connection returned no reply")),
    }
}

/// Receives `count` replies. A server that refuses the first command and hangs up, because it has no room for a client, has read
/// nothing else.
pub(super) fn collect(
    count: usize,
    replies: &mut Vec<Value>,
    mut next: impl FnMut() -> RedisResult<Value>,
) -> RedisResult<()> {
    for _ in 0..count {
        match next() {
            Ok(reply) => replies.push(reply),
            Err(error)
                if error.is_connection_dropped() && matches!(replies.as_slice(), [Value::ServerError(_)]) =>
            {
                break;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Receives a reply, and skips what a server pushes in between.
fn next_reply(connection: &mut redis::Connection) -> RedisResult<Value> {
    loop {
        match connection.recv_response()? {
            Value::Push { .. } => {}
            reply => return Ok(reply),
        }
    }
}

impl LockConnection for redis::Connection {
    const PIPELINES: bool = true;

    fn invalidate(&mut self) -> bool {
        if !self.is_open() {
            return true;
        }
        // The old one is closed by being dropped; its replacement reports itself closed.
        match closed_connection() {
            Ok(closed) => {
                *self = closed;
                true
            }
            Err(_) => false,
        }
    }

    fn exchange(
        &mut self,
        packed: &[u8],
        count: usize,
        _limit: Duration,
        replies: &mut Vec<Value>,
    ) -> RedisResult<()> {
        // The redis crate's own pipelining waits for each reply, also when the first has not come in time.
        self.send_packed_command(packed)?;
        collect(count, replies, || next_reply(self))
    }
}

/// Returns a connection that has been closed. The one way to make [`redis::Connection`] report itself closed is to read the
/// end of its stream, so this one is opened to a listener of our own that hangs up.
fn closed_connection() -> RedisResult<redis::Connection> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = ConnectionAddr::Tcp(Ipv4Addr::LOCALHOST.to_string(), listener.local_addr()?.port());
    let silent = RedisConnectionInfo::default().set_skip_set_lib_name();
    let info = address.into_connection_info()?.set_redis_settings(silent);
    let mut connection = redis::Client::open(info)?.get_connection_with_timeout(Duration::from_secs(1))?;
    drop(listener.accept()?);
    connection.set_read_timeout(Some(Duration::from_secs(1)))?;
    let _end = connection.recv_response();
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalidated_connection_reports_itself_closed() {
        let mut connection = closed_connection().unwrap();
        assert!(!connection.is_open());
        assert!(connection.invalidate());
        assert!(!connection.is_open());
    }
}
