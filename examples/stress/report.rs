//! The figures of the players, the table of them, and the verdict.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};

use crate::harness::{Account, Findings, Contender, check};

/// What one contender's run has shown.
#[derive(Debug)]
pub(crate) struct Game {
    pub(crate) contender: Contender,
    pub(crate) findings: Findings,
    kills: usize,
    took: Duration,
    troubles: Vec<String>,
}

impl Game {
    pub(crate) fn of(contender: Contender, account: &Account) -> Self {
        let Account { holds, kills, took, troubles, .. } = account;
        Self { contender, findings: check(holds), kills: *kills, took: *took, troubles: troubles.clone() }
    }

    /// Returns what makes the run a failure, in words; nothing if all is as it must be.
    pub(crate) fn problems(&self) -> Vec<String> {
        let Self { contender, findings, .. } = self;
        let mut problems: Vec<String> =
            self.troubles.iter().map(|trouble| format!("{contender}: {trouble}")).collect();
        let (overlaps, unreported) = (findings.overlaps.len(), findings.unreported.len());
        if findings.holds == 0 {
            problems.push(format!("{contender}: nobody ever had a lock, so nothing is shown"));
        }
        if contender.excludes() && overlaps > 0 {
            problems.push(format!("{contender}: {overlaps} leases began while another was valid"));
        }
        if contender.excludes() && unreported > 0 {
            problems.push(format!(
                "{contender}: {unreported} times others were inside, and the release did not say so"
            ));
        }
        if contender.goes_wrong() && overlaps == 0 {
            problems.push(format!(
                "{contender}: no overlap in {} holds, which it has under this stress: the checker has no teeth, or the run was too short",
                findings.holds
            ));
        }
        problems
    }

    fn row(&self) -> Vec<String> {
        let Findings { holds, takeovers, killed, overran, lost, unknown, overlaps, unreported } =
            &self.findings;
        let took = format!("{:.0} s", self.took.as_secs_f64());
        let counts = [
            *holds,
            *takeovers,
            self.kills,
            *killed,
            *overran,
            *lost,
            *unknown,
            overlaps.len(),
            unreported.len(),
        ];
        let counts = counts.iter().map(ToString::to_string);
        [self.contender.to_string(), took].into_iter().chain(counts).collect()
    }
}

pub(crate) fn table(games: &[Game]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED);
    table.set_header([
        "contender",
        "time",
        "holds",
        "takeovers",
        "kills",
        "killed\ninside",
        "overran",
        "lost",
        "unknown",
        "two valid\nleases",
        "two inside,\nuntold",
    ]);
    for game in games {
        table.add_row(game.row());
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Says in a sentence what the table shows.
pub(crate) fn sentence(games: &[Game]) -> String {
    let (safe, others): (Vec<&Game>, Vec<&Game>) = games.iter().partition(|game| game.contender.excludes());
    let count = |games: &[&Game]| {
        let holds: usize = games.iter().map(|game| game.findings.holds).sum();
        let overlaps: usize = games.iter().map(|game| game.findings.overlaps.len()).sum();
        (names(games), overlaps, holds)
    };
    let mut sentences = Vec::new();
    if !safe.is_empty() {
        let (names, overlaps, holds) = count(&safe);
        sentences.push(format!(
            "{names}: {overlaps} times two valid leases in {holds} holds, and there must be none."
        ));
    }
    if !others.is_empty() {
        let (names, overlaps, holds) = count(&others);
        sentences.push(format!(
            "{names}: {overlaps} in {holds}, with different expirations on one key and delays beyond the extra second, which that protocol cannot stand."
        ));
    }
    sentences.join(" ")
}

fn names(games: &[&Game]) -> String {
    games.iter().map(|game| game.contender.to_string()).collect::<Vec<_>>().join(" and ")
}
