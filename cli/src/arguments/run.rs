//! The arguments of `run`, and of the process that watches over it.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Parser, ValueEnum};
use setnx_lock::{Key, LockOptions, LockToken};

use super::{Acquisition, Token, parse};
use crate::failure::Failure;

/// For how long in total a lease is extended unless given: longer than a job takes that does not hang.
const AT_MOST: Duration = Duration::from_secs(24 * 60 * 60);

const EXAMPLES: &str = "\
Examples:
  Wait for the lock, up to 5 s:
    setnx-lock run nightly -- ./report.sh
  Skip if another has it, without an error:
    setnx-lock run --no-wait -E 0 nightly -- ./report.sh
  A cron job on several machines, run by one of them:
    setnx-lock run -n -E 0 --hold-at-least 30s nightly -- ./report.sh
  One deployment at a time, with a name that others see:
    setnx-lock run --wait-forever --name=ann deploy -- ./deploy.sh
  At most four at the same time:
    setnx-lock run --permits 4 converters -- ./convert.sh
  Several locks, all or none:
    setnx-lock run account:7 account:9 -- ./transfer.sh
  A worker that runs on one of several machines at a time:
    setnx-lock run --lead --name= -e 15s leader:worker -- ./worker
  Go on with a lock that a script has acquired:
    token=$(setnx-lock acquire deploy) &&
    SETNX_LOCK_TOKEN=$token setnx-lock run --resume -- ./api
  End a job that hangs, while it still has the lock:
    setnx-lock run --max-runtime 1h nightly -- ./report.sh
  For storage that checks fencing tokens:
    setnx-lock run --fence --shell k -- 'put $SETNX_LOCK_FENCING_TOKEN'

Environment of the command:
  SETNX_LOCK_KEY            the key; of several each on a line
  SETNX_LOCK_EXPIRES_AT     when the lease ends unless it is extended,
                            in seconds since 1970
  SETNX_LOCK_FENCING_TOKEN  with --fence; of several keys each on a line
  SETNX_LOCK_SLOT           with --permits or --shared: the number of the
                            permit, from 0";

const MORE: &str = "\nMore options and examples: setnx-lock run --help=all, or man setnx-lock-run";

/// Why `run` ends otherwise than its command.
pub(super) const EXIT_CODES: &str = "\
Exit codes: the command's, or 128+N if signal N ended it; otherwise
  75  contended: another holder has the lock
  65  stuck: the key holds a value that never expires
  69  unreachable: no connection to the server, or it refuses for now
  77  refused: by the server, or the server is too old
  74  unknown: a reply was lost, the lock may be held until it expires
  70  lost: the lock was lost while the command ran, or before --resume
  124 max-runtime: the command was ended after --max-runtime
  64  invalid arguments
  71  the system refused something
  126, 127  the command cannot be run, or was not found";

