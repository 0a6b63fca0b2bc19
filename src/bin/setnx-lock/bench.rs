//! `bench`: how many locks a second a server grants, and how fast.

use std::io::Write as _;
use std::process::{self, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use setnx_lock::{Lock, LockOptions, Locker};

use crate::arguments::Bench;
use crate::failure::Failure;
use crate::output::json_line;
use crate::server::Target;

/// If this process is killed its keys go after this time.
const EXPIRATION: Duration = Duration::from_secs(10);
/// Times are counted to the microsecond, up to this one.
const LONGEST_MICROS: u64 = 60_000_000;
/// How wide the histogram is drawn.
const WIDTH: f64 = 40.0;

/// See docs/cli.md.
#[derive(Debug, Serialize)]
struct Results {
    threads: u16,
    contended: bool,
    protocol: String,
    seconds: f64,
    acquisitions: u64,
    acquisitions_per_second: f64,
    /// From the call to the lock.
    acquire_micros: Quantiles,
    release_micros: Quantiles,
}

#[derive(Debug, Serialize)]
struct Quantiles {
    p50: u64,
    p90: u64,
    p99: u64,
    p999: u64,
    max: u64,
}

struct Times {
    acquire: Histogram<u64>,
    release: Histogram<u64>,
    protocol: String,
}

pub(crate) fn bench(arguments: &Bench) -> Result<ExitCode, Failure> {
    let locker = Target::of(&arguments.server)?.locker().build()?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // The second one ends the program at once.
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&stop)))
            .map_err(|error| Failure::system("cannot wait for signals", error))?;
    }
    let begun = Instant::now();
    let times = measured(arguments, &locker, &stop, begun)?;
    let seconds = begun.elapsed().as_secs_f64();
    let results = results(arguments, &times, seconds);
    let mut out = anstream::stdout().lock();
    if arguments.json {
        json_line(&mut out, &results)?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(
        out,
        "{:.0} acquisitions a second: {} in {seconds:.1} s, threads: {}, {}, protocol {}",
        results.acquisitions_per_second,
        results.acquisitions,
        results.threads,
        if results.contended { "one lock for all" } else { "each with a lock of its own" },
        results.protocol
    )?;
    writeln!(out, "\n{:<10}{:>10}{:>10}{:>10}{:>10}{:>10}", "in µs", "p50", "p90", "p99", "p99.9", "max")?;
    for (name, Quantiles { p50, p90, p99, p999, max }) in
        [("acquire", &results.acquire_micros), ("release", &results.release_micros)]
    {
        writeln!(out, "{name:<10}{p50:>10}{p90:>10}{p99:>10}{p999:>10}{max:>10}")?;
    }
    writeln!(out, "\ntimes to acquire:")?;
    for line in drawn(&times.acquire) {
        writeln!(out, "{line}")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn measured(arguments: &Bench, locker: &Locker, stop: &AtomicBool, begun: Instant) -> Result<Times, Failure> {
    let until = begun + arguments.duration;
    let mut times = Times::new()?;
    thread::scope(|scope| {
        let (results, received) = mpsc::channel();
        for n in 0..arguments.threads {
            let results = results.clone();
            scope.spawn(move || {
                let result = worker(arguments, locker, n, stop, until);
                if result.is_err() {
                    stop.store(true, Ordering::Relaxed);
                }
                // It is received until all have ended.
                let _ = results.send(result);
            });
        }
        drop(results);
        let progress = ProgressBar::new(arguments.duration.as_millis().try_into().unwrap_or(u64::MAX));
        progress.set_style(
            ProgressStyle::with_template("{wide_bar} {eta}").unwrap_or(ProgressStyle::default_bar()),
        );
        let mut failure = None;
        let mut left = arguments.threads;
        while left > 0 {
            match received.recv_timeout(Duration::from_millis(100)) {
                Ok(result) => {
                    left -= 1;
                    if let Err(error) = result.and_then(|more| times.add(&more)) {
                        failure = Some(error);
                    }
                }
                Err(_) => progress.set_position(begun.elapsed().as_millis().try_into().unwrap_or(u64::MAX)),
            }
        }
        progress.finish_and_clear();
        failure.map_or(Ok(times), Err)
    })
}

/// Acquires and releases until the time is over.
fn worker(
    arguments: &Bench,
    locker: &Locker,
    n: u16,
    stop: &AtomicBool,
    until: Instant,
) -> Result<Times, Failure> {
    let own = if arguments.contend { "all".to_owned() } else { n.to_string() };
    let key = format!("setnx-lock:bench:{}:{own}", process::id());
    let options =
        LockOptions::expiring_after(EXPIRATION).timeout(EXPIRATION).protocol(arguments.protocol.into());
    let lock = Lock::new(locker, key, options)?;
    let mut times = Times::new()?;
    // Once at least, so that there is something to report.
    while times.acquire.is_empty() || Instant::now() < until && !stop.load(Ordering::Relaxed) {
        let asked = Instant::now();
        let held = lock.lock()?;
        let acquired = Instant::now();
        held.protocol().name().clone_into(&mut times.protocol);
        held.release()?;
        times.acquire.saturating_record(micros(acquired - asked));
        times.release.saturating_record(micros(acquired.elapsed()));
    }
    Ok(times)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1)
}

impl Times {
    fn new() -> Result<Self, Failure> {
        let histogram = || {
            Histogram::new_with_bounds(1, LONGEST_MICROS, 3)
                .map_err(|error| Failure::system("cannot count", error))
        };
        Ok(Self { acquire: histogram()?, release: histogram()?, protocol: String::new() })
    }

    fn add(&mut self, more: &Times) -> Result<(), Failure> {
        let added = self.acquire.add(&more.acquire).and_then(|()| self.release.add(&more.release));
        self.protocol.clone_from(&more.protocol);
        added.map_err(|error| Failure::system("cannot count", error))
    }
}

fn results(arguments: &Bench, times: &Times, seconds: f64) -> Results {
    let quantiles = |times: &Histogram<u64>| Quantiles {
        p50: times.value_at_quantile(0.5),
        p90: times.value_at_quantile(0.9),
        p99: times.value_at_quantile(0.99),
        p999: times.value_at_quantile(0.999),
        max: times.max(),
    };
    let acquisitions = times.acquire.len();
    // No minute has so many.
    #[expect(clippy::cast_precision_loss)]
    let acquisitions_per_second = acquisitions as f64 / seconds;
    Results {
        threads: arguments.threads,
        contended: arguments.contend,
        protocol: times.protocol.clone(),
        seconds,
        acquisitions,
        acquisitions_per_second,
        acquire_micros: quantiles(&times.acquire),
        release_micros: quantiles(&times.release),
    }
}

/// A histogram whose steps double.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn drawn(times: &Histogram<u64>) -> Vec<String> {
    let steps: Vec<_> = times
        .iter_log(32, 2.0)
        .map(|step| (step.value_iterated_to(), step.count_since_last_iteration()))
        .skip_while(|(_, count)| *count == 0)
        .collect();
    let most = steps.iter().map(|(_, count)| *count).max().unwrap_or(1).max(1);
    let bar = |count: u64| "#".repeat((count as f64 / most as f64 * WIDTH).ceil() as usize);
    steps
        .iter()
        .map(|(up_to, count)| {
            format!("  up to {:>8} µs {count:>9} {}", up_to + 1, bar(*count)).trim_end().to_owned()
        })
        .collect()
}
