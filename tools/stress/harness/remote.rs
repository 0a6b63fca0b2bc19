//! A server that is running already, used for a run: behind a proxy
//! like a private one, with keys that are removed at the end.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use setnx_lock::Version;
use setnx_lock::redis::{self, Commands as _, ConnectionAddr};

use super::Failure;
use super::random::Random;

/// How long the server may take to accept a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// A server that is running already.
#[derive(Debug)]
pub(crate) struct Remote {
    url: String,
    client: redis::Client,
    address: SocketAddr,
}

impl Remote {
    /// Names the server of a URL. The proxy reads what goes over the wire, so it cannot be encrypted.
    pub(crate) fn at(url: &str) -> Result<Self, Failure> {
        let client = redis::Client::open(url).map_err(|error| format!("not the URL of a server: {error}"))?;
        let ConnectionAddr::Tcp(host, port) = client.get_connection_info().addr().clone() else {
            return Err("the proxy needs a server that listens on TCP, without TLS".into());
        };
        let mut addresses =
            (host.as_str(), port).to_socket_addrs().map_err(|error| format!("{host}: {error}"))?;
        let address = addresses.next().ok_or(format!("{host} has no address"))?;
        Ok(Self { url: url.to_owned(), client, address })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the version that the server reports. A replica is a failure.
    pub(crate) fn version(&self) -> Result<Version, Failure> {
        let info =
            self.connection().and_then(|mut connection| redis::cmd("INFO").query::<String>(&mut connection));
        let info = info.map_err(|error| format!("{}: {error}", self.address))?;
        if info.lines().any(|line| line == "role:slave") {
            return Err("the server is a replica; run this on its master".into());
        }
        let number = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
        Ok(number.ok_or("the server does not report its version")?.trim().parse()?)
    }

    /// Returns the server's URL with the address of a proxy before it.
    pub(crate) fn url_through(&self, proxy: &str) -> String {
        let after_scheme =
            |url: &str| url.split_once("://").map_or(String::new(), |(_, rest)| rest.to_owned());
        let (own, proxy) = (after_scheme(&self.url), after_scheme(proxy));
        let (authority, path) = own.split_at(own.find(['/', '?']).unwrap_or(own.len()));
        let user = authority.rsplit_once('@').map_or(String::new(), |(user, _)| format!("{user}@"));
        // A worker's task separates its parts by commas.
        format!("redis://{user}{}{path}", proxy.trim_end_matches('/')).replace(',', "%2C")
    }

    /// Returns the prefix for the keys of a run, which no other run has.
    pub(crate) fn keys(&self, count: u64) -> Keys<'_> {
        Keys {
            remote: self,
            prefix: format!("setnx-lock-stress:{:016x}", Random::new().below(u64::MAX)),
            count,
        }
    }

    fn connection(&self) -> redis::RedisResult<redis::Connection> {
        self.client.get_connection_with_timeout(CONNECT_LIMIT)
    }
}

/// The keys of a run, removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Keys<'a> {
    remote: &'a Remote,
    pub(crate) prefix: String,
    count: u64,
}

impl Drop for Keys<'_> {
    fn drop(&mut self) {
        let removed = self.remote.connection().and_then(|mut connection| {
            (0..self.count).try_for_each(|key| {
                let key = super::key(&self.prefix, key);
                let beside = [":waiters", ":fence", ":holder"].map(|name| format!("{key}:setnx-lock{name}"));
                connection.del((&key, beside.as_slice()))
            })
        });
        if let Err(error) = removed {
            eprintln!("stress: keys {}:* may be left on the server: {error}", self.prefix);
        }
    }
}
