//! What is to be reported once nothing is locked: an observer may do anything, such as using or dropping the guard of a
//! hold whose commands are on their way.

use std::cell::RefCell;

use proto::Note;
use proto::values::Key;

use super::sink::EventSink;
use crate::net::TransportError;

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
