//! The arguments of `doctor`.

use clap::Args;

use super::Server;

const EXIT_CODES: &str = "\
Exit codes:
  0   there are no findings, or notes only
  1   something should be changed
  2   locks do not work there: no protocol works, or it is a replica
  69  the server was not reached
  77  it refused the inspection";

/// Report what a server can do for locks, and what may harm them there
///
/// Says what to do about each finding. Exits with 0 if locks are safe as far as a single server can be, with 1 if something should be
/// changed, and with 2 if no protocol works.
#[derive(Args, Debug)]
#[command(override_usage = "setnx-lock doctor [OPTIONS] [URL]", after_long_help = EXIT_CODES)]
#[command(mut_arg("url", |url| url.hide(true)))]
pub(crate) struct Doctor {
    /// The server [default: --url, REDIS_URL or redis://127.0.0.1:6379/]
    #[arg(value_name = "URL")]
    pub(crate) address: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: Server,
}
