//! The server that the arguments name: a locker for it, and a connection for what a lock does not do.

use std::env;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use setnx_lock::__cluster::side_prefix;
use setnx_lock::redis::{
    self, Client, Cmd, Connection, ConnectionLike as _, FromRedisValue, InfoDict, Pipeline,
    RedisConnectionInfo, RedisError, Value, cmd,
};
use setnx_lock::{Credentials, Key, Locker, LockerBuilder, Refusal, RefusalKind, Version};

use crate::arguments::Server;
use crate::cluster::Masters;
use crate::failure::Failure;
use crate::output;

/// The longest first line of a file that is taken for a password, in bytes.
const LONGEST_PASSWORD: u64 = 64 << 10;

/// The versions that are assumed of a server that does not report its own, without SCAN and with it.
const OLDEST: Version = Version::new(1, 2, 0);
const HAS_SCAN: Version = Version::new(2, 8, 0);

/// A key to read where nothing else is answered.
const PROBE: &str = "setnx-lock:probe";

/// How long connecting may take.
const CONNECTING: Duration = Duration::from_secs(2);
/// How long a command over [`Raw`] may take.
const REPLY: Duration = Duration::from_secs(5);
/// How long KEYS may take, which looks at every key.
const KEYS_REPLY: Duration = Duration::from_secs(300);

/// A server or a cluster, and how to log in there. Connects to nothing by itself.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    builder: LockerBuilder,
    is_cluster: bool,
}

impl Target {
    /// Reads the password where there is one.
    pub(crate) fn of(server: &Server) -> Result<Self, Failure> {
        if server.url.starts_with("rediss") && cfg!(not(feature = "tls-native-tls")) {
            return Err(Failure::usage(
                "this binary was built without TLS; rebuild it with --features tls-native-tls",
            ));
        }
        let builder = with_certificates(Locker::builder(&server.url)?.trusting_version(), server)?;
        let is_cluster = server.url.contains("+cluster://");
        let builder = match &server.password_file {
            Some(file) => builder.credentials(by_file(file)?),
            None if builder.has_password() => builder,
            None => match env::var("REDISCLI_AUTH").ok().filter(|password| !password.is_empty()) {
                Some(password) => builder.credentials(move || Credentials::password(&password)),
                None => builder,
            },
        };
        let builder = match &server.sentinel_password_file {
            Some(_) if !server.url.contains("+sentinel://") => {
                return Err(Failure::usage("--sentinel-password-file needs a redis+sentinel URL"));
            }
            Some(file) => builder.sentinel_credentials(by_file(file)?),
            None => builder,
        };
        Ok(Self { builder, is_cluster })
    }

    /// Returns a builder of a locker.
    pub(crate) fn locker(&self) -> LockerBuilder {
        self.builder.clone()
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.is_cluster
    }

    /// Connects for what a lock does not do. A replica will do, unless Sentinels know the master; of a cluster it is the first node that
    /// replies.
    pub(crate) fn connect(&self) -> Result<Raw, Failure> {
        self.with_first(REPLY, |raw, _| Ok(raw))
    }

    /// The same to the server that has this key.
    pub(crate) fn connect_for(&self, key: &Key) -> Result<Raw, Failure> {
        if !self.is_cluster {
            return self.connect();
        }
        let masters = self.masters(REPLY)?;
        self.connect_to(&masters.clients()[masters.of(key)?], REPLY)
    }

    /// The same for several keys.
    pub(crate) fn connect_for_each(&self, keys: &[Key]) -> Result<Vec<Share>, Failure> {
        if !self.is_cluster {
            return Ok(vec![Share { connected: Ok(self.connect()?), places: (0..keys.len()).collect() }]);
        }
        let masters = self.masters(REPLY)?;
        let mut places: Vec<Vec<usize>> = masters.clients().iter().map(|_| Vec::new()).collect();
        for (at, key) in keys.iter().enumerate() {
            places[masters.of(key)?].push(at);
        }
        let each = masters.clients().iter().zip(places).filter(|(_, places)| !places.is_empty());
        let share = |(client, places)| Share { connected: self.connect_to(client, REPLY), places };
        Ok(each.map(share).collect())
    }

