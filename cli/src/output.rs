//! How the tool prints: results as JSON, and on the standard
//! error what it says beside them: errors, warnings and the log.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use anstream::stderr;
use clap::builder::styling::{AnsiColor, Style};
use log::{Level, LevelFilter, Log, Metadata, Record};
use serde::Serialize;
use setnx_lock::Key;

use crate::arguments::Condition;
use crate::keys::{KeyText, date, now};

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const RED: Style = AnsiColor::Red.on_default().bold();
pub(crate) const YELLOW: Style = AnsiColor::Yellow.on_default();
pub(crate) const GREEN: Style = AnsiColor::Green.on_default();

/// A text in a style. Escapes are left out where the output is no terminal, and where `NO_COLOR` says so.
pub(crate) fn styled(style: Style, text: impl Display) -> String {
    format!("{style}{text}{style:#}")
}

/// Writes one object on a line of its own.
pub(crate) fn json_line(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_string(value).map_err(io::Error::other)?;
    writeln!(out, "{text}")?;
    out.flush()
}

pub(crate) fn error(text: &str) {
    say("error", Some(RED), text);
}

/// Says an error by which the tool exits, and in JSON its condition.
pub(crate) fn failure(text: &str, condition: Option<Condition>) {
    if is_json() {
        return event(None, &Said { event: "error", description: text, condition });
    }
    error(text);
}

pub(crate) fn warning(text: &str) {
    say("warning", Some(YELLOW), text);
}

pub(crate) fn note(text: &str) {
    say("note", None, text);
}

fn say(kind: &str, style: Option<Style>, text: &str) {
    if is_json() {
        return event(None, &Said { event: kind, description: text, condition: None });
    }
    line(match style {
        Some(style) => format!("setnx-lock: {}: {text}", styled(style, kind)),
        None => format!("setnx-lock: {text}"),
    });
}

/// Of which key each line is that names no other, if they are JSON.
static JSON_OF: OnceLock<KeyText> = OnceLock::new();

/// Has all that is said from now on be lines of JSON, about this key unless they name another.
pub(crate) fn in_json(key: Option<Key>) {
    if let Some(key) = key {
        let _ = JSON_OF.set(KeyText::of(&key));
    }
}

pub(crate) fn is_json() -> bool {
    JSON_OF.get().is_some()
}

/// A line of JSON.
#[derive(Serialize)]
struct Line<'a, T> {
    time: String,
    #[serde(flatten)]
    key: &'a KeyText,
    #[serde(flatten)]
    event: &'a T,
}

#[derive(Serialize)]
struct Said<'a> {
    event: &'a str,
    description: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    condition: Option<Condition>,
}

/// Says in JSON what has happened to this key, or to all, if that is wanted.
pub(crate) fn event(key: Option<&Key>, event: &impl Serialize) {
    let Some(all) = JSON_OF.get() else { return };
    let key = &key.map_or_else(|| all.clone(), KeyText::of);
    if let Ok(text) = serde_json::to_string(&Line { time: date(now()), key, event }) {
        line(text);
    }
}

fn line(line: String) {
    match THREADED.load(Ordering::Relaxed).then(|| WRITER.get_or_init(start)) {
        // Its thread lives as long as the program.
        Some(Some(writer)) => _ = writer.send(Message::Line(line)),
        // Without a thread lines are written at once.
        _ => write(&line),
    }
}

fn write(line: &str) {
    // A tool whose standard error is closed works on.
    let _ = writeln!(stderr(), "{line}");
}

enum Message {
    Line(String),
    Flush(Sender<()>),
}

static THREADED: AtomicBool = AtomicBool::new(false);
static WRITER: OnceLock<Option<Sender<Message>>> = OnceLock::new();

/// Has lines written by a thread from now on, so that a terminal that is stopped, or a pipe that is not read, keeps
/// nothing from being done about a lock. It starts with the first line.
pub(crate) fn write_on_a_thread() {
    THREADED.store(true, Ordering::Relaxed);
}

fn start() -> Option<Sender<Message>> {
    let (sender, messages) = mpsc::channel();
    let receive = move || {
        for message in messages {
            match message {
                Message::Line(line) => write(&line),
                // The receiver may have given up.
                Message::Flush(done) => _ = done.send(()),
            }
        }
    };
    thread::Builder::new().name("output".into()).spawn(receive).is_ok().then_some(sender)
}

/// Waits until all lines are written, for `at_most` if that is given.
pub(crate) fn flush(at_most: Option<Duration>) {
    let Some(Some(writer)) = WRITER.get() else { return };
    let (sender, done) = mpsc::channel();
    let _ = writer.send(Message::Flush(sender));
    let _ = match at_most {
        Some(at_most) => done.recv_timeout(at_most).is_ok(),
        None => done.recv().is_ok(),
    };
}

/// Prints the log to the standard error, from this level on.
pub(crate) fn log_from(level: LevelFilter) {
    // Fails only if there is a logger already.
    let _ = log::set_logger(&StderrLog);
    log::set_max_level(level);
}

/// The target of the library's log.
const LIBRARY: &str = "setnx_lock";

/// Has the next line of the log be printed, wherever it comes from.
pub(crate) fn say_again() {
    if let Ok(mut last) = LAST.lock() {
        *last = None;
    }
}

struct StderrLog;

/// Where in the code the last line came from. What the library
/// tries again and again is said once until something else happens.
static LAST: Mutex<Option<(Option<&str>, Option<u32>)>> = Mutex::new(None);

impl Log for StderrLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // The library's, and the tool's own.
        metadata.target().starts_with("setnx_lock")
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let place = Some((record.file_static(), record.line()));
        let last = LAST.lock().map(|mut last| std::mem::replace(&mut *last, place)).unwrap_or_default();
        // In JSON the library's are events.
        let is_librarys = record.target() == LIBRARY;
        let is_said = is_librarys && last == place && log::max_level() <= LevelFilter::Warn;
        if !(is_said || is_json() && is_librarys) {
            let text = record.args().to_string();
            match record.level() {
                Level::Error | Level::Warn => warning(&text),
                _ => note(&text),
            }
        }
    }

    fn flush(&self) {}
}
