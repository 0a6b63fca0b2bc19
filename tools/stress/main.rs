//! Searches for two leases that are valid at once, under stress: processes take locks for short and different times,
//! outlive their leases, are killed and stopped, behind a network with delays. Fails if Watched or Ttl has such an
//! overlap. Fails as well if the gem's protocol has none: then the checker would find nothing.
//!
//! `make stress`, or `cargo run --release -p setnx-lock-stress -- --help`.
//!
//! The stress itself and the checker are in `harness/`, which the tests use as well.

mod harness;
mod options;
mod progress;
mod report;

#[path = "../shared/version.rs"]
mod version;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;

use harness::own_keys::{Plan, Situation};
use harness::random::Random;
use harness::{Contender, Failure, Harness, PREFIX, Remote, Run, Servers, check, network};
use options::{Arguments, Options, Part};
use progress::Progress;
use report::Summary;
use setnx_lock_testing::{Proxy, TestServer};
use testkit::RedisServer;
use testkit::shield::{self, Parent};

/// The threads of a process, and the keys, on a quorum: each process has one thread for a server.
const QUORUM_THREADS: u32 = 8;
const QUORUM_KEYS: u64 = 16;
/// How often two of its servers are killed.
const SERVER_KILLED_EVERY: Duration = Duration::from_secs(5);

/// How long a contender that must overlap may take to do so.
const OVERLAP_LIMIT: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    if let Some(outcome) = harness::as_worker() {
        return outcome;
    }
    let done = match Arguments::parse().part {
        None => shield::run(),
        Some(Part::Conduct(options)) => run(&options),
    };
    done.unwrap_or_else(|failure| {
        eprintln!("stress: {failure}");
        ExitCode::FAILURE
    })
}

/// Runs one contender after the other, and prints the results.
fn run(options: &Options) -> Result<ExitCode, Failure> {
    let parent = Parent::watch();
    if let Some((plan, situations)) = options.own_keys() {
        return own_keys(&plan, situations);
    }
    let harness = options.harness();
    let remote = options.url.as_deref().map(Remote::at).transpose()?;
    let version = match (options.emulating, &remote) {
        (Some(emulated), _) => Some(emulated.number().parse()?),
        (None, Some(remote)) => Some(remote.version()?),
        (None, None) => None,
    };
    let contenders = options.runs(version)?;
    if let Some(remote) = &remote {
        println!("on the server at {}", remote.address());
    }
    println!(
        "{} processes of {} threads, {} keys, leases of 20 to 200 ms, delays of up to 2 s",
        harness.workers, harness.threads, harness.keys
    );
    let summaries: Vec<Summary> = contenders
        .into_iter()
        .map(|(contender, wanted)| match contender {
            Contender::Quorum => run_quorum(&harness, wanted, options, &parent),
            _ => run_one(&harness, contender, wanted, options, remote.as_ref(), &parent),
        })
        .collect::<Result<_, Failure>>()?;
    println!("{}\n{}", report::table(&summaries), report::verdict(&summaries));
    let passed = summaries.iter().all(|summary| summary.problems().is_empty());
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Has threads hold keys of their own in these situations, one after the other.
fn own_keys(plan: &Plan, situations: Vec<Situation>) -> Result<ExitCode, Failure> {
    println!(
        "{} threads with keys of their own, {:?}, a delay of {:?}",
        plan.threads, plan.protocol, plan.delay
    );
    let mut passed = true;
    for situation in situations {
        let tally = situation.run(plan)?;
        println!("{situation}: {tally}");
        for error in tally.lost.iter().chain(&tally.failed).take(3) {
            println!("    {error}");
        }
        passed &= tally.is_clean();
    }
    println!("{}", if passed { "no lock was reported lost that was held" } else { "FAILED" });
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs one contender until there are enough acquisitions, on a server of its own, or with keys of its own on `remote`.
fn run_one(
    harness: &Harness,
    contender: Contender,
    wanted: usize,
    options: &Options,
    remote: Option<&Remote>,
    parent: &Parent,
) -> Result<Summary, Failure> {
    let emulated = options.emulating.map(|version| TestServer::builder().version(version.name()).start());
    let private = if remote.is_none() && emulated.is_none() { Some(RedisServer::start()?) } else { None };
    // Removed after the proxy has ended, so that no late command makes one anew.
    let keys = remote.map(|remote| remote.keys(harness.keys));
    let real = private.as_ref().map(RedisServer::address).or(remote.map(Remote::address));
    let before = real.map(Proxy::before).transpose()?;
    let proxy = before.as_ref().or(emulated.as_deref()).expect("one of the two");
    let url = remote.map_or_else(|| proxy.url(), |remote| remote.url_through(&proxy.url()));
    let prefix = keys.as_ref().map_or(PREFIX, |keys| &keys.prefix);
    let random = Random::new();
    proxy.delay_by(move |asked| network::delay(&random, &asked.name));
    let mut progress = Progress::start(contender, wanted)?;
    let began = Instant::now();
    let run = harness.run(contender, &url, prefix, |holds| {
        // The record of all commands would be gigabytes.
        proxy.clear_log();
        progress.advance(holds.len());
        if parent.is_gone() {
            return Err("interrupted; the workers and the server have ended".into());
        }
        // In a short run, the overlap that must be found may not have happened yet.
        let complete = || {
            !contender.must_overlap() || began.elapsed() > OVERLAP_LIMIT || !check(holds).overlaps.is_empty()
        };
        Ok(holds.len() < wanted || !complete())
    })?;
    drop(progress);
    Ok(sum_up(contender, run, options))
}

/// The same on three servers of its own, two of which are killed now and then and start again without their locks.
fn run_quorum(
    harness: &Harness,
    wanted: usize,
    options: &Options,
    parent: &Parent,
) -> Result<Summary, Failure> {
    let contender = Contender::Quorum;
    let harness = Harness {
        threads: harness.threads.min(QUORUM_THREADS),
        keys: harness.keys.min(QUORUM_KEYS),
        ..harness.clone()
    };
    let mut servers = Servers::start(SERVER_KILLED_EVERY)?;
    let mut progress = Progress::start(contender, wanted)?;
    let run = harness.run(contender, &servers.urls(), PREFIX, |holds| {
        servers.disturb()?;
        progress.advance(holds.len());
        if parent.is_gone() {
            return Err("interrupted; the workers and the servers have ended".into());
        }
        Ok(holds.len() < wanted)
    })?;
    drop(progress);
    println!("{contender}: servers were killed {} times", servers.kills);
    Ok(sum_up(contender, run, options))
}

/// Reports what is wrong with a run.
fn sum_up(contender: Contender, run: Run, options: &Options) -> Summary {
    let summary = Summary::of(contender, &run);
    let problems = summary.problems();
    for problem in &problems {
        eprintln!("stress: FAILED: {problem}");
    }
    if contender.excludes() {
        let findings = &summary.findings;
        for (earlier, later) in findings.overlaps.iter().chain(&findings.unreported).take(10) {
            eprintln!("overlap: {earlier:?}\n    and: {later:?}");
        }
    }
    if options.keep_logs || !problems.is_empty() {
        eprintln!("{contender}: the logs are kept in {}", run.logs.keep().display());
    }
    summary
}
