//! A Redis Cluster: a command goes to the node that has the slot of its key. A backend over one for each node.

mod nodes;
mod redirection;
mod slot_map;

use std::collections::BTreeMap;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use proto::Reply;
use proto::values::{Key, Protocol, Uptime, Version, slot_of};

use super::connections::{Address, Heard, Opener};
use super::errors::{Failure, Refusal};
use super::limits::{Limits, until_sent};
use super::request::{Get, Request};
use super::server::{PAUSE, pause};
use super::threads::on_threads;
use super::{Backend, KeyTrip, NodeId, Sent, is_refused};
use crate::system::clock;
use crate::system::sync::Mutex;
use nodes::{LOOK, Map, Node, Nodes};
use redirection::{Redirected, is_redirected, next_for};

/// How often a command is redirected without a pause.
const REDIRECTIONS: usize = 5;

/// A cluster, of which some nodes are known.
pub(crate) struct ClusterBackend {
    nodes: Arc<Nodes>,
}

/// A trip that is to be sent.
struct Pending {
    /// Its place in the list.
    at: usize,
    /// Where it was redirected to; `None`: it goes to the node that has its slot.
    to: Option<Destination>,
}

/// Where a trip goes.
#[derive(Clone)]
struct Destination {
    node: Arc<Node>,
    /// True if the node takes the slot over, and has to be asked for it.
    asks: bool,
}

impl ClusterBackend {
    pub(crate) fn new(opener: Opener, seeds: Vec<Address>, pool_size: u32, retry_for: Duration) -> Self {
        Self { nodes: Arc::new(Nodes::new(opener, seeds, pool_size, retry_for)) }
    }

