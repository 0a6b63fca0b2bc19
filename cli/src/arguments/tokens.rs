//! The arguments of the commands by which a lock goes from process to process.

use std::env;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use setnx_lock::{Key, LockToken};

use super::acquisition::GivenProtocol;
use super::{Acquisition, Server, parse};
use crate::failure::Failure;
use crate::server::first_line;

/// The variable that has the token unless a file has it.
pub(crate) const TOKEN: &str = "SETNX_LOCK_TOKEN";

const ACQUIRED: &str = "\
Exit codes:
  0   the lock is held, and the token printed
  75  contended: another holder has the lock
  65  stuck: the key holds a value that never expires
  69  unreachable: no connection to the server, or it refuses for now
  77  refused: by the server, or the server is too old
  74  unknown: a reply was lost, the lock may be held until it expires
  64  invalid arguments
  71  the system refused something
  128+N  signal N ended the wait";

const USED: &str = "\
Environment of the command:
  SETNX_LOCK_TOKEN          the token, unless --token-file names its file

Exit codes:
  0   success: the token is used up
  64  invalid arguments, or no token
  69  unreachable: try again while the lease lasts
  70  lost: the token was used, the lock was cleared or taken over, or its
      lease has ended
  74  unknown: a reply was lost; the lock is held until it expires
  77  refused by the server";

/// Acquire a lock and print a token, by which another process goes on with it
///
/// The lock is held when the command has ended, until its lease ends. The token is used once: by `extend`, which prints
/// another, by `release` or by `run --resume`. Who has it can do that, so treat it like a password.
#[derive(Args, Debug)]
#[command(override_usage = "setnx-lock acquire [OPTIONS] <KEY>", after_help = ACQUIRED)]
pub(crate) struct Acquire {
    /// The lock's key
    #[arg(value_name = "KEY", value_parser = parse::key())]
    pub(crate) key: Key,
    #[command(flatten)]
    pub(crate) acquisition: Acquisition,
}

/// Extend the lease of a lock by its token, and print the token that replaces it
#[derive(Args, Debug)]
#[command(after_help = USED)]
pub(crate) struct Extend {
    #[command(flatten)]
    pub(crate) token: Token,
    /// How long the new lease lasts, from now on [default: as long as the one before]
    #[arg(long, short = 'e', value_name = "TIME", value_parser = parse::interval)]
    pub(crate) expiration: Option<Duration>,
    /// Redis commands to use; auto selects the best protocol that the server supports
    #[arg(long, value_name = "PROTOCOL", value_enum, default_value_t = GivenProtocol::Auto)]
    pub(crate) protocol: GivenProtocol,
    #[command(flatten)]
    pub(crate) server: Server,
}

/// Release a lock by its token
#[derive(Args, Debug)]
#[command(after_help = USED)]
pub(crate) struct Release {
    #[command(flatten)]
    pub(crate) token: Token,
    #[command(flatten)]
    pub(crate) server: Server,
}

/// Where the token is. It is no argument, which other users can read.
#[derive(Args, Debug)]
pub(crate) struct Token {
    /// A file whose first line is the token, for example /dev/stdin or /dev/fd/3 [default: the variable
    /// SETNX_LOCK_TOKEN]
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub(crate) token_file: Option<PathBuf>,
}

impl Token {
    pub(crate) fn read(&self) -> Result<LockToken, Failure> {
        let text = match &self.token_file {
            Some(file) => first_line("token", file)?,
            None => env::var(TOKEN).unwrap_or_default(),
        };
        if text.is_empty() {
            return Err(Failure::usage("no token: set SETNX_LOCK_TOKEN, or give a file by --token-file"));
        }
        text.parse().map_err(|error: setnx_lock::Error| Failure::usage(error.to_string()))
    }
}
