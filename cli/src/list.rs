//! `list`: the locks on a server.

mod metrics;

use std::io::{self, IsTerminal as _, Write};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use comfy_table::Table;
use comfy_table::presets::NOTHING;
use indicatif::ProgressBar;
use setnx_lock::chrono::{DateTime, Utc};

use crate::arguments::List;
use crate::failure::Failure;
use crate::keys::{self, KeyReport, State};
use crate::output::{self, BOLD, json_line, styled};
use crate::raw::Raw;
use crate::server::Target;

/// Moves to the top of the terminal and clears it.
const CLEAR: &str = "\x1b[H\x1b[2J";

pub(crate) fn list(arguments: &List) -> Result<ExitCode, Failure> {
    let target = Target::of(&arguments.server)?;
    let mut servers = target.connect_for_keys(arguments.keys)?;
    loop {
        let mut reports = found(
            &mut servers,
            &target.pattern(&arguments.pattern),
            arguments.keys,
            &ProgressBar::new_spinner(),
        )?;
        let (now, mut out) = (keys::now(), anstream::stdout().lock());
        if let Some(age) = arguments.older_than {
            retain_older(&mut reports, age, now);
        }
        if arguments.prometheus {
            metrics::write(&mut out, &reports, arguments.server.prefix.len(), now)?;
        } else if arguments.json {
            for report in &reports {
                json_line(&mut out, &report.json(now))?;
            }
        } else {
            if arguments.watch.is_some() && io::stdout().is_terminal() {
                write!(out, "{CLEAR}")?;
            }
            write_table(&mut out, &reports, now)?;
        }
        let Some(interval) = arguments.watch else { return Ok(ExitCode::SUCCESS) };
        out.flush()?;
        drop(out);
        thread::sleep(interval);
        if target.is_cluster() {
            // The masters may be others.
            servers = target.connect_for_keys(arguments.keys)?;
        }
    }
}

/// Keeps the locks that have been held for this long.
fn retain_older(reports: &mut Vec<KeyReport>, age: Duration, now: DateTime<Utc>) {
    let unknown = reports.extract_if(.., |report| report.held_for(now).is_none()).count();
    reports.retain(|report| {
        report.held_for(now).is_some_and(|held| held.to_std().is_ok_and(|held| held >= age))
    });
    if unknown > 0 {
        output::note(&format!(
            "not listed: {unknown} locks of which nothing shows how long they have been held; holders with a name do"
        ));
    }
}

/// Finds the locks under a pattern, those that expire first at the top, and shows progress.
pub(crate) fn found(
    servers: &mut [Raw],
    pattern: &[u8],
    keys_allowed: bool,
    progress: &ProgressBar,
) -> Result<Vec<KeyReport>, Failure> {
    if keys_allowed && servers.iter().any(|raw| !raw.is_since(2, 8)) {
        output::warning("KEYS blocks the server while it looks at every key");
    }
    let (mut before, mut reports) = ((0, 0), Vec::new());
    for raw in servers {
        let mut seen = (0, 0);
        let keys = keys::locks(raw, pattern, keys_allowed, |looked_at, found| {
            seen = (looked_at, found);
            let (looked_at, found) = (before.0 + looked_at, before.1 + found);
            progress.set_message(format!("{looked_at} keys scanned, {found} locks found"));
            progress.tick();
        });
        before = (before.0 + seen.0, before.1 + seen.1);
        for report in keys::details(raw, &keys?)? {
            match report {
                Err(failure) if raw.has_slots() && failure.is_elsewhere() => {}
                report => reports.push(report?),
            }
        }
    }
    progress.finish_and_clear();
    let now = keys::now();
    reports.retain(|report| report.state(now) != State::Free);
    // A key may have moved meanwhile.
    reports.sort_by(|a, b| a.key.cmp(&b.key));
    reports.dedup_by(|a, b| a.key == b.key);
    reports.sort_by(|a, b| {
        let left = |report: &KeyReport| report.seconds_left(now).unwrap_or(f64::INFINITY);
        left(a).total_cmp(&left(b))
    });
    Ok(reports)
}

fn write_table(out: &mut impl Write, reports: &[KeyReport], now: DateTime<Utc>) -> io::Result<()> {
    if reports.is_empty() {
        return writeln!(out, "no locks");
    }
    let mut table = Table::new();
    table.load_preset(NOTHING);
    table.set_header(["KEY", "LEFT", "STATE", "HOLDER"]);
    for report in reports {
        let left = match report.seconds_left(now) {
            Some(left) => {
                let sign = if left < 0.0 { "-" } else { "" };
                format!(
                    "{sign}{}",
                    keys::rounded(Duration::try_from_secs_f64(left.abs()).unwrap_or_default())
                )
            }
            None => "-".into(),
        };
        let state = match report.state(now) {
            State::Free => "free",
            State::Held => "held",
            State::Expired => "expired",
            State::NoExpiration => "no expiration",
            State::GemTtl if report.time_to_live.is_some() => "gem with TTL",
            State::GemTtl => "gem",
            State::NoLock => "no lock",
        };
        table.add_row([report.key.to_string(), left, state.into(), report.held_by(now).unwrap_or_default()]);
    }
    for (n, line) in table.lines().enumerate() {
        let line = line.trim();
        if n == 0 {
            writeln!(out, "{}", styled(BOLD, line))?;
        } else {
            writeln!(out, "{line}")?;
        }
    }
    Ok(())
}
