//! `watch`: what happens to a lock, as it happens.

mod changes;

use std::io::Write as _;
use std::process::ExitCode;
use std::thread;

use serde::Serialize;
use setnx_lock::Key;

use crate::arguments::Watch;
use crate::failure::Failure;
use crate::keys::{self, KeyJson, KeyReport, KeyText, date};
use crate::output::{self, BOLD, json_line, styled};
use crate::raw::Raw;
use crate::server::Target;
use changes::{Change, Look};

/// A line of JSON: see docs/cli.md.
#[derive(Debug, Serialize)]
struct Line {
    time: String,
    #[serde(flatten)]
    key: KeyText,
    event: Change,
    until: Option<String>,
    holder: Option<String>,
    held_since: Option<String>,
    description: String,
}

pub(crate) fn watch(arguments: &Watch) -> Result<ExitCode, Failure> {
    let target = Target::of(&arguments.server)?;
    let key = &target.key(&arguments.key);
    let mut connected = Some(target.connect_for(key)?);
    output::note(&format!(
        "reading {key} every {}; changes between two reads appear as one",
        humantime::format_duration(arguments.interval)
    ));
    let mut before: Option<Look> = None;
    let mut is_unreachable = false;
    loop {
        match read(&mut connected, &target, key) {
            Ok(report) => {
                if std::mem::take(&mut is_unreachable) {
                    output::note("the server replies again");
                }
                let look = Look::at(report, keys::now());
                if let Some(event) = look.since(before.as_ref()) {
                    write(arguments, &look.report, event)?;
                }
                before = Some(look);
            }
            // A server that is gone may come back, and a key that has moved is found again; one that refuses will go on to do so.
            Err(failure) if failure.is_refusal() && !(target.is_cluster() && failure.is_elsewhere()) => {
                return Err(failure);
            }
            Err(failure) => {
                connected = None;
                if !std::mem::replace(&mut is_unreachable, true) {
                    output::warning(&format!("retrying: {}", failure.text()));
                }
            }
        }
        thread::sleep(arguments.interval);
    }
}

fn read(connected: &mut Option<Raw>, target: &Target, key: &Key) -> Result<KeyReport, Failure> {
    let raw = match connected {
        Some(raw) => raw,
        None => connected.insert(target.connect_for(key)?),
    };
    keys::detail(raw, key)
}

fn write(arguments: &Watch, report: &KeyReport, event: Change) -> Result<(), Failure> {
    let now = keys::now();
    let mut out = anstream::stdout().lock();
    if arguments.json {
        let KeyJson { holder, held_since, .. } = report.json(now);
        let line = Line {
            time: date(now),
            key: KeyText::of(&report.key),
            event,
            until: report.until().map(date),
            holder,
            held_since,
            description: report.words(now),
        };
        json_line(&mut out, &line)?;
    } else {
        let by = report.held_by(now).map(|holder| format!(", by {holder}")).unwrap_or_default();
        writeln!(out, "{} {}: {}{by}", date(now), styled(BOLD, event.words()), report.words(now))?;
        out.flush()?;
    }
    Ok(())
}
