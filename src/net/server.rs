//! The backend of one server, over connections of its own or lent by a pool of the user's: a trip is sent with those of
//! other threads, and what is not decided by that goes again.
//!
//! On servers that compare and change in one command, such a change is one trip, which other commands share. If the key
//! holds something else it is read, as a transaction would have done before.

mod again;
mod probe;
mod sharing;
mod spare;
mod waiting;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{mem, slice};

use proto::values::{Key, LONGEST_READ, Protocol, Uptime, Version, slot_of};

use super::abilities::Abilities;
use super::connections::{Connection, Dialing, Opener};
use super::errors::Failure;
use super::incoming::AfterTrip;
use super::jobs::Jobs;
use super::lanes::{Batching, Lanes};
use super::limits::Limits;
use super::patience::{Patience, SMALL};
use super::request::Compares;
use super::{Backend, Heard, KeyTrip, NodeId, Sent};
use crate::system::{clock, thread};
use again::is_usual;
use sharing::Carrier;
use spare::Spare;

/// How long a server that takes no more clients, settles, or refuses for now, is left alone.
pub(super) const PAUSE: Duration = Duration::from_millis(50);

/// Waits a moment, if there is time until then and the wait was not ended.
pub(super) fn pause(limits: &mut Limits<'_>, waits_until: Uptime) -> bool {
    if clock::uptime().after(PAUSE) >= waits_until || limits.stop.is_over() {
        return false;
    }
    thread::sleep(PAUSE);
    limits.decided_at = clock::now();
    true
}

/// One server, or the master among several.
pub(crate) struct OneServer {
    lanes: Arc<Lanes<Jobs, Carrier>>,
    patience: Patience,
    opener: Arc<Opener>,
    dialing: Arc<Dialing>,
    spare: Spare,
    /// How many connections there may be.
    size: usize,
    abilities: Abilities,
    /// True if the server is known to be a node of a cluster, where the keys of a transaction have one slot.
    in_cluster: AtomicBool,
    retry_for: Duration,
}

impl OneServer {
    /// Returns a backend with at most so many connections.
    pub(crate) fn new(opener: Opener, size: u32, retry_for: Duration) -> Self {
        Self {
            lanes: Arc::new(Lanes::new()),
            patience: Patience::default(),
            spare: Spare::new(opener.idle_timeout),
            opener: Arc::new(opener),
            dialing: Arc::default(),
            size: usize::try_from(size).unwrap_or(usize::MAX),
            abilities: Abilities::default(),
            in_cluster: AtomicBool::default(),
            retry_for,
        }
    }

    /// Returns it as the backend of a node of a cluster.
    pub(super) fn in_cluster(self) -> Self {
        Self { in_cluster: AtomicBool::new(true), ..self }
    }

    /// Returns the slot of a trip's key, where the keys of a transaction must have one.
    fn slot(&self, trip: &KeyTrip<'_>) -> Option<u16> {
        let shares = trip.transacts() && self.in_cluster.load(Ordering::Relaxed);
        shares.then(|| slot_of(trip.key))
    }

    /// Returns with which others a trip goes first, beside so many of its own call.
    #[inline]
    fn batching(&self, trip: &KeyTrip<'_>, count: usize) -> Batching {
        match self.slot(trip) {
            _ if trip.asks => Batching::Alone,
            Some(slot) => Batching::Group(slot),
            // The replies to so many would hold up the others.
            None if count > SMALL => Batching::Alone,
            None => Batching::Any,
        }
    }

    /// Makes one trip. Returns what came of it.
    #[inline]
    fn make(&self, trip: &KeyTrip<'_>, limits: &Limits<'_>) -> Sent {
        let batching = self.batching(trip, 1);
        let mut sent = self.carry_one(trip, batching, limits);
        if !is_usual(trip, &sent) {
            let so_far = vec![mem::take(&mut sent)];
            sent = self.make_rest(slice::from_ref(trip), Some((so_far, batching)), limits).remove(0);
        }
        sent
    }

    /// Makes a trip on a server that takes over the slot of its key.
    pub(super) fn send_asking(&self, trip: &KeyTrip<'_>, limits: &Limits<'_>) -> Sent {
        self.make(&KeyTrip { asks: true, ..*trip }, &self.limits(limits))
    }

