//! The server that the demo runs on: the user's, or a private one.

use std::env;
use std::fmt;

use setnx_lock::redis;

use crate::Failure;
use testkit::RedisServer;

/// A server: the user's, or a private one that ends with this value.
#[derive(Debug)]
pub(crate) enum Server {
    Users { url: String, address: String },
    Private(RedisServer),
}

impl Server {
    /// Takes the server of `REDIS_URL`, or starts one.
    pub(crate) fn find() -> Result<Self, Failure> {
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

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Users { url, .. } => url.clone(),
            Self::Private(server) => server.url(),
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
        }
    }
}
