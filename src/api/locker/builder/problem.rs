//! Which settings no locker can be built from.

use std::time::Duration;

use proto::values::is_name;

use super::LockerBuilder;
use crate::net::Deployment;
use crate::values::options::LockOptions;

/// The most connections that one client address can have to a port.
const MOST_CONNECTIONS: u32 = 65_535;

impl LockerBuilder {
    /// Returns why no locker can be built, in words for the user.
    pub(super) fn problem(&self) -> Option<&'static str> {
        let opening = &self.opening;
        let asks = opening.checks_server && !matches!(self.servers, Deployment::Pool(_));
        if !asks && !opening.settles.is_zero() {
            return Some(
                "`settle_after_restart` needs the check of the server on each new connection; leave out `skip_server_check`, and give no pool of \
                 your own",
            );
        }
        if opening.settles.max(opening.settles_after_failover) > LockOptions::MAX_EXPIRATION {
            return Some(
                "`settle_after_restart` or `settle_after_failover` is over ten years; give the longest expiration of any lock",
            );
        }
        if let Some(problem) = self.servers.problem() {
            return Some(problem);
        }
        match &self.servers {
            Deployment::Sentinels(..) => {}
            _ if opening.sentinel_credentials.is_some() => {
                return Some(
                    "`sentinel_credentials` needs Sentinels; use `credentials` for the server's login",
                );
            }
            _ if !opening.settles_after_failover.is_zero() => {
                return Some(
                    "`settle_after_failover` needs Sentinels, which know since when a server has been the master; use `Locker::sentinel_builder`",
                );
            }
            _ => {}
        }
        if self.holder_name.as_deref().is_some_and(|name| !is_name(name)) {
            return Some(
                "a holder's name has 1 to 64 bytes of printable characters; give for example the host and the process id",
            );
        }
        if let Deployment::Pool(pool) = &self.servers {
            let times = [opening.connect_timeout, opening.idle_timeout, opening.max_connection_age];
            if opening.pool_size.is_some()
                || times.iter().any(Option::is_some)
                || opening.credentials.is_some()
            {
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
        match opening.pool_size {
            Some(0) => return Some("a pool of no connections can do nothing; give it at least one"),
            Some(size) if size > MOST_CONNECTIONS => {
                return Some(
                    "a client can have 65,535 connections to a server at most; ten serve thousands of threads",
                );
            }
            _ => {}
        }
        let times = [opening.connect_timeout, opening.idle_timeout, opening.max_connection_age];
        (opening.command_timeout.is_zero() || times.contains(&Some(Duration::ZERO)))
            .then_some("a timeout of zero leaves no time for anything; give it some milliseconds at least")
    }
}