/// Run a command while holding a lock
///
/// Acquires the lock, runs the command, and releases the lock when the command has ended. The lease of the lock is
/// extended while the command runs. If the lock is lost, the tool ends the command.
///
/// With several keys, it acquires all of these locks or none.
#[derive(Args, Debug)]
#[command(override_usage = "setnx-lock run [OPTIONS] <KEY>... -- <CMD>...")]
#[command(after_long_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"), after_help = format!("{EXIT_CODES}\n{MORE}"))]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct Run {
    /// The lock's key, or several
    #[arg(value_name = "KEY", value_parser = parse::key(), required_unless_present_any = ["named_keys", "resume"])]
    positional_keys: Vec<Key>,
    /// A key that begins with a hyphen
    #[arg(long = "lock", value_name = "KEY", value_parser = parse::key(), require_equals = true)]
    #[arg(hide_short_help = true)]
    named_keys: Vec<Key>,
    /// The command and its arguments
    #[arg(value_name = "CMD", last = true, required = true)]
    pub(crate) command: Vec<OsString>,

    /// Run the command on one machine, again and again
    ///
    /// Begins again whenever the command ends, here or where another process waits to lead. Whatever fails is tried
    /// again. A signal ends it.
    #[arg(long, conflicts_with_all = ["no_wait", "timeout", "wait_forever", "keep", "permits", "readers"])]
    #[arg(display_order = 3)]
    pub(crate) lead: bool,
    /// Go on with the lock of a token of `acquire` or `extend`, in place of a key
    #[arg(long, conflicts_with_all = ["positional_keys", "named_keys", "permits", "readers", "lead"])]
    #[arg(conflicts_with_all = ["no_wait", "timeout", "wait_forever"])]
    #[arg(hide_short_help = true)]
    pub(crate) resume: bool,
    #[command(flatten)]
    pub(crate) token: Token,
    /// Let up to N commands run at the same time
    ///
    /// Each holds one of N permits, with the keys KEY:0, KEY:1 and so on.
    #[arg(long, value_name = "N", conflicts_with_all = ["shared", "exclusive"])]
    #[arg(display_order = 4)]
    pub(crate) permits: Option<usize>,
    /// Exclude --exclusive, and share the lock with up to --readers commands
    #[arg(long, requires = "readers", conflicts_with = "exclusive")]
    #[arg(hide_short_help = true)]
    pub(crate) shared: bool,
    /// Exclude --shared as well as --exclusive
    #[arg(long, requires = "readers")]
    #[arg(hide_short_help = true)]
    exclusive: bool,
    /// How many may share the lock, the same number for all commands with this key
    #[arg(long, value_name = "N")]
    #[arg(hide_short_help = true)]
    pub(crate) readers: Option<usize>,

    /// Keep extending the lease for at most this long; give the expiration to disable extension [default: 24h]
    #[arg(long, value_name = "AT_MOST", value_parser = parse::interval)]
    #[arg(hide_short_help = true)]
    auto_extend: Option<Duration>,
    /// End the command after this time
    ///
    /// It gets SIGTERM, and SIGKILL after --kill-after. The lock is held until it has ended.
    #[arg(long, value_name = "TIME", value_parser = parse::interval)]
    #[arg(display_order = 5)]
    pub(crate) max_runtime: Option<Duration>,
    /// Time between SIGTERM and SIGKILL
    #[arg(long, value_name = "TIME", value_parser = parse::time, default_value = "10s")]
    #[arg(hide_short_help = true)]
    pub(crate) kill_after: Duration,
    /// If the lock is lost
    ///
    /// What to do with the command then, and with term or kill also if this process is killed.
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = OnLoss::Term)]
    #[arg(display_order = 6)]
    pub(crate) on_loss: OnLoss,
    /// Never release the lock; leave it to expire
    #[arg(long)]
    #[arg(hide_short_help = true)]
    pub(crate) keep: bool,
    /// Hold the lock until all processes of the command's process group have ended
    #[arg(long)]
    #[arg(hide_short_help = true)]
    pub(crate) wait_group: bool,
    /// Pass the command to /bin/sh -c
    #[arg(long)]
    #[arg(display_order = 7)]
    pub(crate) shell: bool,

    #[command(flatten)]
    pub(crate) acquisition: Acquisition,
}

impl Run {
    /// The keys, as they were given.
    pub(crate) fn keys(&self) -> Vec<Key> {
        self.positional_keys.iter().chain(&self.named_keys).cloned().collect()
    }

    /// Returns the options of the lock.
    pub(crate) fn options(&self, token: Option<&LockToken>) -> Result<LockOptions, Failure> {
        let (several, shares) = (self.keys().len() > 1, self.permits.is_some() || self.readers.is_some());
        for (is_wrong, problem) in [
            (self.token.token_file.is_some() && !self.resume, "--token-file needs --resume"),
            (
                self.readers.is_some() && !self.shared && !self.exclusive,
                "--readers needs --shared or --exclusive",
            ),
            (several && (shares || self.lead), "--lead, --permits and --readers need a single key"),
            (
                shares && self.acquisition.notify == Some(true),
                "--notify has no effect on permits and readers, which poll; leave it out",
            ),
            (
                self.lead && self.on_loss == OnLoss::Warn,
                "--lead ends the command when another process may lead, so --on-loss cannot be warn",
            ),
        ] {
            if is_wrong {
                return Err(Failure::usage(problem));
            }
        }
        let before = token.map(LockToken::expiration);
        let (options, expiration) = (self.acquisition.options(before)?, self.acquisition.expiration(before));
        let runs_for = self.max_runtime.map_or(Duration::ZERO, |time| time + self.kill_after + expiration);
        let at_most =
            if self.lead { LockOptions::MAX_EXPIRATION } else { AT_MOST.max(expiration).max(runs_for) };
        let at_most = self.auto_extend.unwrap_or(at_most);
        if at_most < expiration {
            return Err(Failure::usage(
                "--auto-extend is shorter than --expiration; give the longest time that the command may take, or the expiration to disable extension",
            ));
        }
        Ok(options.auto_extend(at_most.min(LockOptions::MAX_EXPIRATION)))
    }
}

/// What happens to the command of a lock that is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLoss {
    /// SIGTERM to its process group, and SIGKILL after --kill-after
    Term,
    /// SIGKILL to its process group
    Kill,
    /// It keeps running, with a warning
    Warn,
}

/// Ends the command of a `run` whose process was killed: started by `run` itself, and so no command of the tool.
#[derive(Debug, Parser)]
pub(crate) struct Guardian {
    #[arg(long, value_enum)]
    pub(crate) on_loss: OnLoss,
    #[arg(long, value_parser = parse::time)]
    pub(crate) kill_after: Duration,
}
