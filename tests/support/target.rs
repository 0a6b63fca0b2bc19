//! The grounds that the same tests are run on: a current server, the gate in front of it as each old version, and the servers
//! that somebody names.

use std::sync::Arc;
use std::time::Duration;
use std::{env, process};

use redis::Commands as _;
use setnx_lock::{Error, Key, Lock, LockOptions, Locker, Protocol, Release, Version};

use super::{Load, Outcome, RedisServer, Variant, assert_says, expiring};
use crate::servers::{Played, Proxy};
use crate::transactions::PAST;

/// Servers to test on, separated by commas.
const URLS: &str = "SETNX_LOCK_TEST_URLS";

pub(crate) const PROTOCOLS: [Protocol; 3] = [Protocol::Classic, Protocol::Watched, Protocol::Ttl];

/// A server to test on, and the protocol and the way of waiting to do it with.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) name: String,
    /// Where the tested go.
    pub(crate) url: String,
    /// Where the tests go to look at keys: the same server, past any gate.
    direct: String,
    pub(crate) version: Version,
    /// Where it stands among the grounds.
    pub(crate) place: usize,
    pub(crate) protocol: Protocol,
    pub(crate) variant: Variant,
    /// Which a crowd is around, if there is one.
    crowded: Option<Locker>,
    /// Kept for as long as a test may need them.
    _server: Option<Arc<RedisServer>>,
    _gate: Option<Arc<Proxy>>,
}

/// Returns the current server, the gate as each old version, and one ground for each address in `SETNX_LOCK_TEST_URLS`. A server
/// that is missing or does not answer is an error, never a skip. For listing the tests nothing is started.
pub(crate) fn targets(listing: bool) -> Result<Vec<Target>, Box<dyn std::error::Error>> {
    let urls = env::var(URLS).unwrap_or_default();
    let urls = urls.split([',', ' ']).filter(|url| !url.is_empty());
    if listing {
        let proxies = Played::ALL.map(|played| (proxy_name(played), version(played.number())));
        let current = ["current".to_owned()].into_iter().chain((1..=urls.count()).map(url_name));
        let all = proxies.into_iter().chain(current.map(|name| (name, version("99"))));
        let listed = |(place, (name, version))| Target { version, place, ..Target::listed(name) };
        return Ok(all.enumerate().map(listed).collect());
    }
    let server = Arc::new(RedisServer::start()?);
    let mut targets = vec![Target::of(&server)];
    for played in Played::ALL {
        targets.push(
            Target::through(Proxy::playing(played, server.address())?, &server)?.named(proxy_name(played)),
        );
    }
    for (n, url) in urls.enumerate() {
        let version = version_of(url).map_err(|error| format!("{} of {URLS}: {error}", url_name(n + 1)))?;
        let listed = Target::listed(url_name(n + 1));
        targets.push(Target { url: url.to_owned(), direct: url.to_owned(), version, ..listed });
    }
    // The oldest first, and those that somebody has named at the end.
    targets[..=Played::ALL.len()].sort_by_key(|target| target.version);
    for (place, target) in targets.iter_mut().enumerate() {
        target.place = place;
    }
    Ok(targets)
}

