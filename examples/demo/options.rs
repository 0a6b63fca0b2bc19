//! What is typed: parsed here, once, into values that cannot be wrong.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::moment::Moment;

/// Several processes contend for one lock, one of them is killed while it holds it. Uses the server of the environment
/// variable `REDIS_URL`, or else a private redis-server for the time being.
#[derive(Debug, Parser)]
#[command(name = "demo", args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) options: Options,
    #[command(subcommand)]
    pub(crate) part: Option<Part>,
}

/// The parts that the program plays for itself.
#[derive(Debug, Subcommand)]
pub(crate) enum Part {
    #[command(hide = true)]
    Conduct(Options),
    #[command(hide = true)]
    Worker(Task),
}

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Processes that contend, 2 to 12; one of them will be killed
    #[arg(long, value_name = "COUNT", default_value = "4", value_parser = workers)]
    pub(crate) workers: u16,
    /// Threads of each process, 1 to 8
    #[arg(long, value_name = "COUNT", default_value = "2", value_parser = threads)]
    pub(crate) threads: u16,
    /// How long they contend, 1s to 1min; longer until the takeover if need be
    #[arg(long = "for", value_name = "TIME", default_value = "6s", value_parser = length)]
    pub(crate) length: Duration,
    /// How long the lock may be held, 500ms to 1min; the others take over one second after that
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = expiration)]
    pub(crate) expiration: Duration,
    /// How often a waiter looks, 1ms to 100ms, which is the default of the library and makes a sparse picture
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = poll)]
    pub(crate) poll: Duration,
    /// How long one is inside between reading the counter and writing it, 0ms to 50ms
    #[arg(long, value_name = "TIME", default_value = "2ms", value_parser = pause)]
    pub(crate) pause: Duration,
}

/// What a worker is told. The server's address comes by the environment: it may have a password, and arguments are for
/// everybody to see.
#[derive(Debug, Args)]
pub(crate) struct Task {
    #[arg(long)]
    pub(crate) number: u16,
    #[arg(long)]
    pub(crate) key: String,
    #[arg(long)]
    pub(crate) counter: PathBuf,
    #[arg(long)]
    pub(crate) log: PathBuf,
    #[arg(long)]
    pub(crate) threads: u16,
    #[arg(long, value_parser = humantime::parse_duration)]
    pub(crate) expiration: Duration,
    #[arg(long, value_parser = humantime::parse_duration)]
    pub(crate) poll: Duration,
    #[arg(long, value_parser = humantime::parse_duration)]
    pub(crate) pause: Duration,
    /// From when on this worker keeps the lock once it has it, to be killed with it.
    #[arg(long)]
    pub(crate) keep_from: Option<Moment>,
}

fn workers(text: &str) -> Result<u16, String> {
    count(text, 2..=12).map_err(|problem| format!("{problem}: one is killed, and another has to take over"))
}

fn threads(text: &str) -> Result<u16, String> {
    count(text, 1..=8)
}

fn length(text: &str) -> Result<Duration, String> {
    time(text, &["1s", "1min"])
}

fn expiration(text: &str) -> Result<Duration, String> {
    time(text, &["500ms", "1min"])
}

fn poll(text: &str) -> Result<Duration, String> {
    time(text, &["1ms", "100ms"])
}

fn pause(text: &str) -> Result<Duration, String> {
    time(text, &["0ms", "50ms"])
}

fn count(text: &str, range: RangeInclusive<u16>) -> Result<u16, String> {
    let (first, last) = (*range.start(), *range.end());
    text.parse().ok().filter(|count| range.contains(count)).ok_or(format!("say {first} to {last}"))
}

fn time(text: &str, [shortest, longest]: &[&str; 2]) -> Result<Duration, String> {
    let [from, to, time] = [shortest, longest, &text].map(|text| humantime::parse_duration(text));
    match (from, to, time) {
        (Ok(from), Ok(to), Ok(time)) if (from..=to).contains(&time) => Ok(time),
        _ => Err(format!("say a time from {shortest} to {longest}, with its unit")),
    }
}
