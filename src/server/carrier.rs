//! What a pooled connection must be able to do beyond carrying commands: to be taken out of use.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use redis::{
    ConnectionAddr, ConnectionLike as _, IntoConnectionInfo, RedisConnectionInfo, RedisResult, Value,
};

use crate::version::Version;

/// A connection of a pool that a [`Locker`](crate::Locker) can work with.
///
/// After an I/O or protocol error a connection must never be used again: an answer that comes late would be taken for
/// the next command's, and for SETNX that would grant a lock twice. The redis crate's own connection stays in use after
/// some such errors, so the library has to be able to retire it.
///
/// Implemented for [`redis::Connection`], so pools of [`redis::Client`] and of sentinel clients work as they are, and for
/// this library's own [`Connection`](crate::Connection). For another type, wrap it and implement this: keep a flag, set
/// it in `retire`, and answer it in your manager's [`has_broken`](r2d2::ManageConnection::has_broken).
pub trait Carrier: redis::ConnectionLike + Send + 'static {
    /// Whether commands on different keys may be packed one behind the other, so that threads can share a trip to the server
    /// ([`Locker::combining`](crate::Locker::combining)). Not where keys live on different servers, as in a cluster.
    ///
    /// A type that says so should have an [`exchange`](Self::exchange) of its own, which stops at the first answer that does not come, and
    /// keeps those before it: the one that is here leaves that to
    /// [`req_packed_commands`](redis::ConnectionLike::req_packed_commands), which may wait for each of the answers, and keeps none.
    const COMBINES: bool = false;

    /// Takes the connection out of use: from now on its pool's manager must find it broken. Returns whether that could be
    /// done; if not, the library keeps the connection from its pool for good, which has one less then.
    fn retire(&mut self) -> bool;

    /// Whether the connection is likely dead and should be retired rather than used.
    fn is_doubtful(&self) -> bool {
        false
    }

    /// The version of the server, if it was asked when the connection was opened: what it is too old for is then known before
    /// anything is sent.
    fn server_version(&self) -> Option<Version> {
        None
    }

    /// Lets the next answer take at most `limit`, if the connection knows a shorter limit than its own.
    fn answer_within(&mut self, _limit: Duration) {}

    /// Sends commands that were packed one behind the other, and appends their replies to `replies`; those that the server refused
    /// are among them, as [`Value::ServerError`]. All `count` answers together may take `limit`, where the connection knows limits.
    ///
    /// # Errors
    ///
    /// Whatever kept an answer from coming, unless that is what the only command was refused with. The replies that came before it
    /// count; the connection is retired.
    fn exchange(
        &mut self,
        packed: &[u8],
        count: usize,
        limit: Duration,
        replies: &mut Vec<Value>,
    ) -> RedisResult<()> {
        self.answer_within(limit);
        if count == 1 {
            replies.push(self.req_packed_command(packed)?);
        } else {
            replies.extend(self.req_packed_commands(packed, 0, count)?);
        }
        Ok(())
    }
}

/// Sends commands that belong together, and returns their replies.
pub(super) fn exchanged(
    connection: &mut impl Carrier,
    packed: &[u8],
    count: usize,
    limit: Duration,
) -> RedisResult<Vec<Value>> {
    let mut replies = Vec::with_capacity(count);
    connection.exchange(packed, count, limit, &mut replies)?;
    Ok(replies)
}

impl Carrier for redis::Connection {
    const COMBINES: bool = true;

    fn retire(&mut self) -> bool {
        if !self.is_open() {
            return true;
        }
        // The old one is closed by being dropped; what takes its place says that it is closed.
        match closed_connection() {
            Ok(closed) => {
                *self = closed;
                true
            }
            Err(error) => {
                log::error!(target: "setnx_lock", "cannot take a broken connection out of use, so its pool has one less: {error}");
                false
            }
        }
    }

    fn exchange(
        &mut self,
        packed: &[u8],
        count: usize,
        _limit: Duration,
        replies: &mut Vec<Value>,
    ) -> RedisResult<()> {
        // The redis crate's own way of doing it waits for each of the answers, also when the first has not come in time.
        if count == 1 {
            replies.push(self.req_packed_command(packed)?);
            return Ok(());
        }
        self.send_packed_command(packed)?;
        collect(count, replies, || next_reply(self))
    }
}

/// Receives so many replies. A server that says no first and hangs up, for want of room for a client, has said all that it has to say.
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

/// Receives a reply, and leaves out what a server pushes in between.
pub(super) fn next_reply(connection: &mut redis::Connection) -> RedisResult<Value> {
    loop {
        match connection.recv_response()? {
            Value::Push { .. } => {}
            reply => return Ok(reply),
        }
    }
}

/// Returns a connection that has been closed: the one way to make [`redis::Connection`] say so of itself is to read the
/// end of its stream, so this one was opened to a listener of our own that hung up.
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
    fn a_retired_connection_says_that_it_is_closed() {
        let mut connection = closed_connection().unwrap();
        assert!(!connection.is_open());
        assert!(connection.retire());
        assert!(!connection.is_open());
    }
}
