//! What happens to the lock and the command, as lines of JSON on the standard error: see docs/cli.schema.json.

use serde::Serialize;
use setnx_lock::chrono::{DateTime, Utc};
use setnx_lock::{Error, Event, Key, Settlement};

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
    HandedOver,
    ReleaseFailed {
        description: String,
    },
    Settled {
        after_seconds: f64,
        outcome: &'static str,
    },
    LeadershipBegan,
    LeadershipEnded {
        led_seconds: f64,
    },
    LeadershipFailed {
        description: String,
    },
    Warning {
        description: String,
    },
}

impl RunEvent {
    /// Returns the event of the library's and its key; `None` if it is reported otherwise.
    pub(super) fn of<'a>(event: &Event<'a>) -> Option<(Option<&'a Key>, Self)> {
        let failed = |error: &Error| error.chain().to_string();
        let (key, event) = match event {
            Event::AcquireFinished { key, waited, attempts, outcome: Ok(()), .. } => {
                (key, Self::Acquired { waited_seconds: waited.as_secs_f64(), attempts: *attempts })
            }
            Event::TakenOver { key, from, .. } => (key, Self::TakenOver { description: from.to_string() }),
            Event::Extended { key, .. } => (key, Self::Extended),
            Event::ExtendFailed { key, error, .. } => {
                (key, Self::ExtendFailed { description: failed(error) })
            }
            Event::Lost { key, reason, .. } => (key, Self::Lost { description: reason.to_string() }),
            Event::Released { key, held, left_to_expire, .. } => {
                (key, Self::Released { held_seconds: held.as_secs_f64(), left_to_expire: *left_to_expire })
            }
            Event::HandedOver { key, .. } => (key, Self::HandedOver),
            Event::ReleaseFailed { key, error, .. } => {
                (key, Self::ReleaseFailed { description: failed(error) })
            }
            Event::Settled { key, after, outcome, .. } => {
                let outcome = match outcome {
                    Settlement::Released => "released",
                    Settlement::NotHeld => "not_held",
                    _ => "left_to_expire",
                };
                (key, Self::Settled { after_seconds: after.as_secs_f64(), outcome })
            }
            Event::LeadershipBegan { key, .. } => (key, Self::LeadershipBegan),
            Event::LeadershipEnded { key, led, .. } => {
                (key, Self::LeadershipEnded { led_seconds: led.as_secs_f64() })
            }
            Event::LeadershipFailed { key, error, .. } => {
                (key, Self::LeadershipFailed { description: failed(error) })
            }
            Event::NeverExpires { key, state, .. } => {
                (key, Self::Warning { description: format!("waiting: {state}") })
            }
            Event::RefusedForNow { key, refusal, .. } => {
                (key, Self::Warning { description: format!("waiting: {refusal}") })
            }
            Event::Problem { key, details, .. } => {
                return Some((*key, Self::Warning { description: (*details).to_owned() }));
            }
            _ => return None,
        };
        Some((Some(key), event))
    }

    pub(super) fn started(pid: i32, expires_at: Option<DateTime<Utc>>) -> Self {
        Self::Started { pid, expires_at: expires_at.map(date) }
    }

    pub(super) fn ended(status: Status) -> Self {
        match status {
            Status::Exited(code) => Self::Ended { exit_code: Some(code), signal: None },
            Status::Signaled(signal) => Self::Ended { exit_code: None, signal: Some(signal) },
        }
    }
}
