//! A master, two replicas and three Sentinels: when each learns of a failover is what was measured on real ones.

use std::mem;
use std::time::Duration;

use setnx_lock_testing::{ServerVersion, Snapshot, WatchedMaster};
use world::network::{self, ServerId};
use world::run::{self, random};

use super::{Failover, Kind, Servers, locked};
use crate::calls::{one_of, up_to};

/// Their name for it.
pub(super) const MASTER: &str = "mymaster";

/// What a master answers that has no replica.
const ALONE: &str = "NOREPLICAS Not enough good replicas to write.";

const SECOND: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Watched {
    servers: Vec<ServerId>,
    watchers: Vec<ServerId>,
    /// The place of the master among the servers.
    master: usize,
    epoch: u64,
    is_failing_over: bool,
}

impl Watched {
    pub(super) fn start(version: ServerVersion) -> Self {
        let start = |name: &str| ServerId::start(name, version, &[]);
        let servers: Vec<ServerId> = ["server a", "server b", "server c"].into_iter().map(start).collect();
        servers[1..].iter().for_each(|replica| replica.set_replica(true));
        let watchers = ["sentinel a", "sentinel b", "sentinel c"].into_iter().map(start).collect();
        let new = Self { servers, watchers, master: 0, epoch: random(0..3), is_failing_over: false };
        for sentinel in &new.watchers {
            // It has watched for long.
            sentinel.set_sentinel(&new.watched(new.servers[0], Duration::ZERO));
        }
        new
    }

    fn watched(&self, described: ServerId, since: Duration) -> WatchedMaster {
        let (address, described) = (self.master().address(), described.address());
        WatchedMaster { name: MASTER.to_owned(), address, described, epoch: self.epoch, since }
    }

    pub(super) fn urls(&self) -> Vec<String> {
        self.watchers.iter().map(|sentinel| sentinel.url()).collect()
    }

    pub(super) fn master(&self) -> ServerId {
        self.servers[self.master]
    }

    fn next(&self) -> usize {
        (self.master + 1) % self.servers.len()
    }

    pub(super) fn servers(&self) -> Vec<ServerId> {
        self.servers.clone()
    }

    pub(super) fn all(&self) -> Vec<ServerId> {
        self.servers.iter().chain(&self.watchers).copied().collect()
    }

    pub(super) fn a_sentinel(&self) -> ServerId {
        one_of(&self.watchers)
    }
}

fn with<T>(servers: &Servers, call: impl FnOnce(&mut Watched) -> T) -> T {
    let Kind::Sentinels(state) = &*servers.0 else { unreachable!("they have Sentinels") };
    call(&mut locked(state))
}

/// A replica becomes the master. It has what the old one had some time before.
pub(super) fn fail_over(servers: Servers, how: Failover) {
    let begins = with(&servers, |all| !mem::replace(&mut all.is_failing_over, true));
    if !begins {
        return;
    }
    let old = with(&servers, |all| all.master());
    network::trouble_for(how.lost + 20 * SECOND);
    let before = old.snapshot();
    run::after(how.lost, move || {
        // The snapshot is of the last moment if nothing is lost.
        let before = if how.lost.is_zero() { old.snapshot() } else { before };
        if !how.is_planned {
            old.kill();
        } else if how.lost.is_zero() {
            old.set_refusing(Some(ALONE));
        }
        let noticed = if how.is_planned { Duration::ZERO } else { up_to(5 * SECOND) };
        run::after(noticed, move || promote(&servers, old, how, &before));
    });
}

/// The replica takes writes from now on, once it has a replica itself. The Sentinel that leads the failover learns so
/// within a second, and has the other replica follow; then the old master takes no more.
fn promote(servers: &Servers, old: ServerId, how: Failover, before: &Snapshot) {
    let new = with(servers, |all| all.servers[all.next()]);
    new.load(before);
    new.set_replica(false);
    new.set_refusing(Some(ALONE));
    let servers = servers.clone();
    run::after(up_to(SECOND), move || {
        with(&servers, |all| {
            all.master = all.next();
            all.epoch += 1;
        });
        tell(&servers, old);
        if how.is_planned && !how.lost.is_zero() {
            run::after(up_to(SECOND / 10), move || old.set_refusing(Some(ALONE)));
        }
        run::after(SECOND / 10 + up_to(6 * SECOND), move || new.set_refusing(None));
        // The old one is a replica as soon as it is back, or is told.
        run::after(8 * SECOND + up_to(4 * SECOND), move || {
            old.set_replica(true);
            old.set_refusing(None);
            old.restart(true);
            with(&servers, |all| all.is_failing_over = false);
        });
    });
}

/// Each Sentinel learns it by itself: address and epoch together, what it describes the master by later.
fn tell(servers: &Servers, old: ServerId) {
    let (sentinels, leader) = (with(servers, |all| all.watchers.clone()), random(0..3));
    for (number, sentinel) in (0..).zip(sentinels) {
        let servers = servers.clone();
        let learns = if number == leader { Duration::ZERO } else { up_to(2 * SECOND) };
        run::after(learns, move || {
            let now = run::wall_clock();
            sentinel.set_sentinel(&with(&servers, |all| all.watched(old, now)));
            run::after(up_to(SECOND + SECOND / 3), move || {
                sentinel.set_sentinel(&with(&servers, |all| all.watched(all.master(), now)));
            });
        });
    }
}