    /// The same to all servers, to look at all keys; by KEYS, if that is allowed, which takes its time.
    pub(crate) fn connect_for_keys(&self, keys_allowed: bool) -> Result<Vec<Raw>, Failure> {
        let reply = if keys_allowed { KEYS_REPLY } else { REPLY };
        if self.is_cluster {
            let masters = self.masters(reply)?;
            return masters.clients().iter().map(|client| self.connect_to(client, reply)).collect();
        }
        let raw = self.with_first(reply, |raw, _| Ok(raw))?;
        if raw.is_in_a_cluster() {
            output::warning(
                "the server is a cluster node: only the keys on this node are listed; name the cluster by redis+cluster://",
            );
        }
        Ok(vec![raw])
    }

    fn masters(&self, reply: Duration) -> Result<Masters, Failure> {
        self.with_first(reply, |mut raw, client| Masters::ask(&mut raw, client))
    }

    /// Returns what comes of the first server for which it does not fail.
    fn with_first<T>(
        &self,
        reply: Duration,
        then: impl Fn(Raw, &Client) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut failed = None;
        for client in self.builder.find_servers().map_err(|error| Failure::not_found(&error))? {
            match self.connect_to(&client, reply).and_then(|raw| then(raw, &client)) {
                Ok(done) => return Ok(done),
                Err(failure) if failure.is_refusal() => return Err(failure),
                Err(failure) => failed = Some(failure),
            }
        }
        Err(failed.unwrap_or_else(|| Failure::usage("no server is named")))
    }

    fn connect_to(&self, client: &Client, reply: Duration) -> Result<Raw, Failure> {
        let raw = Raw::connect(client, reply)?;
        Ok(Raw { has_slots: self.is_cluster, ..raw })
    }
}

#[cfg(not(feature = "tls-native-tls"))]
fn with_certificates(builder: LockerBuilder, server: &Server) -> Result<LockerBuilder, Failure> {
    match (&server.ca, &server.cert) {
        (None, None) => Ok(builder),
        _ => Err(Failure::usage(
            "--ca, --cert and --key need TLS, and this binary was built without it; rebuild it with --features tls-native-tls",
        )),
    }
}

#[cfg(feature = "tls-native-tls")]
fn with_certificates(builder: LockerBuilder, server: &Server) -> Result<LockerBuilder, Failure> {
    let Server { url, ca, cert, tls_key, .. } = server;
    if ca.is_none() && cert.is_none() {
        return Ok(builder);
    }
    if !url.starts_with("rediss") {
        return Err(Failure::usage("--ca, --cert and --key need TLS; begin the URL with rediss"));
    }
    let read = |file: &std::path::PathBuf| {
        let problem = |error| Failure::usage(format!("cannot read {}: {error}", file.display()));
        std::fs::read(file).map_err(problem)
    };
    let client_tls = match cert.as_ref().zip(tls_key.as_ref()) {
        Some((cert, key)) => {
            Some(redis::ClientTlsConfig { client_cert: read(cert)?, client_key: read(key)? })
        }
        None => None,
    };
    let root_cert = ca.as_ref().map(read).transpose()?;
    let certificates = redis::TlsCertificates { client_tls, root_cert };
    builder.tls_certificates(&certificates).map_err(|error| Failure::usage(error.to_string()))
}

/// Returns what reads the password again for each connection: it may change while a command runs. While the file cannot be read, the last
/// password counts; a pipe or a terminal is read once.
fn by_file(file: &Path) -> Result<impl Fn() -> Credentials + Send + Sync + use<>, Failure> {
    let (file, last) = (file.to_owned(), Mutex::new(first_line(file)?));
    Ok(move || {
        let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
        let read = is_file.then(|| first_line(&file).ok()).flatten();
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(password) = read {
            *last = password;
        }
        Credentials::password(last.as_str())
    })
}

