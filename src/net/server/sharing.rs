//! Has a trip sent together with those of other threads: they
//! share a few connections, which one of them leads at a time.
//!
//! A thread that stops leading a lane or waiting for its job, also by a panic, leaves it in order.

use std::cell::Cell;
use std::sync::Arc;
use std::{io, mem, slice};

use proto::values::{Key, Now, Uptime};

use super::OneServer;
use crate::net::connections::{Connection, Spin};
use crate::net::errors::{Failure, TransportError};
use crate::net::jobs::{Jobs, RawReplies, TripState};
use crate::net::lanes::{self, Batching, Entered, Lanes, Told};
use crate::net::limits::{Limits, until_sent};
use crate::net::packed::Packed;
use crate::net::patience::SMALL;
use crate::net::trip::Wire;
use crate::net::{KeyTrip, Sent};
use crate::system::clock;

/// The entry of a thread, and room for a list of others.
pub(super) type SpareEntry = (Arc<Entry>, Vec<Arc<Entry>>);

thread_local! {
    /// Of this thread, while they are not in use.
    static ENTRY: Cell<Option<SpareEntry>> = const { Cell::new(None) };
}

/// Takes the entry of this thread, or another one while that is in use.
#[inline]
pub(super) fn take_spare() -> SpareEntry {
    let spare = ENTRY.try_with(Cell::take).ok().flatten();
    spare.unwrap_or_else(|| (Entry::new(Jobs::default()), Vec::new()))
}

/// Puts back an entry to be used again, unless another thread may still write to it.
#[inline]
pub(super) fn put_back((entry, list): SpareEntry) {
    if !entry.is_gone() {
        // The thread may be ending.
        let _ = ENTRY.try_with(|spare| spare.set(Some((entry, list))));
    }
}

impl OneServer {
    /// Has a trip sent, with those of others that may go with it. Returns what came of that.
    #[inline]
    pub(super) fn carry_one(&self, trip: &KeyTrip<'_>, batching: Batching, limits: &Limits<'_>) -> Sent {
        let spare = take_spare();
        spare.0.job().set(slice::from_ref(trip), limits.needs, limits.grants);
        match self.carry(trip.key, spare, batching, limits) {
            Ok((spare, at)) => {
                let mut sent = spare.0.job().all()[0].take_outcome(trip);
                sent.at = at;
                put_back(spare);
                sent
            }
            Err(failure) => Sent::failed(trip, failure),
        }
    }

