//! The backend of one server, over connections of its own or lent by a pool of the user's: a trip is sent with those of
//! other threads, or on a connection that this thread has for itself.
//!
//! On servers that compare and change in one command, such a change is one trip, which other commands share. If the key
//! holds something else it is read, as a transaction would have done before.

mod parts;
mod probe;
mod sharing;
mod spare;
mod waiting;

use std::cell::{Cell, RefCell};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use proto::values::{Key, LONGEST_READ, Protocol, Uptime, Version, slot_of};
use proto::{Command, Reply, Trip};

use super::abilities::Abilities;
use super::asking::Asking;
use super::codec::Compares;
use super::connections::{Connection, Dialing, Opener};
use super::errors::{Failure, Refusal, RefusalKind};
use super::item::AfterTrip;
use super::lanes::Lanes;
use super::limits::Limits;
use super::patience::Patience;
use super::trip::{TripState, Wire};
use super::{Backend, Heard, KeyTrip, NodeId, Sent, Undecided};
use crate::system::{clock, thread};
use sharing::Carrier;
use spare::Spare;

/// How long a server that takes no more clients, settles, or refuses for now, is left alone.
pub(super) const PAUSE: Duration = Duration::from_millis(50);

/// Returns true if the server has refused a change since it is a replica now.
fn is_read_only(sent: &Sent) -> bool {
    matches!(&sent.reply, Some(Err(Failure::Refused(refusal))) if refusal.kind() == RefusalKind::ReadOnly)
}

/// Waits a moment, if there is time until then and the wait was not ended.
pub(super) fn pause(limits: &mut Limits<'_>, waits_until: Uptime) -> bool {
    if clock::uptime().after(PAUSE) >= waits_until || limits.stop.is_over() {
        return false;
    }
    thread::sleep(PAUSE);
    limits.decided_at = clock::now();
    true
}

thread_local! {
    /// The lists of this thread, which are used again.
    static SPARE: Cell<(Vec<RefCell<TripState>>, Wire)> = Cell::default();
}

/// One server, or the master among several.
pub(crate) struct OneServer {
    lanes: Arc<Lanes<TripState, Carrier>>,
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

