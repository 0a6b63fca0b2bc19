//! What happens beside the outcome of a call, for calls during which something is locked.

use crate::backend::{Incident, TransportError};
use crate::engine::Engine;
use crate::key::Key;

/// What is reported once nothing is locked any more.
#[derive(Debug)]
pub(in crate::engine) enum LateReport {
    /// The reply to this command was lost.
    ReplyLost(&'static str, TransportError),
    CarriedOutLate(Key, &'static str),
    ConnectionStuck,
}

impl From<Incident<'_>> for LateReport {
    fn from(incident: Incident<'_>) -> Self {
        match incident {
            Incident::CarriedOutLate { key, command } => LateReport::CarriedOutLate(key.clone(), command),
            Incident::ConnectionStuck => LateReport::ConnectionStuck,
        }
    }
}

pub(in crate::engine) type LateReports = Vec<LateReport>;

impl Engine {
    pub(in crate::engine) fn report_late(&self, key: &Key, reports: &[LateReport]) {
        for report in reports {
            match report {
                LateReport::ReplyLost(command, error) => self.observer.reply_lost(key, command, error),
                LateReport::CarriedOutLate(key, command) => {
                    self.observer.incident(&Incident::CarriedOutLate { key, command });
                }
                LateReport::ConnectionStuck => self.observer.incident(&Incident::ConnectionStuck),
            }
        }
    }
}
