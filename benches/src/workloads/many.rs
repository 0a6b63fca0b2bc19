//! W2 with many threads: what they cost each other, beside a library that runs as many tasks. And the most threads, and
//! threads that share one connection, without a single error.

use std::time::Duration;

use crate::Failure;
use crate::candidates::{Candidate, OURS, RSLOCK};
use crate::format::{cell, rounds};
use crate::locks::ONE_CONNECTION;
use crate::moment::as_f64;
use crate::peer::Peer;
use crate::plot::Panel;
use crate::report::{Section, Table};
use crate::rounds::{Contender, Run};
use crate::server_under_test::ServerUnderTest;
use crate::stats::{Results, Spread};

/// The threads of the candidates that are compared; the first is what a candidate's others are compared with.
const MANY: [u32; 6] = [FEWEST, 256, 500, 1_000, 2_000, 4_000];
const FEWEST: u32 = 64;
/// What must work without an error.
const MOST: [(&str, u32); 2] = [(OURS, 10_000), (ONE_CONNECTION, 2_000)];

struct Sample {
    /// Pairs a second.
    rate: f64,
    /// The 99th percentiles, in milliseconds.
    release: f64,
    acquisition: f64,
    /// Processor time a pair, of the process, in microseconds.
    processor: f64,
    /// The most memory that the process has had so far, in MiB.
    memory: Option<f64>,
}

type Figure = fn(&Sample) -> Option<f64>;

const RATE: Figure = |sample| Some(sample.rate);
const RELEASE: Figure = |sample| Some(sample.release);
const ACQUISITION: Figure = |sample| Some(sample.acquisition);
const PROCESSOR: Figure = |sample| Some(sample.processor);
const MEMORY: Figure = |sample| sample.memory;

/// The samples of candidates with a number of threads each, and which of them failed.
struct Outcome {
    results: Results<Sample>,
    /// Name and reason.
    failures: Vec<(&'static str, String)>,
}

/// Runs both parts.
pub(crate) fn run(run: &Run, candidates: &[&Candidate]) -> Result<Section, Failure> {
    let compared: Vec<_> = candidates.iter().copied().filter(|one| one.name != ONE_CONNECTION).collect();
    let many = measure_many(run, &compared)?;
    let most = measure_most(run, candidates)?;
    let failures: Vec<_> = many.failures.iter().chain(&most.failures).collect();
    let mut notes = vec![
        format!(
            "{} of {:?} for each, all in the same rounds; {} of {:?} with the most threads, each in a new process. Every figure is of the time in which all threads run: it begins when each has had its lock once. rslock runs tasks and not threads.",
            rounds(run.plan.many_rounds), run.plan.many_time, rounds(run.plan.most_rounds), run.plan.most_time,
        ),
        "Each failed call counts, and so does each key that is left in the server. A candidate with one is marked as failed.".to_owned(),
    ];
    notes.extend(failures.iter().map(|(name, reason)| format!("**{name}: failed: {reason}**")));
    let ours = failures.iter().filter(|(name, _)| name.starts_with(OURS));
    Ok(Section {
        title: "W2, many threads: each on a key of its own".to_owned(),
        notes,
        tables: vec![table_of_many(&compared, &many), table_of_most(candidates, &most)],
        panels: panels(&compared, &many),
        failures: ours.map(|(name, reason)| format!("{name}: {reason}")).collect(),
    })
}

/// The name of a candidate with so many threads among the results.
fn named(candidate: &str, threads: u32) -> String {
    format!("{candidate}, {threads} threads")
}

/// The same, kept for the rest of the run, which measures few of them.
fn kept(candidate: &str, threads: u32) -> &'static str {
    named(candidate, threads).leak()
}

fn measure_many(run: &Run, candidates: &[&Candidate]) -> Result<Outcome, Failure> {
    let (what, mut server) = ("W2, many threads", ServerUnderTest::start()?);
    let url = server.url();
    // Those with as many threads follow each other, since they are compared.
    let all = MANY.iter().flat_map(|threads| candidates.iter().map(move |one| (*one, *threads)));
    let mut failures = Vec::new();
    let contenders = all.map(|(candidate, threads)| {
        let name = kept(candidate.name, threads);
        let state = Peer::open(candidate, &url, 1).map(|peer| (peer, candidate.name, threads));
        Contender::ready(what, name, state.inspect_err(|failure| failures.push((name, failure.to_string()))))
    });
    let contenders = contenders.collect();
    // The first round warms up.
    let mut results =
        run.rounds(what, run.plan.many_rounds + 1, contenders, |name, (peer, candidate, threads), _| {
            let sample = measure(&mut server, peer, candidate, *threads, run.plan.many_time);
            sample.inspect_err(|failure| failures.push((name, failure.to_string())))
        })?;
    for (_, samples) in &mut results.candidates {
        samples.remove(0);
    }
    Ok(Outcome { results, failures })
}