    /// Sends trips on a connection that this thread has for itself, if there is time.
    fn send_part(&self, trips: &[KeyTrip<'_>], limits: &Limits<'_>) -> Vec<Sent> {
        if limits.decided_at.uptime < limits.answered_by {
            return self.send_alone(trips, *limits, Asking::Never);
        }
        let waited = limits.decided_at.uptime.since(limits.waits_since);
        let late = self.dialing.all_in_use(&self.opener).after(waited);
        trips.iter().map(|trip| Sent::failed(trip, late.clone())).collect()
    }

    /// Returns true if the server says for the first time that its keys have slots.
    fn learns_slots(&self, sent: &Sent) -> bool {
        sent.undecided == Some(Undecided::CrossSlot) && !self.in_cluster.swap(true, Ordering::Relaxed)
    }

    /// Sends trips on a connection that carries nothing else meanwhile.
    fn send_alone(&self, trips: &[KeyTrip<'_>], mut limits: Limits<'_>, asking: Asking) -> Vec<Sent> {
        let (mut jobs, mut wire) = SPARE.try_with(Cell::take).unwrap_or_default();
        if jobs.len() < trips.len() {
            jobs.resize_with(trips.len(), RefCell::default);
        }
        let all = |failure: &Failure| trips.iter().map(|trip| Sent::failed(trip, failure.clone())).collect();
        loop {
            for (job, trip) in jobs.iter_mut().zip(trips) {
                job.get_mut().set(trip, limits.needs, limits.grants);
            }
            let (mut connection, now) = match self.connection(trips[0].key, &mut limits) {
                Ok(ready) => ready,
                Err(failure) => return all(&failure),
            };
            let mut time = limits;
            time.answered_by = limits.reply_by(now.uptime).min(now.uptime.after(self.opener.command_timeout));
            let batch = &mut jobs[..trips.len()];
            let mut after = wire.exchange(&mut connection, batch, now, &time, asking);
            self.note_role(&mut after, &connection);
            if after.out_of_order {
                connection.invalidate();
            }
            drop(connection);
            let refusal = batch.iter_mut().find_map(|job| job.get_mut().found_no_room().cloned());
            match refusal {
                Some(_) if self.wait_for_room(&mut limits) => {}
                Some(refusal) => return all(&Failure::Refused(refusal)),
                None => break,
            }
        }
        let end =
            |(job, trip): (&mut RefCell<TripState>, &KeyTrip<'_>)| match job.get_mut().take_outcome(trip) {
                Sent { found: None, reply: None, .. } => Sent::failed(trip, Failure::TooLate),
                sent => sent,
            };
        let sent = jobs.iter_mut().zip(trips).map(end).collect();
        // The thread may be ending.
        let _ = SPARE.try_with(|spare| spare.set((jobs, wire)));
        sent
    }

    #[inline]
    fn send_one(&self, trip: &KeyTrip<'_>, limits: &Limits<'_>) -> Sent {
        let mut shared = match self.share(trip, self.slot(trip), limits) {
            Some(sent) if sent.undecided.is_none() => return sent,
            Some(sent) => sent,
            None => Sent::default(),
        };
        self.learns_slots(&shared);
        let rest = shared.again(trip);
        let limits = Limits { decided_at: clock::now(), ..*limits };
        shared.replace(self.send_part(slice::from_ref(&rest), &limits).remove(0));
        shared
    }

    /// Sends again what a replica has refused, if a new connection may
    /// lead to the master: at once, then until it does or time is up.
    #[inline]
    fn send_to_master<T>(
        &self,
        mut limits: Limits<'_>,
        send: impl Fn(&Limits<'_>) -> T,
        is_refused: impl Fn(&T) -> bool,
    ) -> T {
        let outcome = send(&limits);
        if !is_refused(&outcome) || !self.opener.finds_master() {
            return outcome;
        }
        loop {
            limits.decided_at = clock::now();
            let outcome = send(&limits);
            let waits_until = limits.reachable_by;
            if !is_refused(&outcome) || !pause(&mut limits, waits_until) {
                return outcome;
            }
        }
    }

    #[inline]
    fn by_master(&self, trip: &KeyTrip<'_>, limits: Limits<'_>) -> Sent {
        self.send_to_master(limits, |limits| self.send_one(trip, limits), is_read_only)
    }

    fn all_by_master(&self, trips: &[KeyTrip<'_>], limits: Limits<'_>) -> Vec<Sent> {
        let all_refused = |all: &Vec<Sent>| all.iter().all(is_read_only);
        self.send_to_master(limits, |limits| self.send_in_parts(trips, limits), all_refused)
    }

    /// Sends trips to a server that takes over the slot of their keys.
    pub(super) fn send_asking(&self, trips: &[KeyTrip<'_>], limits: &Limits<'_>) -> Vec<Sent> {
        self.send_alone(trips, self.limits(limits), Asking::BeforeEach)
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

    /// Waits a moment before commands are sent again that the server has not read, since it had no room for the
    /// connection: their outcome is known, so that does not break I6. Returns whether there is time.
    pub(super) fn wait_for_room(&self, limits: &mut Limits<'_>) -> bool {
        let waits_until = if self.opener.is_connected() { limits.connected_by } else { limits.accepted_by };
        self.dialing.leave_alone(clock::uptime());
        pause(limits, waits_until)
    }
}

impl Backend for OneServer {
    fn send(&self, trip: &KeyTrip<'_>, limits: &Limits<'_>) -> Sent {
        let limits = self.limits(limits);
        match self.compares(trip.trip) {
            None => self.by_master(trip, limits),
            compares => self.by_comparing(&KeyTrip { compares, ..*trip }, limits),
        }
    }

    fn send_all(&self, trips: &[KeyTrip<'_>], limits: &Limits<'_>) -> Vec<Sent> {
        let limits = self.limits(limits);
        if trips.iter().any(|trip| self.compares(trip.trip).is_some()) {
            return self.all_by_comparing(trips, limits);
        }
        self.all_by_master(trips, limits)
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
    fn compares(&self, trip: &Trip) -> Option<Compares> {
        let expected = trip.if_holds.as_ref().filter(|expected| !expected.without_ttl)?;
        let is_on_the_key = matches!(trip.command, Command::Set(_) | Command::Del);
        // A longer value is known by its beginning alone.
        let is_whole = (1..LONGEST_READ).contains(&expected.bytes.len());
        self.opener.health.compares().filter(|_| is_on_the_key && is_whole)
    }

    /// Makes such a trip.
    fn by_comparing(&self, trip: &KeyTrip<'_>, limits: Limits<'_>) -> Sent {
        let mut own = self.by_master(trip, limits);
        if !matches!(own.reply, Some(Ok(Reply::Executed(Some(_))))) {
            self.after_comparing(slice::from_ref(trip), slice::from_mut(&mut own), limits);
        }
        own
    }

    /// Makes trips of which some are such.
    fn all_by_comparing(&self, trips: &[KeyTrip<'_>], limits: Limits<'_>) -> Vec<Sent> {
        let comparing = trips.iter().map(|trip| KeyTrip { compares: self.compares(trip.trip), ..*trip });
        let trips: Vec<KeyTrip<'_>> = comparing.collect();
        let mut all = self.all_by_master(&trips, limits);
        self.after_comparing(&trips, &mut all, limits);
        all
    }

    /// Makes of what came of the trips what a transaction would have come to: reads keys that hold something else, and
    /// makes a transaction where the server has no such command for this user after all.
    #[cold]
    fn after_comparing(&self, trips: &[KeyTrip<'_>], all: &mut [Sent], limits: Limits<'_>) {
        let get = Trip::of(Command::Get);
        let (mut next, mut places) = (Vec::new(), Vec::new());
        for (at, (trip, own)) in
            trips.iter().zip(&*all).enumerate().filter(|(_, (trip, _))| trip.compares.is_some())
        {
            match &own.reply {
                Some(Err(Failure::Refused(refusal))) if lacks(refusal) => {
                    self.opener.health.refuses_to_compare();
                    next.push(KeyTrip { compares: None, ..own.again(trip) });
                }
                Some(Ok(Reply::Executed(None))) => next.push(KeyTrip::new(trip.key, &get)),
                _ => continue,
            }
            places.push(at);
        }
        if !next.is_empty() {
            let limits = limits.after(all[places[0]].began_at, clock::now());
            let more = self.all_by_master(&next, limits);
            for (at, (trip, more)) in places.into_iter().zip(next.iter().zip(more)) {
                if trip.transacts() {
                    all[at].replace(more);
                } else {
                    // What comes next is judged by the time of this reply.
                    (all[at].found, all[at].reply, all[at].at) = (more.reply, None, None);
                }
            }
        }
        for (trip, own) in trips.iter().zip(all) {
            // It was to be sent soon, and nothing was read.
            let is_late = own.found.is_none() && matches!(own.reply, None | Some(Err(Failure::TooLate)));
            if let (true, Some(_), Some(expected)) = (is_late, trip.compares, &trip.trip.if_holds) {
                (own.found, own.reply) = (Some(Ok(Reply::Bulk(Some(expected.bytes.clone())))), None);
            }
        }
    }
}

/// Returns true if the server has no such command, or not for this user: nothing was carried out.
fn lacks(refusal: &Refusal) -> bool {
    match refusal.kind() {
        RefusalKind::UnknownCommand => true,
        RefusalKind::NotPermitted => !refusal.is_about_a_key(),
        RefusalKind::Other => ["ERR syntax error", "ERR wrong number of arguments"]
            .iter()
            .any(|words| refusal.text().starts_with(words)),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
