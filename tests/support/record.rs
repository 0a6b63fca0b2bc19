//! What came of each scenario on each server by each protocol, shown as a table at the end of a run.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use comfy_table::{CellAlignment, Table, presets};
use libtest_mimic::Trial;
use setnx_lock::Protocol;

use super::target::Target;
use super::{Outcome, Variant};

/// What came of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Came {
    Passed,
    /// The server is too old, and that was said as it should be.
    Refused,
    Failed,
}

/// Scenario, place of the server among all, protocol, way of waiting.
type Cell = (String, usize, &'static str, Variant);

static RECORD: Mutex<BTreeMap<Cell, Came>> = Mutex::new(BTreeMap::new());
static SERVERS: Mutex<BTreeMap<usize, String>> = Mutex::new(BTreeMap::new());

/// The protocols, by the letters that they have in the table.
const LETTERS: [(Protocol, &str); 3] =
    [(Protocol::Classic, "C"), (Protocol::Watched, "W"), (Protocol::Ttl, "T")];

/// Makes a trial whose outcome is recorded: of what is to be, if the server is new enough, and of what is to be said otherwise.
pub(crate) fn recorded(
    part: &str,
    target: &Target,
    scenario: &str,
    works: bool,
    test: impl FnOnce(&Target) -> Outcome + Send + 'static,
    refused: impl FnOnce(&Target) -> Outcome + Send + 'static,
) -> Trial {
    let variant = target.variant.name();
    let name = format!("{part}::{}::{}::{variant}::{scenario}", target.name, target.protocol_name());
    let (target, scenario) = (target.clone(), scenario.to_owned());
    Trial::test(name, move || {
        let letter =
            LETTERS.iter().find(|(protocol, _)| *protocol == target.protocol).map_or("?", |(_, l)| l);
        let cell = (scenario, target.place, letter, target.variant);
        // Unless it comes to its end.
        note(&target, &cell, Came::Failed);
        target.under_load(|target| if works { test(target) } else { refused(target) })?;
        note(&target, &cell, if works { Came::Passed } else { Came::Refused });
        Ok(())
    })
}

fn note(target: &Target, cell: &Cell, came: Came) {
    SERVERS.lock().unwrap_or_else(PoisonError::into_inner).insert(target.place, target.shown());
    RECORD.lock().unwrap_or_else(PoisonError::into_inner).insert(cell.clone(), came);
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
    let heads = servers.values().cloned();
    table.set_header(["scenario".to_owned()].into_iter().chain(heads));
    let mut scenarios: Vec<&String> = record.keys().map(|(scenario, ..)| scenario).collect();
    scenarios.dedup();
    for scenario in scenarios {
        let cells = servers.keys().map(|place| {
            let of = |letter| {
                // The worst of all ways.
                let came = Variant::every()
                    .filter_map(|variant| record.get(&(scenario.clone(), *place, letter, variant)));
                match came.max() {
                    Some(Came::Passed) => letter,
                    Some(Came::Refused) => "-",
                    Some(Came::Failed) => "FAILED",
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
    let count = |came| record.values().filter(|other| **other == came).count();
    println!("{table}");
    println!(
        "C, W, T: passed by Classic, Watched, Ttl, in all ways ({}); -: refused, as it should be on a server so old ({}); failed: {}\n",
        count(Came::Passed),
        count(Came::Refused),
        count(Came::Failed)
    );
}
