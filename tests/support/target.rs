//! The servers under test: a real one, one of each version in this process, and those of `SETNX_LOCK_TEST_URLS`.

use std::fmt::Debug;
use std::net::{SocketAddr, TcpStream};
use std::ops::Deref as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use std::{env, io, process};

use redis::Commands as _;
use setnx_lock::{
    Error, Key, Lock, LockOptions, LockState, Locker, MultiLock, Observer, Protocol, RefusalKind, Version,
};
use setnx_lock_proto::values::SideKey;
use setnx_lock_testing::{ServerVersion, TestServer};
use testkit::redis_server;

use super::scenario::patient;
use super::{Load, Outcome, RedisServer, Release, Variant, assert_says, expiring, server_of};

/// Names the URLs of more servers to test on, separated by commas.
const URLS: &str = "SETNX_LOCK_TEST_URLS";

/// The protocols that tests run by in every variant. [`Protocol::Auto`] chooses among them, and runs in one variant.
pub(crate) const PROTOCOLS: [Protocol; 3] = [Protocol::Classic, Protocol::Watched, Protocol::Ttl];

/// A time that has passed, as the value of a key; of a client of this library, since beside gems locks are looked at.
pub(crate) const PAST: &str = "1532000016.5000000000000001";

/// The first version with WATCH.
const WATCH_SINCE: Version = Version::new(2, 2, 0);
const TTL_SINCE: Version = Version::new(2, 6, 12);

/// A server under test, and the protocol and the variant to test it with.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) name: String,
    /// The address that the locks under test use.
    pub(crate) url: String,
    /// The address that a test looks at keys through: the same server, by the commands of a current version and past all faults.
    direct: String,
    pub(crate) version: Version,
    /// Its position among the servers.
    pub(crate) position: usize,
    pub(crate) protocol: Protocol,
    pub(crate) variant: Variant,
    /// The locker that the load threads use, if there are any.
    loaded: Option<Locker>,
    /// Kept running as long as a test may need it.
    _server: Option<Arc<dyn AnyServer>>,
}

/// A server that tests can look at: a real one, or one in this process.
pub(crate) trait AnyServer: Debug + Send + Sync + 'static {
    fn address(&self) -> SocketAddr;

    fn url(&self) -> String {
        format!("redis://{}/", self.address())
    }

    /// The address that leads past faults, and past what an old version lacks.
    fn direct(&self) -> String;

    /// Sends a command there, and returns the first line of the reply.
    fn say(&self, words: &[&str]) -> io::Result<String>;
}

impl AnyServer for RedisServer {
    fn address(&self) -> SocketAddr {
        self.address()
    }

    fn direct(&self) -> String {
        self.url()
    }

    fn say(&self, words: &[&str]) -> io::Result<String> {
        self.say(words)
    }
}

impl<T: AnyServer> AnyServer for Arc<T> {
    fn address(&self) -> SocketAddr {
        T::address(self)
    }

    fn direct(&self) -> String {
        T::direct(self)
    }

    fn say(&self, words: &[&str]) -> io::Result<String> {
        T::say(self, words)
    }
}

impl AnyServer for TestServer {
    fn address(&self) -> SocketAddr {
        self.deref().address()
    }

    fn direct(&self) -> String {
        self.url_to_look()
    }

    fn say(&self, words: &[&str]) -> io::Result<String> {
        redis_server::say(TcpStream::connect(self.address_to_look())?, words)
    }
}

/// Returns a real server, one of each version in this process, and those of `SETNX_LOCK_TEST_URLS`. A server that is missing or does not
/// reply is an error, never a skip. For listing the tests no server is started.
pub(crate) fn targets(listing: bool) -> Result<Vec<Target>, Box<dyn std::error::Error>> {
    let urls = env::var(URLS).unwrap_or_default();
    let urls = urls.split([',', ' ']).filter(|url| !url.is_empty());
    let versions = ServerVersion::ALL.into_iter().filter(|version| *version != ServerVersion::V8_4);
    if listing {
        let inside = versions.map(|emulated| (emulated_name(emulated), version(emulated.number())));
        let current = ["current".to_owned()].into_iter().chain((1..=urls.count()).map(url_name));
        let all = inside.chain(current.map(|name| (name, version("99"))));
        let listed = |(position, (name, version))| Target { version, position, ..Target::listed(name) };
        return Ok(all.enumerate().map(listed).collect());
    }
    // The oldest first, and those of the environment variable last.
    let mut targets: Vec<Target> = versions.map(Target::inside).collect();
    targets.push(Target::of(&Arc::new(RedisServer::start()?)));
    for (n, url) in urls.enumerate() {
        let version = version_of(url).map_err(|error| format!("{} of {URLS}: {error}", url_name(n + 1)))?;
        let listed = Target::listed(url_name(n + 1));
        targets.push(Target { url: url.to_owned(), direct: url.to_owned(), version, ..listed });
    }
    for (position, target) in targets.iter_mut().enumerate() {
        target.position = position;
    }
    Ok(targets)
}

