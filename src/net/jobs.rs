//! What a thread sends together: a job for each key, with its bytes, how far it is, and what came back. A thread shares
//! its jobs with the one that sends for it.

use std::mem;

use proto::Expected;
use proto::fencing::Epoch;
use proto::values::{Key, Now, Protocol, Uptime, Version};
use redis::Value;

use super::connections::Known;
use super::errors::{Failure, TransportError};
use super::item::{self, Item};
use super::packed::Packed;
use super::replies::{NO_TTL, read, read_change, read_comparing, read_look};
use super::request::{GET, KeyTrip};
use super::{Sent, Undecided};

/// How many jobs of a thread are kept to be used again, if it has no more.
pub(super) const KEPT: usize = 32;

/// What a thread has sent together: a job for each key. They are used again.
#[derive(Default)]
pub(super) struct Jobs {
    list: Vec<TripState>,
    pub(super) used: usize,
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
    pub(super) own: Item,
    pub(super) behind: Item,
    /// WATCH and GET, before a change.
    pub(super) look: Item,
    /// The key of a change, and what it should hold.
    changes: Option<Key>,
    expected: Vec<u8>,
    pub(super) phase: Phase,
    /// Set if a transaction with other keys too was not carried out.
    pub(super) undecided: Option<Undecided>,
    /// True if ASKING goes before its commands.
    pub(super) asks: bool,
    /// Those of the server which the command is sent to, if they are known.
    epoch: Option<Epoch>,
    version: Option<Version>,
    /// When the first of its commands was sent.
    sent_at: Option<Uptime>,
}

/// How far a trip is: what goes next. It is the same from when that is packed until its replies are read.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Phase {
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
        if trip.asks {
            self.ask(trip.transacts());
        }
        let KeyTrip { key, command, .. } = *trip;
        self.own.begin(trip.name(), needs, trip.before.copied());
        match (trip.if_holds, trip.compares) {
            (None, _) => command.pack(key, &mut self.own.packed),
            (Some(expected), Some(compares)) => {
                command.pack_comparing(compares, key, &expected.bytes, &mut self.own.packed);
            }
            (Some(expected), None) => {
                command.pack(key, &mut self.own.packed);
                self.own.queues = true;
                self.set_look(command.watched(key), expected, needs, grants);
            }
        }
        (self.own.grants, self.own.only_in) = (grants, command.only_in());
        if let Some(behind) = trip.behind {
            self.behind.begin(behind.name(), Protocol::Classic, None);
            behind.pack(key, &mut self.behind.packed);
        }
    }

    /// Has it look first whether a key holds what is expected. MULTI goes behind all that is watched: a server that
    /// refuses it does so before anything that changes a key is on its way.
    fn set_look(&mut self, watched: Key, expected: &Expected, needs: Protocol, grants: bool) {
        self.look.begin("WATCH", needs, None);
        self.look.grants = grants;
        let (packed, key) = (&mut self.look.packed, watched.as_bytes());
        packed.okay().begun(b"*2\r\n$5\r\nWATCH\r\n", &[key]);
        packed.bulk().begun(GET, &[key]);
        if expected.without_ttl {
            packed.integer().words(&[b"PTTL", key]);
        }
        (self.changes, self.phase) = (Some(watched), Phase::Looking);
        self.expected.extend_from_slice(&expected.bytes);
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
        let (found, reply) = match (trip.if_holds, trip.compares) {
            (None, _) => (None, self.own.outcome(read)),
            (Some(_), Some(_)) => (None, self.own.outcome(read_comparing)),
            (Some(expected), None) => (
                self.look.outcome(|_, replies, _| read_look(expected.without_ttl, replies)),
                self.own.outcome(|_, replies, awaited| read_change(replies, awaited)),
            ),
        };
        let behind = trip.behind.and_then(|_| self.behind.outcome(read));
        let changed_by = trip.changed_by();
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
    pub(super) fn sends(&mut self, server: &Known, now: Now) -> bool {
        (self.epoch, self.version) = (server.epoch, server.version);
        self.sent_at.get_or_insert(now.uptime);
        item::send_both(&mut self.own, &mut self.behind, server, now)
    }

    /// Notes that its key is looked at now, if it may be. Returns whether it may.
    pub(super) fn looks(&mut self, server: &Known, now: Now) -> bool {
        self.sent_at = Some(now.uptime);
        self.look.sends(server, now)
    }

    /// Reads what its key holds, and with that whether the change goes. `multi` opens the transaction, of `many` keys.
    /// `is_first`: of the changes of this key in it.
    pub(super) fn read_look(&mut self, multi: &Item, many: bool, is_first: impl FnOnce(Option<Key>) -> bool) {
        let is_expected = match self.look.replies.as_slice() {
            [Value::Okay, Value::BulkString(found)] => *found == self.expected,
            [Value::Okay, Value::BulkString(found), Value::Int(NO_TTL)] => *found == self.expected,
            _ => false,
        };
        self.look.lose_as(multi);
        let is_open = matches!(multi.replies.as_slice(), [Value::Okay]);
        if is_open {
            self.look.replies.push(Value::Okay);
        } else {
            self.look.replies.extend(multi.replies.iter().cloned());
        }
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
    pub(super) fn is_on_the_wire(&self, phase: Phase) -> bool {
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
