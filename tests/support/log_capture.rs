//! Captures what the library writes to the log.

use std::sync::{Mutex, Once};

use log::{Level, LevelFilter, Log, Metadata, Record};

/// The lines of all tests: a program has one log.
struct LogCapture(Mutex<Vec<(Level, String)>>);

static LOG_CAPTURE: LogCapture = LogCapture(Mutex::new(Vec::new()));
static OPENED: Once = Once::new();

/// Installs the logger.
pub(crate) fn open() {
    OPENED.call_once(|| {
        log::set_logger(&LOG_CAPTURE).expect("the program has no other logger");
        log::set_max_level(LevelFilter::Info);
    });
}

/// Returns the lines of this level so far that begin with this key.
pub(crate) fn lines_about(key: &str, level: Level) -> Vec<String> {
    let named = format!("lock {key}: ");
    let lines = LOG_CAPTURE.0.lock().unwrap();
    let about = lines.iter().filter(|(of, line)| *of == level && line.starts_with(&named));
    about.map(|(_, line)| line.clone()).collect()
}

impl Log for LogCapture {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "setnx_lock"
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            self.0.lock().unwrap().push((record.level(), record.args().to_string()));
        }
    }

    fn flush(&self) {}
}