/// The name, within a test's name, of the server of this version.
pub(crate) fn emulated_name(emulated: ServerVersion) -> String {
    format!("emulated_{}", emulated.name().replace('-', "_"))
}

fn url_name(n: usize) -> String {
    format!("url{n}")
}

fn version_of(url: &str) -> redis::RedisResult<Version> {
    let mut connection = redis::Client::open(url)?.get_connection_with_timeout(Duration::from_secs(5))?;
    let info: String = redis::cmd("INFO").query(&mut connection)?;
    if info.lines().any(|line| line == "role:slave") {
        return Err((redis::ErrorKind::Client, "it is a replica; test on its master").into());
    }
    let number = info.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap_or_default();
    Ok(version(number.trim()))
}

fn version(number: &str) -> Version {
    let mut parts = number.split('.').map(|part| part.parse().unwrap_or(0));
    let mut part = || parts.next().unwrap_or(0);
    Version::new(part(), part(), part())
}

impl Target {
    /// Returns a server as a target.
    pub(crate) fn of(server: &Arc<impl AnyServer>) -> Self {
        let version = version_of(&server.direct()).unwrap();
        let listed = Self::listed("current".into());
        let (url, direct) = (server.url(), server.direct());
        Self { url, direct, version, _server: Some(Arc::clone(server) as _), ..listed }
    }

    /// Returns a server of this version as a target.
    fn inside(version: ServerVersion) -> Self {
        Self { name: emulated_name(version), ..Self::of(&Arc::new(server_of(version))) }
    }

    /// The same, with locks that are past its faults.
    pub(crate) fn past_faults(self) -> Self {
        Self { url: self.direct.clone(), ..self }
    }

    /// Returns true if it is an old version.
    pub(crate) fn is_old(&self) -> bool {
        ServerVersion::OLD.iter().any(|emulated| self.name == emulated_name(*emulated))
    }

    fn listed(name: String) -> Self {
        Self {
            name,
            url: String::new(),
            direct: String::new(),
            version: Version::new(0, 0, 0),
            position: 0,
            protocol: Protocol::Classic,
            variant: Variant::default(),
            loaded: None,
            _server: None,
        }
    }

    /// The header of its column in a table.
    pub(crate) fn shown(&self) -> String {
        format!("{}\n{}", self.version, self.name)
    }

    /// The same server, with another protocol.
    pub(crate) fn with(&self, protocol: Protocol) -> Self {
        Self { protocol, ..self.clone() }
    }

