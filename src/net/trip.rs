//! A round trip: what goes over a connection together for several keys and threads, and how the replies get to each.
//!
//! | in this order | for whom |
//! |---|---|
//! | the changes, and EXEC; or DISCARD if there are none | whose key was found to hold what it should, in the trip before |
//! | what goes behind each change | the same |
//! | a command, and what goes behind it | each of the others |
//! | WATCH and GET for each, and MULTI | who changes a key if it holds what it should |
//!
//! So threads that change keys by transactions share two trips; of several that change one key, the first does. MULTI
//! goes with what is watched: a server that refuses it does so before any change is on its way. If one of the keys was
//! written meanwhile, none is changed: that is [undecided](Undecided) for each key, which then goes alone.

use std::collections::BTreeSet;
use std::mem;
use std::sync::Arc;

use proto::fencing::Epoch;
use proto::values::{Key, Now, Protocol, SideKey, Uptime, Version};
use proto::{Command, Expected, Trip};
use redis::Value;

use super::codec::{self, Compares};
use super::connections::Known;
use super::errors::{Failure, TransportError};
use super::item::{self, AfterTrip, Incoming, Item};
use super::lanes::Entry;
use super::resp::{Form, Packed};
use super::{KeyTrip, Sent, Undecided};
use crate::system::sync::MutexGuard;

/// How many jobs of a thread are kept to be used again, if it has no more.
const KEPT: usize = 32;
/// How large a buffer is that is used again, in bytes.
const LARGE: usize = 64 * 1024;

/// What a thread has sent together: a job for each key. They are used again.
#[derive(Default)]
pub(super) struct Jobs {
    list: Vec<TripState>,
    used: usize,
}

impl Jobs {
    /// Makes them the jobs of these trips. `grants`: they may grant locks.
    #[inline]
    pub(super) fn set(&mut self, trips: &[KeyTrip<'_>], needs: Protocol, grants: bool) {
        for (job, trip) in self.begin(trips.len()).iter_mut().zip(trips) {
            job.set(trip, needs, grants);
        }
    }

    /// Makes them one job, of packed commands that are of no trip.
    pub(super) fn set_raw(&mut self, name: &'static str, packed: &Packed, strict: usize) {
        if let [job] = self.begin(1) {
            job.set_raw(name, packed, strict);
        }
    }

    fn begin(&mut self, count: usize) -> &mut [TripState] {
        if self.list.len() < count || self.list.len() > KEPT {
            self.resize(count);
        }
        self.used = count;
        self.all()
    }

    #[cold]
    fn resize(&mut self, count: usize) {
        self.list.resize_with(count, TripState::default);
    }

    pub(super) fn all(&mut self) -> &mut [TripState] {
        &mut self.list[..self.used]
    }

    /// Returns true if all that came of each is known.
    pub(super) fn are_done(&self) -> bool {
        self.list[..self.used].iter().all(|job| job.phase == Phase::Done)
    }
}

/// What one key has sent. Its lists are used again.
#[derive(Default)]
pub(super) struct TripState {
    own: Item,
    behind: Item,
    /// WATCH and GET, before a change.
    look: Item,
    /// The key of a change, and what it should hold.
    changes: Option<Key>,
    expected: Vec<u8>,
    phase: Phase,
    /// Set if a transaction with other keys too was not carried out.
    undecided: Option<Undecided>,
    /// True if ASKING goes before its commands.
    asks: bool,
    /// Those of the server which the command is sent to, if they are known.
    epoch: Option<Epoch>,
    version: Option<Version>,
    /// When the first of its commands was sent.
    sent_at: Option<Uptime>,
}

/// How far a trip is: what goes next. It is the same from when that is packed until its replies are read.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    /// A command that depends on nothing, and what goes behind it.
    Plain,
    /// WATCH and GET.
    Looking,
    /// The change, since the key is watched and holds what it should; and what goes behind it.
    Changing,
    /// Nothing: all that came of it is known, or it is not to be sent.
    #[default]
    Done,
}

impl TripState {
    /// Makes it the state of this trip. `grants`: it may grant a lock.
    fn set(&mut self, trip: &KeyTrip<'_>, needs: Protocol, grants: bool) {
        self.begin();
        let KeyTrip { key, trip, behind, compares, asks } = *trip;
        if asks {
            self.ask(trip.if_holds.is_some() && compares.is_none());
        }
        match (&trip.if_holds, compares) {
            (Some(Expected { bytes, .. }), Some(compares)) => {
                self.own.begin(compares.name(&trip.command), needs, trip.before);
                compares.pack(&mut self.own.packed, key.as_bytes(), &trip.command, bytes);
            }
            _ => self.own.set(key, trip, needs),
        }
        self.own.grants = grants;
        self.own.only_in = trip.command.only_in();
        if let (Some(expected), None) = (&trip.if_holds, compares) {
            self.look.begin("WATCH", needs, None);
            let watched = match trip.command {
                Command::Raise { .. } => Key::from(SideKey::Fence.of(key.as_bytes())),
                _ => key.clone(),
            };
            codec::pack_look(&mut self.look.packed, watched.as_bytes(), expected.without_ttl);
            self.look.grants = grants;
            (self.changes, self.phase) = (Some(watched), Phase::Looking);
            self.expected.extend_from_slice(&expected.bytes);
        }
        if let Some(behind) = behind {
            self.behind.begin(behind.name(), Protocol::Classic, None);
            codec::pack(&mut self.behind.packed, key.as_bytes(), behind);
        }
    }

