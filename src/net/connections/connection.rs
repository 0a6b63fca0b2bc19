//! A connection, of the library's own or lent: opens itself when it is needed, carries commands, and is never used
//! again after the first error that is not a refusal.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use proto::values::Uptime;

use super::handshake::Opened;
use super::health::CountedOpen;
use super::opener::Opener;
use super::server_info::Known;
use super::socket::in_steps;
use super::transport::{Longest, Spin, Transport};
use crate::net::errors::{Failure, TransportError};
use crate::system::clock;
use crate::values::contained::contained;
use redis::{RedisError, RedisResult, Value};

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
    /// When it was last used, or opened.
    last_used: Uptime,
    /// It is not used from this time on.
    old_at: Uptime,
    /// How many connections had been found closed when this one was opened.
    opened_at: u64,
    /// True once the server has answered a command: a refusal then is of a command, not of the connection.
    has_answered: bool,
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
    pub(in crate::net) fn connect(&mut self) -> Result<(), Failure> {
        if self.open.is_none() {
            let opened = self.opener.open()?;
            self.use_opened(opened);
        }
        Ok(())
    }

    /// Borrows a connection that is free, if a pool of the user's lends them. Returns true if there was one.
    pub(in crate::net) fn borrow(&mut self) -> bool {
        self.opener.borrow_at_once().map(|opened| self.use_opened(opened)).is_some()
    }

    fn use_opened(&mut self, opened: Opened) {
        let now = clock::uptime();
        let settles = opened.settling.map(|settling| (now.after(settling.left), settling.refusal));
        self.open = Some(Box::new(Open {
            transport: opened.transport,
            server: Known { version: opened.version, settles, epoch: opened.epoch },
            last_used: now,
            old_at: self.opener.max_connection_age.map_or(Uptime::MAX, |age| now.after(age)),
            opened_at: opened.closures_before,
            has_answered: opened.has_answered,
            _counted: self.opener.health.count_open(),
        }));
    }

    /// Returns true if it is lent, and goes back after each trip.
    pub(in crate::net) fn is_lent(&self) -> bool {
        self.opener.lends()
    }

    /// Notes that it was used, and by that not idle.
    pub(in crate::net) fn used(&mut self, at: Uptime) {
        if let Some(open) = &mut self.open {
            open.last_used = at;
        }
    }

    pub(in crate::net) fn is_suspect_at(&self, now: Uptime) -> bool {
        // That a server has closed an idle connection shows only
        // after a command was sent, whose outcome is unknown then.
        let is_suspect =
            |open: &Open| now.since(open.last_used) > self.opener.trusted_while_idle(open.server.epoch);
        self.open.as_deref().is_some_and(is_suspect) || self.is_outdated_at(now)
    }

    /// Returns true if a connection was found closed, or the master elsewhere or in another epoch, since this one was
    /// opened; or if it is too old.
    pub(in crate::net) fn is_outdated_at(&self, now: Uptime) -> bool {
        let closures = self.opener.health.closures();
        let is_outdated = |open: &Open| now >= open.old_at || open.opened_at < closures;
        self.open.as_deref().is_some_and(is_outdated)
    }

    /// Returns true if it was not used since then.
    pub(in crate::net) fn is_unused_since(&self, time: Uptime) -> bool {
        self.open.as_ref().is_none_or(|open| open.last_used < time)
    }

    /// Sends packed commands, from `now` on within `limit`. The connection
    /// cannot be used otherwise until all replies are received.
    pub(in crate::net) fn write(
        &mut self,
        packed: &[u8],
        now: Uptime,
        limit: Duration,
    ) -> Result<(), TransportError> {
        let open = self.open.as_mut().filter(|_| !self.broken);
        let Some(open) = open else { return Err(unusable()) };
        self.broken = true;
        let sent = open.transport.write(packed, now, now.after(limit));
        sent.map_err(|error| self.failed(limit, &error))
    }

    /// Returns true if replies may be received further after a timeout.
    pub(in crate::net) fn resumes(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.transport.resumes())
    }

    /// Receives the replies that are missing of `count`.
    ///
    /// # Errors
    ///
    /// The error that ended them. After a timeout they may be received further if it [resumes](Self::resumes).
    pub(in crate::net) fn receive(
        &mut self,
        count: usize,
        deadline: Uptime,
        spin: Spin,
        replies: &mut Vec<Value>,
    ) -> Result<(), TransportError> {
        let limit = self.opener.command_timeout;
        let Some(open) = &mut self.open else { return Err(unusable()) };
        let missing = count.saturating_sub(replies.len());
        let received = collect(missing, replies, || open.transport.receive(deadline, Longest::VALUE, spin));
        match received {
            Ok(()) => {
                // After a refusal in place of the first reply a server may hang up.
                self.broken = !open.has_answered && matches!(replies.as_slice(), [Value::ServerError(_)]);
                open.has_answered = true;
                Ok(())
            }
            Err(error) => Err(self.failed(limit, &error)),
        }
    }

    /// From now on no command is sent (I8).
    pub(in crate::net) fn invalidate(&mut self) {
        self.broken = true;
    }

    /// Returns what is known of the server, as it was when the connection was opened. With it, a command that the
    /// server is too old for is refused before anything is sent.
    pub(in crate::net) fn server(&self) -> &Known {
        static UNKNOWN: Known = Known { version: None, settles: None, epoch: None };
        self.open.as_ref().map_or(&UNKNOWN, |open| &open.server)
    }

    /// Sends packed commands and appends their replies to `replies`, refusals among them as [`Value::ServerError`]. All
    /// `count` replies together may take `limit`. Returns why there are fewer, if an error is the reason.
    #[cfg(test)]
    pub(in crate::net) fn exchange(
        &mut self,
        packed: &[u8],
        count: usize,
        limit: Duration,
        replies: &mut Vec<Value>,
    ) -> Option<TransportError> {
        let (now, limit) = (clock::uptime(), limit.min(self.opener.command_timeout));
        let sent = self.write(packed, now, limit);
        sent.and_then(|()| self.receive(count, now.after(limit), Spin::First, replies)).err()
    }

    /// Describes an error of the connection, and notes that the server closed it.
    fn failed(&self, limit: Duration, error: &RedisError) -> TransportError {
        if error.is_connection_dropped() {
            self.opener.health.found_closed();
        }
        TransportError::on(&self.opener.address(), in_steps(limit), error)
    }
}

