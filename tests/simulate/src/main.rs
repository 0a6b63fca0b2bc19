//! The library in a simulated fleet: processes of threads that use locks on a server,
//! while something goes wrong. One seed is one run, and a minute of a fleet takes
//! seconds. Looks whether a law is broken that the documents state; see `laws.rs`.
//!
//! `make simulate`, or `cargo run --release -p setnx-lock-simulate -- --help`.
//!
//! The program that was started begins one process for each seed (`search.rs`), since a run leaves behind what it has
//! killed. A run has a plan (`plan.rs`), which the seed chooses; a fleet that follows it (`fleet.rs`), whose processes
//! are programs (`program.rs`) of calls (`calls.rs`).

mod calls;
mod fleet;
mod laws;
mod mishaps;
mod others;
mod plan;
mod planted;
mod program;
mod scale;
mod scenes;
mod search;
mod secret;
mod servers;
mod shorten;

use std::alloc::System;
use std::process::ExitCode;
use std::time::Duration;

use cap::Cap;
use clap::Parser;
use world::run::{Ran, Settings};

use plan::Plan;

/// Counts what is allocated.
#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, usize::MAX);

/// Searches for a seed that breaks a law.
#[derive(Clone, Debug, Default, PartialEq, Eq, Parser)]
#[command(name = "simulate", disable_version_flag = true)]
#[expect(clippy::struct_excessive_bools, reason = "a flag of the command line each")]
struct Arguments {
    /// For how long to search
    #[arg(long = "for", value_name = "TIME", default_value = "60s", value_parser = humantime::parse_duration)]
    time: Duration,
    /// The first seed; the others follow it
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// How many seeds; as many as there is time for, if not given
    #[arg(long, value_name = "NUMBER")]
    seeds: Option<u64>,
    /// How many client threads a fleet has; the seed chooses if not given
    #[arg(long, value_name = "NUMBER")]
    clients: Option<u64>,
    /// In how many processes
    #[arg(long, value_name = "NUMBER")]
    processes: Option<u64>,
    /// In how many threads each
    #[arg(long, value_name = "NUMBER")]
    threads: Option<u64>,
    /// What a run does without, of the names in `shorten.rs`
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = shorten::part)]
    without: Vec<String>,
    /// Leave a run that breaks a law as it is, instead of cutting it down
    #[arg(long)]
    whole: bool,
    /// How long a run is, in the time of the fleet
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    length: Option<Duration>,
    /// Run the first seed alone, in this process, and print what happens from this time on
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "0s", value_parser = humantime::parse_duration)]
    trace: Option<Duration>,
    /// Run this scene alone, of those in `scenes.rs`
    #[arg(long, value_name = "NAME")]
    scene: Option<String>,
    /// Make the mistakes of `planted.txt` with these words in their
    /// names, or all, one after the other; a seed must show each
    #[arg(long, value_name = "WORDS", num_args = 0..)]
    planted: Option<Vec<String>>,
    /// Look whether each mistake of `planted.txt` has one place in the library
    #[arg(long, hide = true)]
    planted_places: bool,
    /// Measure how fleets of ten to 4,000 workers load a server, and draw docs/images/scale-*.svg
    #[arg(long)]
    scale: bool,
    /// Measure one: an algorithm and a number of workers
    #[arg(long, hide = true)]
    scale_of: Option<String>,
    /// Print the names of all scenes
    #[arg(long, hide = true)]
    list_scenes: bool,
    /// Run the first seed alone, in this process
    #[arg(long, hide = true)]
    one: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.list_scenes {
        for (name, _) in scenes::SCENES {
            println!("{name}");
        }
        return ExitCode::SUCCESS;
    }
    if let Some(one) = &arguments.scale_of {
        println!("{}", scale::measure(one));
        return ExitCode::SUCCESS;
    }
    if arguments.one || arguments.trace.is_some() {
        println!("{}", one(&arguments));
        return ExitCode::SUCCESS;
    }
    let searched = match &arguments.planted {
        Some(only) => planted::search(only),
        None if arguments.scale => scale::measure_all(),
        None if arguments.planted_places => planted::look_for_places(),
        None => search::search(&arguments),
    };
    match searched {
        Ok(outcome) => outcome,
        Err(error) => {
            eprintln!("simulate: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the first seed. Returns what it was, for [`search`].
fn one(arguments: &Arguments) -> search::Account {
    laws::watch_panics();
    let seed = arguments.seed;
    let at_most = Duration::from_secs(3600);
    let settings = Settings { seed, at_most, printed_from: arguments.trace };
    let mut clients = 0;
    let ran: Ran = world::run::run(settings, || {
        if let Some((name, scene)) = scene(arguments) {
            world::run::note(&format!("scene {name}"));
            return scene();
        }
        let plan = Plan::choose(arguments);
        clients = plan.processes * plan.threads;
        world::run::note(&format!("{plan:?}"));
        fleet::run(&plan);
    });
    search::Account {
        trace: ran.trace,
        lines: ran.lines,
        switches: ran.switches,
        millis: u64::try_from(ran.time.as_millis()).unwrap_or(u64::MAX),
        clients,
        commands: world::network::commands(),
        faults: world::network::injected().all(),
        holds: laws::holds(),
    }
}

/// Returns the scene that a seed runs, of those that the arguments allow. Most seeds run a fleet.
fn scene(arguments: &Arguments) -> Option<(&'static str, fn())> {
    if let Some(wanted) = &arguments.scene {
        let found = scenes::SCENES.into_iter().find(|(name, _)| name == wanted);
        return found.or_else(|| laws::broken(&format!("there is no scene \"{wanted}\"")));
    }
    let numbers = [arguments.clients, arguments.processes, arguments.threads];
    let is_free =
        numbers.iter().all(Option::is_none) && arguments.length.is_none() && arguments.without.is_empty();
    // Drawn in any case, so that what follows is the same.
    let is_scene = world::run::chance(4);
    (is_free && is_scene).then(|| calls::one_of(&scenes::SCENES))
}
