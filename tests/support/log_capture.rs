//! Captures what the library writes to the log.

use std::sync::{Mutex, Once};

use log::{LevelFilter, Log, Metadata, Record};

/// The warnings of all tests: a program has one log.
struct LogCapture(Mutex<Vec<String>>);

static LOG_CAPTURE: LogCapture = LogCapture(Mutex::new(Vec::new()));
static OPENED: Once = Once::new();

/// Installs the logger.
pub(crate) fn open() {
    OPENED.call_once(|| {
        log::set_logger(&LOG_CAPTURE).expect("the program has no other logger");
        log::set_max_level(LevelFilter::Warn);
    });
}

/// Returns the warnings so far that begin with this key.
pub(crate) fn warnings_about(key: &str) -> Vec<String> {
    let named = format!("lock {key}: ");
    LOG_CAPTURE.0.lock().unwrap().iter().filter(|line| line.starts_with(&named)).cloned().collect()
}

impl Log for LogCapture {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "setnx_lock"
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            self.0.lock().unwrap().push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}
