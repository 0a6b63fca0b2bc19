//! What a server is and can do, as far as it matters to locks. Pure: the server's replies are arguments.

use std::collections::BTreeMap;
use std::time::Duration;

use super::clock_difference::ClockDifference;
use crate::net::connections::{Role, ServerInfo};
use crate::net::errors::Refusal;
use crate::values::options::Protocol;
use crate::values::version::Version;

/// What a server is and can do, as [`Locker::inspect`](crate::Locker::inspect) found it. Its `Display` is a report of some lines
/// for people.
///
/// What a server does not report, because its version does not know it or the user may not ask, is `None`.
#[derive(Clone, Debug)]
pub struct ServerReport {
    version: Version,
    role: Option<Role>,
    replicas: Option<u32>,
    persistence: Option<Persistence>,
    maxmemory_policy: Option<String>,
    maxmemory: Option<u64>,
    idle_timeout: Option<Duration>,
    clock: Option<ClockDifference>,
    in_a_cluster: bool,
    /// The commands that it refused, and how.
    refused: BTreeMap<&'static str, Refusal>,
}

/// What is left of a server's data when its machine has crashed and it is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Persistence {
    /// Nothing.
    None,
    /// At most what it was at the last snapshot (RDB): nothing if it makes none.
    Snapshots,
    /// What it was up to about a second before (AOF).
    AppendOnly,
    /// What the system had written to disk (AOF with `appendfsync no`): Linux writes it within 30 seconds.
    AppendOnlyUnsynced,
}

/// What a server answered.
#[derive(Debug)]
pub(super) struct ServerAnswers {
    pub(super) info: ServerInfo,
    pub(super) version: Version,
    /// What CONFIG GET returned, by the name of the parameter.
    pub(super) config: BTreeMap<&'static str, String>,
    pub(super) refused: BTreeMap<&'static str, Refusal>,
    pub(super) clock: Option<ClockDifference>,
}

impl ServerReport {
    pub(super) fn from_answers(answers: ServerAnswers) -> Self {
        let ServerAnswers { info, version, config, refused, clock } = answers;
        // Newer servers report some of it in INFO, which needs fewer rights.
        let reported = |parameter: &str, field: &str| {
            config.get(parameter).map_or(info.get(field), |value| Some(value.as_str()))
        };
        let number = |text: Option<&str>| text.and_then(|text| text.parse::<u64>().ok());
        let appends = reported("appendonly", "aof_enabled").map(|value| matches!(value, "yes" | "1"));
        let snapshots = config.get("save").map(|save| !save.trim().is_empty());
        let persistence = match (appends, snapshots) {
            (Some(true), _) if config.get("appendfsync").is_some_and(|when| when == "no") => {
                Some(Persistence::AppendOnlyUnsynced)
            }
            (Some(true), _) => Some(Persistence::AppendOnly),
            (Some(false), Some(false)) => Some(Persistence::None),
            (Some(false), None) | (_, Some(true)) => Some(Persistence::Snapshots),
            (None, _) => None,
        };
        Self {
            version,
            role: info.role(),
            replicas: number(info.get("connected_slaves")).and_then(|n| u32::try_from(n).ok()),
            persistence,
            maxmemory_policy: reported("maxmemory-policy", "maxmemory_policy").map(str::to_owned),
            maxmemory: number(reported("maxmemory", "maxmemory")),
            idle_timeout: number(config.get("timeout").map(String::as_str)).map(Duration::from_secs),
            clock,
            in_a_cluster: info.get("cluster_enabled") == Some("1"),
            refused,
        }
    }

    /// Returns the version that the server says it is.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns whether it is a master, or a replica of which.
    #[must_use]
    pub fn role(&self) -> Option<&Role> {
        self.role.as_ref()
    }

    /// Returns how many replicas follow it.
    #[must_use]
    pub fn replicas(&self) -> Option<u32> {
        self.replicas
    }

