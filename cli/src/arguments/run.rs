//! The arguments of `run`, and of the process that watches over it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Parser, ValueEnum};
use setnx_lock::{Key, LockerBuilder, Protocol};

use super::{Server, parse};
use crate::failure::Failure;

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
  For storage that checks fencing tokens:
    setnx-lock run --fence --shell k -- 'put $SETNX_LOCK_FENCING_TOKEN'

Environment of the command:
  SETNX_LOCK_KEY            the key
  SETNX_LOCK_EXPIRES_AT     when the lease ends unless it is extended,
                            in seconds since 1970
  SETNX_LOCK_FENCING_TOKEN  with --fence

Exit codes: the command's, or 128+N if signal N ended it; otherwise
  75  contended: another holder has the lock
  65  stuck: the key holds a value that never expires
  69  unreachable: no connection to the server, or it refuses for now
  77  refused: by the server, or the server is too old
  74  unknown: a reply was lost, the lock may be held until it expires
  70  lost: the lock was lost while the command ran
  64  invalid arguments
  71  the system refused something
  126, 127  the command cannot be run, or was not found";

/// Run a command while holding a lock
///
/// Acquires the lock, runs the command, and releases the lock when the command has ended. The lease of the lock is extended while the
/// command runs. If the lock is lost, the tool ends the command.
#[derive(Args, Debug)]
#[command(override_usage = "setnx-lock run [OPTIONS] <KEY> -- <CMD>...")]
#[command(after_long_help = EXAMPLES, after_help = "Examples, environment and exit codes: setnx-lock help run")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct Run {
    /// The lock's key
    #[arg(value_name = "KEY", value_parser = parse::key(), required_unless_present = "named_key")]
    positional_key: Option<Key>,
    /// The lock's key, if it begins with a hyphen
    #[arg(long = "lock", value_name = "KEY", value_parser = parse::key(), require_equals = true)]
    #[arg(conflicts_with = "positional_key")]
    named_key: Option<Key>,
    /// The command and its arguments
    #[arg(value_name = "CMD", last = true, required = true)]
    pub(crate) command: Vec<OsString>,

    /// How long the lease lasts; after a crash of this machine, others get the lock when it ends [default: 60s, or --hold-at-least if longer]
    #[arg(long, short = 'e', value_name = "TIME", value_parser = parse::interval)]
    pub(crate) expiration: Option<Duration>,
    /// How long to wait for the lock
    #[arg(long, short = 'w', value_name = "TIME", value_parser = parse::time, default_value = "5s")]
    #[arg(conflicts_with_all = ["no_wait", "wait_forever"])]
    pub(crate) timeout: Duration,
    /// Make one attempt; do not wait
    #[arg(long, short = 'n', conflicts_with = "wait_forever")]
    pub(crate) no_wait: bool,
    /// Wait without a limit, even while the server refuses for now, as when it is full; fails if it is unreachable or a replica for --retry-for
    #[arg(long)]
    pub(crate) wait_forever: bool,
    /// How often to look at the key while waiting
    #[arg(long, value_name = "TIME", value_parser = parse::interval, default_value = "100ms")]
    pub(crate) poll: Duration,
    /// Wake other waiting processes on release, and be woken by them (Redis 2.0) [default: true with auto, else false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) notify: Option<bool>,
    /// Redis commands to use; auto selects the best protocol that the server supports
    #[arg(long, value_name = "PROTOCOL", value_enum, default_value_t = GivenProtocol::Auto)]
    pub(crate) protocol: GivenProtocol,

    /// Keep extending the lease for at most this long; give the expiration to disable extension [default: 24h]
    #[arg(long, value_name = "AT_MOST", value_parser = parse::interval)]
    pub(crate) auto_extend: Option<Duration>,
    /// Hold the lock for at least this long, even if the command ends sooner
    #[arg(long, value_name = "TIME", value_parser = parse::time, default_value = "0s", hide_default_value = true)]
    pub(crate) hold_at_least: Duration,
    /// Never release the lock; leave it to expire
    #[arg(long)]
    pub(crate) keep: bool,
    /// Take a fencing token and pass it to the command
    #[arg(long)]
    pub(crate) fence: bool,
    /// Show others this name (at most 64 bytes) while the lock is held; --name= uses the host name and process id
    #[arg(long, value_name = "NAME", require_equals = true)]
    pub(crate) name: Option<String>,

    /// What to do with the command if the lock is lost or this process is killed
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = OnLoss::Term)]
    pub(crate) on_loss: OnLoss,
    /// Time between SIGTERM and SIGKILL
    #[arg(long, value_name = "TIME", value_parser = parse::time, default_value = "10s")]
    pub(crate) grace: Duration,
    /// Hold the lock until all processes of the command's process group have ended
    #[arg(long)]
    pub(crate) wait_group: bool,
    /// Pass the command to /bin/sh -c
    #[arg(long)]
    pub(crate) shell: bool,
    /// Exit code for contention (e.g. 0), or CONDITION=CODE[,…]; a condition mapped to 0 prints no error
    #[arg(long, short = 'E', value_name = "CODES", value_delimiter = ',', value_parser = exit_code)]
    exit_code: Vec<(Condition, u8)>,
    /// Report what happens to the lock
    #[arg(long, short, conflicts_with = "quiet")]
    pub(crate) verbose: bool,
    /// Report errors only; contention is none
    #[arg(long, short)]
    pub(crate) quiet: bool,
    /// Report events, warnings and errors on the standard error as JSON, one object a line
    #[arg(long, conflicts_with_all = ["quiet", "verbose"])]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) outages: Outages,
    #[command(flatten)]
    pub(crate) server: Server,
}

