//! The pool's manager: how connections are opened, tested and judged.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use redis::{ConnectionLike as _, cmd};

use super::connection::Connection;
use super::handshake;
use super::health::Health;
use super::lock_connection::{LockConnection as _, ask};
use crate::backend::errors::ConnectError;
use crate::clock;
use crate::key::Cut;

/// How long connecting may take unless set.
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long one command may take unless set.
pub(in crate::backend) const DEFAULT_COMMAND_TIMEOUT: Duration = Duration::from_secs(2);

/// How long after a panic no connection is opened.
pub(super) const PANIC_PAUSE: Duration = Duration::from_secs(5);

/// An [`r2d2`] manager for Redis connections that a lock can rely on. [`Locker::open`](crate::Locker::open) makes one;
/// use it yourself to share a pool between locks and other work, or to configure the pool:
/// [`Locker::with_managed_pool`](crate::Locker::with_managed_pool).
///
/// Unlike the redis crate's own manager it sets time-outs for connecting and for each reply (2 s unless changed),
/// never uses a connection again after an I/O or protocol error, and sends no `CLIENT SETINFO`, which old servers refuse.
/// On each new connection it asks the server once, by INFO, for its role and version: a replica is refused, and a protocol that the
/// server is too old for is refused before anything is written. Where INFO is refused, or a proxy hangs up on it, the connection is
/// used without the check. Locks do not use a connection that has been idle for ten seconds, since the server may have closed it.
///
/// Turn r2d2's `test_on_check_out` off: it costs a round trip for every command and proves nothing about the next.
#[derive(Clone)]
pub struct Manager {
    client: redis::Client,
    connect_timeout: Duration,
    command_timeout: Duration,
    checks_server: bool,
    health: Arc<Health>,
}

impl Manager {
    /// Returns a manager that opens connections as `client` does.
    #[must_use]
    pub fn new(client: redis::Client) -> Self {
        Self {
            client,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            command_timeout: DEFAULT_COMMAND_TIMEOUT,
            checks_server: true,
            health: Arc::default(),
        }
    }

    /// Returns the manager with another limit for connecting, password and database number included.
    #[must_use]
    pub fn connect_timeout(self, connect_timeout: Duration) -> Self {
        Self { connect_timeout, ..self }
    }

    /// Returns the manager with another limit for each reply of the server.
    #[must_use]
    pub fn command_timeout(self, command_timeout: Duration) -> Self {
        Self { command_timeout, ..self }
    }

    /// Returns the manager without INFO on new connections. A replica then shows by its refusals (up to 2.4 it refuses nothing), and a
    /// server that is too old for a protocol by refusing an unknown command. [`Protocol::Auto`](crate::Protocol::Auto) is Classic then.
    #[must_use]
    pub fn skip_server_check(self) -> Self {
        Self { checks_server: false, ..self }
    }

    /// The time-outs: for connecting, and for a command.
    pub(crate) fn timeouts(&self) -> [Duration; 2] {
        [self.connect_timeout, self.command_timeout]
    }

    pub(in crate::backend) fn health(&self) -> &Health {
        &self.health
    }

    /// Some proxies hang up on commands that they do not forward, INFO among them. After two such hang-ups the connection is opened
    /// without INFO.
    fn open(&self) -> Result<Connection, ConnectError> {
        let open = |checks_server| {
            let opened =
                handshake::open(&self.client, self.connect_timeout, self.command_timeout, checks_server)?;
            let health = Arc::clone(&self.health);
            Ok(Connection::new(
                opened.connection,
                self.address(),
                opened.version,
                self.command_timeout,
                health,
            ))
        };
        for _ in 0..if self.checks_server { 2 } else { 0 } {
            match open(true) {
                Err(ConnectError::Failed(error)) if error.is_disconnect() => {}
                outcome => return outcome,
            }
        }
        open(false)
    }

    fn address(&self) -> String {
        self.client.get_connection_info().addr().to_string()
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    let words = text.unwrap_or("no reason given").split_whitespace().collect::<Vec<_>>().join(" ");
    Cut(words.as_bytes()).to_string()
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The address only: the rest of a client includes the password.
        f.debug_struct("Manager")
            .field("address", &self.address())
            .field("connect_timeout", &self.connect_timeout)
            .field("command_timeout", &self.command_timeout)
            .field("checks_server", &self.checks_server)
            .finish_non_exhaustive()
    }
}

impl r2d2::ManageConnection for Manager {
    type Connection = Connection;
    type Error = ConnectError;

    fn connect(&self) -> Result<Connection, ConnectError> {
        // TLS libraries panic where the program has not set them up, each time.
        if let Some((when, error @ ConnectError::Panicked(_))) = self.health.last_connect_failure()
            && clock::uptime().since(when) < PANIC_PAUSE
        {
            return Err(error);
        }
        let opened = catch_unwind(AssertUnwindSafe(|| self.open()));
        let connection =
            opened.unwrap_or_else(|panic| Err(ConnectError::Panicked(panic_text(panic.as_ref()))));
        match &connection {
            Ok(connection) => self.health.connected(connection.server_version()),
            Err(error) => self.health.connect_failed(error.clone()),
        }
        connection
    }

    fn is_valid(&self, connection: &mut Connection) -> Result<(), ConnectError> {
        match ask(connection, &cmd("PING"), self.command_timeout) {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(refusal)) => Err(ConnectError::Refused(refusal)),
            Err(error) => Err(ConnectError::Failed(error)),
        }
    }

    fn has_broken(&self, connection: &mut Connection) -> bool {
        // Other users of the pool get the time-out that the pool was built with.
        connection.set_reply_timeout(Duration::MAX);
        connection.returned();
        !connection.is_open()
    }
}
