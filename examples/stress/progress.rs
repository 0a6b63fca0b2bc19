//! What is shown while the stress runs: a bar on a terminal, and a line now and then without one.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::harness::{Failure, Contender};

/// How often a line is written where there is no bar.
const LINES: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    contender: Contender,
    wanted: usize,
    next_line: Instant,
}

impl Progress {
    pub(crate) fn start(contender: Contender, wanted: usize) -> Result<Self, Failure> {
        let style = ProgressStyle::with_template("{prefix:8} {bar:40.green} {msg}, {elapsed}, {eta} to go")?;
        let bar = ProgressBar::new(wanted as u64).with_style(style).with_prefix(contender.to_string());
        Ok(Self { bar, contender, wanted, next_line: Instant::now() + LINES })
    }

    pub(crate) fn advance(&mut self, holds: usize) {
        self.bar.set_position(holds as u64);
        self.bar.set_message(format!("{holds} times acquired"));
        if self.bar.is_hidden() && Instant::now() >= self.next_line {
            self.next_line += LINES;
            eprintln!("{}: {holds} of {} times acquired", self.contender, self.wanted);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
