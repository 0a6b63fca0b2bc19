//! The server that the arguments name: a locker for it, and a connection for what a lock does not do.

use std::env;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::time::Duration;

use setnx_lock::r2d2::ManageConnection as _;
use setnx_lock::redis::{
    self, Client, Cmd, ConnectionInfo, ConnectionLike as _, FromRedisValue, IntoConnectionInfo as _,
    Pipeline, Value,
};
use setnx_lock::{Connection, LockConnection, Locker, LockerBuilder, Manager, Version};

use crate::arguments::Server;
use crate::failure::Failure;

/// The longest first line of a file that is taken for a password, in bytes.
const LONGEST_PASSWORD: u64 = 64 << 10;

/// How long a command over [`Raw`] may take.
const REPLY: Duration = Duration::from_secs(5);
/// How long KEYS may take, which looks at every key.
const KEYS_REPLY: Duration = Duration::from_secs(300);

/// A server, and how to log in there. Connects to nothing by itself.
#[derive(Clone, Debug)]
pub(crate) struct Target(Client);

impl Target {
    /// Reads the password where there is one.
    pub(crate) fn of(server: &Server) -> Result<Self, Failure> {
        client(server).map(Self)
    }

    /// Returns a builder of a locker.
    pub(crate) fn locker(&self) -> LockerBuilder {
        Locker::with_client(self.0.clone())
    }

    /// Connects for what a lock does not do. A replica will do.
    pub(crate) fn connect(&self) -> Result<Raw, Failure> {
        Raw::connect(&self.0, REPLY)
    }

    /// The same for KEYS, if that is allowed, which takes its time.
    pub(crate) fn connect_for_keys(&self, keys_allowed: bool) -> Result<Raw, Failure> {
        Raw::connect(&self.0, if keys_allowed { KEYS_REPLY } else { REPLY })
    }
}

fn client(server: &Server) -> Result<Client, Failure> {
    if server.url.starts_with("rediss:") && cfg!(not(feature = "tls-native-tls")) {
        return Err(Failure::usage(
            "this program was built without TLS; build it with --features cli,tls-native-tls",
        ));
    }
    // The library says what is wrong with an address.
    let _checked = Locker::builder(&server.url)?;
    let info: ConnectionInfo = server.url.as_str().into_connection_info()?;
    let password = match &server.password_file {
        Some(file) => Some(first_line(file)?),
        None if info.redis_settings().password().is_some() => None,
        None => env::var("REDISCLI_AUTH").ok().filter(|password| !password.is_empty()),
    };
    let info = match password {
        Some(password) => {
            let settings = info.redis_settings().clone().set_password(password);
            info.set_redis_settings(settings)
        }
        None => info,
    };
    Ok(Client::open(info)?)
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

/// A connection for what a lock does not do: looking at many keys, and at what stands beside them.
#[derive(Debug)]
pub(crate) struct Raw {
    connection: Connection,
    /// None if the user may not ask.
    version: Option<Version>,
    is_replica: bool,
}

impl Raw {
    fn connect(client: &Client, reply: Duration) -> Result<Self, Failure> {
        let manager = Manager::new(client.clone()).skip_server_check().command_timeout(reply);
        let mut connection = manager.connect()?;
        LockConnection::connect(&mut connection)?;
        let info = redis::cmd("INFO").query::<redis::InfoDict>(&mut connection);
        let info = match info {
            Ok(info) => Some(info),
            Err(error) if may_not_ask(&error) => None,
            Err(error) => return Err(error.into()),
        };
        let field = |name| info.as_ref().and_then(|info| info.get::<String>(name));
        let version = field("redis_version").and_then(|version| version.parse().ok());
        let is_replica = field("role").is_some_and(|role| role == "slave");
        Ok(Self { connection, version, is_replica })
    }

    pub(crate) fn is_replica(&self) -> bool {
        self.is_replica
    }

    pub(crate) fn version(&self) -> Option<Version> {
        self.version
    }

    /// Whether the server has what came with this version; assumed where it is unknown.
    pub(crate) fn is_since(&self, major: u16, minor: u16) -> bool {
        self.version.is_none_or(|version| version >= Version::new(major, minor, 0))
    }

    pub(crate) fn ask<T: FromRedisValue>(&mut self, command: &Cmd) -> Result<T, Failure> {
        Ok(command.query(&mut self.connection)?)
    }

    /// Sends the commands in one trip, and returns their replies, refusals among them.
    pub(crate) fn ask_all(&mut self, commands: &Pipeline) -> Result<Vec<Value>, Failure> {
        let count = commands.len();
        Ok(self.connection.req_packed_commands(&commands.get_packed_pipeline(), 0, count)?)
    }
}

/// Whether the server refused INFO only, and not the client.
fn may_not_ask(error: &redis::RedisError) -> bool {
    error.code().is_some_and(|code| code == "NOPERM" || code == "ERR")
}