fn unusable() -> TransportError {
    TransportError::new(io::ErrorKind::NotConnected, "this connection saw an error and is not used again")
}

/// Receives `count` replies. A server that refuses the first command and
/// hangs up, because it has no room for a client, has read nothing else.
fn collect(
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

impl Drop for Connection {
    /// One that is lent goes back, closed if it is broken. That may run the program's code.
    fn drop(&mut self) {
        if !self.opener.lends() {
            return;
        }
        let (open, broken) = (self.open.take(), self.broken);
        contained(|| match open {
            Some(open) if broken => open.transport.close(),
            open => drop(open),
        });
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::net::connections::fake::{FakeConnection, late};

    #[test]
    fn one_that_is_lent_goes_back_closed_after_an_error_or_a_panic() {
        let sends = |script: fn() -> (Vec<Value>, Option<RedisError>)| {
            let fake = FakeConnection::answering(move |_| script());
            let mut connection = fake.open();
            let exchange = || connection.exchange(b"GET k", 1, Duration::from_secs(1), &mut Vec::new());
            let _ = catch_unwind(AssertUnwindSafe(exchange));
            drop(connection);
            fake.is_closed.load(Ordering::Relaxed)
        };
        assert!(!sends(|| (vec![Value::Nil], None)));
        assert!(sends(|| (Vec::new(), Some(late()))));
        // Without the panic hook, whose backtrace takes long.
        assert!(sends(|| resume_unwind(Box::new("on purpose"))));
    }
}
