//! The arguments of `bench`.

use std::time::Duration;

use clap::Args;

use super::{GivenProtocol, Server, parse};

/// The longest that a server is put under load.
const LONGEST: Duration = Duration::from_secs(60);

/// Measure how many locks a second this server grants, and how fast
///
/// Threads acquire and release locks of their own for some seconds, or contend for one. The keys begin with setnx-lock:bench: and are
/// removed.
#[derive(Args, Debug)]
#[command(override_usage = "setnx-lock bench [OPTIONS]")]
pub(crate) struct Bench {
    /// How long to measure, a minute at most
    #[arg(long = "for", value_name = "TIME", value_parser = duration, default_value = "5s")]
    pub(crate) duration: Duration,
    /// How many threads
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=256), default_value = "1")]
    pub(crate) threads: u16,
    /// All threads contend for one lock
    #[arg(long)]
    pub(crate) contend: bool,
    /// By which commands
    #[arg(long, value_name = "PROTOCOL", value_enum, default_value_t = GivenProtocol::Auto)]
    pub(crate) protocol: GivenProtocol,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: Server,
}

fn duration(text: &str) -> Result<Duration, String> {
    match parse::interval(text)? {
        long if long > LONGEST => Err("a minute at most, since it loads the server".into()),
        time => Ok(time),
    }
}
