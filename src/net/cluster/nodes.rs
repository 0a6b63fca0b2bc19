//! The nodes of a cluster, as far as they are known, and which has which slot.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use proto::values::Uptime;

use super::slot_map::{self, Range, SlotMap};
use crate::net::NodeId;
use crate::net::connections::{Address, Group, Opener, ask_in_turn, panicked};
use crate::net::errors::{Failure, TransportError};
use crate::net::limits::Limits;
use crate::net::server::OneServer;
use crate::system::clock;
use crate::system::random::HashMap;
use crate::system::sync::{Condvar, Mutex, wait_timeout};
use crate::system::thread;

/// How long an unreachable node is tried before the cluster is asked which node has the slot now.
pub(super) const LOOK: Duration = Duration::from_millis(50);

/// A node, with connections of its own.
pub(super) struct Node {
    pub(super) backend: OneServer,
    pub(super) id: NodeId,
}

pub(super) type Map = SlotMap<Arc<Node>>;

pub(super) struct Nodes {
    /// Opens the connections to a node, each at its address.
    pub(super) opener: Opener,
    /// These are asked if no other node answers.
    seeds: Vec<Address>,
    pool_size: u32,
    pub(super) retry_for: Duration,
    map: Mutex<Arc<Map>>,
    /// All that there are, by their addresses: also those that have no slots yet.
    known: Mutex<HashMap<Address, Arc<Node>>>,
    asked: Mutex<MapRequest>,
    /// Wakes the threads that wait for an answer.
    answered: Condvar,
    /// Counts on, so that another node is asked each time.
    turns: AtomicUsize,
    /// How many nodes there have been.
    numbers: AtomicU32,
}

/// Whether the nodes are asked for the map, and what came of it last, and when.
#[derive(Default)]
struct MapRequest {
    in_progress: bool,
    last: Option<(Uptime, Result<(), Failure>)>,
}

impl Nodes {
    pub(super) fn new(opener: Opener, seeds: Vec<Address>, pool_size: u32, retry_for: Duration) -> Self {
        Self {
            opener,
            seeds,
            pool_size,
            retry_for,
            map: Mutex::default(),
            known: Mutex::default(),
            asked: Mutex::default(),
            answered: Condvar::default(),
            turns: AtomicUsize::default(),
            numbers: AtomicU32::default(),
        }
    }

    pub(super) fn map(&self) -> Arc<Map> {
        Arc::clone(&self.map.lock())
    }

    pub(super) fn node_at(&self, address: &Address) -> Arc<Node> {
        let mut known = self.known.lock();
        let node = known.entry(address.clone()).or_insert_with(|| {
            let backend = OneServer::new(self.opener.at(address), self.pool_size, self.retry_for);
            let number = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
            Arc::new(Node { backend: backend.in_cluster(), id: NodeId::numbered(number) })
        });
        Arc::clone(node)
    }

    /// Returns all nodes that are known.
    pub(super) fn all(&self) -> Vec<Arc<Node>> {
        self.known.lock().values().cloned().collect()
    }

    /// Notes that a slot is another node's, and returns that.
    pub(super) fn moved(self: &Arc<Self>, slot: u16, address: &Address, limits: &Limits<'_>) -> Arc<Node> {
        let (seen, node) = (self.map(), self.node_at(address));
        if seen.address_of(slot) == Some(address) {
            return node;
        }
        // If no node answers, the next look finds out.
        let _ = self.refresh(&seen, Some(address), limits);
        let mut map = self.map.lock();
        // Another answer is newer.
        if Arc::ptr_eq(&map, &seen) {
            drop(seen);
            Arc::make_mut(&mut map).set_node_of(slot, address, Arc::clone(&node));
            node.backend.ask_epoch_anew();
        }
        node
    }

    /// Returns the node that has a slot now, if it is another than
    /// this map says. The nodes are asked unless it is known already.
    pub(super) fn other_than(
        self: &Arc<Self>,
        seen: &Map,
        slot: u16,
        limits: &Limits<'_>,
    ) -> Option<Arc<Node>> {
        let is_other = |map: &Map| map.address_of(slot) != seen.address_of(slot);
        let mut map = self.map();
        if !is_other(&map) {
            // If no node answers, the next look finds out.
            let _ = self.refresh(&map, None, limits);
            map = self.map();
        }
        map.node_of(slot).filter(|_| is_other(&map))
    }

