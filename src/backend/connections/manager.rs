//! What opens the connections of a locker.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::connection::Connection;
use super::health::Health;
use super::opener::Opener;
use super::subscription::{self, Heard};
use crate::backend::errors::Failure;
use crate::backend::patience::Looks;
use crate::clock;

/// Opens the connections of a locker: with timeouts, without `CLIENT SETINFO`, which old servers refuse, and with one INFO for the role and
/// the version of the server. Where INFO is refused, or a proxy hangs up on it, the connection is used without the check.
#[derive(Clone)]
pub(crate) struct Manager(Arc<Opener>);

impl Manager {
    /// Returns a manager that opens connections as `client` does.
    #[must_use]
    pub(crate) fn new(client: redis::Client) -> Self {
        Self(Arc::new(Opener::new(client)))
    }

    fn with(self, change: impl FnOnce(&mut Opener)) -> Self {
        let mut opener = Arc::unwrap_or_clone(self.0);
        change(&mut opener);
        Self(Arc::new(opener))
    }

    /// Returns the manager with another limit for connecting, password and database number included.
    #[must_use]
    pub(crate) fn connect_timeout(self, connect_timeout: Duration) -> Self {
        self.with(|opener| opener.connect_timeout = connect_timeout)
    }

    /// Returns the manager with another limit for each reply of the server.
    #[must_use]
    pub(crate) fn command_timeout(self, command_timeout: Duration) -> Self {
        self.with(|opener| opener.command_timeout = command_timeout)
    }

    /// Returns the manager without INFO on new connections.
    #[must_use]
    pub(crate) fn skip_server_check(self) -> Self {
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
