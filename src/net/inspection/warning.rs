//! What may harm locks on a server, each with what to do.

use std::time::Duration;

use super::clock_difference::ClockDifference;
use super::report::{Persistence, ServerReport};
use crate::net::connections::{Role, TRUSTED_WHILE_IDLE};
use crate::values::options::Protocol;

/// The clocks of all clients of a key must be within a second of each other; two that are both within half a second of the
/// server's are.
const CLOSE_TO_THE_SERVER: Duration = Duration::from_millis(500);

/// A property of a server that may harm locks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Warning {
    /// The server is a replica.
    #[error("it is a replica{}, and a lock there protects nothing; lock on its master", of.as_ref().map_or(String::new(), |of| format!(" of {of}")))]
    #[non_exhaustive]
    IsReplica {
        /// The master's host and port, where the server reports them.
        of: Option<String>,
    },
    /// The server's clock differs from this machine's by more than half a second.
    #[error(
        "its clock is {difference}: expiry times are compared by the clients' clocks, which must be within a second of each other; \
         keep all machines' clocks in step (NTP)"
    )]
    #[non_exhaustive]
    ClockDiffers {
        /// How it differs.
        difference: ClockDifference,
    },
    /// The server has a `maxmemory`, and removes keys when its memory is full.
    #[error(
        "when its memory is full it removes keys by {policy}, {} too, and another holder gets the lock; set maxmemory-policy to \
         noeviction, or lock on a server of its own",
        if *any_key { "locks" } else { "locks of the protocol Ttl and of gems from 1.4.2 on" }
    )]
    #[non_exhaustive]
    MayEvict {
        /// The `maxmemory-policy`.
        policy: String,
        /// Whether it removes any key, and not only those with a time to live.
        any_key: bool,
    },
    /// The server forgets locks, or brings back old ones, when it is started again.
    #[error("after a crash {}, so work under a lock may go on while another holder gets it; {}, or after a restart wait as long as the longest expiration before work goes on", match persistence {
        Persistence::None => "it has no data",
        Persistence::AppendOnlyUnsynced => "of its machine the locks of the last half minute are gone",
        _ => "it has at most the data of its last snapshot: newer locks are gone, and older ones are back until they expire",
    }, match persistence {
        Persistence::AppendOnlyUnsynced => "set appendfsync to everysec",
        _ => "turn on appendonly",
    })]
    #[non_exhaustive]
    ForgetsLocks {
        /// What is left of the data.
        persistence: Persistence,
    },
    /// A failover to a replica can lose locks.
    #[error(
        "{} it, a moment behind: a failover can lose the newest locks; after one wait as long as the \
         longest expiration before work goes on, or make the work itself safe against running twice",
        if *replicas == 1 { "a replica follows".to_owned() } else { format!("{replicas} replicas follow") }
    )]
    #[non_exhaustive]
    FailoverLosesLocks {
        /// How many replicas there are.
        replicas: u32,
    },
    /// The server closes idle connections within ten seconds, for as long as which they are used here.
    #[error(
        "it closes connections that are idle for {} s, and one that has been idle for up to {} s is used here: a command sent on one that \
         is closed gets no answer, and leaves its lock in doubt; set the server's timeout to 0, or to a minute or more",
        idle.as_secs(), TRUSTED_WHILE_IDLE.as_secs()
    )]
    #[non_exhaustive]
    ClosesIdle {
        /// After how long.
        idle: Duration,
    },
    /// The server did not answer all questions of this user, so there may be more to warn of.
    #[error(
        "it refused {}, so whether it removes keys, closes idle connections, or forgets locks in a crash is not all known; permit \
         these commands to this user, or inspect as another", commands.join(" and ")
    )]
    #[non_exhaustive]
    NotReported {
        /// The commands that it refused.
        commands: Vec<&'static str>,
    },
    /// The server is a node of a cluster.
    #[error(
        "it is a node of a cluster, and a key may belong to another node; use a pool of connections that know the cluster"
    )]
    IsInACluster,
}

impl ServerReport {
    /// Returns what may harm locks on this server, the gravest first. Each says what to do.
    #[must_use]
    pub fn warnings(&self) -> Vec<Warning> {
        let mut warnings = Vec::new();
        if let Some(Role::Replica { of }) = self.role() {
            warnings.push(Warning::IsReplica { of: of.clone() });
        }
        if self.is_in_a_cluster() {
            warnings.push(Warning::IsInACluster);
        }
        if let Some(difference) = self.clock().filter(|clock| clock.at_least() > CLOSE_TO_THE_SERVER) {
            warnings.push(Warning::ClockDiffers { difference });
        }
        // Without a limit nothing is removed, whatever the policy.
        if let Some(policy) = self.maxmemory_policy()
            && self.maxmemory() != Some(0)
        {
            // `volatile-…` removes only what has a time to live, `noeviction` nothing. No lock has one below the version that Ttl needs,
            // which gems from 1.4.2 on need as well.
            let any_key = match policy.split('-').next() {
                Some("allkeys") => Some(true),
                Some("volatile") if self.version() >= Protocol::Ttl.min_version() => Some(false),
                _ => None,
            };
            warnings.extend(any_key.map(|any_key| Warning::MayEvict { policy: policy.to_owned(), any_key }));
        }
        if let Some(persistence) = self.persistence().filter(|kept| *kept != Persistence::AppendOnly) {
            warnings.push(Warning::ForgetsLocks { persistence });
        }
        if let Some(replicas @ 1..) = self.replicas() {
            warnings.push(Warning::FailoverLosesLocks { replicas });
        }
        if let Some(idle) = self.idle_timeout()
            && !idle.is_zero()
            && idle <= TRUSTED_WHILE_IDLE
        {
            warnings.push(Warning::ClosesIdle { idle });
        }
        let questions = |command: &&'static str| ["CONFIG", "TIME", "EXPIREAT"].contains(command);
        let commands: Vec<_> = self.refused().map(|(command, _)| command).filter(questions).collect();
        if !commands.is_empty() {
            warnings.push(Warning::NotReported { commands });
        }
        warnings
    }
}
