//! The arguments of `doctor`.

use clap::Args;

use super::Server;

const EXIT_CODES: &str = "\
Exit codes:
  0   no findings, or notes only
  1   something should be changed
  2   locks do not work there: no protocol works, or it is a replica
  69  the server is unreachable
  77  the server refused the inspection";

/// Report what a server can do for locks, and what may harm them there
///
/// Prints advice for each finding. Exits with 0 if nothing needs to be changed, with 1 if something should be, and with
/// 2 if locks do not work there.
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
