//! W11: several keys that are acquired together: their cost while
//! all are free, and the shares of threads that contend for them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use setnx_lock::{Lock, LockOptions, Locker, MultiLock, Protocol};

use super::loops::{HOLD, Summary, Work, run_threads};
use crate::Failure;
use crate::candidates::Candidate;
use crate::format::{cell, figure, rounds};
use crate::locks::TIMEOUT;
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

/// For how long a program does something between two commands: long enough that the server's processor sleeps
/// meanwhile, with one key as with several. Without, it stays awake at times.
const PAUSE: Duration = Duration::from_micros(20);

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
                "Free keys: one thread, {} of {:?} for each, then as many with a pause of {PAUSE:?} before each acquisition and release, whose time does not count. The ratio is the median of the ratios of each round.",
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
                    (
                        *name,
                        [one, several]
                            .map(|of| results.spread(of, |free| Some(free.without_pauses)))
                            .to_vec(),
                    )
                })
                .collect(),
        }],
        failures,
    })
}

/// Acquires, pauses, releases.
type Pair = Box<dyn Fn(Duration) -> Result<(), Failure>>;

/// Pairs a second.
#[derive(Debug)]
struct Free {
    without_pauses: f64,
    with_pauses: f64,
}

/// Returns the pairs a second of each protocol with one key and with several.
fn measure_free(
    run: &Run,
    protocols: &[(&str, Protocol, &'static str, &'static str)],
) -> Result<Results<Free>, Failure> {
    let server = ServerUnderTest::start()?;
    let locker = Locker::open(&server.url())?;
    let mut contenders: Vec<Contender<Pair>> = Vec::new();
    for (name, protocol, one, several) in protocols {
        let options = options(*protocol);
        let lock = Lock::new(&locker, format!("bench:one:{name}"), options)?;
        let keys = (0..FREE_KEYS).map(|n| format!("bench:several:{name}:{n}"));
        let locks = MultiLock::new(&locker, keys, options)?;
        let one_key = move |time| {
            let guard = lock.lock()?;
            pause(time);
            Ok(guard.release()?)
        };
        let several_keys = move |time| {
            let guard = locks.lock()?;
            pause(time);
            Ok(guard.release()?)
        };
        contenders.push(Contender { name: one, state: Some(Box::new(one_key)) });
        contenders.push(Contender { name: several, state: Some(Box::new(several_keys)) });
    }
    // The first round warms up.
    let time = run.plan.pair_time;
    let measure = |_: &str, pair: &mut Pair, _: u32| {
        let without_pauses = rate(pair, time, Duration::ZERO)?;
        Ok(Free { without_pauses, with_pauses: rate(pair, time, PAUSE)? })
    };
    let mut results = run.rounds("W11", run.plan.pair_rounds + 1, contenders, measure)?;
    for (_, rates) in &mut results.candidates {
        rates.remove(0);
    }
    Ok(results)
}

/// Pairs a second, not counting the pauses.
fn rate(pair: &Pair, time: Duration, pauses: Duration) -> Result<f64, Failure> {
    let (began, mut count) = (Instant::now(), 0);
    while began.elapsed() < time {
        pause(pauses);
        pair(pauses)?;
        count += 1;
    }
    let used = began.elapsed().saturating_sub(2 * pauses * count);
    Ok(f64::from(count) / used.as_secs_f64())
}

fn pause(time: Duration) {
    let began = Instant::now();
    while began.elapsed() < time {
        std::hint::spin_loop();
    }
}

fn free_table(protocols: &[(&str, Protocol, &str, &str)], results: &Results<Free>) -> Table {
    let several = format!("{FREE_KEYS} keys, pairs/s");
    let columns =
        ["protocol", "1 key, pairs/s", &several, "as a ratio to 1 key", "as a ratio to 1 key, with pauses"];
    let mut table = Table::new("Free keys", &columns);
    for (name, _, one, several) in protocols {
        table.row([
            (*name).to_owned(),
            cell(results.spread(one, |free| Some(free.without_pauses))),
            cell(results.spread(several, |free| Some(free.without_pauses))),
            cell(results.ratio(several, one, |free| Some(free.without_pauses))),
            cell(results.ratio(several, one, |free| Some(free.with_pauses))),
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
            let guard = MultiLock::new(locker, keys, options(protocol))?.lock()?;
            for key in &chosen {
                if holders[*key].fetch_add(1, Ordering::SeqCst) > 0 {
                    overlaps.fetch_add(1, Ordering::Relaxed);
                }
            }
            inside();
            for key in &chosen {
                holders[*key].fetch_sub(1, Ordering::SeqCst);
            }
            Ok(guard.release()?)
        })
    };
    let logs = run_threads(time, (0..THREADS).map(work).collect())?;
    Ok((Summary::of(&logs, time), overlaps.into_inner()))
}