    fn set_raw(&mut self, name: &'static str, packed: &Packed, strict: usize) {
        self.begin();
        self.own.begin(name, Protocol::Classic, None);
        self.own.packed.clone_from(packed);
        self.own.strict = strict;
    }

    #[inline]
    fn begin(&mut self) {
        self.behind.clear();
        if self.changes.take().is_some() {
            self.expected.clear();
            self.look.clear();
        }
        if mem::take(&mut self.asks) {
            for item in [&mut self.own, &mut self.behind, &mut self.look] {
                item.packed.asks = false;
            }
        }
        (self.phase, self.undecided, self.sent_at) = (Phase::Plain, None, None);
        (self.epoch, self.version) = (None, None);
    }

    /// Has ASKING go before each command, of which a transaction has one in front.
    #[cold]
    fn ask(&mut self, transacts: bool) {
        self.asks = true;
        self.own.packed.asks = !transacts;
        (self.look.packed.asks, self.behind.packed.asks) = (true, true);
    }

    /// Returns what came of it.
    pub(super) fn take_outcome(&mut self, trip: &KeyTrip<'_>) -> Sent {
        let is_sent = match self.changes {
            // The connection may be given up before the change goes, or its thread.
            Some(_) => self.look.is_sent() && (self.phase != Phase::Changing || self.own.is_sent()),
            None => self.own.is_sent(),
        };
        let KeyTrip { trip: Trip { command, if_holds, .. }, behind, compares, .. } = *trip;
        let (found, reply) = match (if_holds, compares) {
            (None, _) => (None, self.own.outcome(|replies, forms| codec::read(command, replies, forms))),
            (Some(_), Some(_)) => {
                (None, self.own.outcome(|replies, forms| Compares::read(command, replies, forms)))
            }
            (Some(expected), None) => (
                self.look.outcome(|replies, _| codec::read_look(expected, replies)),
                self.own.outcome(|replies, _| codec::read_change(command, replies)),
            ),
        };
        let behind = behind
            .and_then(|behind| self.behind.outcome(|replies, forms| codec::read(behind, replies, forms)));
        let changed_by = compares.map(|compares| compares.name(command));
        let (epoch, began_at) = (self.epoch, self.sent_at);
        let mut sent = Sent { found, reply, behind, undecided: None, epoch, began_at, at: None, changed_by };
        if !is_sent || self.undecided.is_some() {
            self.note_undecided(trip, &mut sent);
        }
        sent
    }

    /// Notes why a trip is not decided, or that it was too late for it.
    #[cold]
    fn note_undecided(&mut self, trip: &KeyTrip<'_>, sent: &mut Sent) {
        sent.undecided = self.undecided.take();
        if sent.undecided.is_some() {
            return;
        }
        let item =
            if self.changes.is_some() && !self.look.is_sent() { &mut self.look } else { &mut self.own };
        // What the server has not read took none of the command's time.
        (sent.undecided, sent.began_at) = (item.unsent(), None);
        if sent.undecided.is_none() && sent.found.is_none() {
            *sent = Sent::failed(trip, Failure::TooLate);
        }
    }

    /// Returns the replies to packed commands that are of no trip, as far as they came; and why not all did, if so.
    pub(super) fn take_raw(&mut self) -> RawReplies {
        let missing = self.own.missing();
        RawReplies { replies: mem::take(&mut self.own.replies), missing, version: self.version }
    }

    /// Notes that its command is sent now, if it may be. Returns whether it may.
    #[inline]
    fn sends(&mut self, server: &Known, now: Now) -> bool {
        (self.epoch, self.version) = (server.epoch, server.version);
        self.sent_at.get_or_insert(now.uptime);
        item::send_both(&mut self.own, &mut self.behind, server, now)
    }

    /// Notes that its key is looked at now, if it may be. Returns whether it may.
    fn looks(&mut self, server: &Known, now: Now) -> bool {
        self.sent_at = Some(now.uptime);
        self.look.sends(server, now)
    }

