//! Opening connections: with time-outs on everything, and with nothing sent that an old server does not know.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use redis::{ConnectionAddr, ConnectionLike as _, ProtocolVersion, RedisError, Value};

use super::carrier::Carrier as _;
use super::connection::{Connection, told};
use super::health::Health;
use super::info::{Info, Role};
use super::refusal::Refusal;
use super::{Failure, refusal_in, token};
use crate::clock::{self, Uptime};
use crate::error::NoConnection;
use crate::version::Version;

/// How long connecting may take when nothing else is said.
pub(crate) const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long one command may take when nothing else is said.
pub(crate) const DEFAULT_COMMAND_TIMEOUT: Duration = Duration::from_secs(2);

/// How long after a panic connecting is not tried again.
pub(super) const PANIC_PAUSE: Duration = Duration::from_secs(5);

/// An [`r2d2`] manager for Redis connections that a lock can rely on. [`Locker::open`](crate::Locker::open) makes one;
/// use it yourself to share a pool between locks and other work, or to set the pool up in your own way:
/// [`Locker::with_managed_pool`](crate::Locker::with_managed_pool).
///
/// Unlike the redis crate's own manager it sets time-outs for connecting and for each answer (2 s unless changed),
/// never uses a connection again after an I/O or protocol error, and sends no `CLIENT SETINFO`, which old servers answer
/// with an error. On each connection that it opens it asks the server once, by INFO, what it is: a replica is refused, and what
/// a server is too old for is known before anything is written. Where INFO is refused, or hung up on as some proxies do, it goes
/// on without. A connection that has been idle for ten seconds is not used by locks again, since the server may have closed it.
///
/// Turn r2d2's `test_on_check_out` off: it costs a round trip for every command and proves nothing about the next.
#[derive(Clone)]
pub struct Manager {
    client: redis::Client,
    connect_timeout: Duration,
    command_timeout: Duration,
    asks_info: bool,
    health: Arc<Health>,
}

impl Manager {
    /// Makes a manager that opens connections as `client` says.
    #[must_use]
    pub fn new(client: redis::Client) -> Self {
        Self {
            client,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            command_timeout: DEFAULT_COMMAND_TIMEOUT,
            asks_info: true,
            health: Arc::default(),
        }
    }

    /// Returns the manager with another limit for connecting, password and database number included.
    #[must_use]
    pub fn connect_timeout(self, connect_timeout: Duration) -> Self {
        Self { connect_timeout, ..self }
    }

    /// Returns the manager with another limit for each answer of the server.
    #[must_use]
    pub fn command_timeout(self, command_timeout: Duration) -> Self {
        Self { command_timeout, ..self }
    }

    /// Returns the manager without the question what the server is. A replica is then found out by what it refuses, which up to
    /// 2.4 is nothing, and a server that is too old by not knowing a command.
    #[must_use]
    pub fn without_info(self) -> Self {
        Self { asks_info: false, ..self }
    }

    /// The time-outs: for connecting, and for a command.
    pub(crate) fn limits(&self) -> [Duration; 2] {
        [self.connect_timeout, self.command_timeout]
    }

    pub(crate) fn health(&self) -> &Health {
        &self.health
    }

    /// Opens a connection that waits for answers as long as a BLPOP takes, and a command's time on top of that.
    pub(super) fn connect_to_listen(&self) -> Result<Connection, Failure> {
        let patient =
            self.clone().command_timeout(Duration::from_secs(token::WAITS.into()) + self.command_timeout);
        let began = clock::uptime();
        r2d2::ManageConnection::connect(&patient).map_err(|error| {
            let cause = match error {
                ConnectError::Refused(refusal) => return Failure::Refused(refusal),
                ConnectError::Replica { of } => NoConnection::Replica { of },
                ConnectError::Failed(error) => NoConnection::Failed(error),
                ConnectError::Panicked(text) => NoConnection::Panicked(text),
            };
            Failure::NoConnection { cause, waited: clock::uptime().since(began) }
        })
    }

    /// Some proxies hang up on commands that they do not pass on, and INFO is one: a server that does so twice is not asked again
    /// on this connection.
    fn dial_and_ask(&self) -> Result<Connection, ConnectError> {
        for _ in 0..if self.asks_info { 2 } else { 0 } {
            match self.dial(true) {
                Err(ConnectError::Failed(error)) if error.is_connection_dropped() => {}
                outcome => return outcome,
            }
        }
        self.dial(false)
    }

    fn dial(&self, asks_info: bool) -> Result<Connection, ConnectError> {
        let give_up = clock::uptime().after(self.connect_timeout);
        let info = self.client.get_connection_info();
        let settings = info.redis_settings();
        let resp3 = settings.protocol() != ProtocolVersion::RESP2;
        // The greeting of RESP3 carries user and password. Otherwise they are sent here, because the crate keeps the
        // server's words to itself, and "too many clients" must not be taken for a wrong password.
        let bare = if resp3 { settings.clone() } else { redis::RedisConnectionInfo::default() };
        // A connection that is given up takes with it what it has not sent yet: a command that arrives later than its
        // caller waits for it does nobody good.
        let tcp = info.tcp_settings().clone().set_linger_time(Duration::ZERO);
        let info = info.clone().set_redis_settings(bare.set_skip_set_lib_name()).set_tcp_settings(tcp);
        let address = info.addr().to_string();
        let tls = matches!(info.addr(), ConnectionAddr::TcpTls { .. });
        let mut inner = redis::Client::open(info)?.get_connection_with_timeout(self.connect_timeout)?;
        inner.set_write_timeout(Some(self.command_timeout))?;

        let mut greetings = Greetings { connection: &mut inner, give_up };
        if !resp3 {
            if let Some(password) = settings.password() {
                greetings.authenticate(settings.username(), password)?;
            }
            if settings.db() != 0 {
                greetings.say(redis::cmd("SELECT").arg(settings.db()))?;
            }
        }
        let version = if asks_info {
            greetings.ask_what_it_is()?
        } else {
            if tls {
                // The handshake comes with the first command. Left to a lock's, a certificate that is refused would be an
                // answer that got lost.
                greetings.ask(&redis::cmd("PING"))?;
            }
            None
        };
        inner.set_read_timeout(Some(self.command_timeout))?;
        Ok(Connection::opened(inner, address, version, self.command_timeout, Arc::clone(&self.health)))
    }
}

