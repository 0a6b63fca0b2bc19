//! The arguments of the commands that show keys and clear them.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use setnx_lock::Key;

use super::{Server, parse};

const CLEAR_EXIT_CODES: &str = "\
Exit codes:
  0   the key was removed, or there was none
  1   you answered no
  64  no terminal and no --yes
  65  the key does not hold a lock
  69  unreachable: no connection to the server, or the server is not ready
  74  the reply was lost: look again
  75  the key has changed meanwhile
  77  the server refused to remove at least one key";

const FENCE_EXIT_CODES: &str = "\
Exit codes:
  0   success
  64  invalid arguments
  65  the counter holds no number
  69  unreachable: no connection to the server, or the server is not ready
  74  the reply was lost: run it again
  75  the counter has changed again and again
  77  refused by the server";

const STATUS_EXIT_CODES: &str = "\
Exit codes:
  0   success; with --quiet: all keys are free or expired
  64  invalid arguments
  69  unreachable: no connection to the server, or the server is not ready
  75  with --quiet: a key is held
  77  refused by the server";

/// Show what keys hold
///
/// Prints for each key whether it is free, held (until when and by whom), held without an expiration, held by a gem
/// with a time to live, or not a lock; how many waiters are listed for notifications; and the last fencing token.
#[derive(Args, Debug)]
#[command(override_usage = "setnx-lock status [OPTIONS] <KEY>...", after_help = STATUS_EXIT_CODES)]
pub(crate) struct Status {
    /// The locks' keys
    #[arg(value_name = "KEY", required = true, value_parser = parse::key())]
    pub(crate) keys: Vec<Key>,
    /// The keys are names of semaphores, or of locks for readers and writers, with N permits each
    #[arg(long, value_name = "N")]
    pub(crate) permits: Option<usize>,
    /// Print one JSON object per key and line
    #[arg(long)]
    pub(crate) json: bool,
    /// Print nothing; exit with 0 if all keys are free or expired, with 75 if one is held, or all of its permits
    #[arg(long, short, conflicts_with = "json")]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) server: Server,
}

/// List the locks on a server, soonest to expire first
///
/// A key counts as a lock if its value is a time with a fraction, or if its name ends in _lock and its value is what
/// the gem writes without an expiration. Finding keys needs SCAN (Redis 2.8); see --keys for older servers.
#[derive(Args, Debug)]
#[command(override_usage = "setnx-lock list [OPTIONS] [PATTERN]")]
pub(crate) struct List {
    /// Keys to list, as a Redis pattern: *, ?, [abc]
    #[arg(value_name = "PATTERN", default_value = "*")]
    pub(crate) pattern: OsString,
    /// Use KEYS, for servers before 2.8; it blocks the server while it looks at every key
    #[arg(long)]
    pub(crate) keys: bool,
    /// List only locks that have been held for this long, as far as their holders' names or their ends show it
    #[arg(long, value_name = "TIME", value_parser = parse::time)]
    pub(crate) older_than: Option<Duration>,
    /// Print one JSON object per lock and line
    #[arg(long)]
    pub(crate) json: bool,
    /// Print metrics of Prometheus, by the beginnings of keys up to a colon, for a textfile collector
    #[arg(long, conflicts_with_all = ["json", "watch"])]
    pub(crate) prometheus: bool,
    /// Repeat the list until interrupted [default interval: 2s]
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "2s")]
    #[arg(value_parser = parse::interval)]
    pub(crate) watch: Option<Duration>,
    #[command(flatten)]
    pub(crate) server: Server,
}

/// Remove a lock whose holder is known to have crashed
///
/// Shows what the key holds, asks, and removes the key if it has not changed. Before Redis 2.2, a holder that acquires
/// the lock at the last moment can lose it.
#[derive(Args, Debug)]
#[command(after_long_help = CLEAR_EXIT_CODES)]
#[command(
    override_usage = "setnx-lock clear [OPTIONS] <KEY>\n       setnx-lock clear [OPTIONS] --expired <PATTERN>"
)]
pub(crate) struct Clear {
    /// The lock's key
    #[arg(value_name = "KEY", required_unless_present = "expired", conflicts_with = "expired")]
    #[arg(value_parser = parse::key())]
    pub(crate) key: Option<Key>,
    /// Remove every expired lock that matches the pattern, by acquiring and releasing it
    #[arg(long, value_name = "PATTERN")]
    pub(crate) expired: Option<OsString>,
    /// Do not ask
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// With --expired: use KEYS, for servers before 2.8
    #[arg(long)]
    pub(crate) keys: bool,
    #[command(flatten)]
    pub(crate) server: Server,
}

/// Show or raise the counter of a lock's fencing tokens
///
/// Prints the number of the last token, 0 if none was taken. Where the epoch of the server's configuration is known
/// (Sentinel, Cluster), the upper 21 of its 53 bits are the epoch.
#[derive(Args, Debug)]
#[command(override_usage = "setnx-lock fence [OPTIONS] <KEY>", after_long_help = FENCE_EXIT_CODES)]
pub(crate) struct Fence {
    /// The lock's key
    #[arg(value_name = "KEY", value_parser = parse::key())]
    pub(crate) key: Key,
    /// Raise the counter to N if it is lower, so that the next token is greater than N: the greatest one that the
    /// storage has seen. It is never lowered
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..1 << 53))]
    pub(crate) at_least: Option<i64>,
    #[command(flatten)]
    pub(crate) server: Server,
}

/// Print what happens to a lock, or to several, as it happens
///
/// Reads the keys repeatedly. Changes between two reads appear as one,
/// and a lock that is acquired and released between them does not appear.
#[derive(Args, Debug)]
#[command(
    override_usage = "setnx-lock watch [OPTIONS] <KEY>\n       setnx-lock watch [OPTIONS] --matching <PATTERN>"
)]
pub(crate) struct Watch {
    /// The lock's key
    #[arg(value_name = "KEY", required_unless_present = "matching", conflicts_with = "matching")]
    #[arg(value_parser = parse::key())]
    pub(crate) key: Option<Key>,
    /// Watch all locks that `list PATTERN` lists, for example team:*
    #[arg(long, value_name = "PATTERN")]
    pub(crate) matching: Option<OsString>,
    /// How often to read the keys [default: 100ms, with --matching 2s]
    #[arg(long, value_name = "TIME", value_parser = parse::interval)]
    pub(crate) interval: Option<Duration>,
    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) server: Server,
}

/// Print the key that the gem redis-objects uses for a lock
///
/// For `lock :NAME` in a class: the key of one record, or without an id the key of a lock with `global: true`. For a
/// class in a module it prints two keys: of gems before 2.0, then of 2.0 and later.
#[derive(Args, Debug)]
pub(crate) struct GemKey {
    /// The class as Ruby names it: Team, Billing::Invoice
    #[arg(value_name = "CLASS")]
    pub(crate) class: String,
    /// The lock's name in the class, without _lock
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// The record's id
    #[arg(value_name = "ID")]
    pub(crate) id: Option<String>,
}