    /// A node of a cluster has slots that were another's: connections
    /// of before do not know its epoch, in which their counters go on.
    pub(super) fn ask_epoch_anew(&self) {
        self.opener.health.found_closed();
    }

    /// A master that has become a replica: a new connection finds out where the address leads now. In a cluster such a
    /// node says that another has its slots, as one does that has given a slot away: then its epoch is asked anew.
    fn note_role(&self, after: &mut AfterTrip, connection: &Connection) {
        if after.read_only {
            self.opener.health.found_closed();
        }
        after.out_of_order |= after.moved && connection.server().epoch.is_some();
    }

    /// Returns the limits as they are with own connections or lent ones.
    pub(super) fn limits<'a>(&self, limits: &Limits<'a>) -> Limits<'a> {
        if self.opener.lends() { *limits } else { limits.for_own_connections() }
    }
}

impl Backend for OneServer {
    fn send(&self, trip: &KeyTrip<'_>, limits: &Limits<'_>) -> Sent {
        let limits = self.limits(limits);
        let trip = KeyTrip { compares: self.compares(trip), ..*trip };
        self.make(&trip, &limits)
    }

    fn send_all<'a>(&self, trips: &[KeyTrip<'a>], limits: &Limits<'_>) -> Vec<Sent> {
        let limits = self.limits(limits);
        let mut trips = Cow::Borrowed(trips);
        if self.opener.health.compares().is_some() {
            let comparing = |trip: &KeyTrip<'a>| KeyTrip { compares: self.compares(trip), ..*trip };
            trips = trips.iter().map(comparing).collect();
        }
        let in_cluster = self.in_cluster.load(Ordering::Relaxed);
        let Some(first) = trips.first().filter(|_| !in_cluster) else {
            return self.make_rest(&trips, None, &limits);
        };
        let batching = self.batching(first, trips.len());
        let sent = self.carry_all(&trips, batching, &limits);
        if trips.iter().zip(&sent).all(|(trip, sent)| is_usual(trip, sent)) {
            return sent;
        }
        self.make_rest(&trips, Some((sent, batching)), &limits)
    }

    fn node_of(&self, _: &Key) -> NodeId {
        NodeId::ONLY
    }

    fn has_slots(&self) -> bool {
        false
    }

    fn wake_waiting(&self) {
        self.lanes.wake_queued();
    }

    fn probe(&self, key: &Key, protocol: Protocol, limits: &Limits<'_>) -> Result<(), Failure> {
        if self.knows(protocol) { Ok(()) } else { self.probe_now(key, protocol, self.limits(limits)) }
    }

    #[inline]
    fn knows(&self, protocol: Protocol) -> bool {
        let is_auto = protocol == Protocol::Auto;
        let version = if is_auto { self.server_version() } else { None };
        (!is_auto || self.is_known()) && self.abilities.know(protocol, version)
    }

    fn best_protocol(&self) -> Protocol {
        self.abilities.best(self.server_version())
    }

    fn is_known(&self) -> bool {
        self.opener.lends() || self.opener.health.was_asked()
    }

    fn server_version(&self) -> Option<Version> {
        self.opener.health.server_version()
    }

    fn address(&self) -> Option<String> {
        (!self.opener.lends()).then(|| self.opener.address())
    }

    fn can_listen(&self) -> bool {
        !self.opener.lends()
    }

    fn listen(
        &self,
        _: NodeId,
        channel: &[u8],
        heard: &mut dyn FnMut(Heard<'_>) -> bool,
    ) -> Result<(), Failure> {
        self.opener.listen(channel, heard)
    }

    fn command_timeout(&self) -> Duration {
        self.opener.command_timeout
    }

    fn retry_for(&self) -> Duration {
        self.retry_for
    }
}

impl OneServer {
    /// Returns how a trip changes its key in one command, if it does and the
    /// server has one for it: none that looks at a time to live as well.
    fn compares(&self, trip: &KeyTrip<'_>) -> Option<Compares> {
        let expected = trip.if_holds.filter(|expected| !expected.without_ttl)?;
        // A longer value is known by its beginning alone.
        let is_whole = (1..LONGEST_READ).contains(&expected.bytes.len());
        let has_it = |compares: &Compares| trip.command.comparing(*compares).is_some();
        self.opener.health.compares().filter(|compares| is_whole && has_it(compares))
    }
}

#[cfg(test)]
mod tests;
