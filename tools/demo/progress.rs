//! What is shown while the demo runs: on a terminal a bar, and everywhere a line for each important moment.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::Failure;
use crate::moment::Moment;

#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    began: Moment,
}

impl Progress {
    pub(crate) fn start(began: Moment, length: Duration) -> Result<Self, Failure> {
        let style = ProgressStyle::with_template("{bar:40.green} {msg}")?;
        let progress = Self { bar: ProgressBar::new(0).with_style(style), began };
        progress.set_length(length);
        Ok(progress)
    }

    pub(crate) fn set_length(&self, length: Duration) {
        self.bar.set_length(millis(length));
    }

    pub(crate) fn advance(&self, now: Moment, acquisitions: usize) {
        let elapsed = now.since(self.began);
        self.bar.set_position(millis(elapsed));
        self.bar.set_message(format!("{:.1} s, {acquisitions} acquisitions", elapsed.as_secs_f64()));
    }

    pub(crate) fn line(&self, at: Moment, words: &str) {
        let text = format!("{:6.3} s  {words}", at.since(self.began).as_secs_f64());
        if self.bar.is_hidden() {
            eprintln!("{text}");
        } else {
            self.bar.println(text);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
