//! What a thread leaves in order when it stops leading a lane or waiting for its job, also by a panic.

use std::mem;
use std::ops::DerefMut;
use std::sync::Arc;

use crate::net::connections::Connection;
use crate::net::errors::TransportError;
use crate::net::lanes::{self, Lanes, Told};
use crate::net::trip::{Place, TripState, Wire};
use crate::values::clock::Uptime;

pub(super) type Slot = lanes::Slot<TripState, Carrier>;
pub(super) type Lane = lanes::Lane<TripState, Carrier>;

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

impl Place for Arc<Slot> {
    fn job(&self) -> impl DerefMut<Target = TripState> {
        Slot::job(self)
    }

    fn is_gone(&self) -> bool {
        Slot::is_gone(self)
    }
}

/// A thread that leads. Dropped, it tells the threads whose jobs are finished. If it still has its lane, the connection is not used again, what
/// was on the wire is lost, and a queued thread leads.
pub(super) struct Leading<'a> {
    lanes: &'a Lanes<TripState, Carrier>,
    pub(super) slot: &'a Arc<Slot>,
    pub(super) lane: Option<Lane>,
    pub(super) finished: Vec<Arc<Slot>>,
    leads: bool,
}

impl<'a> Leading<'a> {
    pub(super) fn of(
        lanes: &'a Lanes<TripState, Carrier>,
        slot: &'a Arc<Slot>,
        lane: Lane,
        finished: Vec<Arc<Slot>>,
    ) -> Self {
        Self { lanes, slot, lane: Some(lane), finished, leads: true }
    }

    /// Tells the threads whose jobs are finished.
    pub(super) fn tell(&mut self) {
        if self.finished.is_empty() {
            return;
        }
        for slot in self.finished.drain(..) {
            if !Arc::ptr_eq(&slot, self.slot) {
                slot.done();
            }
        }
    }

    /// Passes the lane on. One that comes back is dropped: no thread waits for its replies. Returns an empty list.
    pub(super) fn pass_on(mut self) -> Vec<Arc<Slot>> {
        self.lane = self.lane.take().and_then(|lane| self.lanes.pass_on(lane));
        self.leads = self.lane.is_some();
        self.end()
    }

    /// The same after what is queued is sent. Returns whether there was something.
    pub(super) fn send_and_pass_on(mut self, send: impl FnOnce(&mut Lane)) -> (Vec<Arc<Slot>>, bool) {
        self.lane = self.lane.take().and_then(|lane| self.lanes.fill_or_end(lane));
        self.leads = self.lane.is_some();
        if let Some(lane) = &mut self.lane {
            send(lane);
            return (self.pass_on(), true);
        }
        (self.end(), false)
    }

    /// Stops leading a lane whose connection still works, and is given back or closed. Returns an empty list.
    pub(super) fn leave(mut self) -> Vec<Arc<Slot>> {
        if let Some(Lane { connection, batch }) = self.lane.take() {
            drop(connection);
            self.finished.extend(batch);
        }
        self.end()
    }

    /// Stops leading. Returns an empty list.
    pub(super) fn end(mut self) -> Vec<Arc<Slot>> {
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
            self.lanes.end(None);
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
    lanes: &'a Lanes<TripState, Carrier>,
    slot: &'a Arc<Slot>,
    pub(super) ended: bool,
}

impl<'a> WaitingJob<'a> {
    pub(super) fn of(lanes: &'a Lanes<TripState, Carrier>, slot: &'a Arc<Slot>) -> Self {
        Self { lanes, slot, ended: false }
    }
}

impl Drop for WaitingJob<'_> {
    fn drop(&mut self) {
        if self.ended || self.lanes.leave(self.slot) {
            return;
        }
        if let Some(Told::Lead(lane)) = self.slot.stop() {
            drop(Leading::of(self.lanes, self.slot, lane, Vec::new()));
        }
    }
}
