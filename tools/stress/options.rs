//! The command line, parsed once into valid values.

#[path = "../shared/arguments.rs"]
mod arguments;
#[path = "../shared/time_option.rs"]
mod time_option;

use std::time::Duration;

use clap::{Args, Subcommand};
use setnx_lock::{Protocol, Version};

use crate::harness::own_keys::{Plan, Situation};
use crate::harness::{Contender, Harness};
use crate::version;
use setnx_lock_testing::ServerVersion;

pub(crate) type Arguments = arguments::Arguments<Options, Part>;

/// The part that the program runs for itself, beside the workers.
#[derive(Debug, Subcommand)]
pub(crate) enum Part {
    #[command(hide = true)]
    Conduct(Options),
}

/// Processes take locks for short and different times, outlive their leases, are
/// killed and stopped, behind a network with delays; a checker looks for two leases
/// that are valid at once. Runs on a private redis-server, unless given another.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Acquisitions by Watched, at least; the other contenders, unless they are named, make a part of it
    #[arg(long, value_name = "COUNT", default_value = "50000", value_parser = clap::value_parser!(u64).range(1..))]
    acquisitions: u64,
    /// The contenders, of watched, notified (watched, with release notifications),
    /// pipelined (watched, with few connections), gem, classic, ttl and quorum (on
    /// three servers, of which two restart now and then): all unless given
    #[arg(long, value_name = "CONTENDER", value_delimiter = ',')]
    only: Vec<Contender>,
    /// Processes that contend, 1 to 32
    #[arg(long, value_name = "COUNT", default_value = "4", value_parser = clap::value_parser!(u32).range(1..=32))]
    workers: u32,
    /// Threads of each process, 1 to 128
    #[arg(long, value_name = "COUNT", default_value = "96", value_parser = clap::value_parser!(u32).range(1..=128))]
    threads: u32,
    /// Keys that they contend for, 1 to 1000
    #[arg(long, value_name = "COUNT", default_value = "160", value_parser = clap::value_parser!(u64).range(1..=1000))]
    keys: u64,
    /// How often about a process is killed, and another started
    #[arg(long, value_name = "TIME", default_value = "1500ms", value_parser = time)]
    kill_every: Duration,
    /// How often about a process is stopped for up to 1.5 s
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time)]
    stop_every: Duration,
    /// Make the server look like an old one, such as 2.4
    #[arg(long, value_name = "VERSION", value_parser = version::emulated)]
    pub(crate) emulating: Option<ServerVersion>,
    /// Run on this server, through the same proxy, with keys of its own, which are removed; a URL as
    /// `redis://:password@host:6379/3`, without TLS
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// Instead, let threads hold keys of their own while what they share is disturbed, and count the holds that are
    /// reported lost: in all situations, or in these, of cluster, one-node-cluster, one-node-cluster-as-server,
    /// full-server, no-replicas, takeovers, writer-of-other-keys, text-in-counters, kept-locks, kept-locks-in-cluster,
    /// hung-node, kept-locks-and-cuts and late-replies-and-cuts
    #[arg(long, value_name = "SITUATION", value_delimiter = ',', num_args = 0..)]
    pub(crate) own_keys: Option<Vec<Situation>>,
    /// With --own-keys: how long a command takes to arrive, and its reply
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = delay)]
    delay: Duration,
    /// With --own-keys: the protocol, of classic, watched, ttl and auto
    #[arg(long, value_name = "PROTOCOL", default_value = "watched", value_parser = protocol)]
    protocol: Protocol,
    /// With --own-keys: on one server, use the connections of an r2d2 pool of 8
    #[arg(long)]
    on_pool: bool,
    /// Keep the workers' logs also if all goes well, and say where
    #[arg(long)]
    pub(crate) keep_logs: bool,
}

impl Options {
    pub(crate) fn harness(&self) -> Harness {
        let Self { workers, threads, keys, kill_every, stop_every, .. } = *self;
        Harness { workers, threads, keys, kill_every, stop_every }
    }

    /// Returns what threads with keys of their own do, and in which situations; nothing unless they are asked for.
    pub(crate) fn own_keys(&self) -> Option<(Plan, Vec<Situation>)> {
        let mut situations = self.own_keys.clone()?;
        if situations.is_empty() {
            situations = Situation::ALL.map(|(_, situation)| situation).to_vec();
        }
        let (threads, holds) =
            (self.threads as usize, usize::try_from(self.acquisitions).unwrap_or(usize::MAX));
        Some((
            Plan { threads, holds, delay: self.delay, protocol: self.protocol, on_pool: self.on_pool },
            situations,
        ))
    }

    /// Returns the contenders, each with the acquisitions it has to make. Without names, those that a server of this
    /// version, where it is not a current one, is new enough for.
    pub(crate) fn runs(&self, version: Option<Version>) -> Result<Vec<(Contender, usize)>, String> {
        let all = self.acquisitions;
        let runs = Contender::ALL.into_iter().map(|(name, contender)| {
            let count = match name {
                "watched" => all,
                _ if !self.only.is_empty() => all,
                "ttl" => all / 5,
                _ => all * 2 / 5,
            };
            (contender, usize::try_from(count.max(1)).unwrap_or(usize::MAX))
        });
        // A quorum has servers of its own.
        let elsewhere = self.url.is_some() || self.emulating.is_some();
        let is_there = |contender: &Contender| {
            version.is_none_or(|version| version >= oldest(*contender))
                && !(elsewhere && *contender == Contender::Quorum)
        };
        if let Some((contender, version)) =
            self.only.iter().find(|contender| !is_there(contender)).zip(version)
        {
            return Err(format!("{contender} needs a newer server than {version}"));
        }
        let asked = |contender: &Contender| self.only.is_empty() || self.only.contains(contender);
        Ok(runs.filter(|(contender, _)| asked(contender) && is_there(contender)).collect())
    }
}

/// The oldest server that the contender can use.
fn oldest(contender: Contender) -> Version {
    match contender {
        Contender::Library(protocol) => protocol.min_version(),
        Contender::Notified | Contender::Pipelined => Protocol::Watched.min_version(),
        Contender::Gem | Contender::Quorum => Protocol::Classic.min_version(),
    }
}

fn time(text: &str) -> Result<Duration, String> {
    time_option::between("100ms", "1h", text)
}

fn delay(text: &str) -> Result<Duration, String> {
    time_option::between("0s", "1s", text)
}

fn protocol(text: &str) -> Result<Protocol, String> {
    match text {
        "classic" => Ok(Protocol::Classic),
        "watched" => Ok(Protocol::Watched),
        "ttl" => Ok(Protocol::Ttl),
        "auto" => Ok(Protocol::Auto),
        _ => Err("one of classic, watched, ttl and auto".to_owned()),
    }
}
