//! The progress of a run: a bar on a terminal, and a line now and then without one.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::harness::{Contender, Failure};

/// How often a line is written where there is no bar.
const LINE_INTERVAL: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    contender: Contender,
    wanted: usize,
    next_line: Instant,
}

impl Progress {
    pub(crate) fn start(contender: Contender, wanted: usize) -> Result<Self, Failure> {
        let style = ProgressStyle::with_template("{prefix:11} {bar:40.green} {msg}, {elapsed}, {eta} to go")?;
        let bar = ProgressBar::new(wanted as u64).with_style(style).with_prefix(contender.to_string());
        Ok(Self { bar, contender, wanted, next_line: Instant::now() + LINE_INTERVAL })
    }

    pub(crate) fn advance(&mut self, acquisitions: usize) {
        self.bar.set_position(acquisitions as u64);
        self.bar.set_message(format!("{acquisitions} acquisitions"));
        if self.bar.is_hidden() && Instant::now() >= self.next_line {
            self.next_line += LINE_INTERVAL;
            eprintln!("{}: {acquisitions} of {} acquisitions", self.contender, self.wanted);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
