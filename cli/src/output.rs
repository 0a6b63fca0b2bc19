//! How the tool prints: results as JSON, and on the standard error what it says beside them: errors, warnings and the log.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use anstream::stderr;
use clap::builder::styling::{AnsiColor, Style};
use log::{Level, LevelFilter, Log, Metadata, Record};
use serde::Serialize;

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
    say(&styled(RED, "error"), text);
}

pub(crate) fn warning(text: &str) {
    say(&styled(YELLOW, "warning"), text);
}

pub(crate) fn note(text: &str) {
    line(text);
}

fn say(kind: &str, text: &str) {
    line(&format!("{kind}: {text}"));
}

fn line(text: &str) {
    let line = format!("setnx-lock: {text}");
    match WRITER.get() {
        // Its thread lives as long as the program.
        Some(writer) => _ = writer.send(Message::Line(line)),
        None => write(&line),
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

static WRITER: OnceLock<Sender<Message>> = OnceLock::new();

/// Has lines written by a thread from now on, so that a terminal that is stopped, or a pipe that is not read, keeps nothing from being done
/// about a lock.
pub(crate) fn write_on_a_thread() {
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
    // Without a thread lines are written at once.
    if thread::Builder::new().name("output".into()).spawn(receive).is_ok() {
        let _ = WRITER.set(sender);
    }
}

/// Waits until all lines are written, for `at_most` if that is given.
pub(crate) fn flush(at_most: Option<Duration>) {
    let Some(writer) = WRITER.get() else { return };
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

struct StderrLog;

/// Where in the code the last line came from. What is tried again and again is said once until something else happens.
static LAST: Mutex<Option<(Option<&str>, Option<u32>)>> = Mutex::new(None);

impl Log for StderrLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // The library's, and the tool's own.
        metadata.target().starts_with("setnx_lock")
    }

    fn log(&self, record: &Record<'_>) {
        let place = Some((record.file_static(), record.line()));
        let last = LAST.lock().map(|mut last| std::mem::replace(&mut *last, place)).unwrap_or_default();
        if self.enabled(record.metadata()) && (last != place || log::max_level() > LevelFilter::Warn) {
            let text = record.args().to_string();
            match record.level() {
                Level::Error | Level::Warn => warning(&text),
                _ => note(&text),
            }
        }
    }

    fn flush(&self) {}
}
