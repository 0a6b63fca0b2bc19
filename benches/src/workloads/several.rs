//! W11: several keys that are acquired together: their cost while all are free, and the shares of threads that contend for them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use setnx_lock::{Lock, LockOptions, Locker, Locks, Protocol};

use super::loops::{HOLD, Summary, Work, run_threads};
use crate::Failure;
use crate::candidates::Candidate;
use crate::format::{cell, figure, rounds};
use crate::locks::{TIMEOUT, released};
use crate::moment::as_f64;
use crate::plot::Panel;
use crate::report::{Section, Table};
use crate::rounds::{Contender, Run};
use crate::server_under_test::ServerUnderTest;
use crate::stats::Results;

/// Free keys that are acquired together.
const FREE_KEYS: usize = 8;
/// Each protocol, and the names of what is measured with it: one key, and several.
const FREE: [(&str, Protocol, &str, &str); 3] = [
    ("Classic", Protocol::Classic, "Classic, 1 key", "Classic, 8 keys"),
    ("Watched", Protocol::Watched, "Watched, 1 key", "Watched, 8 keys"),
    ("Ttl", Protocol::Ttl, "Ttl, 1 key", "Ttl, 8 keys"),
];

/// With contention: so many threads, each of which locks so many of the keys at a time.
const THREADS: u64 = 16;
const KEYS: usize = 12;
const TOGETHER: usize = 3;
const CONTENDED: [(&str, Protocol); 2] = [("Classic", Protocol::Classic), ("Watched", Protocol::Watched)];

fn options(protocol: Protocol) -> LockOptions {
    LockOptions::expiring_after(Duration::from_secs(30)).timeout(TIMEOUT).protocol(protocol)
}

pub(crate) fn run(run: &Run, candidates: &[&Candidate]) -> Result<Section, Failure> {
    // There is one candidate, by several protocols.
    let (free, contended) =
        if candidates.is_empty() { (&[][..], &[][..]) } else { (&FREE[..], &CONTENDED[..]) };
    let results = measure_free(run, free)?;
    let mut failures = Vec::new();
    let contention = contention_table(run.plan.several_time, contended, &mut failures)?;
    Ok(Section {
        title: "W11: several keys that are acquired together".to_owned(),
        notes: vec![
            format!(
                "Free keys: one thread, {} of {:?} for each. The ratio is the median of the ratios of each round.",
                rounds(run.plan.pair_rounds),
                run.plan.pair_time
            ),
            format!(
                "Contention: one run of {:?} for each protocol. {THREADS} threads of one process each lock {TOGETHER} random keys of {KEYS} again and again, and hold them for {HOLD:?}. A share of 1 is an equal one. An overlap is an entry while another thread holds one of the keys.",
                run.plan.several_time
            ),
        ],
        tables: vec![free_table(free, &results), contention],
        panels: vec![Panel {
            title: "Pairs a second of one thread, all keys together".to_owned(),
            axis: "pairs a second".to_owned(),
            logarithmic: false,
            legend: "keys",
            series: vec!["1".to_owned(), FREE_KEYS.to_string()],
            rows: free
                .iter()
                .map(|(name, _, one, several)| {
                    (*name, [one, several].map(|of| results.spread(of, |rate| Some(*rate))).to_vec())
                })
                .collect(),
        }],
        failures,
    })
}

type Pair = Box<dyn Fn() -> Result<(), Failure>>;

