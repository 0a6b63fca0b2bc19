//! A connection for what a lock does not do.

use std::time::Duration;

use setnx_lock::redis::{
    self, Client, Cmd, Connection, FromRedisValue, InfoDict, Pipeline, RedisConnectionInfo, RedisError,
    Value, cmd,
};
use setnx_lock::{Refusal, RefusalKind, Version};

use crate::failure::Failure;

/// The versions that are assumed of a server that does not report its own, without SCAN and with it.
const OLDEST: Version = Version::new(1, 2, 0);
const HAS_SCAN: Version = Version::new(2, 8, 0);

/// A key to read where nothing else is answered.
const PROBE: &str = "setnx-lock:probe";

/// How long a server's greeting is waited for: what it sends before any command, as to clients that it refuses.
const GREETING_WITHIN: Duration = Duration::from_millis(50);

/// How long connecting and a reply may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    pub(crate) connecting: Duration,
    pub(crate) reply: Duration,
}

/// A connection for what a lock does not do: looking at many keys, and at what stands beside them.
pub(crate) struct Raw {
    connection: Connection,
    /// The reported version, or one that is assumed.
    version: Version,
    /// Empty if the server does not answer INFO.
    info: InfoDict,
    /// True if keys beside a lock's have its slot.
    has_slots: bool,
}

impl Raw {
    /// Connects. `has_slots`: to a node of a cluster.
    pub(crate) fn connect(client: &Client, timeouts: Timeouts, has_slots: bool) -> Result<Self, Failure> {
        let raw = Self::connected(client, timeouts)?;
        Ok(Self { has_slots, ..raw })
    }

    fn connected(client: &Client, timeouts: Timeouts) -> Result<Self, Failure> {
        let mut raw = Self::log_in(client, timeouts)?;
        let reply = raw.carry(&cmd("INFO").get_packed_command());
        // As twemproxy does on what it does not forward.
        let hangs_up = reply.as_ref().is_err_and(RedisError::is_connection_dropped);
        let info = match reply {
            Ok(Value::ServerError(error)) => {
                let refusal = Refusal::from(error);
                if raw.refuses_connection(&refusal) {
                    return Err(Failure::from(refusal).at(client));
                }
                None
            }
            Err(error) if error.is_timeout() => return Err(error.into()),
            reply => reply.ok().and_then(info_of),
        };
        raw.info = info.unwrap_or_else(|| InfoDict::new(""));
        let field = |name: &str| raw.info.get::<String>(name);
        if field("redis_mode").as_deref() == Some("sentinel") {
            return Err(Failure::sentinel(client.get_connection_info().addr()));
        }
        if field("loading").as_deref() == Some("1") {
            return Err(Failure::loading(client.get_connection_info().addr()));
        }
        if let Some(version) = raw.reported_version() {
            raw.version = version;
            return Ok(raw);
        }
        if hangs_up {
            if let Some(refusal) = Self::log_in(client, timeouts)?.greeting() {
                return Err(Failure::from(refusal).at(client));
            }
            raw = Self::log_in(client, timeouts)?;
        }
        let mut commands = Pipeline::new();
        commands.cmd("PING").cmd("SCAN").arg(0).arg("COUNT").arg(1);
        match raw.carry_all(&commands) {
            Ok(replies) => {
                if has_scan(replies).map_err(|failure| failure.at(client))? {
                    raw.version = HAS_SCAN;
                }
            }
            Err(error) if error.is_connection_dropped() => {
                raw = Self::log_in(client, timeouts)?;
                raw.carry(&cmd("GET").arg(PROBE).get_packed_command())?;
            }
            Err(error) => return Err(Failure::from(error).at(client)),
        }
        Ok(raw)
    }

    /// Returns a refusal that the server sends before any command. The system drops it if the server closes a
    /// connection with a command unread. No command may follow on this connection.
    fn greeting(&mut self) -> Option<Refusal> {
        self.connection.set_read_timeout(Some(GREETING_WITHIN)).ok()?;
        match self.connection.recv_response() {
            Ok(Value::ServerError(error)) => Some(error.into()),
            _ => None,
        }
    }

    /// Returns true if the server hangs up after this refusal, which
    /// came in place of its first reply: it is about the connection.
    fn refuses_connection(&mut self, refusal: &Refusal) -> bool {
        let closes = matches!(refusal.kind(), RefusalKind::TooManyClients | RefusalKind::ProtectedMode);
        let ping = cmd("PING").get_packed_command();
        closes || self.carry(&ping).is_err_and(|error| error.is_connection_dropped())
    }

