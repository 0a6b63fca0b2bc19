//! A cluster of three masters with a replica each. Each node learns by itself what has changed.

use std::mem;
use std::time::Duration;

use setnx_lock_testing::{ClusterNode, ServerVersion, Snapshot};
use world::network::{self, ServerId};
use world::run::{self, chance};

use super::{Failover, Kind, Servers, locked};
use crate::calls::{one_of, up_to};

const SECOND: Duration = Duration::from_secs(1);

/// How many slots there are.
const SLOTS: u16 = 16384;

#[derive(Debug)]
pub(super) struct Cluster {
    nodes: Vec<ServerId>,
    /// Which node has each slot, in truth, by its place.
    owners: Vec<usize>,
    /// What each node knows.
    known: Vec<ClusterNode>,
    epoch: u64,
    is_changing: bool,
}

impl Cluster {
    pub(super) fn start(version: ServerVersion) -> Self {
        let start = |name: &str| ServerId::start(name, version, &[]);
        let names = ["node a", "node b", "node c", "replica a", "replica b", "replica c"];
        let nodes: Vec<ServerId> = names.into_iter().map(start).collect();
        let owners = (0..usize::from(SLOTS)).map(|slot| slot * 3 / usize::from(SLOTS)).collect();
        let known = (1..).zip(&nodes).map(|(epoch, node)| {
            let address = node.address();
            ClusterNode { address, epoch, ..ClusterNode::default() }
        });
        let mut new = Self { known: known.collect(), nodes, owners, epoch: 6, is_changing: false };
        for place in 0..new.nodes.len() {
            new.learn(place);
            new.nodes[place].set_replica(place >= 3);
        }
        new
    }

    pub(super) fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(|node| node.url()).collect()
    }

    pub(super) fn all(&self) -> Vec<ServerId> {
        self.nodes.clone()
    }

    fn places(&self) -> Vec<usize> {
        let is_owner = |place: &usize| self.owners.contains(place);
        (0..self.nodes.len()).filter(is_owner).collect()
    }

    pub(super) fn masters(&self) -> Vec<ServerId> {
        self.places().into_iter().map(|place| self.nodes[place]).collect()
    }

    pub(super) fn master_of(&self, key: &str) -> ServerId {
        self.nodes[self.owners[usize::from(ClusterNode::slot_of(key.as_bytes()))]]
    }

    /// A node learns who has which slots.
    fn learn(&mut self, place: usize) {
        let (mut slots, mut first) = (Vec::new(), 0);
        for range in self.owners.chunk_by(|one, other| one == other) {
            let next = first + u16::try_from(range.len()).unwrap_or(SLOTS);
            slots.push((first, next - 1, self.nodes[range[0]].address()));
            first = next;
        }
        self.known[place].slots = slots;
        self.tell(place);
    }

    fn tell(&self, place: usize) {
        self.nodes[place].set_cluster(self.known[place].clone());
    }

    /// This node's configuration is newer than all others.
    fn raise_epoch(&mut self, place: usize) {
        self.epoch += 1;
        self.known[place].epoch = self.epoch;
    }
}

fn with<T>(servers: &Servers, call: impl FnOnce(&mut Cluster) -> T) -> T {
    let Kind::Cluster(state) = &*servers.0 else { unreachable!("it is a cluster") };
    call(&mut locked(state))
}

fn begins_to_change(servers: &Servers) -> bool {
    with(servers, |all| !mem::replace(&mut all.is_changing, true))
}

/// Those that were not asked learn it from others.
fn others_learn(servers: &Servers, but: [usize; 2]) {
    let count = with(servers, |all| all.nodes.len());
    for place in (0..count).filter(|place| !but.contains(place)) {
        let servers = servers.clone();
        run::after(up_to(2 * SECOND), move || with(&servers, |all| all.learn(place)));
    }
}

/// A master and its replica, by their places.
#[derive(Clone, Copy, Debug)]
struct Pair {
    old: (usize, ServerId),
    new: (usize, ServerId),
}

