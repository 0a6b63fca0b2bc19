//! Reports what the library's own threads notice, on a thread of its own, in order.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::timer::Timer;
use crate::net::NodeId;
use crate::system::clock;
use crate::values::contained::contained;

/// How many reports wait before further ones are dropped that may be.
const MOST_WAITING: usize = 1000;

/// What is to be reported later.
pub(super) type Report = Box<dyn FnOnce() + Send>;

pub(crate) struct Reports {
    timer: Timer<Report>,
    dropped: AtomicU64,
}

impl Reports {
    pub(super) fn new() -> Self {
        Self { timer: Timer::new("setnx-lock reports", run), dropped: AtomicU64::new(0) }
    }

    /// Waits until everything was reported, for at most this time.
    pub(crate) fn wait(&self, at_most: Duration) {
        self.timer.wait(at_most);
    }

    /// # Errors
    ///
    /// The report, if there is no thread for it.
    pub(super) fn later(&self, report: Report) -> Result<(), Report> {
        let added = self.timer.add(NodeId::ONLY, clock::uptime(), Duration::ZERO, report);
        added.map(drop).map_err(|(_, report)| report)
    }

    /// Returns true if so many reports wait that further ones are dropped that may be.
    pub(super) fn is_full(&self) -> bool {
        self.timer.count() >= MOST_WAITING
    }

    /// How many were dropped since that was last reported.
    pub(super) fn dropped(&self) -> &AtomicU64 {
        &self.dropped
    }
}

fn run(due: Vec<Report>) {
    for report in due {
        contained(report);
    }
}