fn first_line(file: &Path) -> Result<String, Failure> {
    let unreadable = |problem: &dyn std::fmt::Display| {
        Failure::usage(format!("cannot read the password from {}: {problem}", file.display()))
    };
    let opened = File::open(file).map_err(|error| unreadable(&error))?;
    let mut line = String::new();
    let mut reader = BufReader::new(std::io::Read::take(opened, LONGEST_PASSWORD));
    reader.read_line(&mut line).map_err(|error| unreadable(&error))?;
    match line.trim_end_matches(['\r', '\n']) {
        "" => Err(unreadable(&"its first line is empty")),
        password => Ok(password.to_owned()),
    }
}

/// Which of several keys one server has.
pub(crate) struct Share {
    pub(crate) connected: Result<Raw, Failure>,
    /// The places of the keys.
    pub(crate) places: Vec<usize>,
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
    fn connect(client: &Client, reply: Duration) -> Result<Self, Failure> {
        let mut raw = Self::log_in(client, reply)?;
        let info = match raw.carry(&cmd("INFO").get_packed_command()) {
            Ok(Value::ServerError(error)) => {
                let refusal = Refusal::from(error);
                if refusal.kind() == RefusalKind::TooManyClients {
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
        // As twemproxy does, which hangs up on what it does not forward.
        if !raw.connection.is_open() {
            raw = Self::log_in(client, reply)?;
        }
        match raw.has_scan() {
            Ok(true) => raw.version = HAS_SCAN,
            Ok(false) => {}
            Err(_) if !raw.connection.is_open() => {
                raw = Self::log_in(client, reply)?;
                raw.carry(&cmd("GET").arg(PROBE).get_packed_command())?;
            }
            Err(failure) => return Err(failure.at(client)),
        }
        Ok(raw)
    }

    /// Connects, and sends AUTH and SELECT by itself: the redis crate hides the server's words.
    fn log_in(client: &Client, reply: Duration) -> Result<Self, Failure> {
        let info = client.get_connection_info();
        let silent = RedisConnectionInfo::default().set_skip_set_lib_name();
        let connection =
            Client::open(info.clone().set_redis_settings(silent))?.get_connection_with_timeout(CONNECTING);
        let connection = connection.map_err(|error| Failure::unconnected(info.addr(), &error))?;
        connection.set_read_timeout(Some(reply))?;
        connection.set_write_timeout(Some(reply))?;
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

    /// Asks a server that does not report its version. One that lacks SCAN may refuse a client without a password by PING only.
    fn has_scan(&mut self) -> Result<bool, Failure> {
        let mut commands = Pipeline::new();
        commands.cmd("PING").cmd("SCAN").arg(0).arg("COUNT").arg(1);
        let mut has_scan = true;
        for reply in self.ask_all(&commands)? {
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
    fn is_in_a_cluster(&self) -> bool {
        self.info.get("cluster_enabled") == Some(1)
    }

    /// Returns true if a key may be on another node, while its slot moves.
    pub(crate) fn has_slots(&self) -> bool {
        self.has_slots
    }

    /// Returns what the names of the keys beside a lock's begin with.
    pub(crate) fn beside(&self, key: &Key) -> Vec<u8> {
        let prefix = if self.has_slots { side_prefix(key) } else { None };
        prefix.as_ref().unwrap_or(key).as_bytes().to_vec()
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
        self.connection.send_packed_command(&commands.get_packed_pipeline())?;
        Ok((0..commands.len()).map(|_| self.connection.recv_response()).collect::<Result<_, _>>()?)
    }

    /// Sends one command, and returns its reply, which may be a refusal.
    pub(crate) fn carry(&mut self, packed: &[u8]) -> Result<Value, RedisError> {
        self.connection.send_packed_command(packed)?;
        self.connection.recv_response()
    }
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