pub(crate) fn proxy_name(played: Played) -> String {
    format!("gate_{}", played.name())
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
    /// A current server.
    pub(crate) fn of(server: &Arc<RedisServer>) -> Self {
        let version = version_of(&server.url()).unwrap();
        let listed = Self::listed("current".into());
        Self { url: server.url(), direct: server.url(), version, _server: Some(Arc::clone(server)), ..listed }
    }

    /// The same behind a gate.
    pub(crate) fn through(proxy: Proxy, server: &Arc<RedisServer>) -> Result<Self, redis::RedisError> {
        let (url, version) = (proxy.url(), version_of(&proxy.url())?);
        Ok(Self { url, version, _gate: Some(Arc::new(proxy)), ..Self::of(server) })
    }

    fn named(self, name: String) -> Self {
        Self { name, ..self }
    }

    fn listed(name: String) -> Self {
        Self {
            name,
            url: String::new(),
            direct: String::new(),
            version: Version::new(0, 0, 0),
            place: 0,
            protocol: Protocol::Classic,
            variant: Variant::default(),
            crowded: None,
            _server: None,
            _gate: None,
        }
    }

    /// The head of its column in a table.
    pub(crate) fn shown(&self) -> String {
        format!("{}\n{}", self.version, self.name)
    }

    /// The same server, with another protocol.
    pub(crate) fn with(&self, protocol: Protocol) -> Self {
        Self { protocol, ..self.clone() }
    }

    /// The same, and apart and in a crowd in one of these ways each: they take turns.
    pub(crate) fn in_every_variant(&self) -> impl Iterator<Item = Self> + use<'_> {
        let others = PROTOCOLS.into_iter().zip(self.place..).flat_map(move |(protocol, turn)| {
            let variant = Variant::ALL[turn % Variant::ALL.len()];
            [Load::Apart, Load::Contended].map(|load| self.with(protocol).in_the(Variant { load, ..variant }))
        });
        self.in_every_mode_of_waiting().chain(others)
    }

    /// The same server, with every protocol and every way of waiting.
    pub(crate) fn in_every_mode_of_waiting(&self) -> impl Iterator<Item = Self> + use<'_> {
        let in_this = move |variant| PROTOCOLS.map(|protocol| self.with(protocol).in_the(variant));
        Variant::ALL.into_iter().flat_map(in_this)
    }

    /// The same server, in another way.
    pub(crate) fn in_the(&self, variant: Variant) -> Self {
        Self { variant, ..self.clone() }
    }

    /// Runs a test in the company that belongs to its way.
    pub(crate) fn under_load(&self, test: impl FnOnce(&Self) -> Outcome) -> Outcome {
        let (locker, contention) = self.variant.open(&self.url)?;
        let outcome = test(&Self { crowded: contention.as_ref().map(|_| locker), ..self.clone() });
        drop(contention);
        outcome
    }

    /// Whether the server is new enough for the protocol.
    pub(crate) fn supports_its_protocol(&self) -> bool {
        self.version >= self.needed()
    }

    fn needed(&self) -> Version {
        match self.protocol {
            Protocol::Classic => Version::new(1, 2, 0),
            Protocol::Watched => Version::new(2, 2, 0),
            _ => Version::new(2, 6, 12),
        }
    }

    /// What is to happen where the server is too old for the protocol: the version that is needed is named and nothing is
    /// written, whether the locker has asked the server what it is or not.
    pub(crate) fn refuses_its_protocol(&self, test: &str) -> Outcome {
        let key = self.key(test);
        let error = self.lock(&key, expiring()).lock().expect_err("the server is too old");
        let Error::Unsupported { protocol, version: Some(version), refusal: None, .. } = &error else {
            panic!("{error:?}")
        };
        assert_eq!((*protocol, *version), (self.protocol, self.version));
        let too_old = format!("the server is Redis {}, too old for the protocol {protocol:?}", self.version);
        assert_says(&error, &key, &[&too_old, &format!("needs Redis {}", self.needed()), "Protocol::Auto"]);
        assert_eq!(key.value(), None);

        key.set(PAST);
        let unasked = self.variant.load.pipelining(Locker::builder(&self.url)?.skip_server_check().build()?);
        let lock = Lock::new(&unasked, &key.key, expiring().protocol(self.protocol))?;
        let error = lock.lock().expect_err("the server is too old");
        assert!(matches!(&error, Error::Unsupported { version: None, refusal: Some(_), .. }), "{error:?}");
        assert_says(
            &error,
            &key,
            &["the server refused with \"ERR ", &format!("needs Redis {}", self.needed())],
        );
        assert_eq!(key.value().as_deref(), Some(PAST));
        Ok(())
    }

    /// What a release says when all went well.
    pub(crate) fn released(&self) -> Release {
        Release::Released { certified: self.protocol != Protocol::Classic }
    }

    /// A locker of its own, or the one that the crowd is around.
    pub(crate) fn locker(&self) -> Locker {
        self.crowded.clone().unwrap_or_else(|| self.variant.load.pipelining(Locker::open(&self.url).unwrap()))
    }

    /// A lock on a key of the test's own, through [`locker`](Self::locker). What Ttl refuses, a lock without an expiration, is done
    /// in Classic.
    pub(crate) fn lock(&self, key: &TestKey, options: LockOptions) -> Lock {
        self.lock_through(&self.locker(), key, options)
    }

    /// The same through a locker that others use as well.
    pub(crate) fn lock_through(&self, locker: &Locker, key: &TestKey, options: LockOptions) -> Lock {
        let options = self.variant.set(options);
        Lock::new(locker, &key.key, options.protocol(self.protocol))
            .unwrap_or_else(|_| Lock::new(locker, &key.key, options).unwrap())
    }

    /// A key that no other test uses, removed at the end.
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

/// A key that a test uses, looked at and written by plain commands.
#[derive(Debug)]
pub(crate) struct TestKey {
    pub(crate) key: Key,
    target: Target,
}

impl TestKey {
    pub(crate) fn value(&self) -> Option<String> {
        self.target.connection().get(self.key.as_bytes()).unwrap()
    }

    /// Milliseconds until the server removes the key; -1 if it does not, -2 without a key.
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
        // A test that stops its server needs nothing removed.
        if let Ok(mut connection) =
            redis::Client::open(self.target.direct.as_str()).and_then(|client| client.get_connection())
        {
            let _: redis::RedisResult<()> = connection.del(self.key.as_bytes());
        }
    }
}
