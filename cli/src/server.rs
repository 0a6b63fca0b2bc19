//! The server that the arguments name: a locker for it, and connections to it.

use std::env;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

#[cfg(feature = "tls-native-tls")]
use setnx_lock::redis;
use setnx_lock::redis::Client;
use setnx_lock::{Credentials, Key, Locker, LockerBuilder};

use crate::arguments::Server;
use crate::cluster::Masters;
use crate::failure::Failure;
use crate::output;
use crate::raw::{Raw, Timeouts};

/// The longest first line of a file that is taken for a password or a token, in bytes.
const LONGEST_LINE: u64 = 64 << 10;

/// With what editors have text begin, in UTF-8 and UTF-16.
const BYTE_ORDER_MARKS: [&[u8]; 3] = [b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff"];

/// How long connecting may take unless given.
const CONNECTING: Duration = Duration::from_secs(2);
/// The same for a command over [`Raw`].
const REPLY: Duration = Duration::from_secs(5);
/// How long KEYS may take, which looks at every key.
const KEYS_REPLY: Duration = Duration::from_secs(300);

/// A server or a cluster, and how to log in there. Connects to nothing by itself.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    builder: LockerBuilder,
    is_cluster: bool,
    server: Server,
    timeouts: Timeouts,
}

impl Target {
    /// Reads the password where there is one.
    pub(crate) fn of(server: &Server) -> Result<Self, Failure> {
        if server.url.starts_with("rediss") && cfg!(not(feature = "tls-native-tls")) {
            return Err(Failure::usage(
                "this binary was built without TLS; rebuild it with --features tls-native-tls",
            ));
        }
        let builder = with_certificates(Locker::builder(&server.url)?, server)?;
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
        let connecting = server.connect_timeout.unwrap_or(CONNECTING);
        let timeouts = Timeouts { connecting, reply: server.command_timeout.unwrap_or(REPLY) };
        let builder = builder.connect_timeout(connecting);
        let builder = server.command_timeout.into_iter().fold(builder, LockerBuilder::command_timeout);
        Ok(Self { builder, is_cluster, server: server.clone(), timeouts })
    }

    /// Returns the whole key of a lock, with the prefix.
    pub(crate) fn key(&self, given: &Key) -> Key {
        self.server.whole_key(given)
    }

    pub(crate) fn keys(&self, given: &[Key]) -> Vec<Key> {
        given.iter().map(|key| self.key(key)).collect()
    }

    /// Returns the pattern of whole keys: in the prefix no character is special.
    pub(crate) fn pattern(&self, given: &OsStr) -> Vec<u8> {
        let escaped = self.server.prefix.as_bytes().iter().flat_map(|byte| match byte {
            b'*' | b'?' | b'[' | b']' | b'\\' => vec![b'\\', *byte],
            byte => vec![*byte],
        });
        escaped.chain(given.as_bytes().iter().copied()).collect()
    }

    /// Returns a builder of a locker, for whole keys.
    pub(crate) fn locker(&self) -> LockerBuilder {
        self.builder.clone()
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.is_cluster
    }

    pub(crate) fn is_by_sentinel(&self) -> bool {
        self.server.url.contains("+sentinel://")
    }

    /// Connects for what a lock does not do. A replica will do, unless Sentinels know the master; of a cluster it is
    /// the first node that replies.
    pub(crate) fn connect(&self) -> Result<Raw, Failure> {
        self.with_first(self.timeouts.reply, |raw, _| Ok(raw))
    }

    /// The same to the server that has this key.
    pub(crate) fn connect_for(&self, key: &Key) -> Result<Raw, Failure> {
        if !self.is_cluster {
            return self.connect();
        }
        let masters = self.masters(self.timeouts.reply)?;
        self.connect_to(&masters.clients()[masters.of(key)?], self.timeouts.reply)
    }

    /// The same for several keys.
    pub(crate) fn connect_for_each(&self, keys: &[Key]) -> Result<Vec<Share>, Failure> {
        if !self.is_cluster {
            return Ok(vec![Share { connected: Ok(self.connect()?), places: (0..keys.len()).collect() }]);
        }
        let masters = self.masters(self.timeouts.reply)?;
        let mut places: Vec<Vec<usize>> = masters.clients().iter().map(|_| Vec::new()).collect();
        for (at, key) in keys.iter().enumerate() {
            places[masters.of(key)?].push(at);
        }
        let each = masters.clients().iter().zip(places).filter(|(_, places)| !places.is_empty());
        let share =
            |(client, places)| Share { connected: self.connect_to(client, self.timeouts.reply), places };
        Ok(each.map(share).collect())
    }

    /// The same to all servers, to look at all keys; by KEYS, if that is allowed, which takes its time.
    pub(crate) fn connect_for_keys(&self, keys_allowed: bool) -> Result<Vec<Raw>, Failure> {
        let reply = if keys_allowed { KEYS_REPLY.max(self.timeouts.reply) } else { self.timeouts.reply };
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
        Raw::connect(client, Timeouts { reply, ..self.timeouts }, self.is_cluster)
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

/// Returns what reads the password again for each connection: it may change while a command runs. While the file cannot
/// be read, the last password counts; a pipe or a terminal is read once.
fn by_file(file: &Path) -> Result<impl Fn() -> Credentials + Send + Sync + use<>, Failure> {
    let (file, last) = (file.to_owned(), Mutex::new(first_line("password", file)?));
    Ok(move || {
        let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
        let read = is_file.then(|| first_line("password", &file).ok()).flatten();
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(password) = read {
            *last = password;
        }
        Credentials::password(last.as_str())
    })
}

pub(crate) fn first_line(what: &str, file: &Path) -> Result<String, Failure> {
    let unreadable = |problem: &dyn std::fmt::Display| {
        Failure::usage(format!("cannot read the {what} from {}: {problem}", file.display()))
    };
    let opened = File::open(file).map_err(|error| unreadable(&error))?;
    let mut line = Vec::new();
    let mut reader = BufReader::new(std::io::Read::take(opened, LONGEST_LINE));
    reader.read_until(b'\n', &mut line).map_err(|error| unreadable(&error))?;
    if BYTE_ORDER_MARKS.iter().any(|mark| line.starts_with(mark)) {
        return Err(unreadable(&"it begins with a byte order mark; save it as UTF-8 without one"));
    }
    let line = str::from_utf8(&line).map_err(|_| unreadable(&"it is no UTF-8"))?;
    match line.trim_end_matches(['\r', '\n']) {
        "" => Err(unreadable(&"its first line is empty")),
        line => Ok(line.to_owned()),
    }
}

/// Which of several keys one server has.
pub(crate) struct Share {
    pub(crate) connected: Result<Raw, Failure>,
    /// The places of the keys.
    pub(crate) places: Vec<usize>,
}
