//! W1, W2 and W6: acquire and release without contention, by one thread, and by several with a key for each; beside
//! other load, and with a server that is some way off.

use std::time::Duration;

use crate::Failure;
use crate::busy::BusyLoops;
use crate::candidates::{Candidate, RAW};
use crate::format::{cell, plain, rounds};
use crate::moment::as_f64;
use crate::peer::Peer;
use crate::plot::{ALONE, Panel};
use crate::report::{Section, Table};
use crate::rounds::{Contender, Run};
use crate::server_under_test::ServerUnderTest;
use crate::stats::Results;
use testkit::relay::Relay;

/// The threads of W2.
const TOGETHER: [u32; 6] = [1, 2, 4, 8, 64, 256];
/// Those beside other load.
const BESIDE_BUSY_LOOPS: [u32; 4] = [1, 2, 8, 64];
/// As many as this machine has processors, mostly.
const BUSY_LOOPS: usize = 2;
/// Those with a server that is some way off, and how long the way there and back takes without the server's time.
const OVER_A_RELAY: [u32; 4] = [1, 8, 16, 64];
const ROUND_TRIPS: [Duration; 2] = [Duration::from_micros(500), Duration::from_millis(2)];

const TITLE: &str = "acquire and release, each thread on a key of its own";
const REMARK: &str = "Commands are counted by the server, which counts a script and also each command within it. The pair of `echo` is two round trips. Processor time is that of the process that locks, without the server's.";

struct Sample {
    /// Pairs a second.
    rate: f64,
    /// Commands a pair.
    commands: f64,
    /// The 99th percentile of a release, in milliseconds.
    release: f64,
    /// Processor time a pair, in microseconds.
    processor: f64,
}

/// What all candidates of a table have in common.
struct Setting {
    title: String,
    threads: u32,
    rounds: u32,
    time: Duration,
    /// The candidate that ratios are of.
    base: &'static str,
    round_trip: Option<Duration>,
}

/// W1.
pub(crate) fn alone(run: &Run, candidates: &[&Candidate]) -> Result<Section, Failure> {
    let (threads, rounds, time) = (1, run.plan.pair_rounds, run.plan.pair_time);
    let setting = Setting { title: String::new(), threads, rounds, time, base: RAW, round_trip: None };
    section(run, candidates, "W1", "uncontended, one thread", &[setting])
}

/// W2.
pub(crate) fn together(run: &Run, candidates: &[&Candidate]) -> Result<Section, Failure> {
    let setting = |threads| Setting {
        title: format!("{threads} threads"),
        threads,
        rounds: run.plan.pair_rounds,
        time: time_with(run.plan.pair_time, threads),
        base: RAW,
        round_trip: None,
    };
    section(run, candidates, "W2", "several threads", &TOGETHER.map(setting))
}

/// A part of W2: beside two busy loops.
pub(crate) fn beside_busy_loops(run: &Run, candidates: &[&Candidate]) -> Result<Section, Failure> {
    let setting = |threads| Setting {
        title: format!("{threads} threads"),
        threads,
        rounds: run.plan.slow_pair_rounds,
        time: run.plan.slow_pair_time,
        base: RAW,
        round_trip: None,
    };
    let _busy = BusyLoops::start(BUSY_LOOPS)?;
    section(run, candidates, "W2-busy", "beside two busy loops", &BESIDE_BUSY_LOOPS.map(setting))
}

/// W6.
pub(crate) fn over_a_relay(run: &Run, candidates: &[&Candidate]) -> Result<Section, Failure> {
    let settings = ROUND_TRIPS.into_iter().flat_map(|round_trip| {
        OVER_A_RELAY.map(|threads| Setting {
            title: format!("{round_trip:?}, {threads} threads"),
            threads,
            rounds: run.plan.slow_pair_rounds,
            time: run.plan.slow_pair_time,
            base: RAW,
            round_trip: Some(round_trip),
        })
    });
    section(run, candidates, "W6", "a server that is a round trip away", &settings.collect::<Vec<_>>())
}

