//! A connection of the library's own: carries commands, and is never used again after the first error that is not a refusal.

use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use redis::{ConnectionLike, RedisResult, Value};

use super::health::Health;
use super::lock_connection::{LockConnection, collect, next_reply};
use crate::backend::errors::{Refusal, TransportError};
use crate::clock::{self, Uptime};
use crate::version::Version;

/// How long an idle connection is assumed to be open. Below any `timeout` that a server may sensibly have.
pub(in crate::backend) const TRUSTED_WHILE_IDLE: Duration = Duration::from_secs(10);

/// A connection opened by a [`Manager`](crate::Manager). Carries any command of the redis crate; broken for good after the first I/O or
/// protocol error (I8).
pub struct Connection {
    inner: redis::Connection,
    address: String,
    /// As the server reported it, if it was asked.
    version: Option<Version>,
    /// Set before a command and cleared by a clean reply, so that it stays set if a panic cuts the command short.
    broken: bool,
    command_timeout: Duration,
    read_timeout: Duration,
    /// When it was last returned to its pool, or opened.
    last_used: Uptime,
    /// How many connections had been found closed when this one was opened.
    opened_at: u64,
    health: Arc<Health>,
}

impl Connection {
    /// Wraps a connection whose read time-out is `command_timeout`.
    pub(super) fn new(
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

    /// Notes that it returns to its pool.
    pub(super) fn returned(&mut self) {
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
            Err(error) if Refusal::of(&error).is_none() => error,
            clean => {
                self.broken = false;
                return clean;
            }
        };
        if error.is_connection_dropped() {
            self.health.found_closed();
        }
        Err(TransportError::on(&self.address, self.read_timeout, &error).into())
    }
}

impl LockConnection for Connection {
    const PIPELINES: bool = true;

    fn invalidate(&mut self) -> bool {
        self.broken = true;
        true
    }

    fn is_suspect(&self) -> bool {
        // That a server has closed an idle connection shows only after a command was sent, whose outcome is unknown then.
        let stale = clock::uptime().since(self.last_used) > TRUSTED_WHILE_IDLE;
        stale || self.opened_at < self.health.closures()
    }

    fn server_version(&self) -> Option<Version> {
        self.version
    }

    fn set_reply_timeout(&mut self, limit: Duration) {
        // In steps of 10 ms: the usual limit, which has just begun to run, then costs no system call.
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
        let (began, limit) = (clock::uptime(), limit.min(self.command_timeout));
        self.guarded(|this| {
            this.inner.send_packed_command(packed)?;
            collect(count, replies, || {
                // The limit is for all replies together.
                this.set_reply_timeout(limit.saturating_sub(clock::uptime().since(began)));
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
