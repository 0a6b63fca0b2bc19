//! The server that the demo runs on: the user's, or a private one.

use std::env;
use std::fmt;
use std::time::Duration;

use setnx_lock::redis;

use crate::Failure;
use crate::moment::Moment;
use crate::options::Options;
use testkit::RedisServer;
use testkit::failover::Failover;

/// How long a master gives no sign of life until it is down.
const DOWN_AFTER: Duration = Duration::from_secs(1);

/// A server: the user's, or a private one that ends with this value, as do its replicas and Sentinels.
#[derive(Debug)]
pub(crate) enum Server {
    Users { url: String, address: String },
    Private(RedisServer),
    Replicated(Failover),
}

impl Server {
    /// Takes the server of `REDIS_URL`, or starts one; for a failover with replicas and Sentinels.
    pub(crate) fn find(options: &Options) -> Result<Self, Failure> {
        if options.failover {
            return Ok(Self::Replicated(Failover::start(DOWN_AFTER)?));
        }
        match env::var("REDIS_URL") {
            Ok(url) if !url.is_empty() => {
                let client = redis::Client::open(url.as_str())
                    .map_err(|error| format!("REDIS_URL is no address of a Redis server: {error}"))?;
                // For the output: without user and password.
                let address = client.get_connection_info().addr().to_string();
                Ok(Self::Users { url, address })
            }
            _ => Ok(Self::Private(RedisServer::start()?)),
        }
    }

    /// Kills the master. Returns when it was gone, and when a Sentinel named the next.
    pub(crate) fn fail_over(&mut self) -> (Moment, Moment) {
        let Self::Replicated(servers) = self else { unreachable!("there are no replicas") };
        servers.servers[0].stop();
        let gone = Moment::now();
        servers.until_other_than(0);
        (gone, Moment::now())
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Users { url, .. } => url.clone(),
            Self::Private(server) => server.url(),
            Self::Replicated(servers) => servers.url(),
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Users { address, .. } => write!(f, "{address}, from REDIS_URL"),
            Self::Private(server) => {
                write!(f, "a private redis-server on {}, for this run", server.address())
            }
            Self::Replicated(servers) => write!(
                f,
                "a private master on {} with two replicas and three Sentinels, for this run",
                servers.servers[0].address()
            ),
        }
    }
}
