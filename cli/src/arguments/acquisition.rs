//! How a lock is acquired: the arguments that `run` and `acquire` share, and their exit codes.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;
use setnx_lock::{LockOptions, LockerBuilder, Protocol};

use super::{Server, parse};
use crate::failure::Failure;

/// How long a lease lasts unless given.
const EXPIRATION: Duration = Duration::from_secs(60);

/// How a lock is acquired.
#[derive(Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct Acquisition {
    /// Length of the lease [default: 60s]
    ///
    /// If this machine crashes, others get the lock when it ends.
    /// By default 60 s, or --hold-at-least if that is longer.
    #[arg(long, short = 'e', value_name = "TIME", value_parser = parse::interval, display_order = 0)]
    expiration: Option<Duration>,
    /// How long to wait for the lock
    #[arg(long, short = 'w', value_name = "TIME", value_parser = parse::time, default_value = "5s")]
    #[arg(display_order = 1)]
    #[arg(conflicts_with_all = ["no_wait", "wait_forever"])]
    timeout: Duration,
    /// Make one attempt; do not wait
    #[arg(long, short = 'n', conflicts_with = "wait_forever", display_order = 2)]
    no_wait: bool,
    /// Wait without a limit
    ///
    /// Waits also while the server refuses for now, as when it is
    /// full. Fails if it is unreachable or a replica for --retry-for.
    #[arg(long, display_order = 2)]
    wait_forever: bool,
    /// How often to look at the key while waiting
    #[arg(long, value_name = "TIME", value_parser = parse::interval, default_value = "100ms")]
    #[arg(hide_short_help = true)]
    poll: Duration,
    /// Wake other waiting processes on release, and be woken by them (Redis 2.0) [default: true with auto, else false]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    #[arg(hide_short_help = true)]
    pub(crate) notify: Option<bool>,
    /// Redis commands to use; auto selects the best protocol that the server supports
    #[arg(long, value_name = "PROTOCOL", value_enum, default_value_t = GivenProtocol::Auto)]
    #[arg(hide_short_help = true)]
    protocol: GivenProtocol,
    /// Hold the lock for at least this long
    ///
    /// Even if a command ends sooner.
    #[arg(long, value_name = "TIME", value_parser = parse::time, default_value = "0s", hide_default_value = true)]
    hold_at_least: Duration,
    /// Take a fencing token
    ///
    /// A command gets it in SETNX_LOCK_FENCING_TOKEN; in a token it travels along.
    #[arg(long)]
    pub(crate) fence: bool,
    /// Show others this name; if empty, host:process
    ///
    /// It has at most 64 bytes.
    #[arg(long, value_name = "NAME", require_equals = true)]
    pub(crate) name: Option<String>,
    /// Exit code for contention, or CONDITION=CODE[,…]
    ///
    /// A condition mapped to 0 prints no error: `-E 0` skips a job that another machine runs.
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
    #[arg(hide_short_help = true)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) outages: Outages,
    #[command(flatten)]
    pub(crate) server: Server,
}

impl Acquisition {
    pub(crate) fn exit_codes(&self) -> ExitCodes {
        ExitCodes(self.exit_code.iter().copied().collect())
    }

    /// How long a lease lasts: as long as one before, if there was one.
    pub(crate) fn expiration(&self, before: Option<Duration>) -> Duration {
        self.expiration.unwrap_or(before.unwrap_or(EXPIRATION).max(self.hold_at_least))
    }

    /// Returns the options of the lock.
    pub(crate) fn options(&self, before: Option<Duration>) -> Result<LockOptions, Failure> {
        let expiration = self.expiration(before);
        if self.hold_at_least > expiration {
            return Err(Failure::usage(
                "--hold-at-least is longer than --expiration; shorten it, or lengthen the expiration",
            ));
        }
        let options = LockOptions::expiring_after(expiration)
            .poll_interval(self.poll)
            .protocol(self.protocol.into())
            .hold_at_least(self.hold_at_least);
        let options = match (self.no_wait, self.wait_forever) {
            (true, _) => options.timeout(Duration::ZERO),
            (_, true) => options.wait_forever(),
            _ => options.timeout(self.timeout),
        };
        Ok(match self.notify {
            Some(notifies) => options.notify_waiters(notifies),
            None => options,
        })
    }
}

/// What is done while the server is away, and after it was.
#[derive(Args, Debug)]
#[command(next_help_heading = "Outages")]
pub(crate) struct Outages {
    /// How long to retry while the server is unreachable or a replica; a failover takes longer than 30 s by default
    #[arg(long, value_name = "TIME", value_parser = parse::time, default_value = "5s")]
    #[arg(hide_short_help = true)]
    retry_for: Duration,
    /// With redis+sentinel://: acquire nothing until the server has been
    /// the master for this long; give the longest expiration of any lock
    #[arg(long, value_name = "TIME", value_parser = parse::time, default_value = "0s", hide_default_value = true)]
    #[arg(hide_short_help = true)]
    settle_after_failover: Duration,
    /// Acquire nothing until the server has run for this long, since a restart may have lost locks
    #[arg(long, value_name = "TIME", value_parser = parse::time, default_value = "0s", hide_default_value = true)]
    #[arg(hide_short_help = true)]
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

/// Why `run` ends otherwise than its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Condition {
    Contended,
    Unreachable,
    Refused,
    Unknown,
    Lost,
    Stuck,
    MaxRuntime,
}

impl Condition {
    /// The exit code unless another one is given: after sysexits.h, and the last after timeout(1).
    pub(crate) fn exit_code(self) -> u8 {
        match self {
            Condition::Contended => 75,
            Condition::Unreachable => 69,
            Condition::Refused => 77,
            Condition::Unknown => 74,
            Condition::Lost => 70,
            Condition::Stuck => 65,
            Condition::MaxRuntime => 124,
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

#[cfg(test)]
mod tests {
    use super::super::run::EXIT_CODES;
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
            let name = condition.to_possible_value().unwrap();
            let line = format!("  {:<3} {}:", condition.exit_code(), name.get_name());
            assert!(EXIT_CODES.contains(&line), "{line}");
        }
    }
}
