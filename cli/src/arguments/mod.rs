//! The command line: what can be given, and how it reads. A usage line is written out where clap would name `--url` in it as required,
//! because REDIS_URL is set.

#![allow(clippy::doc_markdown, rustdoc::bare_urls, reason = "these comments are the help, as it is printed")]

mod doctor;
mod manual;
mod parse;
mod run;
mod show;

use std::path::PathBuf;

use clap::builder::styling::{AnsiColor, Styles};
use clap::{ArgAction, Args, Parser, Subcommand};

pub(crate) use doctor::Doctor;
pub(crate) use manual::{Completions, Man};
pub(crate) use run::{Condition, ExitCodes, Guardian, OnLoss, Run};
pub(crate) use show::{Clear, GemKey, List, Status, Watch};

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// Run commands under distributed locks on Redis 1.2 or newer; show and clear locks
///
/// The keys and values are those of the Ruby gem redis-objects, so shell commands, Ruby programs and Rust programs exclude each other.
#[derive(Debug, Parser)]
#[command(name = "setnx-lock", version, styles = STYLES, max_term_width = 100, propagate_version = true)]
#[command(arg_required_else_help = true, disable_help_flag = true)]
#[command(after_help = "Details and examples: setnx-lock help COMMAND")]
pub(crate) struct Arguments {
    /// Print a summary; `setnx-lock help COMMAND` prints details
    #[arg(long, short, global = true, action = ArgAction::HelpShort, help_heading = "Help")]
    help: Option<bool>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Box<Run>),
    Status(Status),
    List(List),
    Clear(Clear),
    Watch(Watch),
    Doctor(Doctor),
    Key(GemKey),
    Man(Man),
    Completions(Completions),
}

/// Which server, and how to log in.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Server")]
pub(crate) struct Server {
    /// The server: redis://[user@]host[:port][/database], unix:///path,
    /// redis+sentinel://[user@]host[:port],…/master or redis+cluster://[user@]host[:port],…
    ///
    /// Pass the password in REDISCLI_AUTH or a file: other users can read the arguments of a process.
    #[arg(long, value_name = "URL", env = "REDIS_URL", hide_env_values = true)]
    #[arg(default_value = "redis://127.0.0.1:6379/")]
    pub(crate) url: String,
    /// A file whose first line is the password
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
    /// A file whose first line is the password of the Sentinels
    #[arg(long, value_name = "FILE")]
    pub(crate) sentinel_password_file: Option<PathBuf>,
    /// With rediss://: a PEM file with the certificates of the CA that signed the server's [default: those of the system]
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// With rediss://: a PEM file with this client's certificate
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) cert: Option<PathBuf>,
    /// With rediss://: a PEM file with its private key, in PKCS #8
    #[arg(long = "key", value_name = "FILE", requires = "cert")]
    pub(crate) tls_key: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