    /// Sends trips, each to the node that has the slot of its key. While a slot moves its keys are on two nodes: then
    /// what goes behind a command on another key goes by itself. A grant does not wait for it.
    fn carry(&self, trips: &[KeyTrip<'_>], slots: &[u16], limits: &Limits<'_>) -> Vec<Sent> {
        let mut sent = self.route(trips.to_vec(), slots, limits);
        let is_unsent = |at: &usize| {
            let Sent { reply, behind, .. } = &sent[*at];
            let is_missing = behind.is_none() || is_redirected(behind.as_ref(), slots[*at]);
            let is_sent = trips[*at].behind.is_some_and(|behind| behind.keys().is_none());
            is_missing && is_sent && matches!(reply, Some(Ok(_)))
        };
        let unsent: Vec<usize> = (0..trips.len()).filter(is_unsent).collect();
        if unsent.is_empty() {
            return sent;
        }
        let by_itself = |at: &usize| trips[*at].behind.map(|behind| KeyTrip::of(trips[*at].key, behind));
        let behind = unsent.iter().filter_map(by_itself).collect();
        let slots: Vec<u16> = unsent.iter().map(|at| slots[*at]).collect();
        for (at, outcome) in unsent.into_iter().zip(self.route(behind, &slots, &self.without_waiting(limits)))
        {
            // That took its time.
            (sent[at].behind, sent[at].at) = (outcome.reply, None);
        }
        sent
    }

    /// Sends trips, and what a node refuses because it has not the slot or the key to the other one.
    fn route(&self, mut trips: Vec<KeyTrip<'_>>, slots: &[u16], limits: &Limits<'_>) -> Vec<Sent> {
        let mut limits = *limits;
        let mut sent: Vec<Sent> = trips.iter().map(|_| Sent::default()).collect();
        let mut pending: Vec<Pending> = (0..trips.len()).map(|at| Pending { at, to: None }).collect();
        let mut redirections = 0;
        loop {
            let (mut again, mut at_once) = (Vec::new(), false);
            let seen = self.nodes.map();
            let outcomes = self.send_once(&pending, &trips, slots, &limits);
            redirections += 1;
            for (Pending { at, .. }, outcome) in pending.into_iter().zip(outcomes) {
                let next = next_for(&trips[at], &outcome, slots[at]);
                sent[at].replace(outcome);
                trips[at] = sent[at].again(&trips[at]);
                let Some(next) = next else { continue };
                // Nodes that answer agree in a moment.
                let waits_until =
                    if next == Redirected::Wait { limits.reachable_by } else { limits.connected_by };
                let refusal = match next {
                    Redirected::Split => Some(Refusal::of_moving(slots[at])),
                    // It is what the caller learns if there is no time to ask again.
                    Redirected::Moved(_) | Redirected::Ask(_) => Some(Refusal::of_disagreement(slots[at])),
                    Redirected::Wait => None,
                };
                if let Some(refusal) = refusal {
                    let behind = sent[at].behind.take();
                    sent[at] = Sent { behind, ..Sent::failed(&trips[at], Failure::Refused(refusal)) };
                }
                let to = self.follow(next, &seen, &mut trips[at], slots[at], &limits);
                let is_redirected = to.is_some() && redirections <= REDIRECTIONS;
                let may_wait = trips[at].command.waits_for_slot();
                at_once |= is_redirected;
                if is_redirected || may_wait && clock::uptime().after(PAUSE) < waits_until {
                    again.push(Pending { at, to });
                }
            }
            if again.is_empty() || !(at_once || pause(&mut limits, Uptime::MAX)) {
                return sent;
            }
            pending = again;
        }
    }

    /// Returns where a trip goes next, if a node has named another, or the slot has another than this map said. What
    /// others are told meanwhile says nothing about this one.
    fn follow(
        &self,
        next: Redirected,
        seen: &Map,
        trip: &mut KeyTrip<'_>,
        slot: u16,
        limits: &Limits<'_>,
    ) -> Option<Destination> {
        match next {
            Redirected::Wait => {
                self.nodes.other_than(seen, slot, limits).map(|node| Destination { node, asks: false })
            }
            Redirected::Split => None,
            Redirected::Moved(address) => {
                Some(Destination { node: self.nodes.moved(slot, &address, limits), asks: false })
            }
            Redirected::Ask(address) => {
                trip.behind = None;
                Some(Destination { node: self.nodes.node_at(&address), asks: true })
            }
        }
    }

    /// Sends each trip to the node that has its slot, or to where it was redirected: to all nodes at the same time.
    fn send_once(
        &self,
        pending: &[Pending],
        trips: &[KeyTrip<'_>],
        slots: &[u16],
        limits: &Limits<'_>,
    ) -> Vec<Sent> {
        let now = clock::now();
        let reachable_by = limits.reachable_by.min(now.uptime.after(LOOK));
        let limits = Limits { reachable_by, decided_at: now, ..*limits };
        let destinations = self.destinations(pending, slots, &limits);
        // That may have waited for a node.
        let limits = Limits { decided_at: clock::now(), ..limits };
        if let ([Pending { at, .. }], [destination]) = (pending, destinations.as_slice()) {
            return match destination {
                Ok(destination) => destination.carry(&trips[*at..=*at], &limits),
                Err(failure) => vec![Sent::failed(&trips[*at], failure.clone())],
            };
        }
        let mut sent: Vec<Sent> = pending.iter().map(|_| Sent::default()).collect();
        let mut groups: BTreeMap<(NodeId, bool), (Destination, Vec<usize>)> = BTreeMap::new();
        for (n, destination) in destinations.into_iter().enumerate() {
            match destination {
                Ok(destination) => {
                    let group = groups.entry((destination.node.id, destination.asks));
                    group.or_insert_with(|| (destination, Vec::new())).1.push(n);
                }
                Err(failure) => sent[n] = Sent::failed(&trips[pending[n].at], failure),
            }
        }
        let (count, groups) = (groups.len(), Mutex::new(groups.into_values()));
        let sent = Mutex::new(sent);
        on_threads(count, || {
            let next = || groups.lock().next();
            while let Some((destination, members)) = next() {
                let batch: Vec<KeyTrip<'_>> = members.iter().map(|n| trips[pending[*n].at]).collect();
                let outcomes = destination.carry(&batch, &Limits { decided_at: clock::now(), ..limits });
                let mut sent = sent.lock();
                // Others of the call may still be under way.
                let ended = |(n, outcome): (usize, Sent)| sent[n] = Sent { at: None, ..outcome };
                members.into_iter().zip(outcomes).for_each(ended);
            }
        });
        sent.into_inner()
    }

    /// Returns where each trip goes, or why nowhere.
    fn destinations(
        &self,
        pending: &[Pending],
        slots: &[u16],
        limits: &Limits<'_>,
    ) -> Vec<Result<Destination, Failure>> {
        let (mut map, mut failure) = (self.nodes.map(), None);
        if pending.iter().any(|Pending { at, to }| to.is_none() && map.node_of(slots[*at]).is_none()) {
            failure = self.nodes.refresh(&map, None, limits).err();
            map = self.nodes.map();
        }
        let destination = |Pending { at, to }: &Pending| {
            let known = || map.node_of(slots[*at]).map(|node| Destination { node, asks: false });
            let no_node =
                || failure.clone().unwrap_or_else(|| Failure::Refused(Refusal::of_no_node(slots[*at])));
            to.clone().or_else(known).ok_or_else(no_node)
        };
        pending.iter().map(destination).collect()
    }

    /// Returns the limits of what no grant waits for: no node, and a connection for as long as one command.
    fn without_waiting<'a>(&self, limits: &Limits<'a>) -> Limits<'a> {
        let now = clock::uptime();
        let connected_by = now.after(until_sent(self.command_timeout())).min(limits.connected_by);
        Limits { grants: false, reachable_by: now, accepted_by: now, connected_by, ..*limits }
    }

