//! The random search for several keys: clients that want some of them, in their order, with
//! random interleavings, crashes, lost requests and replies. It looks for two clients that hold
//! a key at the same time, each within its lease; for a client that sleeps for a key and holds
//! another behind it, so that two could wait for each other; for a call that has ended and left
//! a lock which it could have given back; and afterwards for a client whose call does not end.

mod calls;
mod client;
mod run;

use std::cell::Cell;

use proptest::prelude::*;

use crate::Searches;
use client::Flaw;
use run::Run;
use setnx_lock_proto::values::Protocol::{self, Classic, Ttl, Watched};

/// How long a command may be on its way within the guard, in milliseconds, and how far the clock of each client is
/// ahead of that of the one before.
const WITHIN_THE_GUARD: [u64; 2] = [300, 0];

/// Searches this many runs. Returns how often several keys were acquired, at once and after a wait, or an error with
/// the fewest steps to a broken law.
fn search(
    protocols: [Protocol; 2],
    times: [u64; 2],
    flaw: Option<Flaw>,
    runs: u32,
) -> Result<[u64; 2], String> {
    let totals = Cell::new([0; 2]);
    let run = |steps: &[_]| {
        let (run, broken) = Run::perform(protocols, times, flaw, steps);
        let [at_once, waited] = totals.get();
        totals.set([at_once + run.at_once, waited + run.waited]);
        broken.map_or(Ok(()), Err)
    };
    let describe = |steps: &[_]| format!("{:#?}", Run::perform(protocols, times, flaw, steps).0);
    crate::search((0..4_usize, any::<u8>(), crate::pause(6, 300)), 250, runs, run, describe)?;
    Ok(totals.get())
}

fn holds(protocols: [Protocol; 2], times: [u64; 2]) {
    const RUNS: u32 = 750;
    let [at_once, waited] = search(protocols, times, None, crate::runs(RUNS))
        .unwrap_or_else(|problem| panic!("{protocols:?}, {times:?} ms: {problem}"));
    let least = u64::from(RUNS) / 30;
    let happened = at_once > least && waited > least;
    assert!(happened, "{protocols:?}: too little happened: {at_once} and {waited}");
}

fn there_are_two_holders_when_commands_take_longer_than_the_guard() {
    let problem = search([Classic; 2], [3000, 0], None, 20_000).expect_err("an overlap is found");
    assert!(problem.contains("two clients hold a key"), "{problem}");
}

fn planted_mistakes_are_found() {
    for flaw in [
        Flaw::KeepsWhatIsBehind,
        Flaw::GivesBackOneAlone,
        Flaw::BelievesWhatIsLost,
        Flaw::ForgetsWhatIsLost,
        Flaw::KeepsAllButTheLast,
    ] {
        let searched = search([Watched; 2], WITHIN_THE_GUARD, Some(flaw), 200_000);
        let laws = ["two clients hold a key", "has one behind it", "left a lock"];
        let is_found = searched.is_err_and(|problem| laws.iter().any(|law| problem.contains(law)));
        assert!(is_found, "{flaw:?} is not found");
    }
}

/// Each mixture of protocols is a search of its own, so that they run at the same time.
pub(crate) const SEARCHES: &Searches = &[
    ("classic", || holds([Classic; 2], WITHIN_THE_GUARD)),
    ("classic_and_watched", || holds([Classic, Watched], WITHIN_THE_GUARD)),
    ("ttl_and_classic", || holds([Ttl, Classic], WITHIN_THE_GUARD)),
    // These need no quick commands, and Ttl no clocks that agree: here they are two hours apart.
    ("watched", || holds([Watched; 2], [3000, 0])),
    ("ttl", || holds([Ttl; 2], [3000, 0])),
    ("ttl_with_clocks_hours_apart", || holds([Ttl; 2], [3000, 7_200_000])),
    (
        "there_are_two_holders_when_commands_take_longer_than_the_guard",
        there_are_two_holders_when_commands_take_longer_than_the_guard,
    ),
    ("planted_mistakes_are_found", planted_mistakes_are_found),
];
