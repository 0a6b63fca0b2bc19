//! A server in a test.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fmt, io};

use crate::net::Proxy;
use crate::net::inside::Inside;
use crate::server::{Reply, Server, ServerVersion};

/// A Redis server in this process, on a port of this machine, for one test. It starts within a millisecond, needs
/// nothing installed, and is gone when it is dropped.
///
/// Any client can talk to it. It is a [`Proxy`], which has the methods for faults and for the log of commands.
///
/// ```
/// use setnx_lock_testing::TestServer;
/// use std::time::Duration;
///
/// let server = TestServer::start();
/// let url = server.url(); // for your program
///
/// server.run(&["SET", "greeting", "hello"]);
/// assert_eq!(server.run(&["GET", "greeting"]), "hello");
///
/// server.run(&["EXPIRE", "greeting", "60"]);
/// server.advance(Duration::from_secs(61));
/// assert_eq!(server.get("greeting"), None);
/// ```
pub struct TestServer {
    proxy: Proxy,
    inside: Arc<Inside>,
    looking: OnceLock<SocketAddr>,
}

impl fmt::Debug for TestServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = self.version();
        f.debug_struct("TestServer")
            .field("address", &self.address())
            .field("version", &version)
            .finish_non_exhaustive()
    }
}

impl Deref for TestServer {
    type Target = Proxy;

    fn deref(&self) -> &Proxy {
        &self.proxy
    }
}

impl TestServer {
    /// Starts a server that behaves as Redis 7.
    ///
    /// # Panics
    ///
    /// If there is no port to listen on.
    #[must_use]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Returns a builder, for another version or other settings.
    pub fn builder() -> TestServerBuilder {
        TestServerBuilder { version: ServerVersion::V7, lines: Vec::new(), port: None }
    }

    /// Returns the version that it behaves as.
    #[must_use]
    pub fn version(&self) -> ServerVersion {
        self.inside.with(|server, _| (server.version(), Vec::new()))
    }

    /// Executes a command by the rules of Redis 7, whatever the version, with every right, past all faults and without
    /// a record. Returns the reply as people read it: `(nil)` for a missing value, the elements of a list in one line
    /// each, the text of an error. Each call is a connection of its own, so that MULTI, WATCH and SELECT have no effect
    /// on the next one. A command that would wait returns at once.
    pub fn run(&self, command: &[&str]) -> String {
        let words: Vec<Vec<u8>> = command.iter().map(|word| word.as_bytes().to_vec()).collect();
        self.inside.with(|server, now| server.look(&words, now))
    }

    /// Returns the text at a key, `None` if there is no key.
    ///
    /// # Panics
    ///
    /// If the key holds a list, a set or a hash.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<String> {
        let reply = self.inside.with(|server, now| server.looked(&[b"GET".to_vec(), key.into()], now));
        match reply {
            Some(Reply::Bulk(value)) => Some(String::from_utf8_lossy(&value).into_owned()),
            Some(Reply::Nil) => None,
            other => panic!(
                "the key {key} holds no text: {}",
                other.map_or(String::new(), |reply| reply.for_people())
            ),
        }
    }

    /// Returns the URL of a second port, on which clients see the same keys by the rules of Redis 7, whatever the
    /// version, with every right, past all faults and without a record.
    ///
    /// # Panics
    ///
    /// If there is no port to listen on.
    #[must_use]
    pub fn url_to_look(&self) -> String {
        format!("redis://{}/", self.address_to_look())
    }

    /// Returns the address of the port of [`url_to_look`](Self::url_to_look).
    ///
    /// # Panics
    ///
    /// If there is no port to listen on.
    #[must_use]
    pub fn address_to_look(&self) -> SocketAddr {
        *self.looking.get_or_init(|| self.proxy.listen_for_looks().expect("a port to listen on"))
    }

    /// Sets a lock's key as another process does that holds the lock for this long, by the best protocol of the
    /// version: from 2.6 on as `Ttl`, where the server's clock frees the lock half a second after the lease; before as
    /// `Classic`, where the clocks of clients do so a second after it.
    ///
    /// # Panics
    ///
    /// If the key exists: see [`take_over`](Self::take_over).
    pub fn hold(&self, key: &str, lease: Duration) {
        let is_new = self.set_held(key, lease, &["NX"]) == "OK";
        assert!(is_new, "the key {key} exists; take_over replaces its value");
    }

    /// Sets a lock's key, whoever holds it, as another process does
    /// that holds the lock for this long. The holder loses the lock.
    ///
    /// A holder by the protocol Classic, which Auto selects before 2.2, does not notice
    /// a value that is set within 0.7 s of its acquisition, and its release does not
    /// compare either: test a loss there with [`delete`](Self::delete), or wait before.
    pub fn take_over(&self, key: &str, lease: Duration) {
        self.set_held(key, lease, &[]);
    }

    /// The value is the time at which the lease ends, plus some seconds;
    /// the digits after the microseconds tell its holder from others.
    fn set_held(&self, key: &str, lease: Duration, condition: &[&str]) -> String {
        static HOLDERS: AtomicU64 = AtomicU64::new(1);
        let expires = self.version() >= ServerVersion::V2_6;
        let shown_later = Duration::from_secs(if expires { 10 } else { 1 });
        let end = self.now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let end = end.saturating_add(lease).saturating_add(shown_later);
        let holder = HOLDERS.fetch_add(2, Ordering::Relaxed);
        let value = format!("{}.{:06}{holder:010}", end.as_secs(), end.subsec_micros());
        let left = lease.saturating_add(Duration::from_millis(500)).as_millis().min(1 << 50).to_string();
        let expiry: &[&str] = if expires { &["PX", &left] } else { &[] };
        self.run(&[&["SET", key, &value][..], condition, expiry].concat())
    }

    /// Deletes a key, as an operator does who frees a lock. Its holder loses it.
    pub fn delete(&self, key: &str) {
        self.run(&["DEL", key]);
    }

    /// Returns the time of the server's clock.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        let now = self.inside.with(|_, now| (now, Vec::new()));
        UNIX_EPOCH.checked_add(now).unwrap_or(UNIX_EPOCH)
    }

    /// Puts the server's clock forward: keys expire, and clients that wait for an element of a list stop waiting. The
    /// clocks of clients do not change, so a lease that they count themselves does not end by it.
    pub fn advance(&self, time: Duration) {
        self.inside.advance(time);
    }

    /// Refuses, from now on, commands that need memory, as a server over its `maxmemory`.
    pub fn fill_up(&self) {
        self.inside.with(|server, _| (server.set_full(true), Vec::new()));
    }

    /// Accepts commands that need memory again.
    pub fn free_memory(&self) {
        self.inside.with(|server, _| (server.set_full(false), Vec::new()));
    }

    /// Becomes a replica, as in a failover: from 2.6 on it refuses to change keys.
    pub fn become_replica(&self) {
        self.inside.with(|server, _| ((), server.set_replica(true)));
    }

    /// Becomes a master again.
    pub fn become_master(&self) {
        self.inside.with(|server, _| ((), server.set_replica(false)));
    }

    /// Restarts it, with its keys: connections are closed. It listens again when this returns.
    ///
    /// # Panics
    ///
    /// If something else listens on the port by now.
    pub fn restart(&self) {
        self.restart_as(self.version().name());
    }

    /// Restarts it without its keys, as a server that does not save them.
    ///
    /// # Panics
    ///
    /// If something else listens on the port by now.
    pub fn restart_empty(&self) {
        self.proxy.stop();
        self.inside.with(|server, _| (server.clear(), Vec::new()));
        self.restart();
    }

    /// Restarts it as another version, with its keys: an upgrade.
    ///
    /// # Panics
    ///
    /// If there is no such version, or something else listens on the port by now.
    pub fn restart_as(&self, version: &str) {
        let version = named(version);
        self.proxy.stop();
        self.inside.with(|server, now| (server.restart(version, now), Vec::new()));
        self.proxy.start_again();
    }
}

