//! Opening one connection: the socket with its timeouts, then AUTH,
//! SELECT and INFO. Sends nothing that an old server does not know.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use proto::fencing::Epoch;
use proto::values::{Key, Uptime, Version};
use redis::{Client, Cmd, ConnectionAddr, RedisError, Value, cmd};

use super::server_info::{ServerInfo, Settling};
use super::transport::{Longest, Spin, Transport};
use crate::net::errors::{Failure, Refusal, TransportError};
use crate::net::patience::Looks;
use crate::net::request::Compares;
use crate::system::clock;

/// How long a server's greeting is waited for: what it sends before any command, as to clients that it refuses.
const GREETING_WITHIN: Duration = Duration::from_millis(50);

/// An open connection, and what its server reported.
pub(super) struct Opened {
    pub(super) transport: Transport,
    pub(super) version: Option<Version>,
    pub(super) compares: Option<Compares>,
    pub(super) settling: Option<Settling>,
    /// That of the server, if it is known.
    pub(super) epoch: Option<Epoch>,
    /// True if the server has answered a command: a refusal then is of a command, not of the connection.
    pub(super) has_answered: bool,
    /// How many connections had been found closed before.
    pub(super) closures_before: u64,
}

/// What is asked of a server on a new connection.
#[derive(Clone, Copy)]
pub(super) struct Checks<'a> {
    /// True if it is asked for INFO at all.
    pub(super) info: bool,
    /// The key that is read if it has closed connections on INFO.
    pub(super) probes: Option<&'a Key>,
    /// How long after its restart it grants no locks.
    pub(super) settles: Duration,
    /// True if it is a node of a cluster, whose epoch is asked in any case.
    pub(super) in_cluster: bool,
}

/// Opens a connection within `limit`.
pub(super) fn open(
    client: &Client,
    limit: Duration,
    checks: Checks<'_>,
    looks: &Arc<Looks>,
) -> Result<Opened, Failure> {
    let info = client.get_connection_info();
    let address = info.addr().to_string();
    let mut handshake = log_in(client, &address, limit, looks)?;
    let checked = if checks.info {
        handshake.check_server(checks)?
    } else {
        if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            // The TLS handshake comes with the first command. During a
            // lock's command, a rejected certificate would be a lost reply.
            handshake.send_optional(&cmd("PING"), |_| false)?;
        } else if let Some(key) = checks.probes {
            handshake.read_greeting()?;
            handshake.expect_plaintext(key)?;
        }
        None
    };
    let is_in_cluster = checked.as_ref().is_some_and(|(info, _)| info.is_in_cluster());
    let epoch = if checks.in_cluster || is_in_cluster { handshake.epoch_in_cluster()? } else { None };
    let (version, compares, settling) = match checked {
        Some((info, settling)) => (info.version(), info.compares(), settling),
        None => (None, None, None),
    };
    let Handshake { transport, has_answered, .. } = handshake;
    Ok(Opened { transport, version, compares, settling, epoch, has_answered, closures_before: 0 })
}

/// Connects to the server at `address`, the client's, and logs in, within `limit`.
pub(super) fn log_in<'a>(
    client: &Client,
    address: &'a str,
    limit: Duration,
    looks: &Arc<Looks>,
) -> Result<Handshake<'a>, Failure> {
    let deadline = clock::uptime().after(limit);
    let info = client.get_connection_info();
    let settings = info.redis_settings();
    let transport = Transport::open(info, limit, looks).map_err(|error| failed(address, limit, &error))?;
    let mut handshake = Handshake { transport, address, limit, deadline, has_answered: false };
    // These are sent here for TLS as well: the redis crate hides the server's words,
    // and "too many clients" must not be taken for a wrong password. Their replies
    // are those of RESP2, whatever the URL says: RESP3 has nothing that locks need.
    if let Some(password) = settings.password() {
        handshake.authenticate(settings.username(), password)?;
    }
    if settings.db() != 0 {
        handshake.ask(cmd("SELECT").arg(settings.db()))?;
    }
    Ok(handshake)
}

fn failed(address: &str, limit: Duration, error: &RedisError) -> Failure {
    match Refusal::of(error) {
        Some(refusal) => Failure::Refused(refusal.of_connecting(address)),
        None => Failure::unreachable(TransportError::on(address, limit, error)),
    }
}

/// The commands sent on a new connection, within the time for connecting.
pub(in crate::net) struct Handshake<'a> {
    transport: Transport,
    address: &'a str,
    limit: Duration,
    deadline: Uptime,
    /// True once the server has carried out a command, or refused one
    /// and left the connection open: a refusal then is of a command.
    has_answered: bool,
}

