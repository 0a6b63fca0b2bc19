//! A Redis Cluster: the key of a command has a slot, and the command goes to the node that has the slot. A backend over one for each node.

mod asking;
mod redirection;
mod slot_map;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::connections::{Address, Heard, Opener, ask_in_turn};
use super::errors::{ConnectError, Failure, Refusal};
use super::limits::Limits;
use super::own::OwnSource;
use super::pooled::{PooledBackend, pause};
use super::slots::{side_prefix, slot_of};
use super::{Backend, Sent, Trip, is_refused};
use crate::rules::{Command, Reply, Request};
use crate::values::clock::{self, Uptime};
use crate::values::key::Key;
use crate::values::version::Version;
pub(super) use asking::Asking;
use redirection::{Next, next_for};
use slot_map::{Range, SlotMap};

/// How long an unreachable node is tried before the cluster is asked which node has the slot now.
const LOOK: Duration = Duration::from_millis(50);
/// How often a command is redirected without a pause.
const REDIRECTIONS: usize = 5;

type Node = PooledBackend<OwnSource>;

/// A cluster, of which some nodes are known.
pub(crate) struct ClusterBackend {
    /// Opens the connections to a node, each at its address.
    opener: Opener,
    /// These are asked if no other node answers.
    seeds: Vec<Address>,
    pool_size: u32,
    retry_for: Duration,
    map: Mutex<Arc<SlotMap<Arc<Node>>>>,
    /// Held while a node is asked for the map: when that was begun last, and what came of it.
    refreshed: Mutex<Option<(Uptime, Result<(), ConnectError>)>>,
    /// Counts on, so that another node is asked each time.
    turns: AtomicUsize,
}

impl ClusterBackend {
    pub(crate) fn new(opener: Opener, seeds: Vec<Address>, pool_size: u32, retry_for: Duration) -> Self {
        Self {
            opener,
            seeds,
            pool_size,
            retry_for,
            map: Mutex::default(),
            refreshed: Mutex::default(),
            turns: AtomicUsize::default(),
        }
    }