fn named(version: &str) -> ServerVersion {
    let names = ServerVersion::ALL.map(ServerVersion::name).join(", ");
    ServerVersion::named(version).unwrap_or_else(|| panic!("no version {version}; there are {names}"))
}

/// What a [`TestServer`] is started with.
#[derive(Clone, Debug)]
#[must_use = "call `start`"]
pub struct TestServerBuilder {
    version: ServerVersion,
    lines: Vec<String>,
    port: Option<u16>,
}

impl TestServerBuilder {
    /// Has it behave as this version: `1.2`, `2.0`, `2.2`, `2.4`, `2.6`, `7`, `8.4` or `valkey-9`.
    ///
    /// # Panics
    ///
    /// If there is no such version.
    pub fn version(mut self, name: &str) -> Self {
        self.version = named(name);
        self
    }

    /// Has it ask for this password, which a client puts into the URL: `redis://:secret@127.0.0.1:12345/`.
    pub fn password(self, password: &str) -> Self {
        self.config(&format!("requirepass {password}"))
    }

    /// Adds a line of the configuration file, for example `maxmemory 100mb`, `maxclients 3` or
    /// `user weak on >pw ~locks:* &* +@all -multi`.
    pub fn config(mut self, line: &str) -> Self {
        self.lines.extend(line.lines().map(str::to_owned));
        self
    }

    /// Has it listen on this port of 127.0.0.1.
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// Starts it.
    ///
    /// # Panics
    ///
    /// If the port is in use, or a line of the configuration is refused.
    #[must_use]
    pub fn start(self) -> TestServer {
        self.try_start().unwrap_or_else(|error| panic!("the test server does not start: {error}"))
    }

    /// Starts it.
    ///
    /// # Errors
    ///
    /// If the port is in use, or a line of the configuration is refused.
    pub fn try_start(self) -> io::Result<TestServer> {
        let mut server = Server::new(self.version);
        for line in &self.lines {
            server
                .configure(line)
                .map_err(|problem| io::Error::other(format!("{problem}, in the line: {line}")))?;
        }
        let inside = Arc::new(Inside::new(server));
        let proxy = Proxy::before_inside(Arc::clone(&inside), self.port);
        let at = self.port.map_or(String::new(), |port| format!(" at port {port}"));
        let proxy =
            proxy.map_err(|error| io::Error::new(error.kind(), format!("cannot listen{at}: {error}")))?;
        let port = proxy.address().port();
        inside.with(|server, now| (server.listens(std::process::id(), port, now), Vec::new()));
        Ok(TestServer { proxy, inside, looking: OnceLock::new() })
    }
}
