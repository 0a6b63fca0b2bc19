//! W1 and W2: acquire and release without contention, by one thread, and by several with a key for each.

use std::time::Duration;

use crate::Failure;
use crate::candidates::{Candidate, RAW};
use crate::format::{cell, plain, rounds};
use crate::moment::as_f64;
use crate::options::Plan;
use crate::peer::Peer;
use crate::plot::{ALONE, Panel};
use crate::report::{Section, Table};
use crate::rounds::{Contender, Run};
use crate::server_under_test::ServerUnderTest;
use crate::stats::Results;

/// The threads of W2.
const TOGETHER: [u32; 5] = [1, 2, 8, 64, 256];

struct Sample {
    /// Pairs a second.
    rate: f64,
    /// Commands a pair.
    commands: f64,
    /// The 99th percentile of a release, in milliseconds.
    release: f64,
}

/// W1.
pub(crate) fn alone(run: &Run, candidates: &[&Candidate]) -> Result<Section, Failure> {
    let results = measure(run, candidates, "W1", 1)?;
    Ok(Section {
        title: "W1: acquire and release, uncontended, one thread".to_owned(),
        notes: vec![
            format!(
                "{} of {:?} for each. Figures are the median over all rounds (smallest – largest); a ratio is the median of the ratios of each round.",
                rounds(run.plan.pair_rounds), run.plan.pair_time
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
        failures: Vec::new(),
    })
}

/// W2.
pub(crate) fn together(run: &Run, candidates: &[&Candidate]) -> Result<Section, Failure> {
    let each = TOGETHER
        .map(|threads| measure(run, candidates, &format!("W2, {threads} threads"), threads))
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    let rows = |figure: fn(&Sample) -> f64| {
        let names = candidates.iter().map(|candidate| candidate.name);
        let row = |name| each.iter().map(|results| results.spread(name, |s| Some(figure(s)))).collect();
        names.map(|name| (name, row(name))).collect()
    };
    let panel = |title: &str, axis: &str, figure| Panel {
        title: title.to_owned(),
        axis: axis.to_owned(),
        logarithmic: true,
        legend: "threads",
        series: TOGETHER.map(|threads| threads.to_string()).to_vec(),
        rows: rows(figure),
    };
    Ok(Section {
        title: "W2: the same with several threads, each on a key of its own".to_owned(),
        notes: vec![format!(
            "{} of {:?} for each; of {:?} with 256 threads, which take some milliseconds to start.",
            rounds(run.plan.pair_rounds),
            run.plan.pair_time,
            time_with(&run.plan, 256)
        )],
        tables: TOGETHER
            .iter()
            .zip(&each)
            .map(|(threads, results)| table(results, &format!("{threads} threads")))
            .collect(),
        panels: vec![
            panel(
                "Acquire and release, each thread on a key of its own",
                "pairs a second, all threads together",
                |s| s.rate,
            ),
            panel("The same: 99 of 100 releases", "at most, ms", |s| s.release),
        ],
        failures: Vec::new(),
    })
}

fn measure(
    run: &Run,
    candidates: &[&Candidate],
    what: &str,
    threads: u32,
) -> Result<Results<Sample>, Failure> {
    let mut server = ServerUnderTest::start()?;
    let time = time_with(&run.plan, threads);
    let contenders = candidates.iter().map(|one| {
        let peer = Peer::open(one, &server.url(), threads);
        Contender::ready(what, one.name, peer)
    });
    let contenders = contenders.collect();
    // The first round warms up.
    let mut results = run.rounds(what, run.plan.pair_rounds + 1, contenders, |name, peer, _| {
        // Opens its own connections, and starts the tasks that serve them.
        peer.warm()?;
        let before = server.commands()?;
        let [pairs, nanos, release] = peer.pairs(&format!("bench:{name}"), time)?;
        let commands = server.commands()? - before;
        Ok(Sample {
            rate: as_f64(pairs) * 1e9 / as_f64(nanos),
            commands: as_f64(commands) / as_f64(pairs),
            release: as_f64(release) / 1e6,
        })
    })?;
    for (_, samples) in &mut results.candidates {
        samples.remove(0);
    }
    Ok(results)
}

/// How long a candidate with so many threads is measured in a round, including their start and end.
fn time_with(plan: &Plan, threads: u32) -> Duration {
    plan.pair_time * (threads / 64).max(1)
}

fn table(results: &Results<Sample>, title: &str) -> Table {
    let columns =
        ["candidate", "pairs/s", "of raw", "commands a pair", "99 of 100 releases within, ms", "of raw"];
    let mut table = Table::new(title, &columns);
    for name in results.names() {
        table.row([
            name.to_owned(),
            cell(results.spread(name, |s| Some(s.rate))),
            cell(results.ratio(name, RAW, |s| Some(s.rate))),
            plain(results.spread(name, |s| Some(s.commands))),
            cell(results.spread(name, |s| Some(s.release))),
            cell(results.ratio(name, RAW, |s| Some(s.release))),
        ]);
    }
    table
}
