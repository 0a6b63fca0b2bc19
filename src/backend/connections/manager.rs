//! The manager of a pool of connections: makes and tests them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::cmd;

use super::connection::Connection;
use super::health::Health;
use super::lock_connection::{LockConnection as _, ask};
use super::opener::Opener;
use super::subscription::{self, Heard};
use crate::backend::errors::{ConnectError, Failure};
use crate::backend::patience::Looks;
use crate::clock;

/// An [`r2d2`] manager for Redis connections that a lock can rely on. [`Locker::open`](crate::Locker::open) makes one;
/// use it yourself to share a pool between locks and other work, or to configure the pool:
/// [`Locker::with_managed_pool`](crate::Locker::with_managed_pool).
///
/// Unlike the redis crate's own manager it sets timeouts for connecting and for each reply (2 s unless changed),
/// never uses a socket again after an I/O or protocol error, and sends no `CLIENT SETINFO`, which old servers refuse. A connection opens
/// its socket at its first command; an error closes it until it is back in the pool.
/// On each new socket it asks the server once, by INFO, for its role and version: a replica is refused, and a protocol that the
/// server is too old for is refused before anything is written. Where INFO is refused, or a proxy hangs up on it, the connection is
/// used without the check. Locks do not use a connection that has been idle for ten seconds, since the server may have closed it.
///
/// Turn r2d2's `test_on_check_out` off: it costs a round trip for every command and proves nothing about the next.
#[derive(Clone)]
pub struct Manager(Arc<Opener>);

impl Manager {
    /// Returns a manager that opens connections as `client` does.
    #[must_use]
    pub fn new(client: redis::Client) -> Self {
        Self(Arc::new(Opener::new(client)))
    }

    fn with(self, change: impl FnOnce(&mut Opener)) -> Self {
        let mut opener = Arc::unwrap_or_clone(self.0);
        change(&mut opener);
        Self(Arc::new(opener))
    }

    /// Returns the manager with another limit for connecting, password and database number included.
    #[must_use]
    pub fn connect_timeout(self, connect_timeout: Duration) -> Self {
        self.with(|opener| opener.connect_timeout = connect_timeout)
    }

    /// Returns the manager with another limit for each reply of the server.
    #[must_use]
    pub fn command_timeout(self, command_timeout: Duration) -> Self {
        self.with(|opener| opener.command_timeout = command_timeout)
    }

    /// Returns the manager without INFO on new connections. A replica then shows by its refusals (up to 2.4 it refuses nothing), and a
    /// server that is too old for a protocol by refusing an unknown command. [`Protocol::Auto`](crate::Protocol::Auto) is Classic then.
    #[must_use]
    pub fn skip_server_check(self) -> Self {
        self.with(|opener| opener.checks_server = false)
    }

    /// Returns the manager whose threads sleep at once, instead of looking for the reply first: so that what is counted of a program does not
    /// depend on the server.
    pub(crate) fn without_looks(self) -> Self {
        self.with(|opener| opener.looks = Arc::new(Looks::never()))
    }

    /// The timeouts: for connecting, and for a command.
    pub(crate) fn timeouts(&self) -> [Duration; 2] {
        [self.0.connect_timeout, self.0.command_timeout]
    }

    /// Host and port of the server.
    pub(in crate::backend) fn address(&self) -> String {
        self.0.address()
    }

    /// Opens a connection beside the pool, subscribes to a channel, and gives `heard` what is published there, until that returns `false` or
    /// the connection fails.
    pub(in crate::backend) fn listen(
        &self,
        channel: &[u8],
        heard: &mut dyn FnMut(Heard<'_>) -> bool,
    ) -> Result<(), Failure> {
        let beside = self.0.beside_the_pool();
        let health = self.health();
        loop {
            let began = clock::uptime();
            let opened = beside.open();
            let opened =
                opened.map_err(|error| Failure::of_connecting(error, clock::uptime().since(began)))?;
            let closures = health.closures();
            let mut goes_on = true;
            let hear = |received: Heard<'_>| {
                goes_on = heard(received);
                // The address may lead to another server now.
                goes_on && !(matches!(received, Heard::Silence) && health.closures() > closures)
            };
            subscription::listen(opened, channel, beside.command_timeout, &beside.address(), hear)?;
            if !goes_on {
                return Ok(());
            }
        }
    }

    /// Returns a connection that is not open yet.
    pub(in crate::backend) fn unconnected(&self) -> Connection {
        Connection::new(Arc::clone(&self.0))
    }

    pub(in crate::backend) fn health(&self) -> &Health {
        &self.0.health
    }
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Manager").field(&self.0).finish()
    }
}

impl r2d2::ManageConnection for Manager {
    type Connection = Connection;
    type Error = ConnectError;

    /// Returns a connection that is opened by its first command: so r2d2, which retries for as long as the pool exists, connects to
    /// nothing while no thread needs a connection.
    fn connect(&self) -> Result<Connection, ConnectError> {
        Ok(self.unconnected())
    }

    /// One that is not open yet is as good as any: opening it here would block r2d2, which asks again and again.
    fn is_valid(&self, connection: &mut Connection) -> Result<(), ConnectError> {
        if !connection.is_connected() {
            return Ok(());
        }
        match ask(connection, &cmd("PING"), self.0.command_timeout) {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(refusal)) => Err(ConnectError::Refused(refusal)),
            Err(error) => Err(ConnectError::Failed(error)),
        }
    }

    /// Never: a broken connection is closed when it returns, and opened anew by its next command. r2d2 wakes no waiter for one that
    /// it removes.
    fn has_broken(&self, connection: &mut Connection) -> bool {
        connection.returned();
        false
    }
}