/// What is said on a new connection, within the time for connecting.
struct Greetings<'a> {
    connection: &'a mut redis::Connection,
    give_up: Uptime,
}

impl Greetings<'_> {
    fn say(&mut self, command: &redis::Cmd) -> Result<Value, ConnectError> {
        // A time-out of zero would be none at all.
        let left = self.give_up.since(clock::uptime()).max(Duration::from_millis(1));
        self.connection.set_read_timeout(Some(left))?;
        Ok(self.connection.req_command(command).and_then(Value::extract_error)?)
    }

    /// Says what need not be answered: that this user may not ask it, or that the command has another name, is all the same.
    fn ask(&mut self, command: &redis::Cmd) -> Result<Option<Value>, ConnectError> {
        match self.say(command) {
            Err(ConnectError::Refused(refusal)) if !refusal.ends_the_connection() => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Returns the server's version, if it tells one. A replica is no server to lock on.
    fn ask_what_it_is(&mut self) -> Result<Option<Version>, ConnectError> {
        let Some(info) = self.ask(&redis::cmd("INFO"))?.and_then(Info::read) else { return Ok(None) };
        match info.role() {
            Some(Role::Replica { of }) => Err(ConnectError::Replica { of }),
            _ => Ok(info.version()),
        }
    }

    /// Servers before 6 know no users: there, as in the redis crate, the password alone is tried.
    fn authenticate(&mut self, user: Option<&str>, password: &str) -> Result<(), ConnectError> {
        if let Some(user) = user {
            match self.say(redis::cmd("AUTH").arg(user).arg(password)) {
                Err(ConnectError::Refused(refusal))
                    if refusal.text().contains("wrong number of arguments") => {}
                answer => return answer.map(drop),
            }
        }
        self.say(redis::cmd("AUTH").arg(password)).map(drop)
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    text.unwrap_or("no reason given").split_whitespace().collect::<Vec<_>>().join(" ")
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The address only: what else a client knows includes the password.
        f.debug_struct("Manager")
            .field("address", &self.client.get_connection_info().addr().to_string())
            .field("connect_timeout", &self.connect_timeout)
            .field("command_timeout", &self.command_timeout)
            .finish_non_exhaustive()
    }
}

impl r2d2::ManageConnection for Manager {
    type Connection = Connection;
    type Error = ConnectError;

    fn connect(&self) -> Result<Connection, ConnectError> {
        // TLS libraries panic where the program has not set them up: not again and again.
        if let Some((when, error @ ConnectError::Panicked(_))) = self.health.last_connect_failure()
            && clock::uptime().since(when) < PANIC_PAUSE
        {
            return Err(error);
        }
        let dialled = catch_unwind(AssertUnwindSafe(|| self.dial_and_ask()));
        let connection =
            dialled.unwrap_or_else(|panic| Err(ConnectError::Panicked(panic_text(panic.as_ref()))));
        let connection = connection.map_err(|error| match error {
            ConnectError::Failed(error) => {
                let address = self.client.get_connection_info().addr().to_string();
                ConnectError::Failed(told(&error, &address, self.connect_timeout))
            }
            other => other,
        });
        match &connection {
            Ok(_) => self.health.connected(),
            Err(error) => self.health.connect_failed(error.clone()),
        }
        connection
    }

    fn is_valid(&self, connection: &mut Connection) -> Result<(), ConnectError> {
        connection.req_command(&redis::cmd("PING")).and_then(Value::extract_error)?;
        Ok(())
    }

    fn has_broken(&self, connection: &mut Connection) -> bool {
        // The pool's other users get the time-out that they set up.
        connection.answer_within(Duration::MAX);
        connection.rests();
        !connection.is_open()
    }
}

/// Why a connection could not be opened.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The server answered, and said no.
    #[error("{0}")]
    Refused(Refusal),
    /// The server is a replica, and a lock there protects nothing.
    #[error("it is a replica{}; lock on its master, since a lock on a replica protects nothing", of.as_ref().map_or(String::new(), |master| format!(" of {master}")))]
    #[non_exhaustive]
    Replica {
        /// The master's host and port, where the server tells them.
        of: Option<String>,
    },
    /// The server could not be reached, or could not be understood.
    #[error("{0}")]
    Failed(RedisError),
    /// The library that was to open the connection panicked. It is asked again after some seconds.
    #[error("connecting panicked: {0}")]
    Panicked(String),
}

impl From<RedisError> for ConnectError {
    fn from(error: RedisError) -> Self {
        match refusal_in(&error) {
            Some(refusal) => ConnectError::Refused(refusal),
            None => ConnectError::Failed(error),
        }
    }
}