    /// Has trips sent together. Returns what came of each.
    pub(super) fn carry_all(
        &self,
        trips: &[KeyTrip<'_>],
        batching: Batching,
        limits: &Limits<'_>,
    ) -> Vec<Sent> {
        let spare = take_spare();
        spare.0.job().set(trips, limits.needs, limits.grants);
        match self.carry(trips[0].key, spare, batching, limits) {
            Ok((spare, _)) => {
                // Others of the call may still be under way.
                let outcome = |(job, trip): (&mut TripState, _)| job.take_outcome(trip);
                let sent = spare.0.job().all().iter_mut().zip(trips).map(outcome).collect();
                put_back(spare);
                sent
            }
            Err(failure) => trips.iter().map(|trip| Sent::failed(trip, failure.clone())).collect(),
        }
    }

    /// Has packed commands sent that are of no trip, with a name for them, on a connection that carries nothing else.
    /// Of the first so many none may be refused: otherwise it is not used again.
    pub(super) fn ask(
        &self,
        key: &Key,
        (name, packed, strict): (&'static str, &Packed, usize),
        limits: &Limits<'_>,
    ) -> Result<RawReplies, Failure> {
        // The one before it may have waited for a connection.
        let limits = &Limits { decided_at: clock::now(), ..*limits };
        let spare = take_spare();
        spare.0.job().set_raw(name, packed, strict);
        let (spare, _) = self.carry(key, spare, Batching::Alone, limits)?;
        let asked = spare.0.job().all()[0].take_raw();
        put_back(spare);
        Ok(asked)
    }

    /// Has the jobs of an entry of this thread sent, by it or by another. Code of the user may run meanwhile and send
    /// commands of its own, on another entry. Returns the entry, and the time if it was just read.
    #[inline]
    fn carry(
        &self,
        key: &Key,
        (entry, finished): SpareEntry,
        batching: Batching,
        limits: &Limits<'_>,
    ) -> Result<(SpareEntry, Option<Now>), Failure> {
        let told = match self.enter(&entry, batching, limits) {
            // Nothing was waited for since then.
            Entered::Leads { lane, others } => Ok((Told::Lead(lane), others, Some(limits.decided_at))),
            Entered::Waits { opens, ahead } => self
                .wait_for_lane(key, &entry, batching, limits, (opens, ahead))
                .map(|told| (told, true, None)),
        };
        let (finished, at) = match told {
            Ok((Told::Lead(lane), others, now)) => {
                let mut leading = Leading::of(&self.lanes, &entry, lane, finished);
                self.begin(&mut leading, batching, others, limits, now);
                self.lead(leading, limits)
            }
            Ok((Told::Done, ..)) => (finished, None),
            // Its time includes the wait for another thread.
            Err(failure) => return Err(failure.after(clock::uptime().since(limits.decided_at.uptime))),
        };
        Ok(((entry, finished), at))
    }

    /// Sends this thread's job over a lane with nothing on the wire, and
    /// `others` that are queued. `now`: the time, if it was just read.
    fn begin(
        &self,
        leading: &mut Leading<'_>,
        batching: Batching,
        others: bool,
        limits: &Limits<'_>,
        now: Option<Now>,
    ) {
        let Some(lane) = leading.lane.as_mut().filter(|lane| lane.batch.is_empty()) else { return };
        lane.batch.push(Arc::clone(leading.entry));
        if others && batching != Batching::Alone && self.may_share(lane, limits) {
            self.lanes.fill(lane, batching);
        }
        self.write_batch(lane, now);
    }

    /// Returns true if this thread has time for the jobs of others. On a connection that ends with a timeout, it waits
    /// as long as they do.
    fn may_share(&self, lane: &Lane, limits: &Limits<'_>) -> bool {
        let has_time = || {
            let now = clock::uptime();
            limits.reply_by(now).since(now) >= until_sent(self.opener.command_timeout)
        };
        lane.connection.connection.resumes() || has_time()
    }

    /// Leads a lane until this thread's job is done. Returns an empty list, and the time when it was, if it was read
    /// and nothing was done since.
    fn lead(&self, mut leading: Leading<'_>, limits: &Limits<'_>) -> (Vec<Arc<Entry>>, Option<Now>) {
        let (lanes, entry) = (&self.lanes, leading.entry);
        let sent_at = leading.lane.as_ref().map(|lane| lane.connection.sent_at);
        let mut answered_by = sent_at.map_or(limits.answered_by, |sent_at| limits.reply_by(sent_at));
        while let Some(lane) = &mut leading.lane
            && let Received::All { in_order, at } = self.receive(lane, answered_by)
        {
            // Two trips of a change take no longer than one command may.
            answered_by = answered_by.min(lane.connection.sent_at.after(self.opener.command_timeout));
            let open = lane.connection.wire.is_watching();
            if open {
                leading.finished.extend(lane.batch.extract_if(.., |other| other.job().are_done()));
            } else if matches!(lane.batch.as_slice(), [only] if Arc::ptr_eq(only, entry)) {
                lane.batch.clear();
            } else {
                leading.finished.append(&mut lane.batch);
            }
            let (connection, done) = (&lane.connection.connection, !open || entry.job().are_done());
            let is_lent = connection.is_lent();
            if !in_order {
                return (leading.end_lead(), None);
            }
            // Under load no other thread looks whether it leads to the master still. One that is lent goes back.
            if !open && (is_lent || connection.is_outdated_at(lane.connection.sent_at)) {
                return (leading.leave(), None);
            }
            if done && !open {
                let (list, has_sent) = leading.send_and_pass_on(|lane| self.write_batch(lane, None));
                // That may have taken long.
                return (list, at.filter(|_| !has_sent));
            }
            if !is_lent && self.may_share(lane, limits) {
                lanes.fill(lane, Batching::Any);
            }
            self.write_batch(lane, None);
            // A DISCARD alone has no thread that waits for it.
            if done && !lane.batch.is_empty() {
                return (leading.pass_on(), None);
            }
            leading.tell();
        }
        // Others wait for longer, and go on receiving.
        drop(entry.give_up());
        (leading.pass_on(), None)
    }

    /// Sends what the batch has, as far as it may be sent now.
    fn write_batch(&self, lane: &mut Lane, now: Option<Now>) {
        if lane.batch.is_empty() && !lane.connection.wire.is_watching() {
            return;
        }
        // What was decided on before a wait may be too late by now (I5).
        let now = now.unwrap_or_else(clock::now);
        let Carrier { connection, wire, sent_at, failed } = &mut *lane.connection;
        wire.pack(&lane.batch, connection.server(), now);
        (*sent_at, *failed) = (now.uptime, None);
        if wire.count() > 0 {
            *failed = connection.write(&wire.packed.bytes, now.uptime, self.opener.command_timeout).err();
        }
        self.patience.note_sent(wire.jobs);
    }

    /// Receives the replies to a trip, and puts them into the entries of its batch.
    fn receive(&self, lane: &mut Lane, answered_by: Uptime) -> Received {
        let Carrier { connection, wire, sent_at, failed } = &mut *lane.connection;
        let count = wire.count();
        let spin = if lane.batch.len() <= SMALL { Spin::First } else { Spin::Never };
        let deadline = sent_at.after(self.opener.command_timeout);
        let mut ended = failed.take();
        let resumes = connection.resumes();
        if ended.is_none() && count > 0 {
            // With an empty batch the trip is a DISCARD for this thread.
            let alone = lane.batch.len() <= 1;
            let until = if alone || resumes { deadline.min(answered_by) } else { deadline };
            ended = connection.receive(count, until, spin, &mut wire.replies).err();
            let own_time_is_up = |error: &TransportError| {
                error.kind() == io::ErrorKind::TimedOut && clock::uptime() < deadline
            };
            if resumes && !alone && ended.as_ref().is_some_and(own_time_is_up) {
                return Received::OwnTimeIsUp;
            }
        }
        connection.used(*sent_at);
        let mut at = None;
        if spin == Spin::First && count > 0 {
            let now = clock::now();
            if wire.jobs <= SMALL {
                self.patience.note_trip(now.uptime.since(*sent_at));
            }
            at = Some(now);
        }
        let mut after = wire.read(&lane.batch, ended);
        self.note_role(&mut after, connection);
        Received::All { in_order: !after.out_of_order, at }
    }
}

/// What came of receiving.
enum Received {
    /// `in_order`: the connection may be used again. `at`: when that was, if it was read.
    All { in_order: bool, at: Option<Now> },
    /// The replies are still expected, but not by this thread.
    OwnTimeIsUp,
}

pub(super) type Entry = lanes::Entry<Jobs, Carrier>;
pub(super) type Lane = lanes::Lane<Jobs, Carrier>;

/// A connection, and the trip that is under way on it.
pub(crate) struct Carrier {
    pub(super) connection: Connection,
    pub(super) wire: Wire,
    /// When it was sent.
    pub(super) sent_at: Uptime,
    /// Why it cannot be received.
    pub(super) failed: Option<TransportError>,
}

impl Carrier {
    pub(super) fn over(connection: Connection) -> Self {
        Self { connection, wire: Wire::default(), sent_at: Uptime::default(), failed: None }
    }
}

/// A thread that leads. Dropped, it tells the threads whose jobs are finished. If it still has its lane, the connection
/// is not used again, what was on the wire is lost, and a queued thread leads.
pub(super) struct Leading<'a> {
    lanes: &'a Lanes<Jobs, Carrier>,
    pub(super) entry: &'a Arc<Entry>,
    pub(super) lane: Option<Lane>,
    pub(super) finished: Vec<Arc<Entry>>,
    leads: bool,
}

impl<'a> Leading<'a> {
    pub(super) fn of(
        lanes: &'a Lanes<Jobs, Carrier>,
        entry: &'a Arc<Entry>,
        lane: Lane,
        finished: Vec<Arc<Entry>>,
    ) -> Self {
        Self { lanes, entry, lane: Some(lane), finished, leads: true }
    }