    /// Connects, and sends AUTH and SELECT by itself: the redis crate hides the server's words.
    fn log_in(client: &Client, timeouts: Timeouts) -> Result<Self, Failure> {
        let info = client.get_connection_info();
        let silent = RedisConnectionInfo::default().set_skip_set_lib_name();
        let opened = Client::open(info.clone().set_redis_settings(silent))?;
        let connection = opened.get_connection_with_timeout(timeouts.connecting);
        let connection = connection.map_err(|error| Failure::unconnected(info.addr(), &error))?;
        connection.set_read_timeout(Some(timeouts.reply))?;
        connection.set_write_timeout(Some(timeouts.reply))?;
        let mut raw = Self { connection, version: OLDEST, info: InfoDict::new(""), has_slots: false };
        let settings = info.redis_settings();
        if let Some(password) = settings.password() {
            let with_user = settings.username().map(|user| raw.ask(cmd("AUTH").arg(user).arg(password)));
            match with_user {
                // Servers before 6 know no users.
                Some(Err(failure)) if failure.text().contains("wrong number of arguments") => {
                    raw.ask(cmd("AUTH").arg(password))
                }
                Some(replied) => replied,
                None => raw.ask(cmd("AUTH").arg(password)),
            }
            .map(|_: Value| ())
            .map_err(|failure| failure.at(client))?;
        }
        if settings.db() != 0 {
            let selected = raw.ask::<Value>(cmd("SELECT").arg(settings.db()));
            selected.map_err(|failure| failure.at(client))?;
        }
        Ok(raw)
    }

    /// Returns what the server answered to INFO; nothing if it did not.
    pub(crate) fn info(&self) -> &InfoDict {
        &self.info
    }

    pub(crate) fn reported_version(&self) -> Option<Version> {
        self.info.get::<String>("redis_version")?.parse().ok()
    }

    pub(crate) fn is_replica(&self) -> bool {
        self.info.get::<String>("role").is_some_and(|role| role == "slave" || role == "replica")
    }

    /// Returns true if the server reports that it is a node of a cluster.
    pub(crate) fn is_in_a_cluster(&self) -> bool {
        self.info.get("cluster_enabled") == Some(1)
    }

    /// Returns true if a key may be on another node, while its slot moves.
    pub(crate) fn has_slots(&self) -> bool {
        self.has_slots
    }

    /// Returns true if the server has what came with this version.
    pub(crate) fn is_since(&self, major: u16, minor: u16) -> bool {
        self.version >= Version::new(major, minor, 0)
    }

    pub(crate) fn ask<T: FromRedisValue>(&mut self, command: &Cmd) -> Result<T, Failure> {
        let reply = accepted(self.carry(&command.get_packed_command())?)?;
        Ok(redis::from_redis_value(reply).map_err(RedisError::from)?)
    }

    /// Sends the commands in one trip, and returns their replies, refusals among them.
    pub(crate) fn ask_all(&mut self, commands: &Pipeline) -> Result<Vec<Value>, Failure> {
        Ok(self.carry_all(commands)?)
    }

    fn carry_all(&mut self, commands: &Pipeline) -> Result<Vec<Value>, RedisError> {
        self.connection.send_packed_command(&commands.get_packed_pipeline())?;
        (0..commands.len()).map(|_| self.connection.recv_response()).collect()
    }

    /// Carries out one command by a transaction; `None` if a key that is watched was changed.
    pub(crate) fn transact<T: FromRedisValue>(&mut self, command: &Cmd) -> Result<Option<T>, Failure> {
        // By itself: were it refused, a command behind it would be carried out at once.
        self.ask::<()>(&cmd("MULTI"))?;
        let mut commands = Pipeline::new();
        commands.add_command(command.clone()).cmd("EXEC");
        for reply in self.ask_all(&commands)? {
            if let Value::Array(outcomes) = accepted(reply)? {
                let outcome = outcomes.into_iter().next().unwrap_or(Value::Nil);
                return Ok(Some(redis::from_redis_value(accepted(outcome)?).map_err(RedisError::from)?));
            }
        }
        Ok(None)
    }

    /// Sends one command, and returns its reply, which may be a refusal.
    pub(crate) fn carry(&mut self, packed: &[u8]) -> Result<Value, RedisError> {
        self.connection.send_packed_command(packed)?;
        self.connection.recv_response()
    }
}

/// Reads the replies to PING and SCAN of a server that does not report its version. One that lacks SCAN may refuse a
/// client without a password by PING only.
fn has_scan(replies: Vec<Value>) -> Result<bool, Failure> {
    let mut has_scan = true;
    for reply in replies {
        let Value::ServerError(error) = reply else { continue };
        let refusal = Refusal::from(error);
        match refusal.kind() {
            RefusalKind::NotPermitted => {}
            RefusalKind::UnknownCommand | RefusalKind::Other => has_scan = false,
            _ => return Err(refusal.into()),
        }
    }
    Ok(has_scan)
}

/// The reply to INFO. A file's name in it may have any bytes.
fn info_of(reply: Value) -> Option<InfoDict> {
    match reply {
        Value::BulkString(bytes) => Some(InfoDict::new(&String::from_utf8_lossy(&bytes))),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(InfoDict::new(&text)),
        _ => None,
    }
}

/// The reply, unless it is a refusal.
pub(crate) fn accepted(reply: Value) -> Result<Value, Failure> {
    match reply {
        Value::ServerError(error) => Err(Refusal::from(error).into()),
        reply => Ok(reply),
    }
}
