//! A Redis Cluster: the key of a command has a slot, and the command goes to the node that has the slot. A backend over one for each node.

mod asking;
mod nodes;
mod redirection;
mod slot_map;

use std::collections::BTreeMap;
use std::slice;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::connections::{Address, Heard, Opener};
use super::errors::{Failure, Refusal};
use super::limits::Limits;
use super::pooled::pause;
use super::slots::{side_prefix, slot_of};
use super::threads::on_threads;
use super::{Backend, Place, Sent, Trip, is_refused};
use crate::rules::{Command, Reply, Request};
use crate::values::clock;
use crate::values::key::Key;
use crate::values::version::Version;
pub(super) use asking::Asking;
use nodes::{Node, Nodes};
use redirection::{Next, is_redirected, next_for};

/// How long an unreachable node is tried before the cluster is asked which node has the slot now.
const LOOK: Duration = Duration::from_millis(50);
/// How often a command is redirected without a pause.
const REDIRECTIONS: usize = 5;

/// A cluster, of which some nodes are known.
#[derive(Debug)]
pub(crate) struct ClusterBackend {
    nodes: Arc<Nodes>,
}

/// A trip that is to be sent.
struct Pending {
    /// Its place in the list.
    at: usize,
    slot: u16,
    /// Where it was redirected to.
    to: Option<(Arc<Node>, Redirected)>,
}

/// How a command was redirected to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Redirected {
    /// The node has the slot.
    Moved,
    /// The node takes the slot over, and has to be asked for it.
    Ask,
}

/// What goes to one node together: the places of trips among those that are pending.
struct Group {
    node: Arc<Node>,
    redirected: Redirected,
    members: Vec<usize>,
}

impl ClusterBackend {
    pub(crate) fn new(opener: Opener, seeds: Vec<Address>, pool_size: u32, retry_for: Duration) -> Self {
        Self { nodes: Arc::new(Nodes::new(opener, seeds, pool_size, retry_for)) }
    }

    /// Sends trips, each to the node that has the slot of its key. While a slot moves its keys are on two nodes: then what goes behind a command
    /// on another key goes by itself.
    fn carry(&self, trips: &[Trip<'_>], slots: &[u16], limits: &Limits<'_>) -> Vec<Sent> {
        let mut sent = self.route(trips.to_vec(), slots, limits);
        let is_left = |at: &usize| {
            let Sent { reply, behind, .. } = &sent[*at];
            let is_missing = behind.is_none() || is_redirected(behind.as_ref(), slots[*at]);
            is_missing && trips[*at].behind.is_some() && matches!(reply, Some(Ok(_)))
        };
        let left: Vec<usize> = (0..trips.len()).filter(is_left).collect();
        if left.is_empty() {
            return sent;
        }
        let request = |at: &usize| trips[*at].behind.cloned().map(Request::at_any_time);
        let requests: Vec<Request> = left.iter().filter_map(request).collect();
        let by_itself =
            |(at, request): (&usize, _)| Trip { watch: None, behind: None, request, ..trips[*at] };
        let behind = left.iter().zip(&requests).map(by_itself).collect();
        let slots: Vec<u16> = left.iter().map(|at| slots[*at]).collect();
        for (at, outcome) in left.into_iter().zip(self.route(behind, &slots, limits)) {
            sent[at].behind = outcome.reply;
        }
        sent
    }

    /// Sends trips, and what a node refuses because it has not the slot or the key to the other one.
    fn route(&self, mut trips: Vec<Trip<'_>>, slots: &[u16], limits: &Limits<'_>) -> Vec<Sent> {
        let mut limits = *limits;
        let mut sent: Vec<Sent> = trips.iter().map(|_| Sent::default()).collect();
        let mut pending: Vec<Pending> =
            slots.iter().enumerate().map(|(at, slot)| Pending { at, slot: *slot, to: None }).collect();
        let mut redirections = 0;
        loop {
            let (mut again, mut at_once, mut waits_until) = (Vec::new(), false, limits.reachable_by);
            let outcomes = self.send_once(&pending, &trips, &limits);
            for (Pending { at, slot, .. }, outcome) in pending.into_iter().zip(outcomes) {
                let next = next_for(&trips[at], &outcome, slot);
                sent[at].replace(outcome);
                trips[at] = sent[at].again(&trips[at]);
                let Some(next) = next else { continue };
                if next != Next::Wait {
                    // The nodes answer, and agree in a moment.
                    waits_until = limits.connected_by;
                }
                let mut to = None;
                match next {
                    Next::Wait => {
                        // If no node answers, the next look finds out.
                        let _ = self.nodes.refresh(&self.nodes.map(), None, &limits);
                    }
                    Next::Split => {
                        sent[at] = Sent::failed(&trips[at], Failure::Refused(Refusal::of_moving(slot)));
                    }
                    // What others are told meanwhile says nothing about this one.
                    Next::Moved(address) => {
                        to = Some((self.nodes.moved(slot, &address, &limits), Redirected::Moved));
                    }
                    Next::Ask(address) => {
                        trips[at].behind = None;
                        to = Some((self.nodes.node_at(&address), Redirected::Ask));
                    }
                }
                at_once |= to.is_some();
                again.push(Pending { at, slot, to });
            }
            redirections += 1;
            let goes_on = |limits: &mut Limits<'_>| {
                (at_once && redirections <= REDIRECTIONS) || pause(limits, waits_until)
            };
            if again.is_empty() || !goes_on(&mut limits) {
                return sent;
            }
            pending = again;
        }
    }

