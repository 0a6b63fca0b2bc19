//! What may harm locks on a server, each with what to do. Pure.

use std::ops::Range;
use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;
use setnx_lock::Protocol;

use super::report::{Persistence, Role, ServerReport};

/// The clocks of all clients of a key must be within a second of each
/// other; two that are both within half a second of the server's are.
const CLOSE_TO_THE_SERVER: Duration = Duration::from_millis(500);
/// By a clock that shows an earlier second, or a later one, the library
/// acquires no lock with an expiration, as its `proto/src/values/clock.rs` says.
const PLAUSIBLE_SECONDS: Range<u64> = 1_000_000_000..9_000_000_000;
/// The library uses a connection that has been idle for up to this time, as its `net/connections/connection.rs` says.
const TRUSTED_WHILE_IDLE: Duration = Duration::from_secs(10);

const LAST_OF_YEAR_9999: Duration = Duration::from_secs(253_402_300_799);

/// How grave a finding is; the exit code is that of the gravest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Severity {
    /// True of most single servers; good to know.
    Note,
    /// Something should be changed.
    Warning,
    /// Locks do not work here.
    Error,
}

#[derive(Debug, Serialize)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    pub(super) text: String,
}

impl ServerReport {
    /// Returns what may harm locks on this server, the gravest first.
    pub(super) fn findings(&self) -> Vec<Finding> {
        let mut findings: Vec<Finding> = [
            self.no_protocol(),
            self.replica(),
            self.cluster(),
            self.epoch(),
            self.clocks(),
            self.eviction(),
            self.forgetting(),
            self.failover(),
            self.writes_after_a_failover(),
            self.idle_connections(),
            self.unanswered(),
        ]
        .into_iter()
        .flatten()
        .map(|(severity, text)| Finding { severity, text })
        .collect();
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        findings
    }

    fn no_protocol(&self) -> Option<(Severity, String)> {
        if self.is_replica() || self.recommended().is_some() {
            return None;
        }
        let why = self.unsupported_reason(Protocol::Classic).unwrap_or_default();
        Some((Severity::Error, format!("no protocol works: {why}; {}", self.remedy())))
    }

    fn replica(&self) -> Option<(Severity, String)> {
        let Some(Role::Replica { of }) = &self.role else { return None };
        let of = of.as_ref().map_or(String::new(), |of| format!(" of {of}"));
        let text = format!("it is a replica{of}, and a lock there protects nothing; lock on its master");
        Some((Severity::Error, text))
    }

    fn cluster(&self) -> Option<(Severity, String)> {
        let text = "it is a node of a cluster, and a key may belong to another node; use a redis+cluster:// URL, or `Locker::cluster`";
        self.in_a_cluster.then(|| (Severity::Warning, text.into()))
    }

    fn epoch(&self) -> Option<(Severity, String)> {
        let refusal = self.refused.get("CLUSTER INFO")?;
        let text = format!(
            "it refused CLUSTER INFO ({}), so the epoch of its configuration is not known, and fencing tokens can come again after a failover; permit \
             it to this user (+cluster|info)",
            refusal.text()
        );
        Some((Severity::Warning, text))
    }

    fn clocks(&self) -> Option<(Severity, String)> {
        if !PLAUSIBLE_SECONDS.contains(&self.ours.as_secs()) {
            let shown = humantime::format_rfc3339_seconds(UNIX_EPOCH + self.ours.min(LAST_OF_YEAR_9999));
            let text = format!(
                "the clock of this machine shows {shown}, which cannot be right, so that it acquires no lock with an expiration; set it, for \
                 example by NTP"
            );
            return Some((Severity::Error, text));
        }
        let difference = self.clock.filter(|clock| clock.at_least() > CLOSE_TO_THE_SERVER)?;
        let text = format!(
            "its clock is {difference}; clients compare expiry times with their own clocks, which must be within a second of each other; \
             synchronize the clocks of all machines (NTP)"
        );
        Some((Severity::Warning, text))
    }

    fn eviction(&self) -> Option<(Severity, String)> {
        // Without a limit nothing is removed, whatever the policy.
        let policy = self.maxmemory_policy.as_deref().filter(|_| self.maxmemory != Some(0))?;
        // `volatile-…` removes only keys with a time to live. No lock has one below the version that Ttl needs, which
        // gems from 1.4.2 on need as well.
        let which = match policy.split('-').next() {
            Some("allkeys") => "locks",
            Some("volatile") if self.version >= Protocol::Ttl.min_version() => {
                "locks of the protocol Ttl and of gems from 1.4.2 on"
            }
            _ => return None,
        };
        let text = format!(
            "when its memory is full it removes keys by {policy}, {which} too, and another holder gets the lock; set maxmemory-policy to \
             noeviction, or lock on a server of its own"
        );
        Some((Severity::Warning, text))
    }

