//! `status`: what keys hold.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use setnx_lock::{Key, LockOptions, Semaphore};

use crate::arguments::{Condition, Status};
use crate::failure::Failure;
use crate::keys::{self, KeyReport, State};
use crate::output::{self, BOLD, GREEN, RED, YELLOW, json_line, styled};
use crate::server::Target;

pub(crate) fn status(arguments: &Status) -> Result<ExitCode, Failure> {
    let target = Target::of(&arguments.server)?;
    let names = target.keys(&arguments.keys);
    let mut reports = keys::details_of_each(&target, &permits(arguments, &target, &names)?)?.into_iter();
    let mut out = anstream::stdout().lock();
    let mut failed = None;
    for name in names {
        let (mut found, mut is_complete) = (Vec::new(), true);
        for report in reports.by_ref().take(arguments.permits.unwrap_or(1)) {
            match report {
                Ok(report) => found.push(report),
                Err(failure) => {
                    is_complete = false;
                    if let Some(earlier) = failed.replace(failure) {
                        output::error(earlier.text());
                    }
                }
            }
        }
        let now = keys::now();
        let is_held = |report: &&KeyReport| !matches!(report.state(now), State::Free | State::Expired);
        let held = found.iter().filter(is_held).count();
        if arguments.quiet && is_complete && held == found.len() {
            return Ok(Condition::Contended.exit_code().into());
        }
        if let (Some(permits), false) = (arguments.permits, arguments.quiet || arguments.json) {
            writeln!(out, "{}: {held} of {permits} permits held", styled(BOLD, name))?;
            found.retain(|report| report.state(now) != State::Free);
        }
        for report in found.iter().filter(|_| !arguments.quiet) {
            if arguments.json {
                json_line(&mut out, &report.json(now))?;
            } else {
                write_report(&mut out, report)?;
            }
        }
    }
    failed.map_or(Ok(ExitCode::SUCCESS), Err)
}

/// Returns the keys of the permits, if these are the names of semaphores; else the keys as they are.
fn permits(arguments: &Status, target: &Target, names: &[Key]) -> Result<Vec<Key>, Failure> {
    let Some(permits) = arguments.permits else { return Ok(names.to_vec()) };
    let locker = target.locker().build()?;
    // Nothing is acquired.
    let options = LockOptions::expiring_after(Duration::from_secs(1));
    let mut keys = Vec::new();
    for name in names {
        keys.extend_from_slice(Semaphore::new(&locker, name, permits, options)?.keys());
    }
    Ok(keys)
}

/// Writes a report as some lines: the key and its state, and what stands beside it.
pub(crate) fn write_report(out: &mut impl Write, report: &KeyReport) -> io::Result<()> {
    let now = keys::now();
    let style = match report.state(now) {
        State::Free => GREEN,
        State::Held => BOLD,
        State::Expired | State::NoExpiration | State::GemTtl => YELLOW,
        State::NoLock => RED,
    };
    writeln!(out, "{}: {}", styled(BOLD, &report.key), styled(style, report.words(now)))?;
    if let Some(holder) = report.held_by(now) {
        writeln!(out, "  holder: {holder}")?;
    }
    if report.until().is_some()
        && let Some(time) = report.time_to_live
    {
        writeln!(out, "  time to live: {}, then the server deletes it", keys::rounded(time))?;
    }
    if report.waiters > 0 {
        writeln!(out, "  waiters listed for notifications: {}", report.waiters)?;
    }
    if let Some(fence) = report.fence {
        writeln!(out, "  last fencing token: {fence}")?;
    }
    Ok(())
}
