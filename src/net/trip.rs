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

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::mem;
use std::ops::DerefMut;

use proto::fencing::Epoch;
use proto::values::{Key, Now, Protocol, SideKey, Uptime};
use proto::{Command, Expected, Trip};
use redis::Value;

use super::asking::{Asking, with_asking};
use super::codec::{self, Compares};
use super::connections::{Connection, Known};
use super::errors::{Refusal, TransportError};
use super::item::{self, AfterTrip, Incoming, Item};
use super::limits::Limits;
use super::resp::{Form, Packed};
use super::{KeyTrip, Sent, Undecided};
use crate::system::clock;

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
    /// That of the server which the command is sent to, if it is known.
    epoch: Option<Epoch>,
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

/// Where the state of a trip is: it may be another thread's, which may give up.
pub(super) trait Batched {
    fn job(&self) -> impl DerefMut<Target = TripState>;

    /// Returns true if its thread waits no longer.
    fn is_gone(&self) -> bool;
}

impl Batched for RefCell<TripState> {
    fn job(&self) -> impl DerefMut<Target = TripState> {
        self.borrow_mut()
    }

    fn is_gone(&self) -> bool {
        false
    }
}

impl TripState {
    /// Makes it the state of this trip. `grants`: it may grant a lock.
    pub(super) fn set(&mut self, trip: &KeyTrip<'_>, needs: Protocol, grants: bool) {
        self.behind.clear();
        if self.changes.take().is_some() {
            self.expected.clear();
            self.look.clear();
        }
        (self.phase, self.undecided, self.sent_at) = (Phase::Plain, None, None);
        let KeyTrip { key, trip, behind, compares } = *trip;
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

    /// Returns the refusal of a connection for which the server has no room.
    pub(super) fn found_no_room(&self) -> Option<&Refusal> {
        self.own.found_no_room().or_else(|| self.look.found_no_room())
    }

    /// Returns what came of it. Nothing is set if it was not sent, or not read.
    pub(super) fn take_outcome(&mut self, trip: &KeyTrip<'_>) -> Sent {
        // The connection was given up before its change went, or its thread was.
        let is_left = self.phase == Phase::Changing && !self.own.is_sent();
        let KeyTrip { trip: Trip { command, if_holds, .. }, behind, compares, .. } = trip;
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
        Sent {
            found,
            reply,
            behind: behind
                .and_then(|behind| self.behind.outcome(|replies, forms| codec::read(behind, replies, forms))),
            undecided: self.undecided.or(is_left.then_some(Undecided::Together)),
            epoch: self.epoch,
            began_at: self.sent_at,
            at: None,
            changed_by: compares.map(|compares| compares.name(command)),
        }
    }

    /// Returns true if all that came of it is known.
    pub(super) fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// Notes that its command is sent now, if it may be. Returns whether it may.
    fn sends(&mut self, server: Known, now: Now) -> bool {
        self.epoch = server.epoch;
        self.sent_at.get_or_insert(now.uptime);
        item::send_both(&mut self.own, &mut self.behind, server, now)
    }

    /// Notes that its key is looked at now, if it may be. Returns whether it may.
    fn looks(&mut self, server: Known, now: Now) -> bool {
        self.sent_at = Some(now.uptime);
        self.look.sends(server, now)
    }

    /// Returns true if this goes over the wire now, or has gone there, and its replies come.
    fn is_on_the_wire(&self, phase: Phase) -> bool {
        let item = if phase == Phase::Looking { &self.look } else { &self.own };
        self.phase == phase && item.is_sent()
    }
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
    pub(super) fn pack(&mut self, batch: &[impl Batched], server: Known, now: Now) {
        self.packed.clear();
        self.replies.clear();
        self.ends = self.open.take();
        if self.ends.is_some() {
            self.pack_changes(batch, server, now);
        }
        let mut looks = false;
        for place in batch {
            let job = &mut *place.job();
            let phase = if place.is_gone() { Phase::Done } else { job.phase };
            match phase {
                Phase::Plain if job.sends(server, now) => {
                    self.packed.take(&mut job.own.packed);
                    if job.behind.is_sent() {
                        self.packed.take(&mut job.behind.packed);
                    }
                }
                Phase::Looking => looks |= job.looks(server, now),
                _ => {}
            }
        }
        if looks {
            for place in batch {
                let job = &mut *place.job();
                if job.is_on_the_wire(Phase::Looking) {
                    self.packed.take(&mut job.look.packed);
                }
            }
            self.packed.begun(Form::Okay, b"*1\r\n$5\r\nMULTI\r\n", &[]);
        }
    }

    fn pack_changes(&mut self, batch: &[impl Batched], server: Known, now: Now) {
        for place in batch {
            let job = &mut *place.job();
            // Both under one lock: its thread may give up in between.
            if job.phase == Phase::Changing && !place.is_gone() && job.sends(server, now) {
                self.packed.take(&mut job.own.packed);
            }
        }
        if self.count() == 0 {
            return self.packed.command(Form::Okay, &[b"DISCARD"]);
        }
        self.packed.begun(Form::ListOrNil, b"*1\r\n$4\r\nEXEC\r\n", &[]);
        for place in batch {
            let job = &mut *place.job();
            if job.is_on_the_wire(Phase::Changing) && job.behind.is_sent() {
                self.packed.take(&mut job.behind.packed);
            }
        }
    }

    /// Reads the replies, of which `ended` says why some are missing, and gives each job its own, in the order in which
    /// they were packed. Each job is a phase further then.
    pub(super) fn read(&mut self, batch: &[impl Batched], ended: Option<TransportError>) -> AfterTrip {
        let mut values = mem::take(&mut self.replies);
        let mut replies = Incoming::of(&mut values, ended);
        if let Some(watched) = self.ends {
            self.open = read_changes(batch, watched > 1, &mut self.beside, &mut replies).then_some(watched);
        }
        let mut looks = false;
        for place in batch {
            let job = &mut *place.job();
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
        if looks {
            self.open = read_looks(batch, &mut self.beside, &mut replies);
        }
        let after = mem::take(&mut replies.after);
        drop(replies);
        self.replies = values;
        after
    }

    /// Sends the jobs over a connection that carries nothing else. Returns in what state that is left.
    pub(super) fn exchange(
        &mut self,
        connection: &mut Connection,
        batch: &[impl Batched],
        mut now: Now,
        limits: &Limits<'_>,
        asking: Asking,
    ) -> AfterTrip {
        // As another connection left it.
        self.open = None;
        let mut moved = false;
        loop {
            self.pack(batch, connection.server(), now);
            if self.count() == 0 {
                return AfterTrip::default();
            }
            let limit = limits.answered_by.since(now.uptime);
            let ended = if asking == Asking::BeforeEach {
                let (bytes, are_replies) = with_asking(&self.packed.bytes, self.ends.is_some());
                let mut all = Vec::new();
                let ended = connection.exchange(&bytes, are_replies.len(), limit, &mut all);
                let replies = all.into_iter().zip(are_replies);
                self.replies.extend(replies.filter_map(|(reply, is_one)| is_one.then_some(reply)));
                ended
            } else {
                connection.exchange(&self.packed.bytes, self.count(), limit, &mut self.replies)
            };
            let mut after = self.read(batch, ended);
            moved |= after.moved;
            after.moved = moved;
            if after.out_of_order || !self.is_watching() {
                return after;
            }
            now = clock::now();
        }
    }
}

/// Reads the end of a transaction, which watches `many` keys. Returns whether it may be open still.
fn read_changes(batch: &[impl Batched], many: bool, discard: &mut Item, replies: &mut Incoming<'_>) -> bool {
    let changes = || batch.iter().filter(|place| place.job().is_on_the_wire(Phase::Changing));
    let may_be_open = match changes().count() {
        0 => {
            discard.set_beside("DISCARD");
            replies.give(discard);
            replies.after.out_of_order |= !item::is_closed_by(&discard.replies);
            false
        }
        // What came of each is known before it is unlocked: its thread may give up at any time, and takes that.
        1 => changes().any(|place| {
            let job = &mut *place.job();
            let may_be_open = replies.give_change(&mut job.own);
            job.undecided = if many { job.own.undecided() } else { None };
            may_be_open
        }),
        _ => {
            let mut jobs: Vec<_> = changes().map(Batched::job).collect();
            let may_be_open =
                replies.give_changes(&mut jobs.iter_mut().map(|job| &mut job.own).collect::<Vec<_>>());
            for job in &mut jobs {
                job.undecided = if many { job.own.undecided() } else { None };
            }
            may_be_open
        }
    };
    for place in batch {
        let job = &mut *place.job();
        if job.phase == Phase::Changing {
            job.phase = Phase::Done;
            replies.give(&mut job.behind);
        }
    }
    may_be_open
}

/// Reads what each key holds that is watched now. Returns how many the open transaction watches, if one is.
fn read_looks(batch: &[impl Batched], multi: &mut Item, replies: &mut Incoming<'_>) -> Option<usize> {
    let mut watched = 0;
    for place in batch {
        let job = &mut *place.job();
        if job.phase == Phase::Looking {
            replies.give(&mut job.look);
            watched += 1;
        }
    }
    multi.set_beside("MULTI");
    replies.give(multi);
    let is_open = multi.replies == [Value::Okay];
    // It may be watching.
    replies.after.out_of_order |= !is_open;
    let (mut changed, many) = (BTreeSet::new(), watched > 1);
    for place in batch {
        let job = &mut *place.job();
        if job.phase != Phase::Looking {
            continue;
        }
        let is_expected = match job.look.replies.as_slice() {
            [Value::Okay, Value::BulkString(found)] => *found == job.expected,
            [Value::Okay, Value::BulkString(found), Value::Int(codec::NO_TTL)] => *found == job.expected,
            _ => false,
        };
        job.look.lose_as(multi);
        job.look.replies.extend(multi.replies.iter().cloned());
        // In one transaction two changes of a key would both be carried out.
        let is_first = is_open && is_expected && (!many || changed.insert(job.changes.clone()));
        job.phase = if is_first { Phase::Changing } else { Phase::Done };
        if is_open && is_expected && !is_first {
            job.undecided = Some(Undecided::Together);
        } else if many && job.look.is_refused_for_slots() {
            job.undecided = Some(Undecided::CrossSlot);
        }
    }
    is_open.then_some(watched)
}

#[cfg(test)]
mod tests;
