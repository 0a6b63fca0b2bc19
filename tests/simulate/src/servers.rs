//! The servers of a run: one, a name with several addresses, a master that Sentinels know, a cluster, a quorum.

mod cluster;
mod sentinels;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use setnx_lock::{Error, Locker, LockerBuilder};
use setnx_lock_testing::ServerVersion;
use world::network::{self, ServerId};
use world::process::Process;
use world::run::{self, chance, random};

use crate::calls::one_of;
use cluster::Cluster;
use sentinels::Watched;

/// How servers are reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    One,
    /// One, by a name that has addresses where nothing answers, too.
    Named,
    /// A master and two replicas, which three Sentinels watch.
    Sentinels,
    /// Three masters, each with a replica.
    Cluster,
    /// Three or five masters that have nothing to do with each other.
    Quorum,
}

/// What a failover is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failover {
    /// The old master lives: it takes writes until it is told.
    pub(crate) is_planned: bool,
    /// What was written in this time before is lost.
    pub(crate) lost: Duration,
}

/// The servers of a run.
#[derive(Clone, Debug)]
pub(crate) struct Servers(Arc<Kind>);

#[derive(Debug)]
enum Kind {
    One(ServerId),
    Named(ServerId),
    Sentinels(Mutex<Watched>),
    Cluster(Mutex<Cluster>),
    Quorum(Vec<ServerId>),
}

/// A name of a server.
const NAME: &str = "redis.example";

/// An address of no server.
const NOWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 99, 1));

fn locked<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Servers {
    pub(crate) fn one(server: ServerId) -> Self {
        Self(Arc::new(Kind::One(server)))
    }

    pub(crate) fn start(topology: Topology, version: ServerVersion) -> Self {
        let one = || ServerId::start("server", version, &[]);
        Self(Arc::new(match topology {
            Topology::One => Kind::One(one()),
            Topology::Named => {
                let server = one();
                let own: IpAddr = server.address().0.parse().expect("an address");
                let mut addresses = vec![own];
                if chance(2) {
                    // What is left of the time for connecting may be more than that of a call.
                    addresses.push(NOWHERE);
                    network::trouble_for(Duration::from_secs(3600));
                }
                network::set_name(NAME, &addresses);
                Kind::Named(server)
            }
            Topology::Sentinels => Kind::Sentinels(Mutex::new(Watched::start(version))),
            Topology::Cluster => Kind::Cluster(Mutex::new(Cluster::start(version))),
            Topology::Quorum => Kind::Quorum((0..one_of(&[3, 5])).map(|_| one()).collect()),
        }))
    }

    /// Returns how a program of the fleet reaches them.
    pub(crate) fn builder(&self) -> Result<LockerBuilder, Error> {
        match &*self.0 {
            Kind::One(server) => Locker::builder(&server.url()),
            Kind::Named(server) => Locker::builder(&format!("redis://{NAME}:{}/", server.address().1)),
            Kind::Sentinels(state) => Locker::sentinel_builder(locked(state).urls(), sentinels::MASTER),
            Kind::Cluster(state) => Locker::cluster_builder(locked(state).urls()),
            Kind::Quorum(_) => unreachable!("each has a locker of its own"),
        }
    }

    /// Returns the address of each.
    pub(crate) fn urls(&self) -> Vec<String> {
        self.all().iter().map(|server| server.url()).collect()
    }

    /// Returns the server that has this key now.
    pub(crate) fn of(&self, key: &str) -> ServerId {
        match &*self.0 {
            Kind::One(server) | Kind::Named(server) => *server,
            Kind::Sentinels(state) => locked(state).master(),
            Kind::Cluster(state) => locked(state).master_of(key),
            Kind::Quorum(servers) => servers[0],
        }
    }

    /// Returns all masters, each once.
    pub(crate) fn masters(&self) -> Vec<ServerId> {
        match &*self.0 {
            Kind::One(server) | Kind::Named(server) => vec![*server],
            Kind::Sentinels(state) => vec![locked(state).master()],
            Kind::Cluster(state) => locked(state).masters(),
            Kind::Quorum(servers) => servers.clone(),
        }
    }

    /// Returns all that a client may have connections to.
    pub(crate) fn all(&self) -> Vec<ServerId> {
        match &*self.0 {
            Kind::One(server) | Kind::Named(server) => vec![*server],
            Kind::Sentinels(state) => locked(state).all(),
            Kind::Cluster(state) => locked(state).all(),
            Kind::Quorum(servers) => servers.clone(),
        }
    }

    /// Returns those that a client has to log in to: all but the Sentinels.
    pub(crate) fn with_password(&self) -> Vec<ServerId> {
        match &*self.0 {
            Kind::Sentinels(state) => locked(state).servers(),
            _ => self.all(),
        }
    }

    /// Returns any of them, mostly a master.
    pub(crate) fn any(&self) -> ServerId {
        one_of(&if chance(4) { self.all() } else { self.masters() })
    }

    /// Has a replica become the master of one. Does nothing while
    /// another failover is under way, or where there is no replica.
    pub(crate) fn fail_over(&self, how: Failover) {
        match &*self.0 {
            Kind::One(_) | Kind::Named(_) | Kind::Quorum(_) => {}
            Kind::Sentinels(_) => sentinels::fail_over(self.clone(), how),
            Kind::Cluster(_) => cluster::fail_over(self.clone(), how),
        }
    }

    /// Moves a slot that the fleet uses to another node, if it is a cluster.
    pub(crate) fn move_a_slot(&self, key: &str) {
        if let Kind::Cluster(_) = &*self.0 {
            cluster::move_slot(self.clone(), key);
        }
    }

    /// What happens to those who know where the master is: one Sentinel is away for a while.
    pub(crate) fn trouble_those_who_know(&self) {
        let Kind::Sentinels(state) = &*self.0 else { return };
        let sentinel = locked(state).a_sentinel();
        if chance(2) {
            sentinel.stall(Duration::from_millis(random(100..8000)));
        } else {
            sentinel.kill();
            run::after(Duration::from_millis(random(100..8000)), move || sentinel.restart(true));
        }
    }

    /// Returns how many connections a process has not closed.
    pub(crate) fn connections_of(&self, process: Process) -> usize {
        self.all().iter().filter_map(|server| server.connections().get(&process).copied()).sum()
    }
}