    /// Probes one of the nodes, that of the key first: what it has holds for all.
    fn probe_any(&self, key: &Key, protocol: Protocol, limits: &Limits<'_>) -> Result<(), Failure> {
        let map = self.nodes.map();
        let mut failed =
            if map.node_of(0).is_some() { Ok(()) } else { self.nodes.refresh(&map, None, limits) };
        let limits = Limits { reachable_by: limits.reachable_by.min(clock::uptime().after(LOOK)), ..*limits };
        let map = self.nodes.map();
        for node in map.node_of(slot_of(key)).into_iter().chain(map.nodes().cloned()) {
            // All nodes together have the time of one.
            let limits = Limits { decided_at: clock::now(), ..limits };
            if limits.decided_at.uptime >= limits.answered_by && failed.is_err() {
                break;
            }
            match node.backend.probe(key, protocol, &limits) {
                Ok(()) => return Ok(()),
                failure if is_final(&failure) => return failure,
                failure => failed = failure,
            }
        }
        failed
    }

    /// Reads keys of several slots, one after the other. No node is waited for.
    fn read_each(&self, keys: &[Key], limits: &Limits<'_>) -> Result<Reply, Failure> {
        let limits = &self.without_waiting(limits);
        let read = |key: &Key| match self.send(&KeyTrip::of(key, &Get), limits).plain()? {
            Reply::Bulk(found) => Ok(found),
            _ => Err(Failure::TooLate),
        };
        keys.iter().map(read).collect::<Result<_, _>>().map(Reply::Bulks)
    }
}

