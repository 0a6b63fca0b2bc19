//! What happens to the lock and the command, as lines of JSON on the standard error: see docs/cli.schema.json.

use serde::Serialize;
use setnx_lock::{Error, Event, LockGuard};

use super::event::Status;
use crate::keys::date;

/// What has happened. Each has the fields that it needs.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum RunEvent {
    Acquired {
        waited_seconds: f64,
        attempts: u32,
    },
    TakenOver {
        description: String,
    },
    /// The command runs.
    Started {
        pid: i32,
        expires_at: Option<String>,
    },
    Extended,
    ExtendFailed {
        description: String,
    },
    Lost {
        description: String,
    },
    /// The command has ended.
    Ended {
        exit_code: Option<u8>,
        signal: Option<i32>,
    },
    Released {
        held_seconds: f64,
        left_to_expire: bool,
    },
    ReleaseFailed {
        description: String,
    },
    ReleasedLate {
        after_seconds: f64,
    },
    Warning {
        description: String,
    },
}

impl RunEvent {
    /// Returns the event of the library's; `None` if it is reported otherwise.
    pub(super) fn of(event: &Event<'_>) -> Option<Self> {
        let failed = |error: &Error| error.chain().to_string();
        Some(match event {
            Event::AcquireFinished { waited, attempts, outcome: Ok(()), .. } => {
                Self::Acquired { waited_seconds: waited.as_secs_f64(), attempts: *attempts }
            }
            Event::TakenOver { from, .. } => Self::TakenOver { description: from.to_string() },
            Event::Extended { .. } => Self::Extended,
            Event::ExtendFailed { error, .. } => Self::ExtendFailed { description: failed(error) },
            Event::Lost { reason, .. } => Self::Lost { description: reason.to_string() },
            Event::Released { held, left_to_expire, .. } => {
                Self::Released { held_seconds: held.as_secs_f64(), left_to_expire: *left_to_expire }
            }
            Event::ReleaseFailed { error, .. } => Self::ReleaseFailed { description: failed(error) },
            Event::ReleasedLate { after, .. } => Self::ReleasedLate { after_seconds: after.as_secs_f64() },
            Event::NeverExpires { state, .. } => Self::Warning { description: format!("waiting: {state}") },
            Event::RefusedForNow { refusal, .. } => {
                Self::Warning { description: format!("waiting: {refusal}") }
            }
            Event::Problem { details, .. } => Self::Warning { description: (*details).to_owned() },
            _ => return None,
        })
    }

    pub(super) fn started(pid: i32, held: &LockGuard) -> Self {
        let expires_at = held.expires_at().map(date);
        Self::Started { pid, expires_at }
    }

    pub(super) fn ended(status: Status) -> Self {
        match status {
            Status::Exited(code) => Self::Ended { exit_code: Some(code), signal: None },
            Status::Signaled(signal) => Self::Ended { exit_code: None, signal: Some(signal) },
        }
    }
}