    /// Tells the threads whose jobs are finished.
    pub(super) fn tell(&mut self) {
        if self.finished.is_empty() {
            return;
        }
        for entry in self.finished.drain(..) {
            if !Arc::ptr_eq(&entry, self.entry) {
                entry.done();
            }
        }
    }

    /// Passes the lane on. One that comes back is dropped: no thread waits for its replies. Returns an empty list.
    pub(super) fn pass_on(mut self) -> Vec<Arc<Entry>> {
        self.lane = self.lane.take().and_then(|lane| self.lanes.pass_on(lane));
        self.leads = self.lane.is_some();
        self.end_lead()
    }

    /// Passes the lane on after what is queued is sent. Returns an empty list, and whether something was queued.
    pub(super) fn send_and_pass_on(mut self, send: impl FnOnce(&mut Lane)) -> (Vec<Arc<Entry>>, bool) {
        self.lane = self.lane.take().and_then(|lane| self.lanes.fill_or_end(lane));
        self.leads = self.lane.is_some();
        if let Some(lane) = &mut self.lane {
            send(lane);
            return (self.pass_on(), true);
        }
        (self.end_lead(), false)
    }

    /// Stops leading a lane whose connection still works, and is given back or closed. Returns an empty list.
    pub(super) fn leave(mut self) -> Vec<Arc<Entry>> {
        if let Some(Lane { connection, batch }) = self.lane.take() {
            drop(connection);
            self.finished.extend(batch);
        }
        self.end_lead()
    }

    /// Stops leading. Returns an empty list.
    pub(super) fn end_lead(mut self) -> Vec<Arc<Entry>> {
        self.stop();
        let mut finished = mem::take(&mut self.finished);
        finished.clear();
        finished
    }

    fn stop(&mut self) {
        if mem::take(&mut self.leads) {
            if let Some(Lane { mut connection, batch }) = self.lane.take() {
                connection.connection.invalidate();
                drop(connection);
                self.finished.extend(batch);
            }
            self.lanes.give_back(None);
        }
        self.tell();
    }
}

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A thread that waits for its job. Dropped by a panic, it waits no longer.
pub(super) struct WaitingJob<'a> {
    lanes: &'a Lanes<Jobs, Carrier>,
    entry: &'a Arc<Entry>,
    pub(super) ended: bool,
}

impl<'a> WaitingJob<'a> {
    pub(super) fn of(lanes: &'a Lanes<Jobs, Carrier>, entry: &'a Arc<Entry>) -> Self {
        Self { lanes, entry, ended: false }
    }
}

impl Drop for WaitingJob<'_> {
    fn drop(&mut self) {
        if self.ended || self.lanes.leave(self.entry) {
            return;
        }
        if let Some(Told::Lead(lane)) = self.entry.stop() {
            drop(Leading::of(self.lanes, self.entry, lane, Vec::new()));
        }
    }
}
