//! W1 and W2: acquire and release while nobody else wants the lock, by one thread, and by several with a key for each.

use crate::Failure;
use crate::arena::Arena;
use crate::candidates::{Candidate, RAW};
use crate::moment::as_f64;
use crate::peer::Peer;
use crate::plot::{ALONE, Panel};
use crate::report::{Section, Table, cell, plain, rounds};
use crate::rounds::{Contender, Stage};
use crate::stats::Results;

/// The threads of W2.
const TOGETHER: [u32; 4] = [2, 8, 64, 256];

struct Sample {
    /// Pairs a second.
    rate: f64,
    /// Commands a pair.
    commands: f64,
}

/// W1.
pub(crate) fn alone(stage: &Stage, candidates: &[&Candidate]) -> Result<Section, Failure> {
    let results = measure(stage, candidates, "W1", 1)?;
    Ok(Section {
        title: "W1: acquire and release, uncontended, one thread".to_owned(),
        notes: vec![
            format!(
                "{} of {:?} for each. Figures are the median over all rounds (smallest – largest); a ratio is the median of the ratios of each round.",
                rounds(stage.plan.pair_rounds), stage.plan.pair_turn
            ),
            "Commands are counted by the server, which counts a script and also each command within it. The pair of `echo` is two round trips.".to_owned(),
        ],
        tables: vec![table(&results, "")],
        panels: vec![Panel {
            title: "Acquire and release, uncontended, one thread".to_owned(),
            axis: "pairs a second".to_owned(),
            logarithmic: true,
            legend: ALONE,
            series: Vec::new(),
            rows: results
                .names()
                .map(|name| (name, vec![results.spread(name, |s| Some(s.rate))]))
                .collect(),
        }],
    })
}

/// W2.
pub(crate) fn together(stage: &Stage, candidates: &[&Candidate]) -> Result<Section, Failure> {
    let each = TOGETHER
        .map(|threads| measure(stage, candidates, &format!("W2, {threads} threads"), threads))
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    let names: Vec<_> = candidates.iter().map(|candidate| candidate.name).collect();
    let rows = names
        .iter()
        .map(|name| (*name, each.iter().map(|results| results.spread(name, |s| Some(s.rate))).collect()));
    Ok(Section {
        title: "W2: the same with several threads, each on a key of its own".to_owned(),
        notes: vec![format!("{} of {:?} for each.", rounds(stage.plan.pair_rounds), stage.plan.pair_turn)],
        tables: TOGETHER
            .iter()
            .zip(&each)
            .map(|(threads, results)| table(results, &format!("{threads} threads")))
            .collect(),
        panels: vec![Panel {
            title: "Acquire and release, each thread on a key of its own".to_owned(),
            axis: "pairs a second, all threads together".to_owned(),
            logarithmic: true,
            legend: "threads",
            series: TOGETHER.map(|threads| threads.to_string()).to_vec(),
            rows: rows.collect(),
        }],
    })
}

fn measure(
    stage: &Stage,
    candidates: &[&Candidate],
    what: &str,
    threads: u32,
) -> Result<Results<Sample>, Failure> {
    let mut arena = Arena::start()?;
    let time = stage.plan.pair_turn;
    let contenders = candidates.iter().map(|one| {
        let peer = Peer::open(one, &arena.url(), threads);
        Contender::ready(what, one.name, peer)
    });
    let contenders = contenders.collect();
    // The first round warms up.
    let mut results = stage.rounds(what, stage.plan.pair_rounds + 1, contenders, |name, peer, _| {
        // Its own connections, and the tasks that serve them.
        peer.warm()?;
        let before = arena.commands()?;
        let (pairs, nanos) = peer.pairs(&format!("bench:{name}"), time)?;
        let commands = arena.commands()? - before;
        Ok(Sample { rate: as_f64(pairs) * 1e9 / as_f64(nanos), commands: as_f64(commands) / as_f64(pairs) })
    })?;
    for (_, samples) in &mut results.candidates {
        samples.remove(0);
    }
    Ok(results)
}

fn table(results: &Results<Sample>, title: &str) -> Table {
    let mut table = Table::new(title, &["candidate", "pairs/s", "of raw", "commands a pair"]);
    for name in results.names() {
        table.row([
            name.to_owned(),
            cell(results.spread(name, |s| Some(s.rate))),
            cell(results.ratio(name, RAW, |s| Some(s.rate))),
            plain(results.spread(name, |s| Some(s.commands))),
        ]);
    }
    table
}