/// Returns the pairs a second of each protocol with one key and with several.
fn measure_free(
    run: &Run,
    protocols: &[(&str, Protocol, &'static str, &'static str)],
) -> Result<Results<f64>, Failure> {
    let server = ServerUnderTest::start()?;
    let locker = Locker::open(&server.url())?;
    let mut contenders: Vec<Contender<Pair>> = Vec::new();
    for (name, protocol, one, several) in protocols {
        let options = options(*protocol);
        let lock = Lock::new(&locker, format!("bench:one:{name}"), options)?;
        let keys = (0..FREE_KEYS).map(|n| format!("bench:several:{name}:{n}"));
        let locks = Locks::new(&locker, keys, options)?;
        contenders
            .push(Contender { name: one, state: Some(Box::new(move || released(lock.lock()?.release()?))) });
        contenders.push(Contender {
            name: several,
            state: Some(Box::new(move || {
                let outcomes = locks.lock()?.release();
                outcomes.into_iter().try_for_each(|(_, outcome)| released(outcome?))
            })),
        });
    }
    // The first round warms up.
    let mut results =
        run.rounds("W11", run.plan.pair_rounds + 1, contenders, |_, pair, _| rate(pair, run.plan.pair_time))?;
    for (_, rates) in &mut results.candidates {
        rates.remove(0);
    }
    Ok(results)
}

/// Pairs a second.
fn rate(pair: &Pair, time: Duration) -> Result<f64, Failure> {
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < time {
        pair()?;
        count += 1;
    }
    Ok(as_f64(count) / began.elapsed().as_secs_f64())
}

fn free_table(protocols: &[(&str, Protocol, &str, &str)], results: &Results<f64>) -> Table {
    let several = format!("{FREE_KEYS} keys, pairs/s");
    let mut table = Table::new("Free keys", &["protocol", "1 key, pairs/s", &several, "as a ratio to 1 key"]);
    for (name, _, one, several) in protocols {
        table.row([
            (*name).to_owned(),
            cell(results.spread(one, |rate| Some(*rate))),
            cell(results.spread(several, |rate| Some(*rate))),
            cell(results.ratio(several, one, |rate| Some(*rate))),
        ]);
    }
    table
}

fn contention_table(
    time: Duration,
    protocols: &[(&str, Protocol)],
    failures: &mut Vec<String>,
) -> Result<Table, Failure> {
    let mut table = Table::new(
        "Contention",
        &["protocol", "acquisitions/s", "smallest share of a thread", "longest wait, ms", "overlaps"],
    );
    for (name, protocol) in protocols {
        println!("W11: contention, {name}, {time:?}");
        let server = ServerUnderTest::start()?;
        let (summary, overlaps) = match contend(*protocol, time, &server) {
            Ok(measured) => measured,
            Err(failure) => {
                failures.push(format!("W11, {name}: {failure}"));
                continue;
            }
        };
        if overlaps > 0 {
            failures.push(format!("W11, {name}: {overlaps} overlaps"));
        }
        table.row([
            (*name).to_owned(),
            figure(summary.rate),
            figure(summary.smallest_share),
            figure(summary.longest),
            overlaps.to_string(),
        ]);
    }
    Ok(table)
}

/// Returns the acquisitions of the threads, and the number of overlaps.
fn contend(protocol: Protocol, time: Duration, server: &ServerUnderTest) -> Result<(Summary, u64), Failure> {
    let locker = Locker::open(&server.url())?;
    // The holders of each key, as the threads count them.
    let holders: [AtomicU64; KEYS] = Default::default();
    let overlaps = AtomicU64::new(0);
    let work = |thread| -> Work<'_> {
        let (locker, holders, overlaps) = (&locker, &holders, &overlaps);
        let mut random = fastrand::Rng::with_seed(thread);
        Box::new(move |inside| {
            let chosen = random.choose_multiple(0..KEYS, TOGETHER);
            let keys = chosen.iter().map(|key| format!("bench:some:{key}"));
            let guard = Locks::new(locker, keys, options(protocol))?.lock()?;
            for key in &chosen {
                if holders[*key].fetch_add(1, Ordering::SeqCst) > 0 {
                    overlaps.fetch_add(1, Ordering::Relaxed);
                }
            }
            inside();
            for key in &chosen {
                holders[*key].fetch_sub(1, Ordering::SeqCst);
            }
            guard.release().into_iter().try_for_each(|(_, outcome)| released(outcome?))
        })
    };
    let logs = run_threads(time, (0..THREADS).map(work).collect())?;
    Ok((Summary::of(&logs, time), overlaps.into_inner()))
}
