//! A connection of the library's own: opens itself when it is needed, carries commands, and is never used again after the first error
//! that is not a refusal.

use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use redis::{RedisError, RedisResult, Value};

use super::health::CountedOpen;
use super::lock_connection::{LockConnection, collect};
use super::opener::Opener;
use super::server_info::Known;
use super::socket::in_steps;
use super::transport::{Longest, Transport};
use crate::net::errors::{ConnectError, Refusal, TransportError};
use crate::values::clock::{self, Uptime};

/// A connection made by an [`Opener`]. After the first I/O or protocol error each further command fails (I8).
pub(crate) struct Connection {
    opener: Arc<Opener>,
    /// In a box, since connections are passed around for each command.
    open: Option<Box<Open>>,
    /// Set before a command and cleared by a clean reply, so that it stays set if a panic cuts the command short.
    broken: bool,
}

/// An open socket to the server.
struct Open {
    transport: Transport,
    server: Known,
    /// Why no lock is granted before that time.
    settling: Option<Refusal>,
    /// When it was last returned to its pool, or opened.
    last_used: Uptime,
    /// How many connections had been found closed when this one was opened.
    opened_at: u64,
    _counted: CountedOpen,
}

impl Connection {
    /// Returns a connection that is not open yet.
    pub(in crate::net) fn new(opener: Arc<Opener>) -> Self {
        Self { opener, open: None, broken: false }
    }

    pub(in crate::net) fn is_connected(&self) -> bool {
        self.open.is_some() && !self.broken
    }

    /// Opens the connection if it is not open. Waits for as long as connecting may take.
    pub(in crate::net) fn connect(&mut self) -> Result<(), ConnectError> {
        if self.open.is_none() {
            let health = &self.opener.health;
            let opened = self.opener.open()?;
            let left = opened.settling.as_ref().map(|settling| settling.left);
            let settled_at = left.map(|left| clock::uptime().after(left)).unwrap_or_default();
            self.open = Some(Box::new(Open {
                transport: opened.transport,
                server: Known { version: opened.version, settled_at },
                settling: opened.settling.map(|settling| settling.refusal),
                last_used: clock::uptime(),
                opened_at: opened.closures_before,
                _counted: health.count_open(),
            }));
        }
        Ok(())
    }

    /// Notes that it was used, and by that not idle.
    pub(in crate::net) fn used(&mut self, at: Uptime) {
        if let Some(open) = &mut self.open {
            open.last_used = at;
        }
    }

    pub(in crate::net) fn is_suspect_at(&self, now: Uptime) -> bool {
        // That a server has closed an idle connection shows only after a command was sent, whose outcome is unknown then.
        let idle = self.open.as_ref().map(|open| now.since(open.last_used));
        idle.is_some_and(|idle| idle > self.opener.trusted_while_idle()) || self.is_outdated()
    }

    /// Returns true if a connection was found closed, or the master elsewhere, since this one was opened.
    pub(in crate::net) fn is_outdated(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.opened_at < self.opener.health.closures())
    }

    /// Sends packed commands, from `now` on within `limit`. The connection cannot be used otherwise until all replies are received.
    pub(in crate::net) fn send(
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

    /// Returns true if replies may be received further after a timeout.
    pub(in crate::net) fn resumes(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.transport.resumes())
    }

    /// Receives the replies that are missing of `count`. `spins`: it may look for them for a while before the thread sleeps.
    ///
    /// # Errors
    ///
    /// The error that ended them. After a timeout they may be received further if it [resumes](Self::resumes).
    pub(in crate::net) fn receive(
        &mut self,
        count: usize,
        deadline: Uptime,
        spins: bool,
        replies: &mut Vec<Value>,
    ) -> Result<(), TransportError> {
        let limit = self.opener.command_timeout;
        let Some(open) = &mut self.open else { return Err(unusable().into()) };
        let missing = count.saturating_sub(replies.len());
        let received = collect(missing, replies, || open.transport.receive(deadline, Longest::VALUE, spins));
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
}

fn unusable() -> RedisError {
    io::Error::new(io::ErrorKind::NotConnected, "this connection saw an error and is not used again").into()
}

impl LockConnection for Connection {
    fn invalidate(&mut self) -> bool {
        self.broken = true;
        true
    }

    fn server(&self) -> Known {
        self.open.as_ref().map(|open| open.server).unwrap_or_default()
    }

    fn settling(&self) -> Option<Refusal> {
        self.open.as_ref().and_then(|open| open.settling.clone())
    }

    fn exchange(
        &mut self,
        packed: &[u8],
        count: usize,
        limit: Duration,
        replies: &mut Vec<Value>,
    ) -> RedisResult<()> {
        let limit = limit.min(self.opener.command_timeout);
        let now = clock::uptime();
        self.send(packed, now, limit)?;
        Ok(self.receive(count, now.after(limit), true, replies)?)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("connected", &self.is_connected())
            .field("server", &self.server())
            .field("broken", &self.broken)
            .field("command_timeout", &self.opener.command_timeout)
            .finish_non_exhaustive()
    }
}