impl Handshake<'_> {
    pub(in crate::net) fn ask(&mut self, command: &Cmd) -> Result<Value, Failure> {
        let sent = self.transport.write(&command.get_packed_command(), clock::uptime(), self.deadline);
        let reply = sent.and_then(|()| self.transport.receive(self.deadline, Longest::WHOLE, Spin::First));
        let reply = reply.and_then(Value::extract_error);
        self.has_answered |= reply.is_ok();
        reply.map_err(|error| failed(self.address, self.limit, &error))
    }

    /// Returns true if a refusal is not of the command but of the connection: it came before the first reply or in its
    /// place, and the server hangs up. So does one in protected mode, and a proxy that is full or has no server.
    pub(in crate::net) fn refuses_connection(&mut self, refusal: &Refusal) -> bool {
        if refusal.closes_connection() {
            return true;
        }
        if self.has_answered {
            return false;
        }
        let answer = self.ask(&cmd("PING"));
        let hangs_up = matches!(&answer, Err(Failure::Unreachable { cause, .. }) if cause.is_disconnect());
        self.has_answered = !hangs_up;
        hangs_up
    }

    /// Sends a command whose refusal does not matter, unless `matters`
    /// says so: the user may not run it, or the server has renamed it.
    pub(in crate::net) fn send_optional(
        &mut self,
        command: &Cmd,
        matters: impl Fn(&Refusal) -> bool,
    ) -> Result<Option<Value>, Failure> {
        match self.ask(command) {
            Err(Failure::Refused(refusal)) if !matters(&refusal) && !self.refuses_connection(&refusal) => {
                Ok(None)
            }
            reply => reply.map(Some),
        }
    }

    /// Reads the greeting of a server that has closed connections on the first command. The system drops a greeting if
    /// the server closes a connection with a command unread.
    fn read_greeting(&mut self) -> Result<(), Failure> {
        let until = self.deadline.min(clock::uptime().after(GREETING_WITHIN));
        if !self.transport.resumes() {
            return Ok(());
        }
        match self.transport.receive(until, Longest::WHOLE, Spin::Never).and_then(Value::extract_error) {
            Err(error) if !error.is_timeout() && !error.is_connection_dropped() => {
                Err(failed(self.address, self.limit, &error))
            }
            _ => Ok(()),
        }
    }

    /// A proxy forwards GET. A port that speaks TLS closes the connection on any command, and would on one that
    /// acquires a lock.
    fn expect_plaintext(&mut self, key: &Key) -> Result<(), Failure> {
        match self.send_optional(cmd("GET").arg(key.as_bytes()), |_| false) {
            Err(Failure::Unreachable { cause, .. }) if cause.is_disconnect() => {
                let what = " closes each connection at the first command; if it speaks TLS, use rediss:// in its URL";
                Err(Failure::unreachable(TransportError::at(
                    self.address,
                    io::ErrorKind::ConnectionReset,
                    what,
                )))
            }
            reply => reply.map(drop),
        }
    }

    /// Returns what the server reports of itself, if it does, and why it settles. A replica is an error.
    fn check_server(
        &mut self,
        checks: Checks<'_>,
    ) -> Result<Option<(ServerInfo, Option<Settling>)>, Failure> {
        let settles = checks.settles;
        let has_to_know = !settles.is_zero() || checks.in_cluster;
        // One that runs a script refuses INFO as well. Without the version Auto would decide by clocks from then on.
        let matters =
            |refusal: &Refusal| refusal.is_transient() || has_to_know && !refusal.is_about_the_command();
        let Some(info) = self.send_optional(&cmd("INFO"), matters)?.and_then(ServerInfo::parse) else {
            let unknown = Refusal::settling(self.address, None, settles);
            return if settles.is_zero() { Ok(None) } else { Err(Failure::Refused(unknown)) };
        };
        if info.is_replica() {
            return Err(Failure::Refused(Refusal::of_replica(self.address, info.master().as_deref())));
        }
        match info.answers_nothing_else(self.address) {
            Some(refusal) => Err(Failure::Refused(refusal)),
            None => {
                let settling = info.settling(settles, self.address).map_err(Failure::Refused)?;
                Ok(Some((info, settling)))
            }
        }
    }

    /// Returns the epoch of the configuration of a cluster's node, which has said that it is a master if it was asked;
    /// `None` if this user may not ask.
    fn epoch_in_cluster(&mut self) -> Result<Option<Epoch>, Failure> {
        let matters = |refusal: &Refusal| !refusal.is_about_the_command();
        let reply = self.send_optional(cmd("CLUSTER").arg("INFO"), matters)?;
        Ok(reply.and_then(ServerInfo::epoch_in_cluster))
    }

    /// Servers before 6 know no users: there, as in the redis crate, the password alone is sent.
    fn authenticate(&mut self, user: Option<&str>, password: &str) -> Result<(), Failure> {
        if let Some(user) = user {
            match self.ask(cmd("AUTH").arg(user).arg(password)) {
                Err(Failure::Refused(refusal)) if refusal.text().contains("wrong number of arguments") => {}
                reply => return reply.map(drop),
            }
        }
        self.ask(cmd("AUTH").arg(password)).map(drop)
    }
}
