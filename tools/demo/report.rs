//! The figures of a run, the table of them, and the verdict.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use hdrhistogram::Histogram;

use crate::Failure;
use crate::account::{Account, Acquisition, Victim};

/// The figures.
#[derive(Debug)]
pub(crate) struct Report {
    processes: usize,
    threads: u32,
    pub(crate) acquisitions: usize,
    /// Acquisitions before the holder before had left.
    pub(crate) overlaps: usize,
    /// Acquisitions from the kill to the expiry.
    intrusions: usize,
    counted: u64,
    pub(crate) lost_updates: u64,
    /// How long no process had the lock after the kill.
    pub(crate) without_holder: Option<Duration>,
    takeover_name: &'static str,
    /// From the expiry of the crashed holder's lock, or when the new master had settled, to the next acquisition.
    pub(crate) takeover: Option<Duration>,
    /// Without the waits during the crash: those would be all that the p99 shows.
    median_wait: Duration,
    p99_wait: Duration,
    longest_wait: Duration,
    troubles: Vec<String>,
}

impl Report {
    pub(crate) fn of(account: &Account) -> Result<Self, Failure> {
        let Account { acquisitions, crash, counter, troubles, .. } = account;
        let counted = u64::try_from(acquisitions.iter().filter(|acquisition| acquisition.counted).count())?;
        let mut waits = Histogram::<u64>::new(3)?;
        let mut longest_wait = Duration::ZERO;
        for acquisition in acquisitions {
            let wait = acquisition.entered.since(acquisition.asked);
            longest_wait = longest_wait.max(wait);
            if acquisition.asked >= crash.expiry || acquisition.entered < crash.at {
                waits.record(u64::try_from(wait.as_micros())?)?;
            }
        }
        let quantile = |quantile| Duration::from_micros(waits.value_at_quantile(quantile));
        Ok(Self {
            processes: account.pids.len(),
            threads: account.threads,
            acquisitions: acquisitions.len(),
            overlaps: overlaps(acquisitions),
            intrusions: account.intrusions().count(),
            counted,
            lost_updates: counted.abs_diff(*counter),
            without_holder: account.without_holder(),
            takeover_name: match crash.victim {
                Victim::Worker(_) => "takeover after the expiry",
                Victim::Master => "first acquisition after the new master had settled",
            },
            takeover: account.takeover().map(|takeover| takeover.entered.since(crash.expiry)),
            median_wait: quantile(0.5),
            p99_wait: quantile(0.99),
            longest_wait,
            troubles: troubles.clone(),
        })
    }

    pub(crate) fn table(&self) -> Table {
        let takeover = self.takeover.map_or("none".to_owned(), |late| format!("{} ms", millis(late)));
        let without = self.without_holder.map_or("to the end".to_owned(), seconds);
        let rows = [
            ("processes × threads", format!("{} × {}", self.processes, self.threads)),
            ("acquisitions", self.acquisitions.to_string()),
            ("overlaps (must be 0)", self.overlaps.to_string()),
            ("lost updates (must be 0)", self.lost_updates.to_string()),
            ("no process got the lock after the kill", without),
            (self.takeover_name, takeover),
            ("wait apart from the crash, median", format!("{} ms", millis(self.median_wait))),
            ("wait apart from the crash, p99", format!("{} ms", millis(self.p99_wait))),
            ("wait, longest", format!("{} ms", millis(self.longest_wait))),
        ];
        let mut table = Table::new();
        table.load_preset(presets::UTF8_FULL_CONDENSED);
        for (name, figure) in rows {
            table.add_row([name, &figure]);
        }
        if let Some(figures) = table.column_mut(1) {
            figures.set_cell_alignment(CellAlignment::Right);
        }
        table
    }

    /// Returns what makes the run a failure, in words; nothing if all is well.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = self.troubles.clone();
        if self.overlaps > 0 {
            problems.push(format!("{} acquisitions while another thread had the lock", self.overlaps));
        }
        if self.intrusions > 0 {
            problems.push(format!(
                "{} acquisitions before the lock had expired, or the new master settled",
                self.intrusions
            ));
        }
        if self.lost_updates > 0 {
            problems.push(format!("the counter is {} away from {} counts", self.lost_updates, self.counted));
        }
        if self.takeover.is_none() {
            problems.push("no process had the lock after the kill".to_owned());
        }
        problems
    }
}

/// Counts the acquisitions, in the order of entering, that began before all earlier ones had ended.
fn overlaps(acquisitions: &[Acquisition]) -> usize {
    let mut overlaps = 0;
    let mut busy_until = None;
    for acquisition in acquisitions {
        if busy_until.is_some_and(|until| acquisition.entered < until) {
            overlaps += 1;
        }
        busy_until = busy_until.max(Some(acquisition.left));
    }
    overlaps
}

/// Seconds, to the hundredth.
pub(crate) fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

/// Milliseconds with one decimal.
pub(crate) fn millis(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1e3)
}
