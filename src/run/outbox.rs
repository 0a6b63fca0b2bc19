//! What is to be reported once nothing is locked: an observer may do anything, such as using or dropping the guard of a hold whose commands
//! are on their way.

use std::mem;
use std::sync::{Mutex, PoisonError};

use crate::net::{Incident, TransportError};
use crate::report::sink::EventSink;
use crate::values::key::Key;
use crate::values::value::LockState;

#[derive(Debug)]
pub(super) enum LateReport {
    ReplyLost(Key, &'static str, TransportError),
    CarriedOutLate(Key, &'static str),
    ConnectionStuck,
    /// Another client's value was overwritten.
    Overwritten(Key, LockState),
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
                LateReport::Overwritten(key, winner) => observer.value_overwritten(&key, &winner),
            }
        }
    }
}
