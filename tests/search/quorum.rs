//! The random search for a quorum: clients that want one lock on three or five servers, with
//! random interleavings, lost requests and replies, clients that crash and servers that restart
//! empty. It looks for two clients that hold the lock at the same time, each within its
//! validity; for a hold that goes on after it had ended; and for keys that are not given back.

mod run;

use std::cell::Cell;

use proptest::prelude::*;

use crate::Searches;
use run::Run;

/// All times are in milliseconds.
const EXPIRATION: u64 = 3000;
const CLIENTS: usize = 3;

/// Under which conditions clients and servers run, and which mistake they make.
#[derive(Clone, Copy, Debug)]
struct Conditions {
    servers: usize,
    /// How far the clock of each client is behind that of the one before.
    clock_difference: u64,
    /// How much earlier a hold ends, since clocks differ.
    allowance: u64,
    /// For how long a server grants nothing after its restart.
    settles: u64,
    /// True if what is given back is deleted without looking whose it is, while its lease lasts: Classic.
    classic: bool,
    flaw: Option<Flaw>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    /// Half of the servers count as a majority.
    Half,
    /// A lease begins with the reply.
    LeaseFromReply,
    /// The time that is left is not looked at: the number of grants is enough.
    CountsOnly,
    /// A grant that comes after the end of the call is kept.
    KeepsLateGrants,
    /// A lost reply counts as a refusal, and is forgotten.
    ForgetsLostReplies,
    /// A late grant counts for a hold that has ended.
    RevivesHolds,
    /// A key is deleted until its lease without the allowance has ended.
    DeletesLate,
}

/// Searches this many runs. Returns how often the lock was held, and
/// how often a call gave all back, or the fewest steps to a broken law.
fn search(conditions: Conditions, runs: u32) -> Result<[u64; 2], String> {
    let totals = Cell::new([0; 2]);
    let perform = |steps: &[_]| {
        let mut run = Run::new(conditions);
        let broken = run.perform(steps);
        (run, broken)
    };
    // One step in forty is a restart.
    let what = (0..920_u16).prop_map(|drawn| drawn / 39);
    let run = |steps: &[_]| {
        let (run, broken) = perform(steps);
        let [held, given_back] = totals.get();
        totals.set([held + run.held, given_back + run.given_back]);
        broken.map_or(Ok(()), Err)
    };
    let describe = |steps: &[_]| format!("{:#?}", perform(steps).0);
    crate::search((what, 0..64_usize, crate::pause(8, 300)), 700, runs, run, describe)?;
    Ok(totals.get())
}

const THREE: Conditions = Conditions {
    servers: 3,
    clock_difference: 499,
    allowance: 0,
    settles: EXPIRATION,
    classic: false,
    flaw: None,
};
const FIVE: Conditions = Conditions { servers: 5, ..THREE };

fn holds(conditions: Conditions) {
    const RUNS: u32 = 1000;
    let [held, given_back] =
        search(conditions, crate::runs(RUNS)).unwrap_or_else(|problem| panic!("{conditions:?}: {problem}"));
    let least = u64::from(RUNS) / 10;
    assert!(held > least && given_back > least, "too little happened: {held} and {given_back}");
}

fn breaks(conditions: Conditions, law: &str) {
    let problem = search(conditions, 40_000).expect_err(&format!("{conditions:?}: a broken law is found"));
    assert!(problem.contains(law), "{conditions:?}: {problem}");
}

fn three_servers() {
    holds(THREE);
}

fn five_servers() {
    holds(FIVE);
}

fn deleting_without_a_look() {
    holds(Conditions { classic: true, ..THREE });
}

const FAR: Conditions = Conditions { clock_difference: 999, allowance: 1000, ..THREE };

fn an_allowance_makes_up_for_clocks_that_differ_by_more() {
    holds(FAR);
    holds(Conditions { classic: true, ..FAR });
}

fn clocks_that_differ_by_more_than_the_guard_break_it() {
    breaks(Conditions { clock_difference: 1500, ..THREE }, "two clients");
}

fn a_server_that_grants_at_once_after_its_restart_breaks_it() {
    breaks(Conditions { settles: 0, ..THREE }, "two clients");
}

fn each_planted_mistake_is_found() {
    for (flaw, law) in [
        (Flaw::Half, "two clients"),
        (Flaw::LeaseFromReply, "two clients"),
        (Flaw::CountsOnly, "two clients"),
        (Flaw::RevivesHolds, "had ended"),
        (Flaw::KeepsLateGrants, "not given back"),
        (Flaw::ForgetsLostReplies, "not given back"),
    ] {
        breaks(Conditions { flaw: Some(flaw), ..THREE }, law);
        if flaw != Flaw::Half {
            breaks(Conditions { flaw: Some(flaw), ..FIVE }, law);
        }
    }
    breaks(Conditions { flaw: Some(Flaw::DeletesLate), classic: true, ..FAR }, "is deleted");
}

pub(crate) const SEARCHES: &Searches = &[
    ("three_servers", three_servers),
    ("five_servers", five_servers),
    ("deleting_without_a_look", deleting_without_a_look),
    (
        "an_allowance_makes_up_for_clocks_that_differ_by_more",
        an_allowance_makes_up_for_clocks_that_differ_by_more,
    ),
    (
        "clocks_that_differ_by_more_than_the_guard_break_it",
        clocks_that_differ_by_more_than_the_guard_break_it,
    ),
    (
        "a_server_that_grants_at_once_after_its_restart_breaks_it",
        a_server_that_grants_at_once_after_its_restart_breaks_it,
    ),
    ("each_planted_mistake_is_found", each_planted_mistake_is_found),
];
