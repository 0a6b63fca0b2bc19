//! W12: permits, compared with one lock; and readers beside writers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use setnx_lock::{Key, Lock, LockOptions, Locker, RwLock, Semaphore};

use super::loops::{HOLD, Summary, Work, run_threads};
use crate::Failure;
use crate::candidates::Candidate;
use crate::format::{cell, figure, plain, rounds};
use crate::locks::TIMEOUT;
use crate::moment::as_f64;
use crate::plot::{ALONE, Panel};
use crate::report::{Section, Table};
use crate::rounds::{Contender, Run};
use crate::server_under_test::ServerUnderTest;

const OPTIONS: LockOptions = LockOptions::expiring_after(Duration::from_secs(30)).timeout(TIMEOUT);

/// Threads that contend for the permits, or for the lock.
const THREADS: usize = 64;
const PERMITS: usize = 8;
const LOCK: &str = "1 lock";
const SEMAPHORE: &str = "8 permits";
/// How often the server is asked which keys are held.
const LOOK: Duration = Duration::from_millis(2);

const READERS: usize = 8;
const READERS_AT_A_TIME: usize = 4;
const WRITERS: usize = 2;
/// A writer among those that are counted.
const WRITER: u64 = 1_000;

pub(crate) fn run(run: &Run, candidates: &[&Candidate]) -> Result<Section, Failure> {
    let mut failures = Vec::new();
    // There is one candidate.
    let able = !candidates.is_empty();
    let (permits, panel) = permits(run, able, &mut failures)?;
    let mut tables = vec![permits];
    if able {
        tables.push(readers_and_writers(run.plan.several_time, &mut failures)?);
    }
    Ok(Section {
        title: "W12: permits, readers and writers".to_owned(),
        notes: vec![
            format!(
                "Permits: {} of {:?} for each. {THREADS} threads of one process acquire again and again, and hold for {HOLD:?}. The ratio is the median of the ratios of each round. The holders are those that the threads count; the held keys are those that a connection sees which reads all of them with one MGET every {LOOK:?}; of both the most of all rounds.",
                rounds(run.plan.slow_pair_rounds),
                run.plan.slow_pair_time
            ),
            format!(
                "Readers and writers: one run of {:?}. {READERS} threads read, {READERS_AT_A_TIME} at a time, and {WRITERS} write, again and again for {HOLD:?}. A share of 1 is an equal one among the threads of a kind. An overlap is an entry beside a writer, of a writer beside a reader, or of one reader too many.",
                run.plan.several_time
            ),
        ],
        tables,
        panels: vec![panel],
        failures,
    })
}

/// What threads contend for.
enum Shared {
    Lock(Lock),
    Permits(Semaphore),
}

impl Shared {
    /// Returns its keys, of which each can have one holder.
    fn keys(&self) -> &[Key] {
        match self {
            Shared::Lock(lock) => std::slice::from_ref(lock.key()),
            Shared::Permits(semaphore) => semaphore.keys(),
        }
    }

    fn measure(&self, time: Duration, server: &mut ServerUnderTest) -> Result<Sample, Failure> {
        let (holders, most) = (AtomicU64::new(0), AtomicU64::new(0));
        let work = |_| -> Work<'_> {
            let (holders, most) = (&holders, &most);
            Box::new(move |inside| {
                let mut work = || {
                    most.fetch_max(holders.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    inside();
                    holders.fetch_sub(1, Ordering::SeqCst);
                };
                match self {
                    Shared::Lock(lock) => lock.with(|_| work())?,
                    Shared::Permits(semaphore) => semaphore.with(|_| work())?,
                }
                Ok(())
            })
        };
        let keys: Vec<_> = self.keys().iter().map(Key::as_bytes).collect();
        let over = AtomicBool::new(false);
        let (logs, held) = thread::scope(|scope| -> Result<_, Failure> {
            let watch = scope.spawn(|| -> Result<usize, Failure> {
                let mut most = 0;
                while !over.load(Ordering::Relaxed) {
                    most = most.max(server.existing(&keys)?);
                    thread::sleep(LOOK);
                }
                Ok(most)
            });
            let logs = run_threads(time, (0..THREADS).map(work).collect());
            over.store(true, Ordering::Relaxed);
            let held = watch.join().map_err(|_| "a thread has panicked")??;
            Ok((logs?, held))
        })?;
        Ok(Sample {
            rate: Summary::of(&logs, time).rate,
            keys: as_f64(keys.len() as u64),
            holders: as_f64(most.into_inner()),
            held: as_f64(held as u64),
        })
    }
}

struct Sample {
    /// Acquisitions a second.
    rate: f64,
    /// How many there can be at a time.
    keys: f64,
    /// How many there were at a time, as the threads count them.
    holders: f64,
    /// How many keys were held at a time, as the server shows them.
    held: f64,
}