/// The replica of a master takes over its slots.
pub(super) fn fail_over(servers: Servers, how: Failover) {
    if !begins_to_change(&servers) {
        return;
    }
    let pair = with(&servers, |all| {
        let place = one_of(&all.places());
        let at = |place: usize| (place, all.nodes[place]);
        Pair { old: at(place), new: at((place + 3) % 6) }
    });
    let before = pair.old.1.snapshot();
    network::trouble_for(how.lost + 10 * SECOND);
    run::after(how.lost, move || {
        let before = if how.lost.is_zero() { pair.old.1.snapshot() } else { before };
        let mut noticed = Duration::ZERO;
        if !how.is_planned {
            pair.old.1.kill();
            noticed = SECOND / 2 + up_to(4 * SECOND);
        }
        run::after(noticed, move || promote(servers, pair, how, &before));
    });
}

fn promote(servers: Servers, Pair { old, new }: Pair, how: Failover, before: &Snapshot) {
    // A planned one that loses nothing has the old master wait until the replica has all.
    let is_orderly = how.is_planned && how.lost.is_zero();
    new.1.load(&if is_orderly { old.1.snapshot() } else { before.clone() });
    new.1.set_replica(false);
    with(&servers, |all| {
        all.owners.iter_mut().filter(|owner| **owner == old.0).for_each(|owner| *owner = new.0);
        all.raise_epoch(new.0);
        all.learn(new.0);
    });
    others_learn(&servers, [old.0, new.0]);
    let follows = move || {
        with(&servers, |all| all.learn(old.0));
        old.1.set_replica(true);
        if !how.is_planned {
            old.1.restart(true);
        }
        run::after(2 * SECOND, move || with(&servers, |all| all.is_changing = false));
    };
    match how.is_planned {
        true if is_orderly => follows(),
        true => run::after(up_to(SECOND), follows),
        false => run::after(3 * SECOND + up_to(SECOND), follows),
    }
}

/// The slot of a key moves to another node, a key at a time.
pub(super) fn move_slot(servers: Servers, key: &str) {
    if !begins_to_change(&servers) {
        return;
    }
    let slot = ClusterNode::slot_of(key.as_bytes());
    let (from, to) = with(&servers, |all| {
        let from = all.owners[usize::from(slot)];
        let others: Vec<usize> = all.places().into_iter().filter(|place| *place != from).collect();
        let to = one_of(&others);
        all.known[to].importing.insert(slot);
        all.tell(to);
        let there = all.nodes[to].address();
        all.known[from].migrating.insert(slot, there);
        all.tell(from);
        (from, to)
    });
    run::after(up_to(SECOND), move || go_on_moving(servers, slot, from, to));
}

/// Moves one key, if there is one left, and goes on later.
fn go_on_moving(servers: Servers, slot: u16, from: usize, to: usize) {
    let [source, target] = with(&servers, |all| [from, to].map(|place| all.nodes[place]));
    let keys = source.look(&["KEYS", "*"]);
    let own: Vec<&str> = keys.lines().filter(|key| ClusterNode::slot_of(key.as_bytes()) == slot).collect();
    // In any order: a lock's key before or after its counter and its list.
    if !own.is_empty() {
        let key = if chance(2) { own[0] } else { one_of(&own) };
        // One that is there already stays for now (BUSYKEY).
        if target.look(&["EXISTS", key]) == "0" {
            source.give(target, key);
        }
        return run::after(up_to(SECOND / 5), move || go_on_moving(servers, slot, from, to));
    }
    with(&servers, |all| {
        all.known[to].importing.remove(&slot);
        all.owners[usize::from(slot)] = to;
        all.raise_epoch(to);
        all.learn(to);
    });
    others_learn(&servers, [from, to]);
    run::after(up_to(SECOND / 2), move || {
        with(&servers, |all| {
            all.known[from].migrating.remove(&slot);
            all.learn(from);
            all.is_changing = false;
        });
    });
}
