//! Looks for two leases that are valid at once, under stress: processes take locks for short and different times, overrun
//! them, are killed and stopped, behind a network with delays. Fails if Watched or Ttl ever shows one, and also if the gem's
//! protocol shows none: then the checker would see nothing.
//!
//! `make stress`, or `cargo run --release --example stress -- --help`.
//!
//! What is put under stress, and the checker, are in `harness/`, which the tests use as well.

mod harness;
mod options;
mod progress;
mod report;

// It serves the tests and the benches as well, which call more of it.
#[allow(dead_code, unreachable_pub, reason = "shared with the tests")]
#[path = "../../tests/support/redis_server.rs"]
mod redis_server;
#[allow(dead_code, unused_imports, reason = "shared with the tests")]
#[path = "../../compat/servers/mod.rs"]
mod servers;
#[path = "../shared/shield.rs"]
mod shield;
#[path = "../shared/version.rs"]
mod version;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;

use harness::chance::Chance;
use harness::{Harness, Failure, Contender, check, network};
use options::{Arguments, Options, Part};
use progress::Progress;
use redis_server::RedisServer;
use report::Game;
use servers::Proxy;
use shield::Parent;

/// How long the gem's protocol may take to go wrong.
const LONGEST_LOOK: Duration = Duration::from_secs(120);

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

/// Has one contender play after the other, and says what came of it.
fn run(options: &Options) -> Result<ExitCode, Failure> {
    let parent = Parent::watch();
    let harness = options.harness();
    let games = options.games()?;
    println!(
        "{} processes of {} threads, {} keys, leases of 20 to 200 ms, delays of up to 2 s",
        harness.workers, harness.threads, harness.keys
    );
    let games: Vec<Game> = games
        .into_iter()
        .map(|(contender, wanted)| play(&harness, contender, wanted, options, &parent))
        .collect::<Result<_, Failure>>()?;
    println!("{}\n{}", report::table(&games), report::sentence(&games));
    let well = games.iter().all(|game| game.problems().is_empty());
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Has one contender play on a server of its own until there have been enough holds.
fn play(
    harness: &Harness,
    contender: Contender,
    wanted: usize,
    options: &Options,
    parent: &Parent,
) -> Result<Game, Failure> {
    let server = RedisServer::start()?;
    let proxy = match options.playing {
        Some(version) => Proxy::playing(version, server.address())?,
        None => Proxy::before(server.address())?,
    };
    let chance = Chance::new();
    proxy.slow_down(move |asked| network::delay(&chance, &asked.name));
    let mut progress = Progress::start(contender, wanted)?;
    let began = Instant::now();
    let account = harness.run(contender, &proxy.url(), |holds| {
        // What was asked would be gigabytes.
        proxy.forget();
        progress.advance(holds.len());
        if parent.is_gone() {
            return Err("interrupted; the workers and the server are gone".into());
        }
        // A short run may by chance show nothing where something is to be seen.
        let to_be_seen =
            || !contender.goes_wrong() || began.elapsed() > LONGEST_LOOK || !check(holds).overlaps.is_empty();
        Ok(holds.len() < wanted || !to_be_seen())
    })?;
    drop(progress);
    let outcome = Game::of(contender, &account);
    let problems = outcome.problems();
    for problem in &problems {
        eprintln!("stress: FAILED: {problem}");
    }
    if contender.excludes() {
        for (earlier, later) in outcome.findings.overlaps.iter().chain(&outcome.findings.unreported).take(10)
        {
            eprintln!("two inside: {earlier:?}\n       and: {later:?}");
        }
    }
    if options.keep_logs || !problems.is_empty() {
        eprintln!("{contender}: the logs are kept in {}", account.logs.keep().display());
    }
    Ok(outcome)
}
