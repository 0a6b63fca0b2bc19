//! Reports what the library's own threads notice, on a thread of its own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::timer::Timer;
use crate::net::NodeId;
use crate::report::sink::{Report, Reporter};
use crate::values::clock;
use crate::values::contained::contained;

/// How many reports wait before further ones are dropped that may be.
const MOST_WAITING: usize = 1000;

/// A report, and how many were dropped before it.
type Due = (Report, u64);

#[derive(Debug)]
pub(crate) struct Reports {
    timer: Timer<Due>,
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
}

impl Reporter for Reports {
    fn later(&self, report: Report) -> Result<(), Report> {
        if !report.is_kept && self.timer.count() >= MOST_WAITING {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        let due = (report, self.dropped.swap(0, Ordering::Relaxed));
        let id = self.timer.new_id();
        let added = self.timer.add(id, NodeId::ONLY, clock::uptime(), Duration::ZERO, due);
        added.map_err(|(_, (report, dropped))| {
            self.dropped.fetch_add(dropped, Ordering::Relaxed);
            report
        })
    }
}

fn run(due: Vec<(u64, Due)>) {
    for (_, (report, dropped)) in due {
        contained(|| report.run(dropped));
    }
}
