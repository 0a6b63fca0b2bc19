//! What is to be reported once nothing is locked: an observer may do anything, such as using or dropping the guard of a hold whose commands
//! are on their way.

use std::mem;
use std::sync::{Mutex, PoisonError};

use crate::net::{Incident, TransportError};
use crate::report::sink::EventSink;
use crate::rules::acquire::Note;
use crate::values::key::Key;

#[derive(Debug)]
pub(super) enum LateReport {
    ReplyLost(Key, &'static str, TransportError),
    CarriedOutLate(Key, &'static str),
    ConnectionStuck,
    /// What the rules of a holder have noted.
    Note(Key, Note),
}

impl From<Incident<'_>> for LateReport {
    fn from(incident: Incident<'_>) -> Self {
        match incident {
            Incident::CarriedOutLate { key, command } => LateReport::CarriedOutLate(key.clone(), command),
            Incident::ConnectionStuck => LateReport::ConnectionStuck,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Outbox(Mutex<Vec<LateReport>>);

impl Outbox {
    pub(super) fn push(&self, report: LateReport) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(report);
    }

    /// Reports everything. Nothing may be locked.
    pub(super) fn flush(&self, observer: &EventSink) {
        let reports = mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for report in reports {
            match report {
                LateReport::ReplyLost(key, command, error) => observer.reply_lost(&key, command, &error),
                LateReport::CarriedOutLate(key, command) => {
                    observer.incident(&Incident::CarriedOutLate { key: &key, command });
                }
                LateReport::ConnectionStuck => observer.incident(&Incident::ConnectionStuck),
                LateReport::Note(key, note) => observer.overwritten(&key, &note),
            }
        }
    }
}
