//! What a thread leaves in order when it stops leading a lane or waiting for its job, also by a panic.

use std::sync::Arc;

use super::trip::{Job, Line};
use super::{Lane, Slot};
use crate::backend::lanes::{Lanes, Told};
use crate::backend::limits::Report;

/// A thread that leads. Dropped, it tells the threads whose jobs are finished. If it still has its lane, the connection is not used again, what
/// was on the wire is lost, and a queued thread leads.
pub(super) struct Leading<'a> {
    lanes: &'a Lanes<Job, Line>,
    slot: &'a Arc<Slot>,
    pub(super) lane: Option<Lane>,
    pub(super) finished: Vec<Arc<Slot>>,
    report: Report<'a>,
    leads: bool,
}

impl<'a> Leading<'a> {
    pub(super) fn of(
        lanes: &'a Lanes<Job, Line>,
        slot: &'a Arc<Slot>,
        lane: Lane,
        report: Report<'a>,
    ) -> Self {
        Self { lanes, slot, lane: Some(lane), finished: Vec::new(), report, leads: true }
    }

    /// Tells the threads whose jobs are finished. Those that wait no longer are left.
    pub(super) fn tell(&mut self) {
        self.finished.retain(|slot| !Arc::ptr_eq(slot, self.slot) && !slot.done());
    }

    /// Passes the lane on. One that comes back is dropped: no thread waits for its replies.
    pub(super) fn pass_on(mut self) {
        self.lane = self.lane.take().and_then(|lane| self.lanes.pass_on(lane));
        self.leads = self.lane.is_some();
    }
}

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        if self.leads {
            if let Some(Lane { connection, batch }) = self.lane.take() {
                drop(connection);
                self.finished.extend(batch);
            }
            self.lanes.end(None);
        }
        // All are told before code of the user is called, which may panic.
        self.tell();
        for gone in &self.finished {
            gone.job().report_abandoned(self.report);
        }
    }
}

/// A thread that waits for its job. Dropped by a panic, it waits no longer.
pub(super) struct Waiting<'a> {
    lanes: &'a Lanes<Job, Line>,
    slot: &'a Arc<Slot>,
    pub(super) ended: bool,
}

impl<'a> Waiting<'a> {
    pub(super) fn of(lanes: &'a Lanes<Job, Line>, slot: &'a Arc<Slot>) -> Self {
        Self { lanes, slot, ended: false }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.ended || self.lanes.leave(self.slot) {
            return;
        }
        if let Some(Told::Lead(lane)) = self.slot.stop() {
            drop(Leading::of(self.lanes, self.slot, lane, Report::NONE));
        }
    }
}