fn permits(run: &Run, able: bool, failures: &mut Vec<String>) -> Result<(Table, Panel), Failure> {
    let mut server = ServerUnderTest::start()?;
    let locker = Locker::open(&server.url())?;
    let mut contenders = Vec::new();
    if able {
        let lock = Shared::Lock(Lock::new(&locker, "bench:lock", OPTIONS)?);
        let permits = Shared::Permits(Semaphore::new(&locker, "bench:permits", PERMITS, OPTIONS)?);
        contenders.push(Contender { name: LOCK, state: Some(lock) });
        contenders.push(Contender { name: SEMAPHORE, state: Some(permits) });
    }
    let (count, time) = (run.plan.slow_pair_rounds, run.plan.slow_pair_time);
    // The first round warms up.
    let mut results =
        run.rounds("W12", count + 1, contenders, |_, shared, _| shared.measure(time, &mut server))?;
    let mut table = Table::new(
        "Permits",
        &[
            "",
            "acquisitions/s",
            "for each permit, of the lock's",
            "most holders at a time",
            "most held keys at a time",
        ],
    );
    for (name, samples) in &mut results.candidates {
        let done = || samples.iter().flatten();
        if done().count() < samples.len() {
            failures.push(format!("W12, {name}: not all rounds were finished"));
        }
        if let Some(bad) = done().find(|sample| sample.holders > sample.keys) {
            failures.push(format!("W12, {name}: {} holders at a time", bad.holders));
        }
        samples.remove(0);
    }
    for name in results.names() {
        let most = |figure: fn(&Sample) -> f64| {
            results
                .spread(name, |sample| Some(figure(sample)))
                .map_or("–".to_owned(), |s| s.max.to_string())
        };
        table.row([
            name.to_owned(),
            cell(results.spread(name, |sample| Some(sample.rate))),
            plain(results.ratio(name, LOCK, |sample| Some(sample.rate / sample.keys))),
            most(|sample| sample.holders),
            most(|sample| sample.held),
        ]);
    }
    let panel = Panel {
        title: format!("{THREADS} threads that hold for {HOLD:?}"),
        axis: "acquisitions a second".to_owned(),
        logarithmic: false,
        legend: ALONE,
        series: Vec::new(),
        rows: results
            .names()
            .map(|name| (name, vec![results.spread(name, |sample| Some(sample.rate))]))
            .collect(),
    };
    Ok((table, panel))
}

fn readers_and_writers(time: Duration, failures: &mut Vec<String>) -> Result<Table, Failure> {
    let server = ServerUnderTest::start()?;
    let locker = Locker::open(&server.url())?;
    let lock = RwLock::new(&locker, "bench:rw", READERS_AT_A_TIME, OPTIONS)?;
    println!("W12: readers and writers, {time:?}");
    let mut table = Table::new(
        "Readers and writers",
        &["threads", "acquisitions/s", "longest wait, ms", "smallest share of a thread", "overlaps"],
    );
    match share(&lock, time) {
        Ok([(readers, beside_readers), (writers, beside_writers)]) => {
            let overlaps = beside_readers + beside_writers;
            if overlaps > 0 {
                failures.push(format!("W12, readers and writers: {overlaps} overlaps"));
            }
            for (name, summary, overlaps) in [
                (format!("{READERS} that read"), readers, beside_readers),
                (format!("{WRITERS} that write"), writers, beside_writers),
            ] {
                table.row([
                    name,
                    figure(summary.rate),
                    figure(summary.longest),
                    figure(summary.smallest_share),
                    overlaps.to_string(),
                ]);
            }
        }
        Err(failure) => failures.push(format!("W12, readers and writers: {failure}")),
    }
    Ok(table)
}

/// Returns the acquisitions of the readers and those of the writers, each with the overlaps at their entries.
fn share(lock: &RwLock, time: Duration) -> Result<[(Summary, u64); 2], Failure> {
    let holders = AtomicU64::new(0);
    let overlaps: [AtomicU64; 2] = Default::default();
    let [beside_readers, beside_writers] = &overlaps;
    let holders = &holders;
    let read = || -> Work<'_> {
        Box::new(move |inside| {
            let guard = lock.read()?;
            if holders.fetch_add(1, Ordering::SeqCst) >= READERS_AT_A_TIME as u64 {
                beside_readers.fetch_add(1, Ordering::Relaxed);
            }
            inside();
            holders.fetch_sub(1, Ordering::SeqCst);
            Ok(guard.release()?)
        })
    };
    let write = || -> Work<'_> {
        Box::new(move |inside| {
            let guard = lock.write()?;
            if holders.fetch_add(WRITER, Ordering::SeqCst) > 0 {
                beside_writers.fetch_add(1, Ordering::Relaxed);
            }
            inside();
            holders.fetch_sub(WRITER, Ordering::SeqCst);
            Ok(guard.release()?)
        })
    };
    let work = (0..READERS).map(|_| read()).chain((0..WRITERS).map(|_| write()));
    let logs = run_threads(time, work.collect())?;
    let (readers, writers) = logs.split_at(READERS);
    let [beside_readers, beside_writers] = overlaps.map(AtomicU64::into_inner);
    Ok([(Summary::of(readers, time), beside_readers), (Summary::of(writers, time), beside_writers)])
}