    /// Returns what is left of its data when it is started again.
    #[must_use]
    pub fn persistence(&self) -> Option<Persistence> {
        self.persistence
    }

    /// Returns how much memory its data may take, in bytes; 0 where there is no limit.
    #[must_use]
    pub fn maxmemory(&self) -> Option<u64> {
        self.maxmemory
    }

    /// Returns what it does when its memory is full: the `maxmemory-policy`, which there is from 2.2 on.
    #[must_use]
    pub fn maxmemory_policy(&self) -> Option<&str> {
        self.maxmemory_policy.as_deref()
    }

    /// Returns after how long it closes connections on which nothing is said: its `timeout`, zero for never.
    #[must_use]
    pub fn idle_timeout(&self) -> Option<Duration> {
        self.idle_timeout
    }

    /// Returns how its clock differs from this machine's.
    #[must_use]
    pub fn clock(&self) -> Option<ClockDifference> {
        self.clock
    }

    /// Returns whether it is a node of a cluster, where a key may belong to another node.
    #[must_use]
    pub fn is_in_a_cluster(&self) -> bool {
        self.in_a_cluster
    }

    /// Returns the commands that it refused to this user while it was asked, each with its words.
    pub fn refused(&self) -> impl Iterator<Item = (&'static str, &Refusal)> {
        self.refused.iter().map(|(command, refusal)| (*command, refusal))
    }

    /// Returns why this protocol does not work here, in words for people; `None` if nothing is known to be in its way. The commands
    /// were tried on a key of its own; what the user may do with the keys of locks is not known.
    #[must_use]
    pub fn unsupported_reason(&self, protocol: Protocol) -> Option<String> {
        if let Some(Role::Replica { .. }) = self.role {
            return Some("it is a replica, and a lock there protects nothing".into());
        }
        if protocol == Protocol::Auto {
            return if self.recommended().is_some() {
                None
            } else {
                self.unsupported_reason(Protocol::Classic)
            };
        }
        if self.version < protocol.min_version() {
            return Some(format!("needs Redis {}", protocol.min_version()));
        }
        let (command, refusal) = self.needed_and_refused(protocol)?;
        Some(format!("the server refused {command}: {}", refusal.text()))
    }

    fn needed_and_refused(&self, protocol: Protocol) -> Option<(&'static str, &Refusal)> {
        let commands: &[&str] = match protocol {
            Protocol::Auto | Protocol::Classic => &["SETNX", "GET", "GETSET", "DEL"],
            Protocol::Watched => &["SETNX", "SET", "GET", "DEL", "WATCH", "MULTI", "EXEC", "DISCARD"],
            Protocol::Ttl => &["SET", "GET", "PTTL", "DEL", "WATCH", "MULTI", "EXEC", "DISCARD"],
        };
        let refused = commands.iter().find_map(|command| self.refused.get_key_value(command));
        refused.map(|(command, refusal)| (*command, refusal))
    }

    /// Returns the protocol to choose where nothing speaks for another, as [`Protocol::Auto`] does: the first of [`Protocol::Ttl`],
    /// [`Protocol::Watched`] and [`Protocol::Classic`] that works; `None` if none does.
    #[must_use]
    pub fn recommended(&self) -> Option<Protocol> {
        [Protocol::Ttl, Protocol::Watched, Protocol::Classic]
            .into_iter()
            .find(|protocol| self.unsupported_reason(*protocol).is_none())
    }

    /// Returns what to do where no protocol works, in words for people; `None` if one is [`recommended`](Self::recommended).
    #[must_use]
    pub fn remedy(&self) -> Option<&'static str> {
        if self.recommended().is_some() {
            return None;
        }
        Some(match (&self.role, self.needed_and_refused(Protocol::Classic)) {
            (Some(Role::Replica { .. }), _) => "lock on its master",
            (_, Some((_, refusal))) => refusal.kind().advice(),
            _ => "use a newer server",
        })
    }
}
