//! `status`: what keys hold.

use std::io::{self, Write};
use std::process::ExitCode;

use crate::arguments::{Condition, Status};
use crate::failure::Failure;
use crate::keys::{self, KeyReport, State};
use crate::output::{self, BOLD, GREEN, RED, YELLOW, json_line, styled};
use crate::server::Target;

pub(crate) fn status(arguments: &Status) -> Result<ExitCode, Failure> {
    let reports = keys::details_of_each(&Target::of(&arguments.server)?, &arguments.keys)?;
    let mut out = anstream::stdout().lock();
    let mut failed = None;
    for report in reports {
        match report {
            Ok(report) if arguments.quiet => {
                if !matches!(report.state(keys::now()), State::Free | State::Expired) {
                    return Ok(Condition::Contended.exit_code().into());
                }
            }
            Ok(report) if arguments.json => json_line(&mut out, &report.json(keys::now()))?,
            Ok(report) => write_report(&mut out, &report)?,
            Err(failure) => {
                if let Some(earlier) = failed.replace(failure) {
                    output::error(earlier.text());
                }
            }
        }
    }
    failed.map_or(Ok(ExitCode::SUCCESS), Err)
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
