//! `run`: a command under a lock.
//!
//! | file | what it does |
//! |---|---|
//! | `session`, `spinner` | acquires what the arguments name; shows who holds it |
//! | `wanted` | one lock, several, a permit, a reader or a writer |
//! | `lead` | the same again and again |
//! | `supervision`, `supervisor` | what is done while the command runs; the rules of that |
//! | `child`, `group`, `starter`, `guardian` | the processes |
//! | `signals`, `terminal`, `event`, `events` | what happens to them; the same in JSON |

mod child;
mod event;
mod events;
mod group;
mod guardian;
mod lead;
mod session;
mod signals;
mod spinner;
mod starter;
mod supervision;
mod supervisor;
mod terminal;
mod wanted;

use std::process::ExitCode;
use std::time::Duration;

use log::LevelFilter;
use setnx_lock::Error;

use crate::arguments::{Condition, OnLoss, Run};
use crate::failure::Failure;
use crate::{keys, output};
use event::{Loss, Status};
pub(crate) use guardian::{GUARDIAN, guardian};
pub(crate) use session::Session;
pub(crate) use signals::unblock_ending;
pub(crate) use starter::start;
use supervision::{Outcome, supervise};
pub(crate) use wanted::{Held, Wanted};

/// How long after the end of its lease others take a lock over.
const MARGIN: Duration = Duration::from_secs(1);

pub(crate) fn run(arguments: &Run) -> Result<ExitCode, Failure> {
    let token = if arguments.resume { Some(arguments.token.read()?) } else { None };
    if let Some(token) = token.as_ref().filter(|_| arguments.acquisition.json) {
        output::in_json(Some(token.key().clone()));
    }
    child::find(arguments)?;
    let session = Session::open(&arguments.acquisition, &arguments.keys(), token.as_ref(), arguments.lead)?;
    let wanted = Wanted::of(arguments, token, &session.locker, &session.cancel)?;
    if let (Wanted::Lock(lock), true) = (&wanted, arguments.lead) {
        return lead::lead(arguments, &session, lock);
    }
    let held = session.acquire(&wanted)?;
    let outcome = supervise(arguments, &session, held.hold())?;
    finished(arguments, &session, held, outcome)
}

/// Releases the lock after the command has ended, and says how it went.
fn finished(arguments: &Run, session: &Session, held: Held, outcome: Outcome) -> Result<ExitCode, Failure> {
    let (names, ends) = (held.hold().names(), held.hold().expires_at());
    if outcome.loss.is_some() && !arguments.acquisition.verbose {
        // What the release finds has been said.
        log::set_max_level(LevelFilter::Off);
    }
    let loss = match (outcome.loss, held.end(arguments.keep)) {
        (Some(loss), _) => Some(loss),
        (None, Err(Error::Lost { key, reason, .. })) => Some(Loss { key, reason }),
        (None, Err(_)) if session.releases_late() => None,
        (None, Err(_)) => {
            // Why is in the log.
            let until = ends.map_or_else(String::new, |end| format!(" until {}", keys::date(end + MARGIN)));
            log::warn!(
                "lock {names}: the command has ended in time, but others wait{until} for the lock to expire"
            );
            None
        }
        (None, Ok(())) => None,
    };
    match loss {
        Some(loss) if arguments.on_loss != OnLoss::Warn => Err(lost(&loss, outcome.status)),
        _ if outcome.overran => Err(overran(arguments, &names, outcome.status)),
        _ => Ok(outcome.status.code().into()),
    }
}

fn overran(arguments: &Run, names: &str, status: Status) -> Failure {
    let time = humantime::format_duration(arguments.max_runtime.unwrap_or_default());
    let text = format!("lock {names}: ended after --max-runtime {time}: the command {status}");
    Failure::of(Condition::MaxRuntime, text)
}

fn lost(Loss { key, reason }: &Loss, status: Status) -> Failure {
    Failure::of(
        Condition::Lost,
        format!(
            "lock {key}: lost while the command ran: {reason}; the command {status}, another holder may have worked at the same time"
        ),
    )
}
