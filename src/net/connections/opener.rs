//! What opens the connections of a locker to its server.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use redis::ProtocolVersion;

use super::handshake::{self, Checks, Opened};
use super::health::Health;
use super::subscription::{self, Heard};
use crate::net::errors::{ConnectError, Failure};
use crate::net::patience::Looks;
use crate::values::clock;
use crate::values::key::Cut;

/// How long connecting may take unless set.
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long one command may take unless set.
pub(crate) const DEFAULT_COMMAND_TIMEOUT: Duration = Duration::from_secs(2);

/// Opens the connections of a locker: with timeouts, without `CLIENT SETINFO`, which old servers refuse, and with one INFO for the role and
/// the version of the server. Where INFO is refused, or a proxy hangs up on it, the connection is used without the check.
#[derive(Clone)]
pub(crate) struct Opener {
    client: redis::Client,
    /// Limits connecting, password and database number included.
    pub(crate) connect_timeout: Duration,
    /// Limits each reply of the server.
    pub(crate) command_timeout: Duration,
    /// True if INFO is sent on new connections.
    pub(crate) checks_server: bool,
    /// How long after its restart a server is not used.
    pub(crate) settles: Duration,
    pub(super) looks: Arc<Looks>,
    pub(in crate::net) health: Arc<Health>,
}

impl Opener {
    /// Returns what opens connections as `client` does.
    pub(crate) fn new(client: redis::Client) -> Self {
        Self {
            client,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            command_timeout: DEFAULT_COMMAND_TIMEOUT,
            checks_server: true,
            settles: Duration::ZERO,
            health: Arc::default(),
            looks: Arc::default(),
        }
    }

    /// From now on threads sleep at once, instead of looking for the reply first: so that what is counted of a program does not depend on the
    /// server.
    pub(crate) fn never_look(&mut self) {
        self.looks = Arc::new(Looks::never());
    }

    /// Opens a connection within the time for connecting. A panic is an error.
    pub(super) fn open(&self) -> Result<Opened, ConnectError> {
        let opened = catch_unwind(AssertUnwindSafe(|| self.open_or_panic()))
            .unwrap_or_else(|panic| Err(panicked(panic.as_ref())))?;
        self.health.note_version(opened.version);
        Ok(opened)
    }

    /// Some proxies hang up on commands that they do not forward, INFO among them. After two such hang-ups the connection is opened
    /// without INFO.
    fn open_or_panic(&self) -> Result<Opened, ConnectError> {
        let open = |info| {
            let checks = Checks { info, settles: self.settles };
            handshake::open(&self.client, self.connect_timeout, checks, &self.looks)
        };
        for _ in 0..if self.checks_server { 2 } else { 0 } {
            match open(true) {
                Err(ConnectError::Failed(error)) if error.is_disconnect() && self.settles.is_zero() => {}
                outcome => return outcome,
            }
        }
        open(false)
    }

    /// Opens a connection outside the pool, subscribes to a channel, and gives `heard` what is published there, until that returns `false` or
    /// the connection fails.
    pub(in crate::net) fn listen(
        &self,
        channel: &[u8],
        heard: &mut dyn FnMut(Heard<'_>) -> bool,
    ) -> Result<(), Failure> {
        let outside = self.outside_the_pool();
        let health = &self.health;
        loop {
            let began = clock::uptime();
            let opened = outside.open();
            let opened =
                opened.map_err(|error| Failure::of_connecting(error, clock::uptime().since(began)))?;
            let closures = health.closures();
            let mut goes_on = true;
            let hear = |received: Heard<'_>| {
                goes_on = heard(received);
                // The address may lead to another server now.
                goes_on && !(matches!(received, Heard::Silence) && health.closures() > closures)
            };
            subscription::listen(opened, channel, outside.command_timeout, &outside.address(), hear)?;
            if !goes_on {
                return Ok(());
            }
        }
    }

    /// Returns what opens connections to the same server that wait for seconds, and receive messages as all versions of Redis send
    /// them.
    fn outside_the_pool(&self) -> Self {
        let info = self.client.get_connection_info();
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP2);
        let client = redis::Client::open(info.clone().set_redis_settings(settings));
        Self {
            client: client.unwrap_or_else(|_| self.client.clone()),
            looks: Arc::new(Looks::never()),
            ..self.clone()
        }
    }

    /// Host and port of the server.
    pub(in crate::net) fn address(&self) -> String {
        self.client.get_connection_info().addr().to_string()
    }
}

fn panicked(panic: &(dyn Any + Send)) -> ConnectError {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    let words = text.unwrap_or("no reason given").split_whitespace().collect::<Vec<_>>().join(" ");
    ConnectError::Panicked(Cut(words.as_bytes()).to_string())
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The address only: the rest of a client includes the password.
        f.debug_struct("Opener")
            .field("address", &self.address())
            .field("connect_timeout", &self.connect_timeout)
            .field("command_timeout", &self.command_timeout)
            .field("checks_server", &self.checks_server)
            .field("settles", &self.settles)
            .field("looks", &self.looks)
            .finish_non_exhaustive()
    }
}
