//! `run --lead`: one of several processes runs the command, again and again, and another follows it.

use std::process::ExitCode;

use setnx_lock::{Key, Lock};

use super::event::Status;
use super::session::Session;
use super::supervision::{Outcome, supervise};
use super::wanted::Hold;
use super::{lost, overran};
use crate::arguments::Run;
use crate::failure::Failure;
use crate::output;

/// Leads until a signal ends this process.
pub(super) fn lead(arguments: &Run, session: &Session, lock: &Lock) -> Result<ExitCode, Failure> {
    let (mut last, mut is_over) = (Ok(Status::Exited(0)), false);
    lock.lead(&session.cancel, |held| {
        session.waiting.set(false);
        output::say_again();
        last = session.told_to_end().inspect_err(|_| session.cancel.cancel()).and_then(|()| {
            let outcome = supervise(arguments, session, Hold::of(held));
            if outcome.as_ref().is_ok_and(Outcome::is_by_passed_signal) {
                session.cancel.cancel();
            }
            is_over = session.cancel.is_cancelled();
            match &outcome {
                Ok(outcome) if !is_over || outcome.loss.is_some() => say(arguments, held.key(), outcome),
                // It may pass: a program is being replaced, or the server is away.
                Err(failure) if !is_over => log::warn!("{}; it is tried again", failure.text()),
                _ => {}
            }
            Ok(outcome?.status)
        });
        session.waiting.set(true);
    })?;
    if !is_over {
        // While it waited.
        session.told_to_end()?;
    }
    Ok(last?.code().into())
}

/// Says how the command has ended that runs again.
fn say(arguments: &Run, key: &Key, outcome: &Outcome) {
    match outcome {
        Outcome { loss: Some(loss), status, .. } => log::warn!("{}", lost(loss, *status).text()),
        Outcome { overran: true, status, .. } => {
            log::warn!("{}", overran(arguments, &key.to_string(), *status).text());
        }
        Outcome { status: Status::Exited(0), .. } => log::info!("lock {key}: the command exited with 0"),
        Outcome { status, .. } => log::warn!("lock {key}: the command {status}; it is started again"),
    }
}
