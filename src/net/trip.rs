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
        if self.list.len() < count {
            self.list.resize_with(count, TripState::default);
        }
        self.used = count;
        self.all()
    }

    pub(super) fn all(&mut self) -> &mut [TripState] {
        &mut self.list[..self.used]
    }

    /// Returns those whose changes are on the wire.
    fn changing(&mut self) -> impl Iterator<Item = &mut TripState> {
        self.all().iter_mut().filter(|job| job.is_on_the_wire(Phase::Changing))
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
        let undecided = self.take_undecided();
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
        let is_late = undecided.is_none() && found.is_none() && reply.is_none();
        if is_late {
            return Sent::failed(trip, Failure::TooLate);
        }
        Sent {
            found,
            reply,
            undecided,
            behind: behind
                .and_then(|behind| self.behind.outcome(|replies, forms| codec::read(behind, replies, forms))),
            epoch: self.epoch,
            began_at: self.sent_at,
            at: None,
            changed_by: compares.map(|compares| compares.name(command)),
        }
    }

    /// Returns why it is not known yet what it comes to, if so.
    fn take_undecided(&mut self) -> Option<Undecided> {
        match self.changes {
            Some(_) if !self.look.is_sent() => self.look.unsent(),
            // The connection was given up before its change went, or its thread was.
            Some(_) if self.phase == Phase::Changing && !self.own.is_sent() => Some(Undecided::Together),
            None if !self.own.is_sent() => self.own.unsent(),
            _ => self.undecided.take(),
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
        self.packed.clear();
        self.replies.clear();
        self.jobs = 0;
        self.ends = self.open.take();
        if self.ends.is_some() {
            self.pack_changes(batch, server, now);
        }
        let (mut looks, mut asks) = (false, false);
        for entry in batch {
            let mut jobs = entry.job();
            if entry.is_gone() {
                continue;
            }
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
            for entry in batch {
                for job in entry.job().all() {
                    if job.is_on_the_wire(Phase::Looking) {
                        self.packed.take(&mut job.look.packed);
                    }
                }
            }
            self.packed.asks = asks;
            self.packed.begun(Form::Okay, b"*1\r\n$5\r\nMULTI\r\n", &[]);
            self.packed.asks = false;
        }
    }

    fn pack_changes<C>(&mut self, batch: &[Arc<Entry<Jobs, C>>], server: &Known, now: Now) {
        for entry in batch {
            let mut jobs = entry.job();
            // Both under one lock: its thread may give up in between.
            if entry.is_gone() {
                continue;
            }
            for job in jobs.all() {
                if job.phase == Phase::Changing && job.sends(server, now) {
                    self.packed.take(&mut job.own.packed);
                }
            }
        }
        if self.count() == 0 {
            return self.packed.command(Form::Okay, &[b"DISCARD"]);
        }
        self.packed.begun(Form::ListOrNil, b"*1\r\n$4\r\nEXEC\r\n", &[]);
        for entry in batch {
            for job in entry.job().all() {
                if job.is_on_the_wire(Phase::Changing) && job.behind.is_sent() {
                    self.packed.take(&mut job.behind.packed);
                }
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
        let mut values = mem::take(&mut self.replies);
        let mut replies = Incoming::of(&mut values, ended);
        if let Some(watched) = self.ends {
            self.open = read_changes(batch, watched > 1, &mut self.beside, &mut replies).then_some(watched);
        }
        let mut looks = false;
        for entry in batch {
            for job in entry.job().all() {
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

/// Reads the end of a transaction, which watches `many` keys. Returns whether it may be open still.
fn read_changes<C>(
    batch: &[Arc<Entry<Jobs, C>>],
    many: bool,
    discard: &mut Item,
    replies: &mut Incoming<'_>,
) -> bool {
    let count = |entry: &Arc<Entry<Jobs, C>>| entry.job().changing().count();
    let may_be_open = match batch.iter().map(count).sum() {
        0 => {
            discard.set_beside("DISCARD", false);
            replies.give(discard);
            replies.after.out_of_order |= !item::is_closed_by(&discard.replies);
            false
        }
        // What came of each is known before it is unlocked: its thread may give up at any time, and takes that.
        1 => batch.iter().any(|entry| match entry.job().changing().next() {
            Some(job) => {
                let may_be_open = replies.give_change(&mut job.own);
                job.undecided = if many { job.own.undecided() } else { None };
                may_be_open
            }
            None => false,
        }),
        _ => {
            let mut entries: Vec<_> = batch.iter().map(|entry| entry.job()).collect();
            let mut jobs: Vec<_> = entries.iter_mut().flat_map(|jobs| jobs.changing()).collect();
            let may_be_open =
                replies.give_changes(&mut jobs.iter_mut().map(|job| &mut job.own).collect::<Vec<_>>());
            for job in &mut jobs {
                job.undecided = if many { job.own.undecided() } else { None };
            }
            may_be_open
        }
    };
    for entry in batch {
        for job in entry.job().all() {
            if job.phase == Phase::Changing {
                job.phase = Phase::Done;
                replies.give(&mut job.behind);
            }
        }
    }
    may_be_open
}

/// Reads what each key holds that is watched now. Returns how many the open transaction watches, if one is.
fn read_looks<C>(
    batch: &[Arc<Entry<Jobs, C>>],
    multi: &mut Item,
    replies: &mut Incoming<'_>,
) -> Option<usize> {
    let (mut watched, mut asks) = (0, false);
    for entry in batch {
        for job in entry.job().all() {
            if job.phase == Phase::Looking {
                replies.give(&mut job.look);
                watched += 1;
                asks = job.asks;
            }
        }
    }
    multi.set_beside("MULTI", asks);
    replies.give(multi);
    let is_open = multi.replies == [Value::Okay];
    // It may be watching.
    replies.after.out_of_order |= !is_open;
    let (mut changed, many) = (BTreeSet::new(), watched > 1);
    for entry in batch {
        for job in entry.job().all() {
            if job.phase == Phase::Looking {
                job.read_look(multi, many, |key| changed.insert(key));
            }
        }
    }
    is_open.then_some(watched)
}

#[cfg(test)]
mod tests;