fn measure_most(run: &Run, candidates: &[&Candidate]) -> Result<Outcome, Failure> {
    let (what, mut server) = ("W2, most threads", ServerUnderTest::start()?);
    let url = server.url();
    let contenders = most_of(candidates).map(|(candidate, threads)| Contender {
        name: kept(candidate.name, threads),
        state: Some((candidate, threads)),
    });
    let contenders = contenders.collect();
    let mut failures = Vec::new();
    let results = run.rounds(what, run.plan.most_rounds, contenders, |name, (candidate, threads), _| {
        let sample = Peer::open(candidate, &url, 1).and_then(|mut peer| {
            measure(&mut server, &mut peer, candidate.name, *threads, run.plan.most_time)
        });
        sample.inspect_err(|failure| failures.push((name, failure.to_string())))
    })?;
    Ok(Outcome { results, failures })
}

fn most_of<'a>(candidates: &[&'a Candidate]) -> impl Iterator<Item = (&'a Candidate, u32)> {
    MOST.iter().filter_map(|(name, threads)| {
        candidates.iter().find(|one| one.name == *name).map(|candidate| (*candidate, *threads))
    })
}

fn measure(
    server: &mut ServerUnderTest,
    peer: &mut Peer,
    candidate: &str,
    threads: u32,
    time: Duration,
) -> Result<Sample, Failure> {
    let keys = format!("bench:{candidate}:{threads}");
    let [pairs, nanos, release, acquisition, processor] = peer.steady(&keys, threads, time)?;
    let left = server.keys(&format!("{keys}:"))?;
    if left > 0 {
        return Err(format!("{left} keys are left in the server: releases failed").into());
    }
    Ok(Sample {
        rate: as_f64(pairs) * 1e9 / as_f64(nanos),
        release: as_f64(release) / 1e6,
        acquisition: as_f64(acquisition) / 1e6,
        processor: as_f64(processor) / 1e3 / as_f64(pairs),
        memory: peer.peak_memory().map(|bytes| as_f64(bytes) / f64::from(1 << 20)),
    })
}

impl Outcome {
    fn failed(&self, name: &str) -> bool {
        self.failures.iter().any(|(of, _)| *of == name)
    }

    /// A figure over all rounds; none of what failed, since the rounds before would hide that.
    fn spread(&self, name: &str, figure: Figure) -> Option<Spread> {
        self.results.spread(name, figure).filter(|_| !self.failed(name))
    }

    fn cell(&self, name: &str, figure: Figure) -> String {
        if self.failed(name) { "failed".to_owned() } else { cell(self.spread(name, figure)) }
    }

    /// A ratio, if neither failed.
    fn ratio(&self, name: &str, other: &str, figure: Figure) -> String {
        let ratio = self.results.ratio(name, other, figure);
        cell(ratio.filter(|_| !self.failed(name) && !self.failed(other)))
    }
}

fn table_of_many(candidates: &[&Candidate], many: &Outcome) -> Table {
    let fewest = format!("of its own with {FEWEST}");
    let columns = [
        "candidate",
        "threads",
        "pairs/s",
        &fewest,
        "of rslock with as many",
        "99 of 100 releases within, ms",
        "99 of 100 acquisitions within, ms",
        "processor time a pair, µs",
        "of rslock's",
    ];
    let mut table = Table::new("64 to 4,000 threads", &columns);
    for candidate in candidates {
        for threads in MANY {
            let name = named(candidate.name, threads);
            table.row([
                candidate.name.to_owned(),
                threads.to_string(),
                many.cell(&name, RATE),
                many.ratio(&name, &named(candidate.name, FEWEST), RATE),
                many.ratio(&name, &named(RSLOCK, threads), RATE),
                many.cell(&name, RELEASE),
                many.cell(&name, ACQUISITION),
                many.cell(&name, PROCESSOR),
                many.ratio(&name, &named(RSLOCK, threads), PROCESSOR),
            ]);
        }
    }
    table
}

fn table_of_most(candidates: &[&Candidate], most: &Outcome) -> Table {
    let columns = [
        "candidate",
        "threads",
        "pairs/s",
        "errors",
        "99 of 100 releases within, ms",
        "99 of 100 acquisitions within, ms",
        "peak memory of the process, MiB",
    ];
    let mut table = Table::new("The most threads, and one connection for many", &columns);
    for (candidate, threads) in most_of(candidates) {
        let name = named(candidate.name, threads);
        table.row([
            candidate.name.to_owned(),
            threads.to_string(),
            most.cell(&name, RATE),
            if most.failed(&name) { "failed".to_owned() } else { "0".to_owned() },
            most.cell(&name, RELEASE),
            most.cell(&name, ACQUISITION),
            most.cell(&name, MEMORY),
        ]);
    }
    table
}

fn panels(candidates: &[&Candidate], many: &Outcome) -> Vec<Panel> {
    let panel = |title: &str, axis: &str, figure: Figure| {
        let row = |name| MANY.iter().map(|threads| many.spread(&named(name, *threads), figure)).collect();
        Panel {
            title: title.to_owned(),
            axis: axis.to_owned(),
            logarithmic: true,
            legend: "threads",
            series: MANY.map(|threads| threads.to_string()).to_vec(),
            rows: candidates.iter().map(|one| (one.name, row(one.name))).collect(),
        }
    };
    vec![
        panel("Many threads, each on a key of its own", "pairs a second, all threads together", RATE),
        panel("The same: 99 of 100 releases", "at most, ms", RELEASE),
        panel("The same: 99 of 100 acquisitions", "at most, ms", ACQUISITION),
        panel("The same: processor time a pair", "microseconds", PROCESSOR),
    ]
}
