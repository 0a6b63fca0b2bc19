//! A connection of our own: carries commands, and is never used again after the first error that is not the server's word.

use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use redis::{ConnectionLike, RedisError, RedisResult, Value};

use super::carrier::{Carrier, collect, next_reply};
use super::health::Health;
use super::{not_understood, refusal_in};
use crate::clock::{self, Uptime};
use crate::version::Version;

/// How long a connection that nothing is said on is taken to be alive. Below any `timeout` that a server may sensibly have.
pub(super) const GOOD_FOR: Duration = Duration::from_secs(10);

/// A connection opened by a [`Manager`](crate::Manager). Carries any command of the redis crate; broken for good after the first I/O or
/// protocol error (I8).
pub struct Connection {
    inner: redis::Connection,
    address: String,
    /// What the server said it was, if it was asked.
    version: Option<Version>,
    /// Set before a command and cleared by a clean reply, so that it also stays set if that is cut short by a panic.
    broken: bool,
    command_timeout: Duration,
    read_timeout: Duration,
    /// When it was last given back to its pool, or opened.
    last_used: Uptime,
    /// How many connections had been found closed when this one was opened.
    opened_at: u64,
    health: Arc<Health>,
}

impl Connection {
    /// Takes charge of a connection whose answers take at most `command_timeout`, as is set on it.
    pub(super) fn opened(
        inner: redis::Connection,
        address: String,
        version: Option<Version>,
        command_timeout: Duration,
        health: Arc<Health>,
    ) -> Self {
        let (read_timeout, opened_at, last_used) = (command_timeout, health.closures(), clock::uptime());
        Self {
            inner,
            address,
            version,
            broken: false,
            command_timeout,
            read_timeout,
            last_used,
            opened_at,
            health,
        }
    }

    /// Notes that it goes back to its pool.
    pub(super) fn rests(&mut self) {
        self.last_used = clock::uptime();
    }

    fn set_read_timeout(&mut self, wanted: Duration) {
        if wanted != self.read_timeout && self.inner.set_read_timeout(Some(wanted)).is_ok() {
            self.read_timeout = wanted;
        }
    }

    fn guarded<T>(&mut self, work: impl FnOnce(&mut Self) -> RedisResult<T>) -> RedisResult<T> {
        if self.broken {
            let text = "this connection saw an error and is not used again";
            return Err(io::Error::new(io::ErrorKind::NotConnected, text).into());
        }
        self.broken = true;
        let error = match work(self) {
            Err(error) if refusal_in(&error).is_none() => error,
            clean => {
                self.broken = false;
                return clean;
            }
        };
        if error.is_connection_dropped() {
            self.health.found_closed();
        }
        Err(told(&error, &self.address, self.read_timeout))
    }
}

impl Carrier for Connection {
    const COMBINES: bool = true;

    fn retire(&mut self) -> bool {
        self.broken = true;
        true
    }

    fn is_doubtful(&self) -> bool {
        // A server that closes idle connections does not say so before something is sent, whose outcome is unknown then.
        let stale = clock::uptime().since(self.last_used) > GOOD_FOR;
        stale || self.opened_at < self.health.closures()
    }

    fn server_version(&self) -> Option<Version> {
        self.version
    }

    fn answer_within(&mut self, limit: Duration) {
        // In steps of 10 ms, so that the usual case, a limit that has just begun to run, costs no system call.
        let steps = u64::try_from(limit.as_millis() / 10 + 1).unwrap_or(u64::MAX);
        self.set_read_timeout(Duration::from_millis(steps.saturating_mul(10)).min(self.command_timeout));
    }

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
            return Ok(());
        }
        let (began, limit) = (clock::uptime(), limit.min(self.command_timeout));
        self.guarded(|this| {
            this.inner.send_packed_command(packed)?;
            collect(count, replies, || {
                // All of them together are to be there by then.
                this.answer_within(limit.saturating_sub(clock::uptime().since(began)));
                next_reply(&mut this.inner)
            })
        })
    }
}

impl ConnectionLike for Connection {
    fn req_packed_command(&mut self, cmd: &[u8]) -> RedisResult<Value> {
        self.guarded(|this| this.inner.req_packed_command(cmd))
    }

    fn req_packed_commands(&mut self, cmd: &[u8], offset: usize, count: usize) -> RedisResult<Vec<Value>> {
        self.guarded(|this| this.inner.req_packed_commands(cmd, offset, count))
    }

    fn req_command(&mut self, cmd: &redis::Cmd) -> RedisResult<Value> {
        self.guarded(|this| this.inner.req_command(cmd))
    }

    fn get_db(&self) -> i64 {
        self.inner.get_db()
    }

    fn check_connection(&mut self) -> bool {
        !self.broken && self.inner.check_connection()
    }

    fn is_open(&self) -> bool {
        !self.broken && self.inner.is_open()
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("version", &self.version)
            .field("broken", &self.broken)
            .field("command_timeout", &self.command_timeout)
            .finish_non_exhaustive()
    }
}

/// The same error in words that say who did not do what: the system's are "Resource temporarily unavailable" when time was
/// up.
pub(super) fn told(error: &RedisError, address: &str, limit: Duration) -> RedisError {
    let (kind, text) = if error.is_timeout() {
        (io::ErrorKind::TimedOut, format!("{address} gave no answer within {limit:?}"))
    } else if error.is_connection_refusal() {
        (io::ErrorKind::ConnectionRefused, format!("{address}: {error}"))
    } else if error.is_connection_dropped() {
        (io::ErrorKind::ConnectionReset, format!("{address} closed the connection: {error}"))
    } else if error.is_io_error() {
        (io::ErrorKind::Other, format!("{address}: {error}"))
    } else {
        return not_understood(error, address);
    };
    io::Error::new(kind, text).into()
}
