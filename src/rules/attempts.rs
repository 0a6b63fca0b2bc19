//! Acquiring a lock, or one of several: asks in rounds, and pauses in between.

use std::sync::Arc;

use super::acquire::{Attempt, Pace, Params, Round};
use super::choose::Choice;
use super::lease::Lease;
use super::task::Io;
use super::{Cue, GiveUp};
#[cfg(test)]
use super::{Step, task::Task};
#[cfg(test)]
use crate::values::clock::Now;
use crate::values::key::Key;

/// The attempts of one call.
#[allow(clippy::large_enum_variant, reason = "it is made where it stays")]
pub(crate) enum Attempts {
    OfOne(Attempt),
    OfSeveral(Choice),
}

/// Acquires a lock. Of several it is then that of [`Io::slot`]. `cue` says how it begins; a lease that is handed over is that of the slot as well.
pub(crate) async fn acquire(io: &Io, attempts: &mut Attempts, mut cue: Cue) -> Result<Lease, GiveUp> {
    loop {
        let round = match attempts {
            Attempts::OfOne(attempt) => attempt.round(io, cue).await,
            Attempts::OfSeveral(choice) => choice.round(io, cue).await,
        };
        match round {
            Round::Held(lease) => return Ok(lease),
            Round::GiveUp(reason) => return Err(reason),
            Round::Pause(time) => cue = io.sleep(attempts.pace().pause(time)).await,
        }
    }
}

/// Begins an attempt that a test steps.
#[cfg(test)]
pub(super) fn stepped(params: Params, cue: Cue, now: Now) -> (Task<Lease>, Step<Lease>) {
    Task::begin(now, async move |io| acquire(io, &mut Attempts::new(params, None), cue).await)
}

impl Attempts {
    /// Attempts to acquire one of several locks, or the one that there is.
    pub(crate) fn new(params: Params, several: Option<&Arc<[Key]>>) -> Self {
        match several {
            None => Self::OfOne(Attempt::new(params)),
            Some(slots) => Self::OfSeveral(Choice::new(params, slots)),
        }
    }

    pub(crate) fn pace(&self) -> &Pace {
        match self {
            Self::OfOne(Attempt { pace, .. }) | Self::OfSeveral(Choice { pace, .. }) => pace,
        }
    }

    /// Returns true if another lock than the one that is held was seen that may be acquired.
    pub(crate) fn another_is_free(&self) -> bool {
        matches!(self, Self::OfSeveral(Choice { another_is_free: true, .. }))
    }
}