    /// Reads what its key holds, and with that whether the change goes. `multi` opens the transaction, of `many` keys.
    /// `is_first`: of the changes of this key in it.
    fn read_look(&mut self, multi: &Item, many: bool, is_first: impl FnOnce(Option<Key>) -> bool) {
        let is_expected = match self.look.replies.as_slice() {
            [Value::Okay, Value::BulkString(found)] => *found == self.expected,
            [Value::Okay, Value::BulkString(found), Value::Int(codec::NO_TTL)] => *found == self.expected,
            _ => false,
        };
        self.look.lose_as(multi);
        self.look.replies.extend(multi.replies.iter().cloned());
        let is_open = multi.replies == [Value::Okay];
        self.phase = Phase::Done;
        if is_open && is_expected {
            // In one transaction two changes of a key would both be carried out.
            if !many || is_first(self.changes.clone()) {
                self.phase = Phase::Changing;
            } else {
                self.undecided = Some(Undecided::Together);
            }
        } else if many && self.look.is_refused_for_slots() {
            self.undecided = Some(Undecided::CrossSlot);
        }
    }

    /// Returns true if this goes over the wire now, or has gone there, and its replies come.
    fn is_on_the_wire(&self, phase: Phase) -> bool {
        let item = if phase == Phase::Looking { &self.look } else { &self.own };
        self.phase == phase && item.is_sent()
    }
}

/// What came of packed commands that are of no trip.
pub(super) struct RawReplies {
    pub(super) replies: Vec<Value>,
    /// Why there are fewer than commands.
    pub(super) missing: Option<TransportError>,
    /// As the server reported it.
    pub(super) version: Option<Version>,
}

/// What is on the wire of a connection.
#[derive(Default)]
pub(super) struct Wire {
    pub(super) packed: Packed,
    pub(super) replies: Vec<Value>,
    /// The transaction that is open: how many keys it watches. The next trip ends it.
    open: Option<usize>,
    /// The one that this trip ends.
    ends: Option<usize>,
    /// MULTI, or DISCARD.
    beside: Item,
    /// How many jobs share this trip.
    pub(super) jobs: usize,
}

impl Wire {
    /// How many replies the trip has.
    pub(super) fn count(&self) -> usize {
        self.packed.forms.len()
    }

    /// Returns true if a transaction is open.
    pub(super) fn is_watching(&self) -> bool {
        self.open.is_some()
    }

    /// Packs what may be sent now. Once a thread waits no longer, it has taken what is not sent as such.
    pub(super) fn pack<C>(&mut self, batch: &[Arc<Entry<Jobs, C>>], server: &Known, now: Now) {
        let waits = |entry: &Entry<Jobs, C>| !entry.is_gone();
        locked(batch, waits, |batch| self.pack_jobs(batch, server, now));
    }