    fn map(&self) -> Arc<SlotMap<Arc<Node>>> {
        Arc::clone(&self.map.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn new_node(&self, address: &Address) -> Arc<Node> {
        Arc::new(PooledBackend::own(self.opener.at(address), self.pool_size, self.retry_for).in_cluster())
    }

    /// Asks the nodes, this one first, which has which slot, unless another thread has asked since `seen` was read, or just now.
    fn refresh(&self, seen: &Arc<SlotMap<Arc<Node>>>, first: Option<&Address>) -> Result<(), ConnectError> {
        let mut refreshed = self.refreshed.lock().unwrap_or_else(PoisonError::into_inner);
        let (map, now) = (self.map(), clock::uptime());
        if !Arc::ptr_eq(&map, seen) {
            return Ok(());
        }
        if let Some((_, outcome)) =
            refreshed.as_ref().filter(|(at, _)| now < at.after(LOOK) && first.is_none())
        {
            return outcome.clone();
        }
        let asked = self.ask(&map, first).map(|told| {
            let node = |address: &Address| map.node(address).unwrap_or_else(|| self.new_node(address));
            let map = SlotMap::of(&told, node);
            *self.map.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(map);
        });
        // Threads that have waited meanwhile need not ask again.
        *refreshed = Some((clock::uptime(), asked.clone()));
        asked
    }

    fn ask(&self, map: &SlotMap<Arc<Node>>, first: Option<&Address>) -> Result<Vec<Range>, ConnectError> {
        let known = first.into_iter().chain(map.addresses()).chain(&self.seeds);
        let clients: Vec<_> = known.map(|address| self.opener.client_at(address)).collect();
        // One that is cut off from the others would say the same again.
        let turn = if first.is_some() { 0 } else { self.turns.fetch_add(1, Ordering::Relaxed) };
        let deadline = clock::uptime().after(self.opener.connect_timeout);
        let all = ("the nodes of the cluster", clients.as_slice());
        ask_in_turn(all, turn, deadline, &self.opener.looks, slot_map::ask).map(|(told, _)| told)
    }

    /// Notes that a slot is another node's.
    fn moved(&self, slot: u16, address: &Address) {
        let seen = self.map();
        if seen.address_of(slot) == Some(address) {
            return;
        }
        // If no node answers, the next look finds out.
        let _ = self.refresh(&seen, Some(address));
        let node = self.node_at(address);
        let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::make_mut(&mut map).set_owner(slot, address, node);
    }

    fn node_at(&self, address: &Address) -> Arc<Node> {
        self.map().node(address).unwrap_or_else(|| self.new_node(address))
    }

    /// Returns the node that has a slot.
    fn owner(&self, slot: u16, limits: &Limits<'_>) -> Result<Arc<Node>, Failure> {
        let map = self.map();
        if let Some(node) = map.owner(slot) {
            return Ok(node);
        }
        let waited = || clock::uptime().since(limits.waits_since);
        self.refresh(&map, None).map_err(|error| Failure::of_connecting(error, waited()))?;
        self.map().owner(slot).ok_or_else(|| Failure::Refused(Refusal::of_no_node(slot)))
    }

    /// Sends trips whose keys have one slot to the node that has it. What a node refuses because it has not is sent to the other one.
    fn carry(&self, slot: u16, trips: &[Trip<'_>], limits: &Limits<'_>) -> Vec<Sent> {
        let (mut limits, mut trips) = (*limits, trips.to_vec());
        let mut sent: Vec<Sent> = trips.iter().map(|_| Sent::default()).collect();
        let mut left: Vec<usize> = (0..trips.len()).collect();
        let (mut asked, mut redirections) = (None, 0);
        loop {
            let batch: Vec<_> = left.iter().map(|at| trips[*at]).collect();
            let (mut next, mut again) = (None, Vec::new());
            for (at, outcome) in left.into_iter().zip(self.send_once(slot, asked.take(), &batch, &limits)) {
                if let Some(wanted) = next_for(&outcome, slot) {
                    next = Some(wanted);
                    again.push(at);
                }
                sent[at].replace(outcome);
                trips[at] = sent[at].again(&trips[at]);
            }
            let at_once = match &next {
                None => return sent,
                Some(Next::Wait) => {
                    // If no node answers, the next look finds out.
                    let _ = self.refresh(&self.map(), None);
                    false
                }
                Some(Next::Moved(address)) => {
                    self.moved(slot, address);
                    true
                }
                Some(Next::Ask(address)) => {
                    asked = Some(self.node_at(address));
                    true
                }
            };
            redirections += 1;
            let waits_until = limits.reachable_by;
            let goes_on = (at_once && redirections <= REDIRECTIONS) || pause(&mut limits, waits_until);
            if !goes_on {
                return sent;
            }
            left = again;
        }
    }

    /// Sends trips to the node that has their slot, or to the one that takes it over.
    fn send_once(
        &self,
        slot: u16,
        asked: Option<Arc<Node>>,
        trips: &[Trip<'_>],
        limits: &Limits<'_>,
    ) -> Vec<Sent> {
        let now = clock::now();
        let limits = Limits {
            reachable_by: limits.reachable_by.min(now.uptime.after(LOOK)),
            decided_at: now,
            ..*limits
        };
        if let Some(node) = asked {
            return node.send_asking(trips, &limits);
        }
        match (self.owner(slot, &limits), trips) {
            (Ok(node), [one]) => vec![node.send(one, &limits)],
            (Ok(node), trips) => node.send_all(trips, &limits),
            (Err(failure), trips) => trips.iter().map(|trip| Sent::failed(trip, failure.clone())).collect(),
        }
    }

    /// Connects to one of the nodes: what one has holds for all.
    fn connect_any(&self, limits: &Limits<'_>) -> Result<(), Failure> {
        let mut failed = self.owner(0, limits).map(drop);
        let limits = Limits { reachable_by: limits.reachable_by.min(clock::uptime().after(LOOK)), ..*limits };
        for node in self.map().nodes() {
            match node.connect(&limits) {
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
        let sent = self.carry(slot, &[one], limits).pop();
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

    /// Those of one slot go together, the others one after the other.
    fn send_all(&self, trips: &[Trip<'_>], limits: &Limits<'_>) -> Vec<Sent> {
        let prefixes: Vec<_> = trips.iter().map(|trip| side_prefix(trip.key)).collect();
        let mut slots: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        for (at, trip) in trips.iter().enumerate() {
            slots.entry(slot_of(trip.key)).or_default().push(at);
        }
        let mut all: Vec<Sent> = trips.iter().map(|_| Sent::default()).collect();
        for (slot, places) in slots {
            let named = |at: &usize| Trip {
                side_prefix: prefixes[*at].as_ref().unwrap_or(trips[*at].key),
                ..trips[*at]
            };
            let batch: Vec<_> = places.iter().map(named).collect();
            for (at, sent) in places.into_iter().zip(self.carry(slot, &batch, limits)) {
                all[at] = sent;
            }
        }
        all
    }

    fn address(&self) -> Option<String> {
        Some(self.opener.address())
    }

    fn wake_waiting(&self) {
        self.map().nodes().for_each(|node| node.wake_waiting());
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
            let _ = self.refresh(&self.map(), None);
        }
    }

    fn is_known(&self) -> bool {
        self.map().nodes().any(|node| node.is_known())
    }

    fn server_version(&self) -> Option<Version> {
        self.map().nodes().filter_map(|node| node.server_version()).min()
    }

    fn can_listen(&self) -> bool {
        true
    }

    /// On any node: each message is published on all.
    fn listen(&self, channel: &[u8], heard: &mut dyn FnMut(Heard<'_>) -> bool) -> Result<(), Failure> {
        let at = self.turns.fetch_add(1, Ordering::Relaxed);
        let nodes: Vec<_> = self.map().nodes().cloned().collect();
        match nodes.get(at % nodes.len().max(1)) {
            Some(node) => node.listen(channel, heard),
            // A thread waits, so it has been asked before.
            None => Err(Failure::TooLate),
        }
    }

    fn command_timeout(&self) -> Duration {
        self.opener.command_timeout
    }

    fn retry_for(&self) -> Duration {
        self.retry_for
    }
}

impl fmt::Debug for ClusterBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterBackend")
            .field("opener", &self.opener)
            .field("nodes", &self.map().addresses().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