    fn forgetting(&self) -> Option<(Severity, String)> {
        let (what, remedy) = match self.persistence? {
            Persistence::AppendOnly => return None,
            Persistence::None => ("it has no data", "turn on appendonly"),
            Persistence::AppendOnlyUnsynced => {
                ("of its machine the locks of the last half minute are gone", "set appendfsync to everysec")
            }
            Persistence::Snapshots => (
                "it has at most the data of its last snapshot: newer locks are gone, and older ones are back until they expire",
                "turn on appendonly",
            ),
        };
        let text = format!(
            "after a crash {what}, so work under a lock may go on while another holder gets it; {remedy}, or give the longest expiration \
             of any lock to `run --settle-after-restart`"
        );
        Some((Severity::Note, text))
    }

    fn failover(&self) -> Option<(Severity, String)> {
        let who = match self.replicas? {
            0 => return None,
            1 => "a replica follows".to_owned(),
            replicas => format!("{replicas} replicas follow"),
        };
        // With one, a failover would leave none.
        let cut_off = if self.stops_without_replicas || self.replicas == Some(1) {
            ""
        } else {
            "; set min-replicas-to-write (min-slaves-to-write before Redis 5) to 1, so that it grants no locks once it is cut off from them"
        };
        let tokens = if self.by_sentinel || self.in_a_cluster {
            ""
        } else {
            "; fencing tokens can come again after one: with Sentinels use a redis+sentinel:// URL, else raise each counter by `fence --at-least`"
        };
        let outlasts = if self.by_sentinel {
            "; a lease outlasts one if it is at least 2 × (down-after-milliseconds + 2 s) long"
        } else {
            ""
        };
        let text = format!(
            "{who} it, a moment behind: a failover can lose the newest locks; after one wait for the longest expiration before work goes \
             on (`run --settle-after-failover` does, with Sentinels), or make the work itself safe against running twice{outlasts}{cut_off}{tokens}"
        );
        Some((Severity::Note, text))
    }

    /// What a new master needs before it takes writes, as far as that is longer than a moment.
    fn writes_after_a_failover(&self) -> Option<(Severity, String)> {
        // A lag of zero switches it off.
        let min = self.min_replicas.filter(|_| self.stops_without_replicas)?;
        let replicas = self.replicas.filter(|replicas| *replicas > 0)?;
        if min >= replicas {
            let text = format!(
                "min-replicas-to-write is {min} and {replicas} {}, of which a failover makes one the master: it takes no writes before the old one \
                 follows it, which Sentinels have it do ten seconds after a planned failover, and not as long as it is away; have one more replica, or set it to {}",
                if replicas == 1 { "replica follows" } else { "replicas follow" },
                replicas - 1
            );
            return Some((Severity::Warning, text));
        }
        let delay = self.replicates_after.filter(|delay| min > 0 && !delay.is_zero())?;
        let text = format!(
            "a new master takes no writes before a replica follows it, and repl-diskless-sync-delay holds that up for {} s; set it to 0 on all servers, \
             or make leases at least {} s long",
            delay.as_secs(),
            2 * (delay.as_secs() + 2)
        );
        Some((Severity::Note, text))
    }

    fn idle_connections(&self) -> Option<(Severity, String)> {
        let idle = self.idle_timeout.filter(|idle| !idle.is_zero() && *idle <= TRUSTED_WHILE_IDLE)?;
        let text = format!(
            "it closes connections that are idle for {} s, and clients use one that has been idle for up to {} s: a command on a closed \
             one gets no answer, and leaves its lock in doubt; set the server's timeout to 0, or to a minute or more",
            idle.as_secs(),
            TRUSTED_WHILE_IDLE.as_secs()
        );
        Some((Severity::Warning, text))
    }

    fn unanswered(&self) -> Option<(Severity, String)> {
        let questions = ["CONFIG", "TIME", "EXPIREAT"];
        let refused: Vec<_> = questions.into_iter().filter(|name| self.refused.contains_key(name)).collect();
        let text = format!(
            "it refused {}, so it is not known whether it removes keys, closes idle connections, or forgets locks in a crash; permit these \
             commands to this user, or run doctor as another user",
            refused.join(" and ")
        );
        (!refused.is_empty()).then_some((Severity::Note, text))
    }
}
