//! A connection of the library's own: opens itself when it is needed, carries commands, and is never used again after the first error
//! that is not a refusal.

use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use redis::{ConnectionLike, RedisError, RedisResult, Value};

use super::health::CountedOpen;
use super::lock_connection::{LockConnection, collect, next_reply};
use super::opener::Opener;
use crate::backend::errors::{ConnectError, Refusal, TransportError};
use crate::clock::{self, Uptime};
use crate::version::Version;

/// How long an idle connection is assumed to be open. Below any `timeout` that a server may sensibly have.
pub(in crate::backend) const TRUSTED_WHILE_IDLE: Duration = Duration::from_secs(10);

/// A connection made by a [`Manager`](crate::Manager). Opened by its first command, or by
/// [`connect`](LockConnection::connect). Carries any command of the redis crate; after the first I/O or protocol error each further
/// one fails (I8), until it has been back in its pool, which is as good as a new one.
pub struct Connection {
    opener: Arc<Opener>,
    open: Option<Open>,
    /// Set before a command and cleared by a clean reply, so that it stays set if a panic cuts the command short.
    broken: bool,
}

/// An open socket to the server.
struct Open {
    inner: redis::Connection,
    /// As the server reported it, if it was asked.
    version: Option<Version>,
    read_timeout: Duration,
    /// When it was last returned to its pool, or opened.
    last_used: Uptime,
    /// How many connections had been found closed when this one was opened.
    opened_at: u64,
    _counted: Option<CountedOpen>,
}

impl Connection {
    pub(super) fn new(opener: Arc<Opener>) -> Self {
        Self { opener, open: None, broken: false }
    }

    /// Notes that it returns to its pool. A broken one is closed, to be opened anew.
    pub(super) fn returned(&mut self) {
        if self.broken {
            self.open = None;
            self.broken = false;
        }
        // Other users of the pool get the timeout that the pool was built with.
        self.set_reply_timeout(Duration::MAX);
        if let Some(open) = &mut self.open {
            open.last_used = clock::uptime();
        }
    }

    fn opened(&mut self) -> Result<&mut Open, ConnectError> {
        let health = &self.opener.health;
        match &mut self.open {
            Some(open) => Ok(open),
            none => {
                let opened_at = health.closures();
                let opened = self.opener.open()?;
                Ok(none.insert(Open {
                    inner: opened.connection,
                    version: opened.version,
                    read_timeout: self.opener.command_timeout,
                    last_used: clock::uptime(),
                    opened_at,
                    _counted: self.opener.is_counted.then(|| health.count_open()),
                }))
            }
        }
    }

    fn guarded<T>(&mut self, work: impl FnOnce(&mut redis::Connection) -> RedisResult<T>) -> RedisResult<T> {
        self.guarded_open(|open| work(&mut open.inner))
    }

    fn guarded_open<T>(&mut self, work: impl FnOnce(&mut Open) -> RedisResult<T>) -> RedisResult<T> {
        if self.broken {
            let text = "this connection saw an error and is not used again";
            return Err(io::Error::new(io::ErrorKind::NotConnected, text).into());
        }
        self.broken = true;
        let open = match self.opened() {
            Ok(open) => open,
            Err(error) => {
                self.broken = false;
                return Err(not_connected(error));
            }
        };
        let error = match work(open) {
            Err(error) if Refusal::of(&error).is_none() => error,
            clean => {
                self.broken = false;
                return clean;
            }
        };
        let read_timeout = open.read_timeout;
        if error.is_connection_dropped() {
            self.opener.health.found_closed();
        }
        Err(TransportError::on(&self.opener.address(), read_timeout, &error).into())
    }
}

fn not_connected(error: ConnectError) -> RedisError {
    match error {
        ConnectError::Failed(error) => error.into(),
        other => TransportError::new(io::ErrorKind::NotConnected, &other.to_string()).into(),
    }
}

impl Open {
    /// Limits the wait for the next reply, at most to the time of a command.
    fn limit_reply(&mut self, limit: Duration, command_timeout: Duration) {
        // In steps of 10 ms: the usual limit, which has just begun to run, then costs no system call.
        let steps = u64::try_from(limit.as_millis() / 10).unwrap_or(u64::MAX).saturating_add(1);
        let wanted = Duration::from_millis(steps.saturating_mul(10)).min(command_timeout);
        if wanted != self.read_timeout && self.inner.set_read_timeout(Some(wanted)).is_ok() {
            self.read_timeout = wanted;
        }
    }
}

impl LockConnection for Connection {
    const PIPELINES: bool = true;

    fn is_connected(&self) -> bool {
        self.open.is_some() && !self.broken
    }

    fn connect(&mut self) -> Result<(), ConnectError> {
        self.opened().map(drop)
    }

    fn invalidate(&mut self) -> bool {
        self.broken = true;
        true
    }

    fn is_suspect(&self) -> bool {
        self.open.as_ref().is_some_and(|open| {
            // That a server has closed an idle connection shows only after a command was sent, whose outcome is unknown then.
            let stale = clock::uptime().since(open.last_used) > TRUSTED_WHILE_IDLE;
            stale || open.opened_at < self.opener.health.closures()
        })
    }

    fn server_version(&self) -> Option<Version> {
        self.open.as_ref().and_then(|open| open.version)
    }

    fn set_reply_timeout(&mut self, limit: Duration) {
        let command_timeout = self.opener.command_timeout;
        if let Some(open) = &mut self.open {
            open.limit_reply(limit, command_timeout);
        }
    }

    fn exchange(
        &mut self,
        packed: &[u8],
        count: usize,
        limit: Duration,
        replies: &mut Vec<Value>,
    ) -> RedisResult<()> {
        let command_timeout = self.opener.command_timeout;
        let (began, limit) = (clock::uptime(), limit.min(command_timeout));
        self.guarded_open(|open| {
            open.inner.send_packed_command(packed)?;
            collect(count, replies, || {
                // The limit is for all replies together.
                open.limit_reply(limit.saturating_sub(clock::uptime().since(began)), command_timeout);
                next_reply(&mut open.inner)
            })
        })
    }
}

impl ConnectionLike for Connection {
    fn req_packed_command(&mut self, cmd: &[u8]) -> RedisResult<Value> {
        self.guarded(|inner| inner.req_packed_command(cmd))
    }

    fn req_packed_commands(&mut self, cmd: &[u8], offset: usize, count: usize) -> RedisResult<Vec<Value>> {
        self.guarded(|inner| inner.req_packed_commands(cmd, offset, count))
    }

    fn req_command(&mut self, cmd: &redis::Cmd) -> RedisResult<Value> {
        self.guarded(|inner| inner.req_command(cmd))
    }

    fn get_db(&self) -> i64 {
        self.opener.database()
    }

    fn check_connection(&mut self) -> bool {
        self.guarded(|inner| Ok(inner.check_connection())).is_ok_and(|open| open)
    }

    fn is_open(&self) -> bool {
        !self.broken && self.open.as_ref().is_none_or(|open| open.inner.is_open())
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("connected", &self.is_connected())
            .field("version", &self.server_version())
            .field("broken", &self.broken)
            .field("command_timeout", &self.opener.command_timeout)
            .finish_non_exhaustive()
    }
}
