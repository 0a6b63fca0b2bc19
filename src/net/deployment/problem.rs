//! Which settings no locker can be built from.

use std::time::Duration;

use super::{Deployment, Topology, name_of};
use crate::net::connections::address_of;
use crate::values::options::LockOptions;

/// The most connections that one client address can have to a port.
const MOST_CONNECTIONS: u32 = 65_535;

impl Deployment {
    /// Returns why no locker can be built, in words for the user.
    pub(crate) fn problem(&self) -> Option<&'static str> {
        let asks = self.checks_server && !matches!(self.topology, Topology::Pool(_));
        if !asks && !self.settles.is_zero() {
            return Some(
                "`settle_after_restart` needs the check of the server on each new connection; leave out `skip_server_check`, and give no pool of \
                 your own",
            );
        }
        if self.settles.max(self.settles_after_failover) > LockOptions::MAX_EXPIRATION {
            return Some(
                "`settle_after_restart` or `settle_after_failover` is over ten years; give the longest expiration of any lock",
            );
        }
        match &self.topology {
            Topology::Cluster(nodes) if nodes.iter().all(|node| address_of(node).is_none()) => {
                return Some("no node of the cluster is given; give host and port of some");
            }
            Topology::Sentinels(clients, _) if clients.is_empty() => {
                return Some("no Sentinel is given; give the addresses of all of them");
            }
            Topology::Sentinels(_, master) if name_of(master).is_empty() => {
                return Some("the master has no name; give the name in the Sentinels' configuration");
            }
            Topology::Sentinels(..) => {}
            _ if self.sentinel_credentials.is_some() => {
                return Some(
                    "`sentinel_credentials` needs Sentinels; use `credentials` for the server's login",
                );
            }
            _ if !self.settles_after_failover.is_zero() => {
                return Some(
                    "`settle_after_failover` needs Sentinels, which know since when a server has been the master; use `Locker::sentinel_builder`",
                );
            }
            _ => {}
        }
        if let Topology::Pool(pool) = &self.topology {
            let times = [self.connect_timeout, self.idle_timeout, self.max_connection_age];
            if self.pool_size.is_some() || times.iter().any(Option::is_some) || self.credentials.is_some() {
                return Some(
                    "a pool of your own has its size, its times for connections and its login already; set them there",
                );
            }
            if pool.tests_on_check_out() {
                return Some(
                    "the pool tests each connection on check-out, without a time limit, so a call could block forever; build the pool \
                     with `.test_on_check_out(false)`",
                );
            }
        }
        match self.pool_size {
            Some(0) => return Some("a pool of no connections can do nothing; give it at least one"),
            Some(size) if size > MOST_CONNECTIONS => {
                return Some(
                    "a client can have 65,535 connections to a server at most; ten serve thousands of threads",
                );
            }
            _ => {}
        }
        let times = [self.connect_timeout, self.idle_timeout, self.max_connection_age];
        (self.command_timeout.is_zero() || times.contains(&Some(Duration::ZERO)))
            .then_some("a timeout of zero leaves no time for anything; give it some milliseconds at least")
    }
}