    /// Has the nodes asked which has which slot, without waiting for it.
    pub(super) fn look_again(self: &Arc<Self>) {
        let mut asked = self.asked.lock();
        if !asked.in_progress {
            self.start_asking(&mut asked, None);
        }
    }

    /// Has the nodes asked, this one first, which has which slot, unless they were since `seen` was read, or just now.
    /// They are asked on a thread of its own: a caller waits for the answer within its own limits.
    pub(super) fn refresh(
        self: &Arc<Self>,
        seen: &Arc<Map>,
        first: Option<&Address>,
        limits: &Limits<'_>,
    ) -> Result<(), Failure> {
        let began = clock::uptime();
        let is_recent = |at: Uptime| at >= began || (first.is_none() && began < at.after(LOOK));
        let mut asked = self.asked.lock();
        while Arc::ptr_eq(&self.map(), seen) {
            let waited = clock::uptime().since(limits.waits_since);
            if let Some((_, outcome)) = asked.last.as_ref().filter(|(at, _)| is_recent(*at)) {
                return outcome.clone().map_err(|failure| failure.after(waited));
            }
            if !asked.in_progress {
                self.start_asking(&mut asked, first.cloned());
                continue;
            }
            let left = limits.connected_by.since(clock::uptime());
            if left.is_zero() || limits.stop.is_over() {
                return Err(self.opener.connecting().after(waited));
            }
            asked = wait_timeout(&self.answered, asked, left.min(LOOK));
        }
        Ok(())
    }

    fn start_asking(self: &Arc<Self>, asked: &mut MapRequest, first: Option<Address>) {
        let this = Arc::clone(self);
        let ask = move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| this.ask(first.as_ref())));
            this.end_asking(
                &mut this.asked.lock(),
                outcome.unwrap_or_else(|panic| Err(panicked(panic.as_ref()))),
            );
        };
        asked.in_progress = true;
        if let Err(error) = thread::named("setnx-lock-cluster").spawn(ask) {
            let text = format!("no thread could be started to ask the nodes of the cluster: {error}");
            let error = TransportError::here(error.kind(), &text);
            self.end_asking(asked, Err(Failure::unreachable(error)));
        }
    }

    fn end_asking(&self, asked: &mut MapRequest, outcome: Result<(), Failure>) {
        *asked = MapRequest { in_progress: false, last: Some((clock::uptime(), outcome)) };
        self.answered.notify_all();
    }

    fn ask(&self, first: Option<&Address>) -> Result<(), Failure> {
        let map = self.map();
        let known = first.into_iter().chain(map.addresses()).chain(&self.seeds);
        let clients: Vec<_> = known.map(|address| self.opener.client_at(address)).collect();
        // One that is cut off from the others would say the same again.
        let turn = if first.is_some() { 0 } else { self.turns.fetch_add(1, Ordering::Relaxed) };
        let deadline = clock::uptime().after(self.opener.connect_timeout);
        let credentials = self.opener.credentials.as_ref();
        let all = Group { clients: &clients, credentials, name: "the nodes of the cluster", one: "" };
        let told: Vec<Range> = ask_in_turn(all, turn, deadline, &self.opener.looks, slot_map::ask)?;
        let told = Arc::new(SlotMap::of(&told, |address| self.node_at(address)));
        let before = mem::replace(&mut *self.map.lock(), Arc::clone(&told));
        for node in told.gaining_since(&before) {
            node.backend.ask_epoch_anew();
        }
        drop((before, told, map));
        // One that commands are under way to may be needed again.
        let has_slots: Vec<Address> = self.map().addresses().cloned().collect();
        let mut known = self.known.lock();
        let gone =
            known.extract_if(|address, node| !has_slots.contains(address) && Arc::strong_count(node) == 1);
        let gone: Vec<_> = gone.collect();
        drop(known);
        // Their connections are closed.
        drop(gone);
        Ok(())
    }
}