fn section(
    run: &Run,
    candidates: &[&Candidate],
    name: &str,
    what: &str,
    settings: &[Setting],
) -> Result<Section, Failure> {
    let each = settings.iter().map(|setting| measure(run, candidates, name, setting));
    let each = each.collect::<Result<Vec<_>, _>>()?;
    let rows = |figure: fn(&Sample) -> f64| {
        let names = candidates.iter().map(|candidate| candidate.name);
        let row = |name| each.iter().map(|results| results.spread(name, |s| Some(figure(s)))).collect();
        names.map(|name| (name, row(name))).collect()
    };
    let several = settings.len() > 1;
    let panel = |title: &str, axis: &str, figure| Panel {
        title: format!("{title}, {what}"),
        axis: axis.to_owned(),
        logarithmic: true,
        legend: if several { "threads" } else { ALONE },
        series: if several { settings.iter().map(|one| one.title.clone()).collect() } else { Vec::new() },
        rows: rows(figure),
    };
    let mut notes = Vec::new();
    if let Some(first) = settings.first() {
        notes.push(format!(
            "{} of {:?} for each; longer with 256 threads, which take some milliseconds to start. Figures are the median over all rounds (smallest – largest); a ratio is the median of the ratios of each round.",
            rounds(first.rounds), first.time
        ));
    }
    notes.push(REMARK.to_owned());
    Ok(Section {
        title: format!("{name}: {TITLE}; {what}"),
        notes,
        panels: vec![
            panel("Pairs a second", "pairs a second, all threads together", |s| s.rate),
            panel("99 of 100 releases", "at most, ms", |s| s.release),
        ],
        tables: settings.iter().zip(&each).map(|(setting, results)| table(results, setting)).collect(),
        failures: Vec::new(),
    })
}

fn measure(
    run: &Run,
    candidates: &[&Candidate],
    name: &str,
    setting: &Setting,
) -> Result<Results<Sample>, Failure> {
    let what = format!("{name} {}", setting.title);
    let mut server = ServerUnderTest::start()?;
    let relay = setting.round_trip.map(|time| Relay::start(server.address(), time / 2)).transpose()?;
    let url = relay.as_ref().map_or(server.url(), Relay::url);
    let contenders = candidates.iter().map(|one| {
        let peer = Peer::open(one, &url, setting.threads);
        Contender::ready(&what, one.name, peer)
    });
    let contenders = contenders.collect();
    // The first round warms up.
    let mut results = run.rounds(&what, setting.rounds + 1, contenders, |name, peer, _| {
        // Opens its own connections, and starts the tasks that serve them.
        peer.warm()?;
        let before = (server.commands()?, peer.processor_time()?);
        let [pairs, nanos, release] = peer.pairs(&format!("bench:{name}"), setting.time)?;
        let after = (server.commands()?, peer.processor_time()?);
        Ok(Sample {
            rate: as_f64(pairs) * 1e9 / as_f64(nanos),
            commands: as_f64(after.0 - before.0) / as_f64(pairs),
            release: as_f64(release) / 1e6,
            processor: as_f64(after.1 - before.1) / 1e3 / as_f64(pairs),
        })
    })?;
    for (_, samples) in &mut results.candidates {
        samples.remove(0);
    }
    Ok(results)
}

/// How long a candidate with so many threads is measured in a round, including their start and end.
fn time_with(time: Duration, threads: u32) -> Duration {
    time * (threads / 64).max(1)
}

fn table(results: &Results<Sample>, setting: &Setting) -> Table {
    let of = format!("of {}", setting.base);
    let columns = [
        "candidate",
        "pairs/s",
        &of,
        "commands a pair",
        "processor time a pair, µs",
        "99 of 100 releases within, ms",
        &of,
    ];
    let mut table = Table::new(&setting.title, &columns);
    for name in results.names() {
        table.row([
            name.to_owned(),
            cell(results.spread(name, |s| Some(s.rate))),
            cell(results.ratio(name, setting.base, |s| Some(s.rate))),
            plain(results.spread(name, |s| Some(s.commands))),
            cell(results.spread(name, |s| Some(s.processor))),
            cell(results.spread(name, |s| Some(s.release))),
            cell(results.ratio(name, setting.base, |s| Some(s.release))),
        ]);
    }
    table
}
