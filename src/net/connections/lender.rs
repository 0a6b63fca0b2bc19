//! A user's own pool, which other code may use as well: it lends its connections, each for one command. Whose turn it is there is left to r2d2.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;
use std::{mem, ops::DerefMut};

use redis::{ConnectionAddr, ConnectionLike as _, IntoConnectionInfo as _, RedisConnectionInfo, RedisResult};

use super::transport::Transport;
use crate::values::clock;

/// A connection of the redis crate, which may be lent.
pub(super) type CrateConnection = Box<dyn DerefMut<Target = redis::Connection> + Send>;

/// How long r2d2 is waited for at a time: it opens a connection in place of one that broke only when it is asked.
const TURN: Duration = Duration::from_millis(50);
/// The same while it has none, at most: each time that it is asked then, it opens one more.
const OPENING_TURN: Duration = Duration::from_secs(1);

/// Lends the connections of a pool, whatever its manager.
pub(crate) trait Lender: Send + Sync {
    /// Returns a connection that is free.
    fn lend_at_once(&self) -> Option<Transport>;

    /// Waits at most `limit` for a connection, and while there are none at most `turn` for word of why. Fails in r2d2's words, if it has any.
    fn lend_within(&self, limit: Duration, turn: Duration) -> Result<Transport, Option<String>>;

    /// Returns how many connections it has open.
    fn open(&self) -> u32;

    /// Returns how many it may have.
    fn size(&self) -> u32;
}

impl<M: r2d2::ManageConnection<Connection = redis::Connection>> Lender for r2d2::Pool<M> {
    fn lend_at_once(&self) -> Option<Transport> {
        // `try_get` would not call the pool's event handler.
        let is_free = self.state().idle_connections > 0;
        let lent = is_free.then(|| self.get_timeout(Duration::ZERO).ok()).flatten();
        lent.map(|lent| Transport::lent(Box::new(lent)))
    }

    fn lend_within(&self, limit: Duration, turn: Duration) -> Result<Transport, Option<String>> {
        let until = clock::uptime().after(limit);
        loop {
            let turn = if self.open() > 0 { TURN } else { OPENING_TURN.min(turn) };
            match self.get_timeout(until.since(clock::uptime()).min(turn)) {
                Ok(lent) => return Ok(Transport::lent(Box::new(lent))),
                Err(error) => {
                    let words = error.to_string();
                    // It reports a cause once, after its own words and a colon.
                    if words.contains(": ") {
                        return Err(Some(words));
                    }
                    if clock::uptime() >= until {
                        return Err(None);
                    }
                }
            }
        }
    }

    fn open(&self) -> u32 {
        self.state().connections
    }

    fn size(&self) -> u32 {
        self.max_size()
    }
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
    fn a_connection_that_is_closed_reports_itself_closed() {
        assert!(!closed_connection().unwrap().is_open());
    }
}
