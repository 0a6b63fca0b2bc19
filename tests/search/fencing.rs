//! The random search for fencing tokens: clients take tokens over failovers that lose increments, while the old master
//! still counts. It looks for a number that two holders get, for one that is not greater than those of earlier holders
//! on the same master, and for one of a new master that is not greater than all of the masters before.

mod run;

use std::cell::Cell;

use proptest::prelude::*;

use crate::Searches;
use run::Run;
use setnx_lock_proto::values::Protocol;

const CLIENTS: usize = 3;

/// Under which conditions clients and servers run, and which mistake they make.
#[derive(Clone, Copy, Debug)]
struct Conditions {
    protocol: Protocol,
    /// True if a server that is made a replica closes its connections,
    /// as by a Sentinel. A cluster's node only refuses what comes.
    closes: bool,
    flaw: Option<Flaw>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    /// A connection knows no epoch.
    NoEpoch,
    /// A connection to the old master has the epoch of the new one.
    WrongPair,
    /// A counter is raised over any connection.
    RaisedElsewhere,
    /// A connection is used after its server was a replica for a while.
    KeepsConnections,
}

/// Searches this many runs. Returns how many tokens were taken, how
/// many counters raised, and how often a failover lost a number.
fn search(conditions: Conditions, runs: u32) -> Result<[u64; 3], String> {
    let totals = Cell::new([0; 3]);
    let perform = |steps: &[_]| {
        let mut run = Run::new(conditions);
        let broken = run.perform(steps);
        (run, broken)
    };
    // One step in twenty is the world's.
    let who = (0..20 * CLIENTS).prop_map(|drawn| drawn / 19);
    let run = |steps: &[_]| {
        let (run, broken) = perform(steps);
        let [tokens, raised, lost] = totals.get();
        totals.set([tokens + run.taken, raised + run.raised, lost + run.lost]);
        broken.map_or(Ok(()), Err)
    };
    let describe = |steps: &[_]| format!("{:#?}", perform(steps).0);
    crate::search((who, 0..32_u8, 0..1000_usize), 400, runs, run, describe)?;
    Ok(totals.get())
}

const SENTINEL: Conditions = Conditions { protocol: Protocol::Classic, closes: true, flaw: None };
const CLUSTER: Conditions = Conditions { closes: false, ..SENTINEL };

fn holds(conditions: Conditions) {
    const RUNS: u32 = 2000;
    for protocol in [Protocol::Classic, Protocol::Watched] {
        let conditions = Conditions { protocol, ..conditions };
        let [tokens, raised, lost] = search(conditions, crate::runs(RUNS))
            .unwrap_or_else(|problem| panic!("{conditions:?}: {problem}"));
        let least = u64::from(RUNS);
        assert!(
            tokens > least && raised > least && lost > least,
            "too little happened: {tokens}, {raised}, {lost}"
        );
    }
}

fn behind_sentinels() {
    holds(SENTINEL);
}

fn in_a_cluster() {
    holds(CLUSTER);
}

fn each_planted_mistake_is_found() {
    for (conditions, flaw) in [
        (SENTINEL, Flaw::NoEpoch),
        (SENTINEL, Flaw::WrongPair),
        (SENTINEL, Flaw::RaisedElsewhere),
        (CLUSTER, Flaw::RaisedElsewhere),
        (CLUSTER, Flaw::KeepsConnections),
    ] {
        let conditions = Conditions { flaw: Some(flaw), ..conditions };
        search(conditions, 40_000).expect_err(&format!("{conditions:?}: a broken law is found"));
    }
}

pub(crate) const SEARCHES: &Searches = &[
    ("behind_sentinels", behind_sentinels),
    ("in_a_cluster", in_a_cluster),
    ("each_planted_mistake_is_found", each_planted_mistake_is_found),
];
