//! `clear`: removes the keys of crashed holders.

mod sweep;

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::process::ExitCode;

use setnx_lock::redis;
use setnx_lock::{Key, LockState};

use crate::arguments::{Clear, Condition};
use crate::failure::Failure;
use crate::keys::{self, Found};
use crate::raw::Raw;
use crate::server::Target;
use crate::status::write_report;

pub(crate) fn clear(arguments: &Clear) -> Result<ExitCode, Failure> {
    // clap does not see it, since a key and a pattern exclude each other.
    if arguments.keys && arguments.expired.is_none() {
        return Err(Failure::usage("--keys only applies to --expired"));
    }
    let target = Target::of(&arguments.server)?;
    match (&arguments.key, &arguments.expired) {
        (Some(key), _) => {
            let key = target.key(key);
            clear_one(arguments, &mut target.connect_for(&key)?, &key)
        }
        (None, Some(pattern)) => sweep::sweep(arguments, &target, &target.pattern(pattern)),
        (None, None) => Err(Failure::usage("which key?")),
    }
}

fn clear_one(arguments: &Clear, raw: &mut Raw, key: &Key) -> Result<ExitCode, Failure> {
    if raw.is_replica() {
        return Err(Failure::of(Condition::Refused, "the server is a replica; clear the lock on its master"));
    }
    let watches = raw.is_since(2, 2);
    if watches {
        // Before anything is read: what is shown is what is removed, or nothing is.
        raw.ask::<()>(redis::cmd("WATCH").arg(key.as_bytes()))?;
    }
    let report = keys::detail(raw, key)?;
    let value: Option<Vec<u8>> = match &report.found {
        Found::State(_) => keys::value(raw, key)?,
        Found::Other(_) => None,
    };
    let mut out = anstream::stdout().lock();
    // What is to be removed does not depend on a reader of the output.
    let _ = write_report(&mut out, &report);
    match &report.found {
        Found::State(LockState::Absent) => return Ok(ExitCode::SUCCESS),
        Found::State(_) if value.is_none() => {
            let _ = writeln!(out, "released meanwhile");
            return Ok(ExitCode::SUCCESS);
        }
        Found::State(state) if *state != LockState::of_value(value.as_deref()) => {
            return Err(changed(key));
        }
        Found::State(_) if value.as_deref().is_some_and(keys::may_be_a_locks) => {}
        _ => {
            return Err(Failure::no_lock(format!(
                "lock {key}: not removed, because it does not hold a lock; redis-cli DEL removes any key"
            )));
        }
    }
    confirm(arguments, &format!("Remove {key}?"))?;
    let value = value.unwrap_or_default();
    let is_removed = if watches { remove_if_unchanged(raw, key)? } else { remove_if(raw, key, &value)? };
    if is_removed {
        let _ = writeln!(out, "removed");
    } else if !raw.ask::<bool>(redis::cmd("EXISTS").arg(key.as_bytes()))? {
        let _ = writeln!(out, "released meanwhile");
    } else {
        return Err(changed(key));
    }
    Ok(ExitCode::SUCCESS)
}

fn changed(key: &Key) -> Failure {
    Failure::of(
        Condition::Contended,
        format!("lock {key}: not removed, because it has changed meanwhile; look again, then decide"),
    )
}

/// Asks for consent.
fn confirm(arguments: &Clear, question: &str) -> Result<(), Failure> {
    if arguments.yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        return Err(Failure::usage("not removed: confirmation needed; pass --yes when there is no terminal"));
    }
    // A terminal that cannot be written to shows no question.
    let _ = write!(io::stderr(), "{question} [y/N] ");
    let mut answer = String::new();
    io::stdin()
        .lock()
        .read_line(&mut answer)
        .map_err(|error| Failure::system("cannot read the answer", error))?;
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::with_code(1, "nothing was removed")),
    }
}

/// Removes the watched key by a transaction, if nothing has changed it.
fn remove_if_unchanged(raw: &mut Raw, key: &Key) -> Result<bool, Failure> {
    let removed: Option<u64> = raw.transact(redis::cmd("DEL").arg(key.as_bytes())).map_err(unknown)?;
    Ok(removed == Some(1))
}

/// Before Redis 2.2: removes the key if it still holds these bytes, by two commands, one right behind the other.
fn remove_if(raw: &mut Raw, key: &Key, seen: &[u8]) -> Result<bool, Failure> {
    let found: Option<Vec<u8>> = raw.ask(redis::cmd("GET").arg(key.as_bytes()))?;
    if found.as_deref() != Some(seen) {
        return Ok(false);
    }
    let count: u64 = raw.ask(redis::cmd("DEL").arg(key.as_bytes())).map_err(unknown)?;
    Ok(count == 1)
}

/// That no reply came to a command that may have removed the key.
fn unknown(failure: Failure) -> Failure {
    if failure.is_refusal() {
        return failure;
    }
    Failure::of(
        Condition::Unknown,
        format!("it is not known whether it was removed; look again: {}", failure.text()),
    )
}