/// What is done while the server is away, and after it was.
#[derive(Args, Debug)]
#[command(next_help_heading = "Outages")]
pub(crate) struct Outages {
    /// How long to retry while the server is unreachable or a replica; a failover takes longer than 30 s by default
    #[arg(long, value_name = "TIME", value_parser = parse::time, default_value = "5s")]
    retry_for: Duration,
    /// With redis+sentinel://: acquire nothing until the server has been the master for this long; give the longest expiration of any lock
    #[arg(long, value_name = "TIME", value_parser = parse::time, default_value = "0s", hide_default_value = true)]
    settle_after_failover: Duration,
    /// Acquire nothing until the server has run for this long, since a restart may have lost locks
    #[arg(long, value_name = "TIME", value_parser = parse::time, default_value = "0s", hide_default_value = true)]
    settle_after_restart: Duration,
}

impl Outages {
    /// Sets what the builder of a locker for this URL has to know.
    pub(crate) fn apply(&self, builder: LockerBuilder, url: &str) -> Result<LockerBuilder, Failure> {
        if !self.settle_after_failover.is_zero() && !url.contains("+sentinel://") {
            return Err(Failure::usage(
                "--settle-after-failover needs Sentinels, which know since when a server has been the master; give a redis+sentinel:// URL",
            ));
        }
        let builder = builder.retry_for(self.retry_for).settle_after_restart(self.settle_after_restart);
        Ok(builder.settle_after_failover(self.settle_after_failover))
    }
}

impl Run {
    /// The lock's key.
    pub(crate) fn key(&self) -> &Key {
        let key = self.positional_key.as_ref().or(self.named_key.as_ref());
        key.unwrap_or_else(|| unreachable!("one is required"))
    }

    pub(crate) fn exit_codes(&self) -> ExitCodes {
        ExitCodes(self.exit_code.iter().copied().collect())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GivenProtocol {
    Auto,
    Classic,
    Watched,
    Ttl,
}

impl From<GivenProtocol> for Protocol {
    fn from(given: GivenProtocol) -> Self {
        match given {
            GivenProtocol::Auto => Protocol::Auto,
            GivenProtocol::Classic => Protocol::Classic,
            GivenProtocol::Watched => Protocol::Watched,
            GivenProtocol::Ttl => Protocol::Ttl,
        }
    }
}

/// What happens to the command of a lock that is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLoss {
    /// SIGTERM to its process group, and SIGKILL after --grace
    Term,
    /// SIGKILL to its process group
    Kill,
    /// It keeps running, with a warning
    Warn,
}

/// Why `run` ends otherwise than its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Condition {
    Contended,
    Unreachable,
    Refused,
    Unknown,
    Lost,
    Stuck,
}

impl Condition {
    /// The exit code unless another one is given, after sysexits.h.
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Condition::Contended => 75,
            Condition::Unreachable => 69,
            Condition::Refused => 77,
            Condition::Unknown => 74,
            Condition::Lost => 70,
            Condition::Stuck => 65,
        }
    }
}

/// The exit codes of conditions, where others were given.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExitCodes(BTreeMap<Condition, u8>);

impl ExitCodes {
    pub(crate) fn of(&self, condition: Condition) -> u8 {
        self.0.get(&condition).copied().unwrap_or(condition.exit_code())
    }
}

/// Reads `CODE`, for contention, or `CONDITION=CODE`.
fn exit_code(text: &str) -> Result<(Condition, u8), String> {
    let (condition, code) = text.split_once('=').unwrap_or(("contended", text));
    let condition = Condition::from_str(condition, true).map_err(|_| {
        let known: Vec<_> = Condition::value_variants()
            .iter()
            .filter_map(|known| Some(known.to_possible_value()?.get_name().to_owned()))
            .collect();
        format!("unknown condition {condition:?}; known are {}", known.join(", "))
    })?;
    let code = code
        .parse()
        .map_err(|_| format!("invalid exit code {code:?}; expected 0 to 255, for example 0 or lost=99"))?;
    Ok((condition, code))
}

/// Ends the command of a `run` whose process was killed: started by `run` itself, and so no command of the tool.
#[derive(Debug, Parser)]
pub(crate) struct Guardian {
    #[arg(long, value_enum)]
    pub(crate) on_loss: OnLoss,
    #[arg(long, value_parser = parse::time)]
    pub(crate) grace: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_given_or_the_documented_ones() {
        assert_eq!(exit_code("0"), Ok((Condition::Contended, 0)));
        assert_eq!(exit_code("lost=99"), Ok((Condition::Lost, 99)));
        assert!(exit_code("late=1").unwrap_err().contains("known are contended, unreachable"));
        assert!(exit_code("lost=256").unwrap_err().contains("0 to 255"));
        let codes = ExitCodes(BTreeMap::from([(Condition::Lost, 1)]));
        assert_eq!((codes.of(Condition::Lost), codes.of(Condition::Unknown)), (1, 74));
        for condition in Condition::value_variants() {
            let line = format!(
                "  {}  {}:",
                condition.exit_code(),
                condition.to_possible_value().unwrap().get_name()
            );
            assert!(EXAMPLES.contains(&line), "{line}");
        }
    }
}
