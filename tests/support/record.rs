//! The outcome of each scenario on each server by each protocol, printed as a table at the end of a run.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use comfy_table::{CellAlignment, Table, presets};
use libtest_mimic::Trial;
use setnx_lock::Protocol;

use super::target::Target;
use super::{Outcome, Variant, trial};

/// The outcome of one cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CellOutcome {
    Passed,
    /// The server is too old, and the error was the right one.
    Refused,
    Failed,
}

/// Scenario, position of the server among all, protocol, variant.
type Cell = (String, usize, &'static str, Variant);

static RECORD: Mutex<BTreeMap<Cell, CellOutcome>> = Mutex::new(BTreeMap::new());
static SERVERS: Mutex<BTreeMap<usize, String>> = Mutex::new(BTreeMap::new());

/// The protocols with their letters in the table.
const LETTERS: [(Protocol, &str); 4] =
    [(Protocol::Classic, "C"), (Protocol::Watched, "W"), (Protocol::Ttl, "T"), (Protocol::Auto, "A")];

/// Makes a trial whose outcome is recorded. It runs `test` where
/// the scenario works, and `refused` where the server is too old.
pub(crate) fn recorded(
    part: &str,
    target: &Target,
    scenario: &str,
    works: bool,
    test: impl Fn(&Target) -> Outcome + Send + 'static,
    refused: impl Fn(&Target) -> Outcome + Send + 'static,
) -> Trial {
    let variant = target.variant.name();
    let name = format!("{part}::{}::{}::{variant}::{scenario}", target.name, target.protocol_name());
    let (target, scenario) = (target.clone(), scenario.to_owned());
    trial(name, move || {
        let letter =
            LETTERS.iter().find(|(protocol, _)| *protocol == target.protocol).map_or("?", |(_, l)| l);
        let cell = (scenario.clone(), target.position, letter, target.variant);
        // Replaced if the test returns.
        note(&target, &cell, CellOutcome::Failed);
        target.under_load(|target| if works { test(target) } else { refused(target) })?;
        note(&target, &cell, if works { CellOutcome::Passed } else { CellOutcome::Refused });
        Ok(())
    })
}

fn note(target: &Target, cell: &Cell, outcome: CellOutcome) {
    SERVERS.lock().unwrap_or_else(PoisonError::into_inner).insert(target.position, target.shown());
    RECORD.lock().unwrap_or_else(PoisonError::into_inner).insert(cell.clone(), outcome);
}

/// Prints the table, if there is anything in it.
pub(crate) fn print() {
    let record = RECORD.lock().unwrap_or_else(PoisonError::into_inner);
    let servers = SERVERS.lock().unwrap_or_else(PoisonError::into_inner);
    if record.is_empty() {
        return;
    }
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    let headers = servers.values().cloned();
    table.set_header(["scenario".to_owned()].into_iter().chain(headers));
    let mut scenarios: Vec<&String> = record.keys().map(|(scenario, ..)| scenario).collect();
    scenarios.dedup();
    for scenario in scenarios {
        let cells = servers.keys().map(|position| {
            let of = |letter| {
                let outcomes = Variant::every()
                    .filter_map(|variant| record.get(&(scenario.clone(), *position, letter, variant)));
                // The worst of all variants.
                match outcomes.max() {
                    Some(CellOutcome::Passed) => letter,
                    Some(CellOutcome::Refused) => "-",
                    Some(CellOutcome::Failed) => "FAILED",
                    None => " ",
                }
            };
            LETTERS.map(|(_, letter)| of(letter)).join(" ")
        });
        table.add_row([scenario.clone()].into_iter().chain(cells));
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Center);
    }
    let count = |outcome| record.values().filter(|other| **other == outcome).count();
    println!("{table}");
    println!(
        "C, W, T, A: passed by Classic, Watched, Ttl, Auto in all variants that ran ({}); -: refused, as it must be on a server so old ({}); failed: {}\n",
        count(CellOutcome::Passed),
        count(CellOutcome::Refused),
        count(CellOutcome::Failed)
    );
}
