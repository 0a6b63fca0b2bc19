//! The command line, parsed once into valid values.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::moment::Moment;
use crate::time_option::between;

/// The parts that the program runs for itself.
#[derive(Debug, Subcommand)]
pub(crate) enum Part {
    #[command(hide = true)]
    Conduct(Options),
    #[command(hide = true)]
    Worker(Task),
}

/// Several processes contend for one lock, and one is killed while it holds it. Uses the server of the environment
/// variable `REDIS_URL`, or else a private redis-server that ends with the run.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Processes that contend, 2 to 12; one of them will be killed
    #[arg(long, value_name = "COUNT", default_value = "4", value_parser = workers)]
    pub(crate) workers: u32,
    /// Threads of each process, 1 to 8
    #[arg(long, value_name = "COUNT", default_value = "2", value_parser = threads)]
    pub(crate) threads: u32,
    /// How long they contend, 1s to 1min; longer until the takeover if need be
    #[arg(long = "for", value_name = "TIME", default_value = "6s", value_parser = length)]
    pub(crate) length: Duration,
    /// How long the lock may be held, 500ms to 1min; the others take over one second after that
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = expiration)]
    pub(crate) expiration: Duration,
    /// How often a waiter polls, 1ms to 100ms, which is the library's default and makes a sparse picture
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = poll)]
    pub(crate) poll: Duration,
    /// How long a thread with the lock waits between reading the counter and writing it, 0ms to 50ms
    #[arg(long, value_name = "TIME", default_value = "2ms", value_parser = pause)]
    pub(crate) pause: Duration,
    /// Kills the server instead: a master that three Sentinels know, with two replicas
    #[arg(long)]
    pub(crate) failover: bool,
}

impl Options {
    /// How long a new master grants no locks; nothing without a failover.
    pub(crate) fn settles(&self) -> Option<Duration> {
        self.failover.then_some(self.expiration)
    }
}

/// The arguments of a worker. The server's address comes by the environment: it may have a password, and every user of
/// the machine can read arguments.
#[derive(Debug, Args)]
pub(crate) struct Task {
    #[arg(long)]
    pub(crate) number: u32,
    #[arg(long)]
    pub(crate) key: String,
    #[arg(long)]
    pub(crate) counter: PathBuf,
    #[arg(long)]
    pub(crate) log: PathBuf,
    #[arg(long)]
    pub(crate) threads: u32,
    #[arg(long, value_parser = humantime::parse_duration)]
    pub(crate) expiration: Duration,
    #[arg(long, value_parser = humantime::parse_duration)]
    pub(crate) poll: Duration,
    #[arg(long, value_parser = humantime::parse_duration)]
    pub(crate) pause: Duration,
    /// From when on this worker keeps the lock once it has it, until it is killed.
    #[arg(long)]
    pub(crate) keep_from: Option<Moment>,
    /// How long a new master grants no locks.
    #[arg(long, value_parser = humantime::parse_duration)]
    pub(crate) settles: Option<Duration>,
}

fn workers(text: &str) -> Result<u32, String> {
    count(text, 2..=12).map_err(|problem| format!("{problem}: one is killed, and another has to take over"))
}

fn threads(text: &str) -> Result<u32, String> {
    count(text, 1..=8)
}

fn length(text: &str) -> Result<Duration, String> {
    between("1s", "1min", text)
}

fn expiration(text: &str) -> Result<Duration, String> {
    between("500ms", "1min", text)
}

fn poll(text: &str) -> Result<Duration, String> {
    between("1ms", "100ms", text)
}

fn pause(text: &str) -> Result<Duration, String> {
    between("0ms", "50ms", text)
}

fn count(text: &str, range: RangeInclusive<u32>) -> Result<u32, String> {
    let (first, last) = (*range.start(), *range.end());
    text.parse().ok().filter(|count| range.contains(count)).ok_or(format!("expected {first} to {last}"))
}
