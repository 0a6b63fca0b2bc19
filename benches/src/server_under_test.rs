//! The private server that a workload runs on, and what it reports:
//! its version, the commands that it has executed, when a key expires.

use std::net::SocketAddr;

use redis::{Connection, IntoConnectionInfo, RedisConnectionInfo, cmd};

use crate::Failure;
use crate::moment;
use testkit::RedisServer;

/// What opens a connection; these are no commands of a lock. (A PING is: there are pools that send one each time.)
const OF_CONNECTING: [&str; 6] = ["auth", "client", "command", "hello", "info", "select"];
/// Values from here on are points in time, not smaller numbers.
const FIRST_PLAUSIBLE_SECOND: f64 = 1e9;

pub(crate) struct ServerUnderTest {
    server: RedisServer,
    connection: Connection,
}

impl ServerUnderTest {
    pub(crate) fn start() -> Result<Self, Failure> {
        let server = RedisServer::start()?;
        let quiet = RedisConnectionInfo::default().set_skip_set_lib_name();
        let info = server.url().into_connection_info()?.set_redis_settings(quiet);
        let connection = redis::Client::open(info)?.get_connection()?;
        Ok(Self { server, connection })
    }

    pub(crate) fn url(&self) -> String {
        self.server.url()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.server.address()
    }

    pub(crate) fn version(&mut self) -> Result<String, Failure> {
        let info: String = cmd("INFO").arg("server").query(&mut self.connection)?;
        let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
        Ok(version.ok_or("the server does not report its version")?.to_owned())
    }

    /// Returns how many commands the server has executed, also within scripts, without those that open a connection.
    pub(crate) fn commands(&mut self) -> Result<u64, Failure> {
        let info: String = cmd("INFO").arg("commandstats").query(&mut self.connection)?;
        let counts = info.lines().filter_map(|line| {
            let (name, figures) = line.strip_prefix("cmdstat_")?.split_once(':')?;
            let name = name.split('|').next().unwrap_or(name);
            let calls = figures.split(',').find_map(|figure| figure.strip_prefix("calls="))?;
            (!OF_CONNECTING.contains(&name)).then(|| calls.parse::<u64>())
        });
        Ok(counts.sum::<Result<_, _>>()?)
    }

    /// Returns how many keys begin with these characters.
    pub(crate) fn keys(&mut self, beginning: &str) -> Result<usize, Failure> {
        let keys: Vec<Vec<u8>> = cmd("KEYS").arg(format!("{beginning}*")).query(&mut self.connection)?;
        Ok(keys.len())
    }

    /// Returns how many of these keys exist at one moment.
    pub(crate) fn existing(&mut self, keys: &[&[u8]]) -> Result<usize, Failure> {
        let values: Vec<Option<Vec<u8>>> = cmd("MGET").arg(keys).query(&mut self.connection)?;
        Ok(values.iter().flatten().count())
    }

    /// Returns when others may take over the key of a crashed
    /// holder: by its time to live, or by its value if it has none.
    pub(crate) fn expiry(&mut self, key: &str) -> Result<f64, Failure> {
        let before = moment::as_f64(moment::now());
        let millis: i32 = cmd("PTTL").arg(key).query(&mut self.connection)?;
        let asked = f64::midpoint(before, moment::as_f64(moment::now()));
        if millis > 0 {
            return Ok(asked + f64::from(millis) * 1e6);
        }
        let value: Option<Vec<u8>> = cmd("GET").arg(key).query(&mut self.connection)?;
        let value = value.ok_or("a held key is missing")?;
        // Only with a point: a random name may look like a number.
        let text = str::from_utf8(&value).ok().filter(|text| text.contains('.'));
        let seconds = text.and_then(|text| text.parse::<f64>().ok());
        let seconds = seconds.filter(|seconds| *seconds > FIRST_PLAUSIBLE_SECOND);
        seconds.map(moment::of_wall).ok_or_else(|| "a held key does not expire".into())
    }
}
