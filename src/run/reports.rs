//! Reports what the library's own threads notice, on a thread of its own.
//!
//! And what is to be reported once nothing is locked: an observer may do anything, such as using or dropping the guard of a hold whose commands
//! are on their way.

use std::cell::RefCell;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::timer::Timer;
use crate::net::{NodeId, TransportError};
use crate::report::sink::{EventSink, Report, Reporter};
use crate::rules::Note;
use crate::system::clock;
use crate::values::contained::contained;
use crate::values::key::Key;

/// How many reports wait before further ones are dropped that may be.
const MOST_WAITING: usize = 1000;

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
}

impl Reporter for Reports {
    fn later(&self, report: Report) -> Result<(), Report> {
        let added = self.timer.add(NodeId::ONLY, clock::uptime(), Duration::ZERO, report);
        added.map(drop).map_err(|(_, report)| report)
    }

    fn is_full(&self) -> bool {
        self.timer.count() >= MOST_WAITING
    }

    fn dropped(&self) -> &AtomicU64 {
        &self.dropped
    }
}

fn run(due: Vec<Report>) {
    for report in due {
        contained(report);
    }
}

pub(super) enum LateReport {
    ReplyLost(Key, &'static str, TransportError),
    /// What the rules of a holder have noted.
    Note(Key, Note),
}

#[derive(Default)]
pub(super) struct Outbox(RefCell<Vec<LateReport>>);

impl Outbox {
    pub(super) fn push(&self, report: LateReport) {
        self.0.borrow_mut().push(report);
    }

    /// Reports everything. Nothing may be locked.
    pub(super) fn flush(&self, observer: &EventSink) {
        for report in self.0.take() {
            match report {
                LateReport::ReplyLost(key, command, error) => observer.reply_lost(&key, command, &error),
                LateReport::Note(key, note) => observer.overwritten(&key, &note),
            }
        }
    }
}
