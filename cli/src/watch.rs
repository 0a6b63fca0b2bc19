//! `watch`: what happens to locks, as it happens.

mod changes;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use indicatif::ProgressBar;
use serde::Serialize;
use setnx_lock::Key;

use crate::arguments::Watch;
use crate::failure::Failure;
use crate::keys::{self, KeyJson, KeyReport, KeyText, date};
use crate::list;
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
    let mut watched = Watched::of(arguments, &target)?;
    let default =
        if arguments.matching.is_some() { Duration::from_secs(2) } else { Duration::from_millis(100) };
    let interval = arguments.interval.unwrap_or(default);
    output::note(&format!(
        "reading {} every {}; changes between two reads appear as one",
        watched.name,
        humantime::format_duration(interval)
    ));
    let mut before: Option<BTreeMap<Key, Look>> = None;
    let mut is_unreachable = false;
    loop {
        match watched.read() {
            Ok(reports) => {
                if std::mem::take(&mut is_unreachable) {
                    output::note("the server replies again");
                }
                let looks = looks(reports, before.as_ref());
                for (key, look) in &looks {
                    // One that was not there before was free.
                    let event = match &before {
                        Some(before) => look.since(Some(before.get(key).unwrap_or(&Look::free(key)))),
                        None => look.since(None),
                    };
                    if let Some(event) = event {
                        write(arguments, &look.report, event)?;
                    }
                }
                before = Some(looks);
            }
            // A server that is gone may come back, and a key that has moved is found again; all else goes on to fail.
            Err(failure) if failure.is_unreachable() || target.is_cluster() && failure.is_elsewhere() => {
                if !std::mem::replace(&mut is_unreachable, true) {
                    output::warning(&format!("retrying: {}", failure.text()));
                }
            }
            Err(failure) => return Err(failure),
        }
        thread::sleep(interval);
    }
}

/// What the keys hold, and those of before that are free now.
fn looks(reports: Vec<KeyReport>, before: Option<&BTreeMap<Key, Look>>) -> BTreeMap<Key, Look> {
    let now = keys::now();
    let were_held = before.into_iter().flatten().filter(|(_, look)| !look.is_free());
    let free = were_held.map(|(key, _)| (key.clone(), Look::free(key)));
    free.chain(reports.into_iter().map(|report| (report.key.clone(), Look::at(report, now)))).collect()
}

enum What {
    Key(Key),
    Matching(Vec<u8>),
}

/// The keys that are watched, and the connections to their servers.
struct Watched<'a> {
    target: &'a Target,
    what: What,
    name: String,
    connected: Option<Vec<Raw>>,
}

impl<'a> Watched<'a> {
    fn of(arguments: &Watch, target: &'a Target) -> Result<Self, Failure> {
        let what = match (&arguments.key, &arguments.matching) {
            (Some(key), _) => What::Key(target.key(key)),
            (None, Some(pattern)) => What::Matching(target.pattern(pattern)),
            (None, None) => return Err(Failure::usage("which key?")),
        };
        let name = match &what {
            What::Key(key) => key.to_string(),
            What::Matching(pattern) => Key::from(pattern.as_slice()).to_string(),
        };
        let mut watched = Self { target, what, name, connected: None };
        // A server that is not there at first is an error.
        watched.connected = Some(watched.connect()?);
        Ok(watched)
    }

    fn connect(&self) -> Result<Vec<Raw>, Failure> {
        match &self.what {
            What::Key(key) => Ok(vec![self.target.connect_for(key)?]),
            What::Matching(_) => self.target.connect_for_keys(false),
        }
    }

    fn read(&mut self) -> Result<Vec<KeyReport>, Failure> {
        // The masters of a cluster may be others.
        let again = matches!(self.what, What::Matching(_)) && self.target.is_cluster();
        let mut connected = match self.connected.take().filter(|_| !again) {
            Some(connected) => connected,
            None => self.connect()?,
        };
        let reports = match (&self.what, connected.first_mut()) {
            (What::Key(key), Some(raw)) => vec![keys::detail(raw, key)?],
            (What::Key(_), None) => Vec::new(),
            (What::Matching(pattern), _) => {
                list::found(&mut connected, pattern, false, &ProgressBar::hidden())?
            }
        };
        self.connected = Some(connected);
        Ok(reports)
    }
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
        let key = if arguments.matching.is_some() { format!(" {}", report.key) } else { String::new() };
        let (date, event) = (date(now), styled(BOLD, event.words()));
        writeln!(out, "{date}{key} {event}: {}{by}", report.words(now))?;
        out.flush()?;
    }
    Ok(())
}
