//! What a server is and can do, as far as it matters to locks. Pure: the server's replies are arguments.

use std::collections::BTreeMap;
use std::time::Duration;

use setnx_lock::redis::InfoDict;
use setnx_lock::{Protocol, Refusal, Version};

use super::clock_difference::ClockDifference;
use crate::keys::shown;

/// The protocols that a lock can have, the best last.
pub(super) const PROTOCOLS: [Protocol; 3] = [Protocol::Classic, Protocol::Watched, Protocol::Ttl];

/// What a server answered, to other questions than INFO.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// What CONFIG GET returned, by the name of the parameter.
    pub(super) config: BTreeMap<&'static str, String>,
    pub(super) refused: BTreeMap<&'static str, Refusal>,
    pub(super) clock: Option<ClockDifference>,
    /// What the clock of this machine shows, as the time since 1970.
    pub(super) ours: Duration,
    /// True if Sentinels have named the server.
    pub(super) by_sentinel: bool,
}

/// What a server is and can do. What it does not report, because
/// its version does not know it or the user may not ask, is `None`.
#[derive(Debug)]
pub(super) struct ServerReport {
    pub(super) version: Version,
    pub(super) role: Option<Role>,
    pub(super) replicas: Option<u32>,
    pub(super) persistence: Option<Persistence>,
    pub(super) maxmemory_policy: Option<String>,
    /// In bytes; 0 where there is no limit.
    pub(super) maxmemory: Option<u64>,
    /// After how long it closes idle connections; zero for never.
    pub(super) idle_timeout: Option<Duration>,
    pub(super) clock: Option<ClockDifference>,
    /// What the clock of this machine shows, as the time since 1970.
    pub(super) ours: Duration,
    pub(super) in_a_cluster: bool,
    /// True if Sentinels have named it, which know the epoch of its configuration.
    pub(super) by_sentinel: bool,
    /// True if it takes no writes without replicas that follow it closely.
    pub(super) stops_without_replicas: bool,
    /// How many replicas it needs to take writes.
    pub(super) min_replicas: Option<u32>,
    /// How long it lets a replica wait that needs all data, in case others come.
    pub(super) replicates_after: Option<Duration>,
    /// The commands that it refused, and how.
    pub(super) refused: BTreeMap<&'static str, Refusal>,
}

/// A master, or a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Master,
    Replica {
        /// The master's host and port, where the server reports them.
        of: Option<String>,
    },
}

/// The data that remains when a server's machine crashes and it is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Persistence {
    /// None.
    None,
    /// At most the data of the last snapshot (RDB).
    Snapshots,
    /// All but about a second (AOF).
    AppendOnly,
    /// All that the system had written to disk (AOF with `appendfsync no`): Linux writes it within 30 seconds.
    AppendOnlyUnsynced,
}

impl ServerReport {
    pub(super) fn of(version: Version, info: &InfoDict, answers: Answers) -> Self {
        let Answers { config, refused, clock, ours, by_sentinel } = answers;
        // Newer servers report some of it in INFO, which needs fewer rights.
        let reported =
            |parameter: &str, field: &str| config.get(parameter).cloned().or_else(|| info.get(field));
        Self {
            version,
            role: role(info),
            replicas: info.get("connected_slaves"),
            persistence: persistence(&config, reported("appendonly", "aof_enabled").as_deref()),
            maxmemory_policy: reported("maxmemory-policy", "maxmemory_policy"),
            maxmemory: reported("maxmemory", "maxmemory").and_then(|bytes| bytes.parse().ok()),
            idle_timeout: config.get("timeout").and_then(|time| time.parse().ok()).map(Duration::from_secs),
            clock,
            ours,
            in_a_cluster: info.get("cluster_enabled") == Some(1),
            by_sentinel,
            stops_without_replicas: info.find(&"min_slaves_good_slaves").is_some(),
            min_replicas: config.get("min-slaves-to-write").and_then(|number| number.parse().ok()),
            replicates_after: config
                .get("repl-diskless-sync-delay")
                .filter(|_| config.get("repl-diskless-sync").is_some_and(|syncs| syncs == "yes"))
                .and_then(|delay| delay.parse().ok())
                .map(Duration::from_secs),
            refused,
        }
    }

    pub(super) fn is_replica(&self) -> bool {
        matches!(self.role, Some(Role::Replica { .. }))
    }

    /// Returns why this protocol does not work here; `None` if nothing is known to be in its way. The commands were
    /// tried on a key of the inspection's own: what the user may do with the keys of locks is not known.
    pub(super) fn unsupported_reason(&self, protocol: Protocol) -> Option<String> {
        if self.is_replica() {
            return Some("it is a replica, and a lock there protects nothing".into());
        }
        if self.version < protocol.min_version() {
            return Some(format!("needs Redis {}", protocol.min_version()));
        }
        let (command, refusal) = self.needed_and_refused(protocol)?;
        Some(format!("the server refused {command}: {}", refusal.text()))
    }

    fn needed_and_refused(&self, protocol: Protocol) -> Option<(&'static str, &Refusal)> {
        let commands: &[&str] = match protocol {
            Protocol::Watched => &["SETNX", "SET", "GET", "DEL", "WATCH", "MULTI", "EXEC", "DISCARD"],
            Protocol::Ttl => &["SET", "GET", "PTTL", "DEL", "WATCH", "MULTI", "EXEC", "DISCARD"],
            _ => &["SETNX", "GET", "GETSET", "DEL"],
        };
        let refused = commands.iter().find_map(|command| self.refused.get_key_value(command));
        refused.map(|(command, refusal)| (*command, refusal))
    }

    /// Returns the best protocol that works here, which is what `Protocol::Auto` uses; `None` if none does.
    pub(super) fn recommended(&self) -> Option<Protocol> {
        PROTOCOLS.into_iter().rev().find(|protocol| self.unsupported_reason(*protocol).is_none())
    }

    /// Returns what to do if no protocol works.
    pub(super) fn remedy(&self) -> &'static str {
        match self.needed_and_refused(Protocol::Classic) {
            _ if self.is_replica() => "lock on its master",
            Some((_, refusal)) => refusal.kind().advice(),
            None => "use a newer server",
        }
    }
}

fn role(info: &InfoDict) -> Option<Role> {
    match info.get::<String>("role")?.as_str() {
        "master" => Some(Role::Master),
        "slave" | "replica" => {
            let port = info.get::<String>("master_port").unwrap_or_else(|| "?".into());
            let of = info.get::<String>("master_host").map(|host| shown(&format!("{host}:{port}")));
            Some(Role::Replica { of })
        }
        _ => None,
    }
}

fn persistence(config: &BTreeMap<&'static str, String>, appends: Option<&str>) -> Option<Persistence> {
    let snapshots = config.get("save").map(|save| !save.trim().is_empty());
    match (appends?, snapshots) {
        ("yes" | "1", _) if config.get("appendfsync").is_some_and(|when| when == "no") => {
            Some(Persistence::AppendOnlyUnsynced)
        }
        ("yes" | "1", _) => Some(Persistence::AppendOnly),
        (_, Some(false)) => Some(Persistence::None),
        // A server that does not say may make snapshots.
        _ => Some(Persistence::Snapshots),
    }
}
