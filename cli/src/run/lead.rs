//! `run --lead`: one of several processes runs the command, again and again, and another follows it.

use std::process::ExitCode;

use setnx_lock::{Key, Lock};

use super::event::Status;
use super::session::Session;
use super::supervision::{Outcome, supervise};
use super::wanted::Hold;
use super::{lost, overran};
use crate::arguments::{OnLoss, Run};
use crate::failure::Failure;

/// Leads until a signal ends this process.
pub(super) fn lead(arguments: &Run, session: &Session) -> Result<ExitCode, Failure> {
    let keys = arguments.keys();
    let [key] = keys.as_slice() else { return Err(Failure::usage("--lead needs a single key")) };
    if arguments.on_loss == OnLoss::Warn {
        return Err(Failure::usage(
            "--lead ends the command when another process may lead, so --on-loss cannot be warn",
        ));
    }
    let lock = Lock::new(&session.locker, key, arguments.options(None)?)?;
    let mut last = Ok(Status::Exited(0));
    lock.lead(&session.cancel, |held| {
        session.waiting.set(false);
        last = session.ended_by_signal().inspect_err(|_| session.cancel.cancel()).and_then(|()| {
            let outcome = supervise(arguments, session, Hold::of(held));
            match &outcome {
                Ok(outcome) if outcome.is_by_passed_signal() => session.cancel.cancel(),
                Ok(_) if session.cancel.is_cancelled() => {}
                Ok(outcome) => say(arguments, held.key(), outcome),
                // It may pass: a program is being replaced, or the server is away.
                Err(failure) => log::warn!("{}; it is tried again", failure.text()),
            }
            Ok(outcome?.status)
        });
        session.waiting.set(true);
    })?;
    session.ended_by_signal()?;
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