    /// Every protocol in every variant of waiting. Then every protocol under load, in one of these variants, which
    /// differs from server to server. Then [`Protocol::Auto`] in the plain variant.
    pub(crate) fn in_every_variant(&self) -> impl Iterator<Item = Self> + use<'_> {
        let others = PROTOCOLS.into_iter().zip(self.position..).map(move |(protocol, turn)| {
            let variant = Variant::ALL[turn % Variant::ALL.len()];
            self.with(protocol).in_the(Variant { load: Load::Contended, ..variant })
        });
        self.in_every_mode_of_waiting().chain(others).chain([self.with(Protocol::Auto)])
    }

    /// The same server with every protocol but [`Protocol::Auto`], in every variant of waiting.
    pub(crate) fn in_every_mode_of_waiting(&self) -> impl Iterator<Item = Self> + use<'_> {
        let in_this = move |variant| PROTOCOLS.map(|protocol| self.with(protocol).in_the(variant));
        Variant::ALL.into_iter().flat_map(in_this)
    }

    /// The same server in another variant.
    pub(crate) fn in_the(&self, variant: Variant) -> Self {
        Self { variant, ..self.clone() }
    }

    /// Runs a test under the load of its variant.
    pub(crate) fn under_load(&self, test: impl FnOnce(&Self) -> Outcome) -> Outcome {
        let (locker, contention) = self.variant.open(&self.url)?;
        let outcome = test(&Self { loaded: contention.as_ref().map(|_| locker), ..self.clone() });
        drop(contention);
        outcome
    }

    /// Whether the server is new enough for the protocol.
    pub(crate) fn supports_its_protocol(&self) -> bool {
        self.version >= self.needed()
    }

    fn needed(&self) -> Version {
        match self.protocol {
            // A version before 1.2, on which the tests have run.
            Protocol::Auto | Protocol::Classic => Version::new(1, 1, 94),
            Protocol::Watched => WATCH_SINCE,
            _ => TTL_SINCE,
        }
    }

    /// The test of a protocol on a server that is too old for it: the error names the version that is needed, and nothing is written,
    /// with the server check and without it.
    pub(crate) fn refuses_its_protocol(&self, test: &str) -> Outcome {
        let key = self.key(test);
        let error = self.lock(&key, expiring()).lock().expect_err("the server is too old");
        let is_too_old = |error: &Error| matches!(error, Error::Refused { refusal, .. } if refusal.kind() == RefusalKind::TooOld);
        assert!(is_too_old(&error), "{error:?}");
        let too_old =
            format!("the server is Redis {}, too old for the protocol {:?}", self.version, self.protocol);
        assert_says(
            &error,
            &key,
            &[&too_old, &format!("needs Redis {}", self.needed()), "use the protocol Auto"],
        );
        assert_eq!(key.value(), None);

        key.set(PAST);
        let unchecked = patient(&self.url)?.skip_server_check().build()?;
        let lock = Lock::new(&unchecked, &key.key, expiring().protocol(self.protocol))?;
        let error = lock.lock().expect_err("the server is too old");
        assert!(is_too_old(&error), "{error:?}");
        assert_says(
            &error,
            &key,
            &["the server refused with \"ERR ", &format!("needs Redis {}", self.needed())],
        );
        assert_eq!(key.value().as_deref(), Some(PAST));
        Ok(())
    }

    /// The protocol that a hold uses: the target's own, and what [`Protocol::Auto`] is on this server.
    pub(crate) fn decided_protocol(&self) -> Protocol {
        match self.protocol {
            Protocol::Auto if self.version >= TTL_SINCE => Protocol::Ttl,
            Protocol::Auto if self.version >= WATCH_SINCE => Protocol::Watched,
            Protocol::Auto => Protocol::Classic,
            protocol => protocol,
        }
    }

    /// The outcome of a release without a fault.
    pub(crate) fn released(&self) -> Release {
        Release::Released { certified: self.decided_protocol() != Protocol::Classic }
    }

    /// Returns a new locker, or the one that the load threads use.
    pub(crate) fn locker(&self) -> Locker {
        let new = || patient(&self.url).unwrap().build().unwrap();
        self.loaded.clone().unwrap_or_else(new)
    }

    /// Returns a new locker with a holder's name.
    pub(crate) fn locker_named(&self, name: &str) -> Result<Locker, Error> {
        patient(&self.url)?.holder_name(name).build()
    }

    /// Returns a new locker with an observer.
    pub(crate) fn locker_observed_by(&self, observer: impl Observer) -> Result<Locker, Error> {
        patient(&self.url)?.observer(observer).build()
    }

    /// How long after its lease the lock of a crashed holder is free at the earliest.
    pub(crate) fn extra_time(&self) -> Duration {
        if self.decided_protocol() == Protocol::Ttl {
            Duration::from_millis(500)
        } else {
            Duration::from_secs(1)
        }
    }

    /// How much later than its lease the value of a lock says.
    pub(crate) fn shown_later(&self) -> Duration {
        shown_later(self.decided_protocol())
    }

    /// Returns a lock on a key of the test's own, through [`locker`](Self::locker). A lock without an expiration, which Ttl refuses, is
    /// a Classic one.
    pub(crate) fn lock(&self, key: &TestKey, options: LockOptions) -> Lock {
        self.lock_through(&self.locker(), key, options)
    }

    /// The same through a locker that other locks use as well.
    pub(crate) fn lock_through(&self, locker: &Locker, key: &TestKey, options: LockOptions) -> Lock {
        let options = self.variant.set(options);
        Lock::new(locker, &key.key, options.protocol(self.protocol))
            .unwrap_or_else(|_| Lock::new(locker, &key.key, options).unwrap())
    }

    /// Returns the locks of several keys, through [`locker`](Self::locker).
    pub(crate) fn locks(&self, keys: &[TestKey], options: LockOptions) -> MultiLock {
        self.locks_through(&self.locker(), keys, options)
    }

    /// The same through a locker that other locks use as well.
    pub(crate) fn locks_through(&self, locker: &Locker, keys: &[TestKey], options: LockOptions) -> MultiLock {
        let options = self.variant.set(options);
        let keys = || keys.iter().map(|key| key.key.clone());
        MultiLock::new(locker, keys(), options.protocol(self.protocol))
            .unwrap_or_else(|_| MultiLock::new(locker, keys(), options).unwrap())
    }

    /// Returns so many keys, in the order of their bytes.
    pub(crate) fn keys(&self, test: &str, count: usize) -> Vec<TestKey> {
        (0..count).map(|n| self.key(&format!("{test}:{n:02}"))).collect()
    }

    /// Returns a key that no other test uses, deleted at the end.
    pub(crate) fn key(&self, test: &str) -> TestKey {
        let process = process::id().to_string();
        let parts =
            ["setnx-lock-test", &process, &self.name, &self.protocol_name(), &self.variant.name(), test];
        let key = TestKey { key: Key::joined(parts), target: self.clone() };
        key.delete();
        key
    }

    pub(crate) fn protocol_name(&self) -> String {
        format!("{:?}", self.protocol).to_lowercase()
    }

    pub(crate) fn connection(&self) -> redis::Connection {
        redis::Client::open(self.direct.as_str()).unwrap().get_connection().unwrap()
    }
}

