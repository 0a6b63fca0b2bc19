//! Opening one connection: the socket with its timeouts, then AUTH, SELECT and INFO. Sends nothing that an old server does not know.

use std::time::Duration;

use redis::{
    Cmd, ConnectionAddr, ConnectionLike as _, ProtocolVersion, RedisConnectionInfo, RedisError, Value, cmd,
};

use super::server_info::{Role, ServerInfo};
use crate::backend::errors::{ConnectError, Refusal, TransportError};
use crate::clock::{self, Uptime};
use crate::version::Version;

/// An open connection, and what its server reported.
pub(super) struct Opened {
    pub(super) connection: redis::Connection,
    pub(super) version: Option<Version>,
}

/// Opens a connection within `limit`, whose replies may take `command_timeout` from then on. `checks_server` asks the server for INFO.
pub(super) fn open(
    client: &redis::Client,
    limit: Duration,
    command_timeout: Duration,
    checks_server: bool,
) -> Result<Opened, ConnectError> {
    let give_up = clock::uptime().after(limit);
    let info = client.get_connection_info();
    let settings = info.redis_settings();
    let address = info.addr().to_string();
    let tls = matches!(info.addr(), ConnectionAddr::TcpTls { .. });
    let resp3 = settings.protocol() != ProtocolVersion::RESP2;
    // RESP3's HELLO carries user and password. Otherwise they are sent here: the redis crate hides the server's words, and "too
    // many clients" must not be taken for a wrong password.
    let bare = if resp3 { settings.clone() } else { RedisConnectionInfo::default() };
    // A connection that is closed drops what it has not sent yet: a command that arrives after its caller has given up does harm.
    let tcp = info.tcp_settings().clone().set_linger_time(Duration::ZERO);
    let target = info.clone().set_redis_settings(bare.set_skip_set_lib_name()).set_tcp_settings(tcp);

    let failed = |error: RedisError| failed(&address, limit, &error);
    let connect = || redis::Client::open(target)?.get_connection_with_timeout(limit);
    let mut connection = connect().map_err(failed)?;
    connection.set_write_timeout(Some(command_timeout)).map_err(failed)?;

    let mut handshake = Handshake { connection: &mut connection, address: &address, limit, give_up };
    if !resp3 {
        if let Some(password) = settings.password() {
            handshake.authenticate(settings.username(), password)?;
        }
        if settings.db() != 0 {
            handshake.send(cmd("SELECT").arg(settings.db()))?;
        }
    }
    let version = if checks_server {
        handshake.check_server()?
    } else {
        if tls {
            // The TLS handshake comes with the first command. During a lock's command, a rejected certificate would be a lost reply.
            handshake.send_optional(&cmd("PING"))?;
        }
        None
    };
    connection.set_read_timeout(Some(command_timeout)).map_err(failed)?;
    Ok(Opened { connection, version })
}

fn failed(address: &str, limit: Duration, error: &RedisError) -> ConnectError {
    match Refusal::of(error) {
        Some(refusal) => ConnectError::Refused(refusal),
        None => ConnectError::Failed(TransportError::on(address, limit, error)),
    }
}

/// The commands sent on a new connection, within the time for connecting.
struct Handshake<'a> {
    connection: &'a mut redis::Connection,
    address: &'a str,
    limit: Duration,
    give_up: Uptime,
}

impl Handshake<'_> {
    fn send(&mut self, command: &Cmd) -> Result<Value, ConnectError> {
        // A timeout of zero would be none at all.
        let left = self.give_up.since(clock::uptime()).max(Duration::from_millis(1));
        let reply = self.connection.set_read_timeout(Some(left));
        let reply = reply.and_then(|()| self.connection.req_command(command)).and_then(Value::extract_error);
        reply.map_err(|error| failed(self.address, self.limit, &error))
    }

    /// Sends a command whose refusal does not matter: the user may not run it, or the server has renamed it.
    fn send_optional(&mut self, command: &Cmd) -> Result<Option<Value>, ConnectError> {
        match self.send(command) {
            Err(ConnectError::Refused(refusal)) if !refusal.closes_connection() => Ok(None),
            reply => reply.map(Some),
        }
    }

    /// Returns the server's version, if it reports one. A replica is an error.
    fn check_server(&mut self) -> Result<Option<Version>, ConnectError> {
        let Some(info) = self.send_optional(&cmd("INFO"))?.and_then(ServerInfo::parse) else {
            return Ok(None);
        };
        match info.role() {
            Some(Role::Replica { of }) => Err(ConnectError::Replica { of }),
            // It answers INFO, and would refuse all commands of locks.
            _ if info.get("loading") == Some("1") => {
                Err(ConnectError::Refused(Refusal::new("LOADING Redis is loading the dataset in memory")))
            }
            _ => Ok(info.version()),
        }
    }

    /// Servers before 6 know no users: there, as in the redis crate, the password alone is sent.
    fn authenticate(&mut self, user: Option<&str>, password: &str) -> Result<(), ConnectError> {
        if let Some(user) = user {
            match self.send(cmd("AUTH").arg(user).arg(password)) {
                Err(ConnectError::Refused(refusal))
                    if refusal.text().contains("wrong number of arguments") => {}
                reply => return reply.map(drop),
            }
        }
        self.send(cmd("AUTH").arg(password)).map(drop)
    }
}