impl Destination {
    fn carry(&self, trips: &[KeyTrip<'_>], limits: &Limits<'_>) -> Vec<Sent> {
        let backend = &self.node.backend;
        match trips {
            // A transaction of several keys would decide about each.
            trips if self.asks => {
                let now = || Limits { decided_at: clock::now(), ..*limits };
                trips.iter().map(|one| backend.send_asking(one, &now())).collect()
            }
            [one] => vec![backend.send(one, limits)],
            trips => backend.send_all(trips, limits),
        }
    }
}

/// Returns true if a refusal does not pass.
fn is_final(found: &Result<(), Failure>) -> bool {
    matches!(found, Err(Failure::Refused(refusal)) if !refusal.is_transient())
}

fn are_in_one_slot(keys: &[Key]) -> bool {
    keys.iter().all(|key| slot_of(key) == slot_of(&keys[0]))
}

impl Backend for ClusterBackend {
    /// Keys of several slots, or of one that moves, are read one after the other.
    fn send(&self, trip: &KeyTrip<'_>, limits: &Limits<'_>) -> Sent {
        let (own, behind) = (trip.command.keys(), trip.behind.and_then(Request::keys));
        if let Some(keys) = own.filter(|keys| !are_in_one_slot(keys)) {
            return Sent { reply: Some(self.read_each(keys, limits)), ..Sent::default() };
        }
        let is_spread = behind.is_some_and(|keys| !are_in_one_slot(keys));
        let one = KeyTrip { behind: trip.behind.filter(|_| !is_spread), ..*trip };
        let slot = slot_of(own.map_or(trip.key, |keys| &keys[0]));
        let sent = self.carry(slice::from_ref(&one), &[slot], limits).pop();
        let mut sent = sent.unwrap_or_else(|| unreachable!("there is one for each trip"));
        if let Some(keys) = own.filter(|_| is_refused(sent.reply.as_ref())) {
            sent.reply = Some(self.read_each(keys, limits));
        }
        let is_missing = sent.behind.is_none() && matches!(sent.reply, Some(Ok(_)));
        if let Some(keys) = behind.filter(|_| is_missing || is_refused(sent.behind.as_ref())) {
            (sent.behind, sent.at) = (Some(self.read_each(keys, limits)), None);
        }
        sent
    }

    /// Those of one node go together, as far as they may, and those of all nodes at the same time.
    fn send_all(&self, trips: &[KeyTrip<'_>], limits: &Limits<'_>) -> Vec<Sent> {
        let slots: Vec<u16> = trips.iter().map(|trip| slot_of(trip.key)).collect();
        self.carry(trips, &slots, limits)
    }

    fn node_of(&self, key: &Key) -> NodeId {
        self.nodes.map().node_of(slot_of(key)).map_or(NodeId::ONLY, |node| node.id)
    }

    fn has_slots(&self) -> bool {
        true
    }

    fn address(&self) -> Option<String> {
        Some(self.nodes.opener.address())
    }

    fn wake_waiting(&self) {
        self.nodes.all().iter().for_each(|node| node.backend.wake_waiting());
    }

    fn probe(&self, key: &Key, protocol: Protocol, limits: &Limits<'_>) -> Result<(), Failure> {
        if self.knows(protocol) {
            return Ok(());
        }
        let mut limits = *limits;
        loop {
            let found = self.probe_any(key, protocol, &limits);
            let waits_until = limits.reachable_by;
            if found.is_ok() || is_final(&found) || !pause(&mut limits, waits_until) {
                return found;
            }
            let _ = self.nodes.refresh(&self.nodes.map(), None, &limits);
        }
    }

    fn knows(&self, protocol: Protocol) -> bool {
        self.nodes.map().nodes().any(|node| node.backend.knows(protocol))
    }

    fn best_protocol(&self) -> Protocol {
        let map = self.nodes.map();
        let known = map.nodes().filter(|node| node.backend.is_known());
        let all = known.map(|node| node.backend.best_protocol());
        all.min_by_key(|protocol| protocol.min_version()).unwrap_or_default()
    }

    fn is_known(&self) -> bool {
        self.nodes.map().nodes().any(|node| node.backend.is_known())
    }

    fn server_version(&self) -> Option<Version> {
        self.nodes.map().nodes().filter_map(|node| node.backend.server_version()).min()
    }

    fn can_listen(&self) -> bool {
        true
    }

    fn listen(
        &self,
        id: NodeId,
        channel: &[u8],
        heard: &mut dyn FnMut(Heard<'_>) -> bool,
    ) -> Result<(), Failure> {
        let node = self.nodes.map().nodes().find(|node| node.id == id).cloned();
        // A node that has left the cluster has no keys.
        let listened = node.map_or(Err(Failure::TooLate), |node| node.backend.listen(id, channel, heard));
        if listened.is_err() {
            // Another node may have the keys by now.
            self.nodes.look_again();
        }
        listened
    }

    fn command_timeout(&self) -> Duration {
        self.nodes.opener.command_timeout
    }

    fn retry_for(&self) -> Duration {
        self.nodes.retry_for
    }
}