/// A key of a test, which the test reads and writes by plain commands. Deleted with the keys beside it when it is dropped.
#[derive(Debug)]
pub(crate) struct TestKey {
    pub(crate) key: Key,
    target: Target,
}

impl TestKey {
    /// A key beside it.
    pub(crate) fn beside(&self, side: SideKey) -> Self {
        Self { key: Key::from(side.of(self.key.as_bytes())), target: self.target.clone() }
    }

    pub(crate) fn value(&self) -> Option<String> {
        self.target.connection().get(self.key.as_bytes()).unwrap()
    }

    /// The time in its value.
    pub(crate) fn until(&self) -> Option<SystemTime> {
        let value: Option<Vec<u8>> = self.target.connection().get(self.key.as_bytes()).unwrap();
        match LockState::of_value(value.as_deref()) {
            LockState::Until { expiry, .. } => Some(expiry.date().expect("in this century").into()),
            _ => None,
        }
    }

    /// Milliseconds until the server removes the key; -1 without a time to live, -2 without a key.
    pub(crate) fn time_to_live(&self) -> i64 {
        self.target.connection().pttl(self.key.as_bytes()).unwrap()
    }

    pub(crate) fn set(&self, value: &str) {
        let () = self.target.connection().set(self.key.as_bytes(), value).unwrap();
    }

    pub(crate) fn delete(&self) {
        let () = self.target.connection().del(self.key.as_bytes()).unwrap();
    }
}

impl Drop for TestKey {
    fn drop(&mut self) {
        // A test that stops its server has nothing to delete.
        if let Ok(mut connection) =
            redis::Client::open(self.target.direct.as_str()).and_then(|client| client.get_connection())
        {
            let beside = [SideKey::Waiters, SideKey::Fence].map(|side| side.of(self.key.as_bytes()));
            let _: redis::RedisResult<()> = connection.del((self.key.as_bytes(), beside.as_slice()));
        }
    }
}

/// How much later than its lease the value of a lock says.
pub(crate) fn shown_later(protocol: Protocol) -> Duration {
    Duration::from_secs(if protocol == Protocol::Ttl { 10 } else { 1 })
}

/// The name of the holder of a lock, if that shows one.
pub(crate) fn name_of_holder(lock: &Lock) -> Result<Option<String>, Error> {
    Ok(lock.holder()?.map(|holder| holder.name().to_owned()))
}
