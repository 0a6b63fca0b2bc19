//! The command line: what can be given, and how it reads. A usage line is written out where clap would name `--url` in
//! it as required, because REDIS_URL is set.

#![allow(clippy::doc_markdown, rustdoc::bare_urls, reason = "these comments are the help, as it is printed")]

mod acquisition;
mod doctor;
mod manual;
mod parse;
mod run;
mod show;
mod tokens;

use std::env;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::styling::{AnsiColor, Styles};
use clap::{Arg, ArgAction, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use setnx_lock::Key;

pub(crate) use acquisition::{Acquisition, Condition, ExitCodes};
pub(crate) use doctor::Doctor;
pub(crate) use manual::{Completions, Man};
pub(crate) use run::{Guardian, OnLoss, Run};
pub(crate) use show::{Clear, Fence, GemKey, List, Status, Watch};
pub(crate) use tokens::{Acquire, Extend, Release, TOKEN, Token};

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// What `--help=all` is read as.
const HELP_ALL: &str = "help-all";

impl Arguments {
    /// Reads the words of a command line, the program's name among them.
    pub(crate) fn read(words: impl Iterator<Item = OsString>) -> Result<Self, clap::Error> {
        let mut are_options = true;
        let words = words.map(|word| {
            are_options &= word != "--";
            if are_options && word == "--help=all" { format!("--{HELP_ALL}").into() } else { word }
        });
        let mut command =
            Self::command().mut_subcommands(|command| command.mut_args(without_an_empty_variable));
        let read = command.try_get_matches_from_mut(words);
        read.and_then(|read| Self::from_arg_matches(&read)).map_err(|error| error.format(&mut command))
    }
}

/// Has a variable that is set but empty count as not set, as scripts and units set those that they have no value for.
fn without_an_empty_variable(option: Arg) -> Arg {
    let is_empty =
        option.get_env().is_some_and(|name| env::var_os(name).is_some_and(|value| value.is_empty()));
    if is_empty { option.env(None::<&'static str>) } else { option }
}

/// Run commands under distributed locks on Redis 1.2 or newer; show and clear locks
///
/// The keys and values are those of the Ruby gem redis-objects, so
/// shell commands, Ruby programs and Rust programs exclude each other.
#[derive(Debug, Parser)]
#[command(name = "setnx-lock", version, styles = STYLES, max_term_width = 100, propagate_version = true)]
#[command(arg_required_else_help = true, disable_help_flag = true)]
#[command(after_help = "Details and examples: setnx-lock help COMMAND, or man setnx-lock-COMMAND")]
pub(crate) struct Arguments {
    /// Print this summary; --help=all prints all options
    #[arg(long, short, global = true, action = ArgAction::HelpShort, display_order = 1000)]
    help: Option<bool>,
    #[arg(long = HELP_ALL, global = true, action = ArgAction::HelpLong, hide = true)]
    help_all: Option<bool>,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Box<Run>),
    Acquire(Box<Acquire>),
    Extend(Extend),
    Release(Release),
    Status(Status),
    List(List),
    Clear(Clear),
    Watch(Watch),
    Fence(Fence),
    Doctor(Doctor),
    Key(GemKey),
    Man(Man),
    Completions(Completions),
}

/// Which server, and how to log in.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Server")]
pub(crate) struct Server {
    /// The server
    ///
    /// redis://[user@]host[:port][/database], unix:///path, redis+sentinel://[user@]host[:port],…/master or
    /// redis+cluster://[user@]host[:port],…
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
    #[arg(hide_short_help = true)]
    pub(crate) sentinel_password_file: Option<PathBuf>,
    /// With rediss://: a PEM file with the certificates of the CA
    /// that signed the server's [default: those of the system]
    #[arg(long, value_name = "FILE")]
    #[arg(hide_short_help = true)]
    pub(crate) ca: Option<PathBuf>,
    /// With rediss://: a PEM file with this client's certificate
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    #[arg(hide_short_help = true)]
    pub(crate) cert: Option<PathBuf>,
    /// With rediss://: a PEM file with its private key, in PKCS #8
    #[arg(long = "key", value_name = "FILE", requires = "cert")]
    #[arg(hide_short_help = true)]
    pub(crate) tls_key: Option<PathBuf>,
    /// What all keys begin with, for example app1: on a server with several users
    #[arg(
        long,
        value_name = "PREFIX",
        env = "SETNX_LOCK_PREFIX",
        default_value = "",
        hide_default_value = true,
        hide_short_help = true
    )]
    pub(crate) prefix: OsString,
    /// How long connecting may take; with --no-wait also at most 3/4 of --command-timeout [default: 2s]
    #[arg(long, value_name = "TIME", env = "SETNX_LOCK_CONNECT_TIMEOUT", value_parser = parse::interval)]
    #[arg(hide_short_help = true)]
    pub(crate) connect_timeout: Option<Duration>,
    /// How long the server may take to reply to a command [default: 2s for a lock's, else 5s]
    #[arg(long, value_name = "TIME", env = "SETNX_LOCK_COMMAND_TIMEOUT", value_parser = parse::interval)]
    #[arg(hide_short_help = true)]
    pub(crate) command_timeout: Option<Duration>,
}

impl Server {
    /// The key with the prefix.
    pub(crate) fn whole_key(&self, given: &Key) -> Key {
        Key::from([self.prefix.as_bytes(), given.as_bytes()].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
