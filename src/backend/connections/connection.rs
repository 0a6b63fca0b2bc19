//! A connection of the library's own: opens itself when it is needed, carries commands, and is never used again after the first error
//! that is not a refusal.

use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use redis::{ConnectionLike, RedisError, RedisResult, Value, cmd};

use super::health::CountedOpen;
use super::lock_connection::{LockConnection, collect};
use super::opener::Opener;
use super::socket::in_steps;
use super::transport::{LONGEST_REPLY, Transport};
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
    /// In a box, since connections are passed around for each command.
    open: Option<Box<Open>>,
    /// Set before a command and cleared by a clean reply, so that it stays set if a panic cuts the command short.
    broken: bool,
}

/// An open socket to the server.
struct Open {
    transport: Transport,
    /// As the server reported it, if it was asked.
    version: Option<Version>,
    /// When it was last returned to its pool, or opened.
    last_used: Uptime,
    /// How many connections had been found closed when this one was opened.
    opened_at: u64,
    _counted: CountedOpen,
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
        if let Some(open) = &mut self.open {
            open.last_used = clock::uptime();
        }
    }

    /// Notes that it was used, and by that not idle.
    pub(in crate::backend) fn used(&mut self, at: Uptime) {
        if let Some(open) = &mut self.open {
            open.last_used = at;
        }
    }

    pub(in crate::backend) fn is_suspect_at(&self, now: Uptime) -> bool {
        self.open.as_ref().is_some_and(|open| {
            // That a server has closed an idle connection shows only after a command was sent, whose outcome is unknown then.
            let stale = now.since(open.last_used) > TRUSTED_WHILE_IDLE;
            stale || open.opened_at < self.opener.health.closures()
        })
    }

    fn opened(&mut self) -> Result<&mut Open, ConnectError> {
        let health = &self.opener.health;
        match &mut self.open {
            Some(open) => Ok(open),
            none => {
                let opened_at = health.closures();
                let opened = self.opener.open()?;
                Ok(none.insert(Box::new(Open {
                    transport: opened.transport,
                    version: opened.version,
                    last_used: clock::uptime(),
                    opened_at,
                    _counted: health.count_open(),
                })))
            }
        }
    }

    /// Sends packed commands, from `now` on within `limit`. The connection cannot be used otherwise until all replies are received.
    pub(in crate::backend) fn send(
        &mut self,
        packed: &[u8],
        now: Uptime,
        limit: Duration,
    ) -> Result<(), TransportError> {
        let open = self.open.as_mut().filter(|_| !self.broken);
        let Some(open) = open else { return Err(unusable().into()) };
        self.broken = true;
        let sent = open.transport.send(packed, now, now.after(limit));
        sent.map_err(|error| self.failed(limit, &error))
    }

    /// Whether replies may be received further after a timeout.
    pub(in crate::backend) fn resumes(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.transport.resumes())
    }

    /// Receives the replies that are missing of `count`. `spins`: it may look for them for a while before the thread sleeps.
    ///
    /// # Errors
    ///
    /// The error that ended them. After a timeout they may be received further if it [resumes](Self::resumes).
    pub(in crate::backend) fn receive(
        &mut self,
        count: usize,
        deadline: Uptime,
        spins: bool,
        replies: &mut Vec<Value>,
    ) -> Result<(), TransportError> {
        let limit = self.opener.command_timeout;
        let Some(open) = &mut self.open else { return Err(unusable().into()) };
        let missing = count.saturating_sub(replies.len());
        let received = collect(missing, replies, || open.transport.receive(deadline, LONGEST_REPLY, spins));
        match received {
            Ok(()) => {
                self.broken = false;
                Ok(())
            }
            Err(error) => Err(self.failed(limit, &error)),
        }
    }

    /// Describes an error of the connection, and notes that the server closed it.
    fn failed(&self, limit: Duration, error: &RedisError) -> TransportError {
        if error.is_connection_dropped() {
            self.opener.health.found_closed();
        }
        TransportError::on(&self.opener.address(), in_steps(limit), error)
    }

    /// Carries out `work` on the open transport, with a deadline for all of it.
    fn guarded<T>(
        &mut self,
        limit: Duration,
        work: impl FnOnce(&mut Transport, Uptime) -> RedisResult<T>,
    ) -> RedisResult<T> {
        if self.broken {
            return Err(unusable());
        }
        self.broken = true;
        let limit = limit.min(self.opener.command_timeout);
        let began = clock::uptime();
        let was_open = self.open.is_some();
        let open = match self.opened() {
            Ok(open) => open,
            Err(error) => {
                self.broken = false;
                return Err(not_connected(error));
            }
        };
        // Opening has a limit of its own.
        let deadline = if was_open { began } else { clock::uptime() }.after(limit);
        let error = match work(&mut open.transport, deadline) {
            Err(error) if Refusal::of(&error).is_none() => error,
            clean => {
                self.broken = false;
                return clean;
            }
        };
        Err(self.failed(limit, &error).into())
    }
}

fn unusable() -> RedisError {
    io::Error::new(io::ErrorKind::NotConnected, "this connection saw an error and is not used again").into()
}

fn not_connected(error: ConnectError) -> RedisError {
    match error {
        ConnectError::Failed(error) => error.into(),
        other => TransportError::new(io::ErrorKind::NotConnected, &other.to_string()).into(),
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
        self.is_suspect_at(clock::uptime())
    }

    fn server_version(&self) -> Option<Version> {
        self.open.as_ref().and_then(|open| open.version)
    }

    fn exchange(
        &mut self,
        packed: &[u8],
        count: usize,
        limit: Duration,
        replies: &mut Vec<Value>,
    ) -> RedisResult<()> {
        self.guarded(limit, |transport, deadline| {
            transport.send(packed, clock::uptime(), deadline)?;
            collect(count, replies, || transport.receive(deadline, LONGEST_REPLY, true))
        })
    }
}

impl ConnectionLike for Connection {
    fn req_packed_command(&mut self, cmd: &[u8]) -> RedisResult<Value> {
        self.guarded(Duration::MAX, |transport, deadline| {
            transport.send(cmd, clock::uptime(), deadline)?;
            transport.receive(deadline, usize::MAX, true)
        })
    }

    /// Refusals are among the replies, but for one of a command before `offset`: that is the error.
    fn req_packed_commands(&mut self, cmd: &[u8], offset: usize, count: usize) -> RedisResult<Vec<Value>> {
        let replies = self.guarded(Duration::MAX, |transport, deadline| {
            transport.send(cmd, clock::uptime(), deadline)?;
            (0..offset + count)
                .map(|_| transport.receive(deadline, usize::MAX, true))
                .collect::<RedisResult<Vec<_>>>()
        })?;
        let mut replies = replies.into_iter();
        replies.by_ref().take(offset).try_for_each(|reply| reply.extract_error().map(drop))?;
        Ok(replies.collect())
    }

    fn req_command(&mut self, cmd: &redis::Cmd) -> RedisResult<Value> {
        let packed = cmd.get_packed_command();
        if !cmd.is_no_response() {
            return self.req_packed_command(&packed);
        }
        self.guarded(Duration::MAX, |transport, deadline| {
            transport.send(&packed, clock::uptime(), deadline)
        })?;
        Ok(Value::Nil)
    }

    fn get_db(&self) -> i64 {
        self.opener.database()
    }

    fn check_connection(&mut self) -> bool {
        cmd("PING").query::<String>(self).is_ok()
    }

    fn is_open(&self) -> bool {
        !self.broken
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
