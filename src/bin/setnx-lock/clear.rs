//! `clear`: removes keys whose holders are gone.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::process::ExitCode;
use std::time::Duration;

use indicatif::ProgressBar;
use setnx_lock::redis::{self, Pipeline, Value};
use setnx_lock::{Error, Key, Lock, LockOptions, Protocol};

use crate::arguments::{Clear, Condition};
use crate::failure::Failure;
use crate::keys::{self, State};
use crate::server::{self, Raw};
use crate::status::write_report;
use crate::{list, output};

/// How many keys of a sweep are shown before it asks.
const SHOWN: usize = 20;

/// For how long a sweep holds a lock that it takes over, at most.
const SWEPT: Duration = Duration::from_secs(5);

pub(crate) fn clear(arguments: &Clear) -> Result<ExitCode, Failure> {
    match (&arguments.key, &arguments.expired) {
        (Some(key), _) => clear_one(arguments, &arguments.form.key(key).map_err(Failure::usage)?),
        (None, Some(pattern)) => sweep(arguments, pattern.as_bytes()),
        (None, None) => Err(Failure::usage("which key?")),
    }
}

fn clear_one(arguments: &Clear, key: &Key) -> Result<ExitCode, Failure> {
    let mut raw = Raw::connect(&arguments.server)?;
    let reports = keys::details(&mut raw, std::slice::from_ref(key))?;
    let mut out = anstream::stdout().lock();
    for report in &reports {
        write_report(&mut out, report)?;
        if report.state(keys::now()) == State::NoLock {
            return Err(Failure::no_lock(format!(
                "lock {key}: it holds no lock and was not removed; redis-cli DEL removes any key"
            )));
        }
    }
    let Some(seen) = raw.ask::<Option<Vec<u8>>>(redis::cmd("GET").arg(key.as_bytes()))? else {
        return Ok(ExitCode::SUCCESS);
    };
    confirm(arguments, &format!("Remove {key}?"))?;
    if remove_if(&mut raw, key, &seen)? {
        writeln!(out, "removed")?;
        Ok(ExitCode::SUCCESS)
    } else {
        Err(Failure::of(
            Condition::Contended,
            format!(
                "lock {key}: it holds something else by now, and was left alone; look again, then decide"
            ),
        ))
    }
}

/// Asks for consent.
fn confirm(arguments: &Clear, question: &str) -> Result<(), Failure> {
    if arguments.yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        return Err(Failure::usage("nothing is removed without consent; without a terminal say --yes"));
    }
    eprint!("{question} [y/N] ");
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

/// Removes the key if it still holds these bytes: by a transaction, which Redis has since 2.2. Before that the key is compared and deleted
/// by two commands, one right behind the other.
fn remove_if(raw: &mut Raw, key: &Key, seen: &[u8]) -> Result<bool, Failure> {
    let key = key.as_bytes();
    let watches = raw.is_since(2, 2);
    if watches {
        raw.ask::<()>(redis::cmd("WATCH").arg(key))?;
    }
    let found: Option<Vec<u8>> = raw.ask(redis::cmd("GET").arg(key))?;
    if found.as_deref() != Some(seen) {
        return Ok(false);
    }
    if !watches {
        return removed(raw.ask(redis::cmd("DEL").arg(key)));
    }
    let mut commands = Pipeline::new();
    commands.cmd("MULTI").cmd("DEL").arg(key).cmd("EXEC");
    let replies = raw.ask_all(&commands).map_err(unknown)?;
    for reply in replies {
        if let Value::Array(outcomes) = reply.extract_error()? {
            return Ok(outcomes.first() == Some(&Value::Int(1)));
        }
    }
    Ok(false)
}

fn removed(deleted: Result<u64, Failure>) -> Result<bool, Failure> {
    deleted.map(|count| count == 1).map_err(unknown)
}

/// That no reply came to a command that may have removed the key.
fn unknown(failure: Failure) -> Failure {
    if failure.is_refusal() {
        return failure;
    }
    Failure::of(
        Condition::Unknown,
        format!("it may or may not have been removed; look again: {}", failure.text()),
    )
}

/// Takes over and releases each expired lock under the pattern. That is safe on every server, since others may take it over at the same
/// moment.
fn sweep(arguments: &Clear, pattern: &[u8]) -> Result<ExitCode, Failure> {
    let reports = list::found(&mut Raw::connect(&arguments.server)?, pattern, arguments.keys)?;
    let now = keys::now();
    let expired: Vec<_> = reports.into_iter().filter(|report| report.state(now) == State::Expired).collect();
    let mut out = anstream::stdout().lock();
    if expired.is_empty() {
        writeln!(out, "no expired locks")?;
        return Ok(ExitCode::SUCCESS);
    }
    for report in expired.iter().take(SHOWN) {
        write_report(&mut out, report)?;
    }
    if expired.len() > SHOWN {
        writeln!(out, "and {} more", expired.len() - SHOWN)?;
    }
    confirm(arguments, &format!("Remove {} expired locks?", expired.len()))?;
    let locker = server::locker(&arguments.server)?.pool_size(1).build()?;
    let options = LockOptions::expiring_after(SWEPT).protocol(Protocol::Auto);
    let progress = ProgressBar::new(expired.len() as u64);
    let mut removed = 0;
    for report in progress.wrap_iter(expired.iter()) {
        match Lock::new(&locker, &report.key, options)?.try_lock() {
            Ok(Some(held)) => {
                held.release()?;
                removed += 1;
            }
            Ok(None) => {}
            Err(Error::Refused { key, refusal, .. }) => {
                output::warning(&format!("lock {key} was left: {refusal}"));
            }
            Err(error) => return Err(error.into()),
        }
    }
    progress.finish_and_clear();
    writeln!(out, "removed {removed} of {}", expired.len())?;
    Ok(ExitCode::SUCCESS)
}
