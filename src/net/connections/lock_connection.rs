//! What a pooled connection must be able to do beyond carrying commands, and the one exchange of commands for replies that the
//! library's commands go through: refusals are replies there, whatever the connection makes of them.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use redis::{
    Cmd, ConnectionAddr, ConnectionLike as _, IntoConnectionInfo, RedisConnectionInfo, RedisResult, Value,
};

use super::server_info::Known;
use crate::net::errors::{Refusal, TransportError};
use crate::values::clock;

/// A connection that carries a lock's commands.
///
/// After an I/O or protocol error it is never used again: a late reply would be taken for the next command's, and for SETNX that would grant
/// a lock twice (I8).
pub(crate) trait LockConnection: Send + 'static {
    /// Takes the connection out of use: from now on its pool's manager must find it broken. Returns whether that succeeded; if
    /// not, it must not return to its pool.
    fn invalidate(&mut self) -> bool;

    /// Returns what is known of the server, if it was asked when the connection was opened. With it, a command that the server is too
    /// old for is refused before anything is sent.
    fn server(&self) -> Known {
        Known::default()
    }

    /// Returns why the server settles, if it did when the connection was opened.
    fn settling(&self) -> Option<Refusal> {
        None
    }

    /// Sends packed commands and appends their replies to `replies`, refusals among them as [`Value::ServerError`]. All `count`
    /// replies together may take `limit`.
    ///
    /// # Errors
    ///
    /// The error that ended the replies; a refusal of the only command may be returned so, too. The replies before it count.
    fn exchange(
        &mut self,
        packed: &[u8],
        count: usize,
        limit: Duration,
        replies: &mut Vec<Value>,
    ) -> RedisResult<()>;
}

/// Sends packed commands and receives their replies, refusals among them: the one place where a connection's errors and a server's refusals
/// are kept apart. Returns why there are fewer than expected, if an error is the reason.
pub(in crate::net) fn exchange(
    connection: &mut impl LockConnection,
    packed: &[u8],
    count: usize,
    limit: Duration,
    replies: &mut Vec<Value>,
) -> Option<TransportError> {
    let exchanged = {
        let mut guarded = InvalidatedByPanic { connection, returned: false };
        let exchanged = guarded.connection.exchange(packed, count, limit, replies);
        guarded.returned = true;
        exchanged
    };
    let error = exchanged.err()?;
    // Of several commands it would be unknown which was refused.
    if let Some(refusal) = Refusal::of(&error)
        && count == 1
        && replies.is_empty()
        && let Ok(reply) = redis::parse_redis_value(format!("-{}\r\n", refusal.text()).as_bytes())
    {
        replies.push(reply);
        return None;
    }
    Some(error.into())
}

/// A connection during an exchange. After a panic there, replies may be left that would be taken for those of the next command (I8).
struct InvalidatedByPanic<'a, C: LockConnection> {
    connection: &'a mut C,
    /// True if the exchange has returned.
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
pub(in crate::net) fn ask(
    connection: &mut impl LockConnection,
    command: &Cmd,
    limit: Duration,
) -> Result<Result<Value, Refusal>, TransportError> {
    let mut replies = Vec::new();
    if let Some(error) = exchange(connection, &command.get_packed_command(), 1, limit, &mut replies) {
        return Err(error);
    }
    match replies.pop() {
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
        limit: Duration,
        replies: &mut Vec<Value>,
    ) -> RedisResult<()> {
        let deadline = clock::uptime().after(limit);
        // A time limit of zero is an error.
        let left = || Some(deadline.since(clock::uptime()).max(Duration::from_millis(1)));
        self.set_write_timeout(left())?;
        // The redis crate's own pipelining waits for each reply, also when the first has not come in time.
        self.send_packed_command(packed)?;
        collect(count, replies, || {
            self.set_read_timeout(left())?;
            next_reply(self)
        })
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
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    use super::*;
    use crate::net::connections::fake::FakeConnection;

    #[test]
    fn a_connection_that_panics_is_not_used_again() {
        // Without the panic hook, whose backtrace takes long.
        let mut connection = FakeConnection::answering(|_| resume_unwind(Box::new("on purpose")));
        let sent = AssertUnwindSafe(|| {
            exchange(&mut connection, b"GET k", 1, Duration::from_secs(1), &mut Vec::new())
        });
        assert!(catch_unwind(sent).is_err());
        assert!(connection.is_invalidated);
    }

    #[test]
    fn an_invalidated_connection_reports_itself_closed() {
        let mut connection = closed_connection().unwrap();
        assert!(!connection.is_open());
        assert!(connection.invalidate());
        assert!(!connection.is_open());
    }
}
