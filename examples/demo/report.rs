//! The figures of a run, the table of them, and the verdict.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use hdrhistogram::Histogram;

use crate::Failure;
use crate::account::{Account, Turn};

/// What came out.
#[derive(Debug)]
pub(crate) struct Report {
    processes: usize,
    threads: u16,
    pub(crate) acquisitions: usize,
    /// Turns that began while another lasted.
    pub(crate) overlaps: usize,
    /// Turns that began while the dead worker's lease lasted.
    intrusions: usize,
    counted: u64,
    pub(crate) lost_updates: u64,
    /// From the end of the dead holder's lease to the next turn.
    pub(crate) takeover: Option<Duration>,
    /// Of the turns that did not have to wait for the dead: those waits would be all that the p99 shows.
    median_wait: Duration,
    p99_wait: Duration,
    longest_wait: Duration,
    troubles: Vec<String>,
}

impl Report {
    pub(crate) fn of(account: &Account) -> Result<Self, Failure> {
        let Account { turns, death, counter, troubles, .. } = account;
        let counted = u64::try_from(turns.iter().filter(|turn| turn.counted).count())?;
        let mut waits = Histogram::<u64>::new(3)?;
        let mut longest_wait = Duration::ZERO;
        for turn in turns {
            let wait = turn.entered.since(turn.asked);
            longest_wait = longest_wait.max(wait);
            if turn.asked >= death.expiry || turn.entered < death.at {
                waits.record(u64::try_from(wait.as_micros())?)?;
            }
        }
        let quantile = |quantile| Duration::from_micros(waits.value_at_quantile(quantile));
        Ok(Self {
            processes: account.pids.len(),
            threads: account.threads,
            acquisitions: turns.len(),
            overlaps: overlaps(turns),
            intrusions: account.intrusions().count(),
            counted,
            lost_updates: counted.abs_diff(*counter),
            takeover: account.takeover().map(|turn| turn.entered.since(death.expiry)),
            median_wait: quantile(0.5),
            p99_wait: quantile(0.99),
            longest_wait,
            troubles: troubles.clone(),
        })
    }

    pub(crate) fn table(&self) -> Table {
        let takeover = self.takeover.map_or("none".to_owned(), |late| format!("{} ms", millis(late)));
        let rows = [
            ("processes × threads", format!("{} × {}", self.processes, self.threads)),
            ("acquisitions", self.acquisitions.to_string()),
            ("overlaps (must be 0)", self.overlaps.to_string()),
            ("lost updates (must be 0)", self.lost_updates.to_string()),
            ("takeover after expiry", takeover),
            ("wait without the dead, median", format!("{} ms", millis(self.median_wait))),
            ("wait without the dead, p99", format!("{} ms", millis(self.p99_wait))),
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
            problems.push(format!("{} turns began while another lasted", self.overlaps));
        }
        if self.intrusions > 0 {
            problems
                .push(format!("{} turns began before the dead worker's lock had expired", self.intrusions));
        }
        if self.lost_updates > 0 {
            problems.push(format!("the counter is {} away from {} counts", self.lost_updates, self.counted));
        }
        if self.takeover.is_none() {
            problems.push("nobody took over from the worker that was killed".to_owned());
        }
        problems
    }
}

/// Counts the turns, in the order of entering, that began before all earlier ones had ended.
fn overlaps(turns: &[Turn]) -> usize {
    let mut overlaps = 0;
    let mut busy_until = None;
    for turn in turns {
        if busy_until.is_some_and(|until| turn.entered < until) {
            overlaps += 1;
        }
        busy_until = busy_until.max(Some(turn.left));
    }
    overlaps
}

/// Milliseconds with one decimal.
pub(crate) fn millis(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1e3)
}
