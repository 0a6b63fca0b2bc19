//! What carries bytes to the server and replies back: a socket,
//! or the redis crate's connection, for TLS or lent by a pool.

use std::net::Ipv4Addr;
use std::ops::DerefMut;
use std::sync::Arc;
use std::time::Duration;
use std::{io, mem};

use proto::values::Uptime;
use redis::{
    Client, ConnectionAddr, ConnectionInfo, ConnectionLike as _, IntoConnectionInfo as _,
    RedisConnectionInfo, RedisResult, Value,
};

#[cfg(test)]
use super::fake::FakeConnection;
pub(super) use super::socket::{Longest, Spin};
use super::socket::{Socket, in_steps};
use crate::net::patience::Looks;
use crate::system::clock;

/// A connection of the redis crate, which may be lent.
type CrateConnection = Box<dyn DerefMut<Target = redis::Connection> + Send>;

/// An open way to the server. After an error it must not be used again (I8).
pub(crate) enum Transport {
    Socket(Socket),
    Crate {
        connection: CrateConnection,
        /// How long a read or a write blocks at most.
        timeout: Option<Duration>,
    },
    #[cfg(test)]
    Fake(FakeConnection),
}

impl Transport {
    /// Connects within `limit`, and sends nothing yet.
    pub(super) fn open(info: &ConnectionInfo, limit: Duration, looks: &Arc<Looks>) -> RedisResult<Self> {
        let deadline = clock::uptime().after(limit);
        if let Some(socket) = Socket::connect(info.addr(), info.tcp_settings(), deadline, looks) {
            return Ok(Self::Socket(socket?));
        }
        let tcp = info.tcp_settings().clone().set_linger_time(Duration::ZERO);
        let silent = RedisConnectionInfo::default().set_skip_set_lib_name();
        let client = Client::open(info.clone().set_redis_settings(silent).set_tcp_settings(tcp))?;
        let connection = Box::new(Box::new(client.get_connection_with_timeout(limit)?));
        Ok(Self::Crate { connection, timeout: None })
    }

    /// A connection of the user's pool.
    pub(super) fn lent(connection: CrateConnection) -> Self {
        Self::Crate { connection, timeout: None }
    }

    /// Closes one that is lent before it goes back, as replies may be missing, or a transaction be open.
    pub(super) fn close(self) {
        match self {
            Self::Socket(_) => {}
            Self::Crate { connection, .. } => close(connection),
            #[cfg(test)]
            Self::Fake(fake) => fake.is_closed.store(true, std::sync::atomic::Ordering::Relaxed),
        }
    }

    pub(super) fn write(&mut self, bytes: &[u8], now: Uptime, deadline: Uptime) -> RedisResult<()> {
        match self {
            Self::Socket(socket) => Ok(socket.write(bytes, now, deadline)?),
            Self::Crate { connection, timeout } => {
                limit(connection, timeout, deadline)?;
                connection.send_packed_command(bytes)
            }
            #[cfg(test)]
            Self::Fake(fake) => {
                fake.write(bytes);
                Ok(())
            }
        }
    }

    /// Returns true if replies may be received further after a
    /// timeout. The redis crate's connection skips a reply for each.
    pub(super) fn resumes(&self) -> bool {
        matches!(self, Self::Socket(_))
    }

    /// Receives the next reply. A socket keeps no more of it than `longest`.
    pub(super) fn receive(&mut self, deadline: Uptime, longest: Longest, spin: Spin) -> RedisResult<Value> {
        match self {
            Self::Socket(socket) => socket.receive(deadline, longest, spin),
            Self::Crate { connection, timeout } => loop {
                limit(connection, timeout, deadline)?;
                let reply = connection.recv_response()?;
                // A connection of the user's pool may be pushed to, in RESP3.
                if !matches!(reply, Value::Push { .. }) {
                    return Ok(reply);
                }
            },
            #[cfg(test)]
            Self::Fake(fake) => fake.receive(),
        }
    }
}

fn limit(
    connection: &redis::Connection,
    timeout: &mut Option<Duration>,
    deadline: Uptime,
) -> RedisResult<()> {
    let left = deadline.since(clock::uptime());
    if left.is_zero() {
        return Err(io::Error::from(io::ErrorKind::TimedOut).into());
    }
    let wanted = Some(in_steps(left));
    if wanted != *timeout {
        connection.set_read_timeout(wanted)?;
        connection.set_write_timeout(wanted)?;
        *timeout = wanted;
    }
    Ok(())
}

/// Closes a connection that is lent, so that its pool finds it broken (I8). If that fails, the pool never gets it back.
pub(super) fn close(mut lent: CrateConnection) {
    if !lent.is_open() {
        return;
    }
    match closed_connection() {
        // The old one is closed by being dropped; its replacement reports itself closed.
        Ok(closed) => **lent = closed,
        Err(error) => {
            mem::forget(lent);
            log::warn!(
                target: "setnx_lock",
                "a broken connection could not be closed, and its pool has one less from now on: {error}"
            );
        }
    }
}

/// Returns a connection that has been closed. The one way to make [`redis::Connection`] report itself closed is to read
/// the end of its stream, so this one is opened to a listener of our own that hangs up.
#[allow(clippy::disallowed_types, reason = "pools of the user's own are in no simulation")]
fn closed_connection() -> RedisResult<redis::Connection> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
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
    fn a_connection_that_is_closed_reports_itself_closed() {
        assert!(!closed_connection().unwrap().is_open());
    }
}
