//! The figures of each contender's run, their table, and the verdict.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};

use crate::harness::{Contender, Findings, Run, check};

/// What one contender's run has shown.
#[derive(Debug)]
pub(crate) struct Summary {
    pub(crate) contender: Contender,
    pub(crate) findings: Findings,
    kills: usize,
    took: Duration,
    failures: Vec<String>,
}

impl Summary {
    pub(crate) fn of(contender: Contender, run: &Run) -> Self {
        let Run { holds, kills, took, problems, .. } = run;
        Self { contender, findings: check(holds), kills: *kills, took: *took, failures: problems.clone() }
    }

    /// Returns what makes the run a failure, in words; nothing if all is as it must be.
    pub(crate) fn problems(&self) -> Vec<String> {
        let Self { contender, findings, .. } = self;
        let (overlaps, unreported) = (findings.overlaps.len(), findings.unreported.len());
        let mut problems = self.failures.clone();
        if findings.holds == 0 {
            problems.push("no lock was ever acquired, so the run shows nothing".to_owned());
        }
        if contender.excludes() && overlaps > 0 {
            problems.push(format!("{overlaps} leases began while another one was valid"));
        }
        if contender.excludes() && unreported > 0 {
            problems
                .push(format!("{unreported} holds overlapped with another, and their release reported none"));
        }
        if contender.must_overlap() && overlaps == 0 {
            problems.push(format!(
                "no overlap in {} acquisitions, though it has overlaps under this stress: the checker finds none, or the run was too \
                 short",
                findings.holds
            ));
        }
        problems.into_iter().map(|problem| format!("{contender}: {problem}")).collect()
    }

    fn row(&self) -> Vec<String> {
        let Findings { holds, takeovers, killed, outlived, lost, unknown, overlaps, unreported } =
            &self.findings;
        let took = format!("{:.0} s", self.took.as_secs_f64());
        let counts = [
            *holds,
            *takeovers,
            self.kills,
            *killed,
            *outlived,
            *lost,
            *unknown,
            overlaps.len(),
            unreported.len(),
        ];
        let counts = counts.iter().map(ToString::to_string);
        [self.contender.to_string(), took].into_iter().chain(counts).collect()
    }
}

pub(crate) fn table(summaries: &[Summary]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED);
    table.set_header([
        "contender",
        "time",
        "acquisitions",
        "takeovers",
        "kills",
        "killed\nholders",
        "outlived\ntheir lease",
        "lost",
        "outcome\nunknown",
        "overlaps of\nvalid leases",
        "unreported\noverlaps",
    ]);
    for summary in summaries {
        table.add_row(summary.row());
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Explains the last two columns, and says what the table shows.
pub(crate) fn verdict(summaries: &[Summary]) -> String {
    let (safe, others): (Vec<&Summary>, Vec<&Summary>) =
        summaries.iter().partition(|summary| summary.contender.excludes());
    let mut lines = vec![
        "overlap of valid leases: a holder acquired the lock while another could still rely on it".to_owned(),
        "unreported overlap: a holder outlived its lease, another acquired the lock, and the first one's release reported no problem"
            .to_owned(),
    ];
    if !safe.is_empty() {
        lines.push(format!("{}, and none is allowed", counted(&safe)));
    }
    if !others.is_empty() {
        lines.push(format!(
            "{}: this protocol allows them where expirations differ on one key and delays exceed its extra second",
            counted(&others)
        ));
    }
    lines.join("\n")
}

fn counted(summaries: &[&Summary]) -> String {
    let names: Vec<String> = summaries.iter().map(|summary| summary.contender.to_string()).collect();
    let acquisitions: usize = summaries.iter().map(|summary| summary.findings.holds).sum();
    let overlaps: usize = summaries.iter().map(|summary| summary.findings.overlaps.len()).sum();
    format!("{}: {overlaps} overlaps of valid leases in {acquisitions} acquisitions", names.join(", "))
}