    #[inline]
    fn pack_jobs(&mut self, batch: &mut [Locked<'_>], server: &Known, now: Now) {
        self.packed.clear();
        self.replies.clear();
        if self.jobs > KEPT {
            self.give_memory_back();
        }
        self.jobs = 0;
        self.ends = self.open.take();
        if self.ends.is_some() {
            self.pack_changes(batch, server, now);
        }
        let (mut looks, mut asks) = (false, false);
        for jobs in &mut *batch {
            self.jobs += jobs.used;
            for job in jobs.all() {
                let phase = job.phase;
                match phase {
                    Phase::Plain if job.sends(server, now) => {
                        self.packed.take(&mut job.own.packed);
                        if job.behind.is_sent() {
                            self.packed.take(&mut job.behind.packed);
                        }
                    }
                    Phase::Looking if job.looks(server, now) => (looks, asks) = (true, job.asks),
                    _ => {}
                }
            }
        }
        if looks {
            for job in each(batch).filter(|job| job.is_on_the_wire(Phase::Looking)) {
                self.packed.take(&mut job.look.packed);
            }
            self.packed.asks = asks;
            self.packed.begun(Form::Okay, b"*1\r\n$5\r\nMULTI\r\n", &[]);
            self.packed.asks = false;
        }
    }

    #[cold]
    fn give_memory_back(&mut self) {
        self.packed.bytes.shrink_to(LARGE);
        self.replies.shrink_to(KEPT);
    }

    fn pack_changes(&mut self, batch: &mut [Locked<'_>], server: &Known, now: Now) {
        for job in each(batch) {
            if job.phase == Phase::Changing && job.sends(server, now) {
                self.packed.take(&mut job.own.packed);
            }
        }
        if self.count() == 0 {
            return self.packed.command(Form::Okay, &[b"DISCARD"]);
        }
        self.packed.begun(Form::ListOrNil, b"*1\r\n$4\r\nEXEC\r\n", &[]);
        for job in each(batch).filter(|job| job.is_on_the_wire(Phase::Changing)) {
            if job.behind.is_sent() {
                self.packed.take(&mut job.behind.packed);
            }
        }
    }

    /// Reads the replies, of which `ended` says why some are missing, and gives each job its own, in the order in which
    /// they were packed. Each job is a phase further then.
    pub(super) fn read<C>(
        &mut self,
        batch: &[Arc<Entry<Jobs, C>>],
        ended: Option<TransportError>,
    ) -> AfterTrip {
        locked(batch, |_| true, |batch| self.read_jobs(batch, ended))
    }

    #[inline]
    fn read_jobs(&mut self, batch: &mut [Locked<'_>], ended: Option<TransportError>) -> AfterTrip {
        let mut values = mem::take(&mut self.replies);
        let mut replies = Incoming::of(&mut values, ended);
        if let Some(watched) = self.ends {
            self.open = read_changes(batch, watched > 1, &mut self.beside, &mut replies).then_some(watched);
        }
        let mut looks = false;
        for jobs in &mut *batch {
            for job in jobs.all() {
                match job.phase {
                    Phase::Plain => {
                        replies.give(&mut job.own);
                        replies.give(&mut job.behind);
                        job.phase = Phase::Done;
                    }
                    Phase::Looking if job.look.is_sent() => looks = true,
                    Phase::Looking => job.phase = Phase::Done,
                    Phase::Changing | Phase::Done => {}
                }
            }
        }
        if looks {
            self.open = read_looks(batch, &mut self.beside, &mut replies);
        }
        let after = mem::take(&mut replies.after);
        drop(replies);
        self.replies = values;
        after
    }
}

/// The jobs of an entry. All of a batch are locked while they are packed, and while their replies are read: a thread may
/// give up at any time, and takes what came of its jobs before or after.
type Locked<'a> = MutexGuard<'a, Jobs>;

/// Locks the jobs of those of a batch that are wanted then.
#[inline]
fn locked<C, T>(
    batch: &[Arc<Entry<Jobs, C>>],
    wanted: impl Fn(&Entry<Jobs, C>) -> bool,
    then: impl FnOnce(&mut [Locked<'_>]) -> T,
) -> T {
    let lock = |entry| {
        let jobs = Entry::job(entry);
        wanted(entry).then_some(jobs)
    };
    match batch {
        [one] => then(lock(one).as_mut_slice()),
        batch => then(&mut batch.iter().filter_map(|entry| lock(entry)).collect::<Vec<_>>()),
    }
}

fn each<'a>(batch: &'a mut [Locked<'_>]) -> impl Iterator<Item = &'a mut TripState> {
    batch.iter_mut().flat_map(|jobs| jobs.all())
}

/// Reads the end of a transaction, which watches `many` keys. Returns whether it may be open still.
fn read_changes(
    batch: &mut [Locked<'_>],
    many: bool,
    discard: &mut Item,
    replies: &mut Incoming<'_>,
) -> bool {
    let may_be_open = end_transaction(each(batch), discard, replies);
    for job in each(batch).filter(|job| job.phase == Phase::Changing) {
        job.phase = Phase::Done;
        job.undecided = if many { job.own.undecided() } else { None };
        replies.give(&mut job.behind);
    }
    may_be_open
}

/// Reads the replies to the changes of a transaction, and to what ends it. Returns whether it may be open still.
#[inline]
fn end_transaction<'a>(
    jobs: impl Iterator<Item = &'a mut TripState>,
    discard: &mut Item,
    replies: &mut Incoming<'_>,
) -> bool {
    let mut changes = jobs.filter(|job| job.is_on_the_wire(Phase::Changing)).map(|job| &mut job.own);
    match (changes.next(), changes.next()) {
        (None, _) => {
            discard.set_beside("DISCARD", false);
            replies.give(discard);
            replies.after.out_of_order |= !item::is_closed_by(&discard.replies);
            false
        }
        (Some(one), None) => replies.give_change(one),
        (first, second) => {
            replies.give_changes(&mut first.into_iter().chain(second).chain(changes).collect::<Vec<_>>())
        }
    }
}

/// Reads what each key holds that is watched now. Returns how many the open transaction watches, if one is.
fn read_looks(batch: &mut [Locked<'_>], multi: &mut Item, replies: &mut Incoming<'_>) -> Option<usize> {
    let (mut watched, mut asks) = (0, false);
    for job in each(batch).filter(|job| job.phase == Phase::Looking) {
        replies.give(&mut job.look);
        (watched, asks) = (watched + 1, job.asks);
    }
    multi.set_beside("MULTI", asks);
    replies.give(multi);
    let is_open = multi.replies == [Value::Okay];
    // It may be watching.
    replies.after.out_of_order |= !is_open;
    let (mut changed, many) = (BTreeSet::new(), watched > 1);
    for job in each(batch).filter(|job| job.phase == Phase::Looking) {
        job.read_look(multi, many, |key| changed.insert(key));
    }
    is_open.then_some(watched)
}

#[cfg(test)]
mod tests;
