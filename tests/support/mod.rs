//! What the tests stand on: servers, keys of their own, and scenes with a gate.

pub(crate) mod raw;
#[allow(
    unreachable_pub,
    dead_code,
    reason = "shared with the benches and the demo, which use other parts of it"
)]
pub(crate) mod redis_server;
pub(crate) mod ruby;
pub(crate) mod scene;

use std::sync::Arc;
use std::time::Duration;
use std::{env, process};

use libtest_mimic::{Failed, Trial};
use redis::Commands as _;
use setnx_lock::{Error, Key, Lock, LockOptions, Locker, Protocol, Release};

pub(crate) use redis_server::RedisServer;

/// What a test returns: nothing, or why it failed. Assertions panic, as everywhere.
pub(crate) type Outcome = Result<(), Failed>;

pub(crate) type Test = fn() -> Outcome;

/// Much longer than anything here takes: a wait that is not meant to end by itself.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A server to test on, and the protocol to do it with.
#[derive(Clone, Debug)]
pub(crate) struct Ground {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) protocol: Protocol,
    /// Kept for as long as a test may need it.
    _server: Option<Arc<RedisServer>>,
}

/// Returns a private server, and one ground for each address in `SETNX_LOCK_TEST_URLS`. A server that is missing or does
/// not answer is an error, never a skip. For listing the tests nothing is started.
pub(crate) fn grounds(listing: bool) -> Result<Vec<Ground>, String> {
    let mut grounds = Vec::new();
    let (url, server) = if listing {
        (String::new(), None)
    } else {
        let server = RedisServer::start().map_err(|error| error.to_string())?;
        (server.url(), Some(Arc::new(server)))
    };
    grounds.push(Ground { name: "private".into(), url, protocol: Protocol::Classic, _server: server });
    for (n, url) in env::var("SETNX_LOCK_TEST_URLS").unwrap_or_default().split(',').map(str::trim).enumerate()
    {
        if url.is_empty() {
            continue;
        }
        if !listing {
            redis::Client::open(url)
                .and_then(|client| client.get_connection_with_timeout(Duration::from_secs(5)))
                .map_err(|error| format!("{url} from SETNX_LOCK_TEST_URLS: {error}"))?;
        }
        let (name, url) = (format!("url{}", n + 1), url.to_owned());
        grounds.push(Ground { name, url, protocol: Protocol::Classic, _server: None });
    }
    Ok(grounds)
}

impl Ground {
    pub(crate) fn of(server: &Arc<RedisServer>) -> Self {
        Self {
            name: "private".into(),
            url: server.url(),
            protocol: Protocol::Classic,
            _server: Some(Arc::clone(server)),
        }
    }

    /// The same server, with another protocol.
    pub(crate) fn with(&self, protocol: Protocol) -> Self {
        Self { protocol, ..self.clone() }
    }

    /// What a release says when all went well.
    pub(crate) fn released(&self) -> Release {
        Release::Released { certified: self.protocol != Protocol::Classic }
    }

    pub(crate) fn locker(&self) -> Locker {
        Locker::open(&self.url).unwrap()
    }

    /// A lock on a key of the test's own, through a locker of its own. What Ttl refuses, a lock without an expiration, is done
    /// in Classic.
    pub(crate) fn lock(&self, key: &TestKey, options: LockOptions) -> Lock {
        let locker = self.locker();
        Lock::new(&locker, &key.key, options.protocol(self.protocol))
            .unwrap_or_else(|_| Lock::new(&locker, &key.key, options).unwrap())
    }

    /// A key that no other test uses, removed at the end.
    pub(crate) fn key(&self, test: &str) -> TestKey {
        let key = TestKey {
            key: Key::joined(["setnx-lock-test", &process::id().to_string(), &self.protocol_name(), test]),
            ground: self.clone(),
        };
        key.delete();
        key
    }

    pub(crate) fn protocol_name(&self) -> String {
        format!("{:?}", self.protocol).to_lowercase()
    }

    pub(crate) fn connection(&self) -> redis::Connection {
        redis::Client::open(self.url.as_str()).unwrap().get_connection().unwrap()
    }
}

/// A key that a test uses, looked at and written by plain commands.
#[derive(Debug)]
pub(crate) struct TestKey {
    pub(crate) key: Key,
    ground: Ground,
}

impl TestKey {
    pub(crate) fn value(&self) -> Option<String> {
        self.ground.connection().get(self.key.as_bytes()).unwrap()
    }

    /// Milliseconds until the server removes the key; -1 if it does not, -2 without a key.
    pub(crate) fn time_to_live(&self) -> i64 {
        self.ground.connection().pttl(self.key.as_bytes()).unwrap()
    }

    pub(crate) fn set(&self, value: &str) {
        let () = self.ground.connection().set(self.key.as_bytes(), value).unwrap();
    }

    pub(crate) fn delete(&self) {
        let () = self.ground.connection().del(self.key.as_bytes()).unwrap();
    }
}

impl Drop for TestKey {
    fn drop(&mut self) {
        // A test that stops its server needs nothing removed.
        if let Ok(mut connection) =
            redis::Client::open(self.ground.url.as_str()).and_then(|client| client.get_connection())
        {
            let _: redis::RedisResult<()> = connection.del(self.key.as_bytes());
        }
    }
}

pub(crate) fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A lease that no test outlives by accident.
pub(crate) fn expiring() -> LockOptions {
    LockOptions::expiring_after(LONG)
}

/// Names the functions of one part of the suite. One that is forgotten is dead code, and found by the compiler.
pub(crate) fn trials(part: &str, tests: &[(&str, Test)]) -> Vec<Trial> {
    tests.iter().map(|(name, test)| Trial::test(format!("{part}::{name}"), *test)).collect()
}

/// Lists test functions with their names.
macro_rules! tests {
    ($($name:ident),* $(,)?) => { &[$((stringify!($name), $name)),*] };
}
pub(crate) use tests;

/// Asserts that an error names the key and says something.
#[track_caller]
pub(crate) fn assert_says(error: &Error, key: &TestKey, words: &[&str]) {
    let text = error.to_string();
    assert_eq!(error.key(), Some(&key.key));
    assert!(text.contains(&key.key.to_string()), "the key is not in: {text}");
    for words in words {
        assert!(text.contains(words), "{words:?} is not in: {text}");
    }
}