    /// Sends each trip to the node that has its slot, or to the one that takes it over: to all nodes at the same time.
    fn send_once(&self, pending: &[Pending], trips: &[Trip<'_>], limits: &Limits<'_>) -> Vec<Sent> {
        let now = clock::now();
        let reachable_by = limits.reachable_by.min(now.uptime.after(LOOK));
        let limits = Limits { reachable_by, decided_at: now, ..*limits };
        let sent: Mutex<Vec<Sent>> = Mutex::new(pending.iter().map(|_| Sent::default()).collect());
        let fill = |members: &[usize], outcomes: Vec<Sent>| {
            let mut sent = sent.lock().unwrap_or_else(PoisonError::into_inner);
            members.iter().zip(outcomes).for_each(|(at, outcome)| sent[*at] = outcome);
        };
        let groups = self.by_node(pending, &limits, |at, failure| {
            fill(&[at], vec![Sent::failed(&trips[pending[at].at], failure)]);
        });
        let (count, groups) = (groups.len(), Mutex::new(groups));
        on_threads(count, || {
            let next = || groups.lock().unwrap_or_else(PoisonError::into_inner).pop();
            while let Some(Group { node, redirected, members }) = next() {
                let batch: Vec<Trip<'_>> = members.iter().map(|at| trips[pending[*at].at]).collect();
                let outcomes = match batch.as_slice() {
                    batch if redirected == Redirected::Ask => node.backend.send_asking(batch, &limits),
                    [one] => vec![node.backend.send(one, &limits)],
                    batch => node.backend.send_all(batch, &limits),
                };
                fill(&members, outcomes);
            }
        });
        sent.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Divides what is pending by the nodes that it goes to. `fails` is told what has none, and why.
    fn by_node(
        &self,
        pending: &[Pending],
        limits: &Limits<'_>,
        fails: impl Fn(usize, Failure),
    ) -> Vec<Group> {
        let (mut map, mut failure) = (self.nodes.map(), None);
        if pending.iter().any(|one| one.to.is_none() && map.owner(one.slot).is_none()) {
            failure = self.nodes.refresh(&map, None, limits).err();
            map = self.nodes.map();
        }
        let mut groups: BTreeMap<(Place, Redirected), Group> = BTreeMap::new();
        for (at, Pending { slot, to, .. }) in pending.iter().enumerate() {
            let owner = || map.owner(*slot).map(|node| (node, Redirected::Moved));
            let Some((node, redirected)) = to.clone().or_else(owner) else {
                fails(at, failure.clone().unwrap_or_else(|| Failure::Refused(Refusal::of_no_node(*slot))));
                continue;
            };
            let group = groups.entry((node.place, redirected));
            group.or_insert_with(|| Group { node, redirected, members: Vec::new() }).members.push(at);
        }
        groups.into_values().collect()
    }

    /// Connects to one of the nodes: what one has holds for all.
    fn connect_any(&self, limits: &Limits<'_>) -> Result<(), Failure> {
        let map = self.nodes.map();
        let mut failed = if map.owner(0).is_some() { Ok(()) } else { self.nodes.refresh(&map, None, limits) };
        let limits = Limits { reachable_by: limits.reachable_by.min(clock::uptime().after(LOOK)), ..*limits };
        for node in self.nodes.map().nodes() {
            match node.backend.connect(&limits) {
                Ok(()) => return Ok(()),
                failure => failed = failure,
            }
        }
        failed
    }

    /// Reads keys of several slots, one after the other. No node is waited for.
    fn read_each(&self, keys: &[Key], limits: &Limits<'_>) -> Result<Reply, Failure> {
        let now = clock::uptime();
        let limits = &Limits { grants: false, reachable_by: now, accepted_by: now, ..*limits };
        let get = Request::at_any_time(Command::Get);
        let read = |key: &Key| match self.send(&Trip::new(key, &get), limits).own()? {
            Reply::Bulk(found) => Ok(found),
            _ => Err(Failure::TooLate),
        };
        keys.iter().map(read).collect::<Result<_, _>>().map(Reply::Bulks)
    }
}

/// Returns the keys that a command reads, if there are several.
fn reads(command: &Command) -> Option<&[Key]> {
    match command {
        Command::GetAll(keys) => Some(keys),
        _ => None,
    }
}

fn are_in_one_slot(keys: &[Key]) -> bool {
    keys.iter().all(|key| slot_of(key) == slot_of(&keys[0]))
}

impl Backend for ClusterBackend {
    /// Keys of several slots, or of one that moves, are read one after the other.
    fn send(&self, trip: &Trip<'_>, limits: &Limits<'_>) -> Sent {
        let (own, behind) = (reads(&trip.request.command), trip.behind.and_then(reads));
        if let Some(keys) = own.filter(|keys| !are_in_one_slot(keys)) {
            return Sent { reply: Some(self.read_each(keys, limits)), ..Sent::default() };
        }
        let is_spread = behind.is_some_and(|keys| !are_in_one_slot(keys));
        let prefix = side_prefix(trip.key);
        let one = Trip {
            side_prefix: prefix.as_ref().unwrap_or(trip.key),
            behind: trip.behind.filter(|_| !is_spread),
            ..*trip
        };
        let slot = slot_of(own.map_or(trip.key, |keys| &keys[0]));
        let sent = self.carry(slice::from_ref(&one), &[slot], limits).pop();
        let mut sent = sent.unwrap_or_else(|| unreachable!("there is one for each trip"));
        if let Some(keys) = own.filter(|_| is_refused(sent.reply.as_ref())) {
            sent.reply = Some(self.read_each(keys, limits));
        }
        let is_missing = is_spread && matches!(sent.reply, Some(Ok(_)));
        if let Some(keys) = behind.filter(|_| is_missing || is_refused(sent.behind.as_ref())) {
            sent.behind = Some(self.read_each(keys, limits));
        }
        sent
    }

    /// Those of one node go together, as far as they may, and those of all nodes at the same time.
    fn send_all(&self, trips: &[Trip<'_>], limits: &Limits<'_>) -> Vec<Sent> {
        let prefixes: Vec<_> = trips.iter().map(|trip| side_prefix(trip.key)).collect();
        let slots: Vec<u16> = trips.iter().map(|trip| slot_of(trip.key)).collect();
        let trips = trips.iter().zip(&prefixes);
        let trips =
            trips.map(|(trip, prefix)| Trip { side_prefix: prefix.as_ref().unwrap_or(trip.key), ..*trip });
        self.carry(&trips.collect::<Vec<_>>(), &slots, limits)
    }

    fn place(&self, key: &Key) -> Place {
        self.nodes.map().owner(slot_of(key)).map_or(Place::ONLY, |node| node.place)
    }

    fn address(&self) -> Option<String> {
        Some(self.nodes.opener.address())
    }

    fn wake_waiting(&self) {
        self.nodes.map().nodes().for_each(|node| node.backend.wake_waiting());
    }

    fn connect(&self, limits: &Limits<'_>) -> Result<(), Failure> {
        if self.is_known() {
            return Ok(());
        }
        let mut limits = *limits;
        loop {
            let Err(failure) = self.connect_any(&limits) else { return Ok(()) };
            let waits_until = limits.reachable_by;
            if !pause(&mut limits, waits_until) {
                return Err(failure);
            }
            let _ = self.nodes.refresh(&self.nodes.map(), None, &limits);
        }
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
        place: Place,
        channel: &[u8],
        heard: &mut dyn FnMut(Heard<'_>) -> bool,
    ) -> Result<(), Failure> {
        let node = self.nodes.map().nodes().find(|node| node.place == place).cloned();
        // A node that has left the cluster has no keys.
        node.map_or(Err(Failure::TooLate), |node| node.backend.listen(place, channel, heard))
    }

    fn command_timeout(&self) -> Duration {
        self.nodes.opener.command_timeout
    }

    fn retry_for(&self) -> Duration {
        self.nodes.retry_for
    }
}
