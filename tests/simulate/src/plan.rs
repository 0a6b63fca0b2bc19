//! What a run is to be, as the seed chooses it.

use std::time::Duration;

use setnx_lock::Protocol;
use setnx_lock_testing::ServerVersion;
use world::network::Faults;
use world::run::{chance, random};

use crate::Arguments;
use crate::others::{self, Others};
use crate::servers::Topology;

/// What goes wrong in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conditions {
    /// Nothing. Then it is also known who gets the lock when.
    NoFaults,
    /// What leaves every protocol exclusive: connections break, and nothing arrives later than its sender waits for it.
    BrokenConnections,
    /// What leaves all but Classic exclusive: commands that arrive late, processes and servers that stand still.
    LateCommands,
    /// The same, and masters that are replaced by replicas without their last writes.
    Failovers,
    /// The same, and a server that loses its keys: then nothing is promised but that calls end, and leave nothing.
    LostKeys,
}

/// What a run is.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is drawn by itself")]
pub(crate) struct Plan {
    /// What it does without: names of `shorten.rs`.
    pub(crate) without: Vec<String>,
    pub(crate) conditions: Conditions,
    pub(crate) topology: Topology,
    /// Other programs on the same keys.
    pub(crate) others: Option<Others>,
    /// A server comes back as another version.
    pub(crate) changes_version: bool,
    /// Passwords change.
    pub(crate) rotates: bool,
    /// After a failover nothing is acquired until the locks of before have expired.
    pub(crate) settles: bool,
    pub(crate) protocol: Protocol,
    pub(crate) version: ServerVersion,
    pub(crate) processes: u64,
    pub(crate) threads: u64,
    pub(crate) keys: u64,
    /// The expiration of each key.
    pub(crate) expirations: Vec<Duration>,
    /// The expiration of all other keys.
    pub(crate) shared_expiration: Duration,
    pub(crate) permits: u64,
    /// How many locks a thread keeps at most.
    pub(crate) kept: u64,
    /// What all keys begin with.
    pub(crate) prefix: &'static str,
    pub(crate) notifies: bool,
    pub(crate) poll_interval: Duration,
    pub(crate) command_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) retry_for: Duration,
    pub(crate) pool_size: u32,
    pub(crate) faults: Faults,
    /// For how long the clients begin something new.
    pub(crate) length: Duration,
    /// How much the clocks of two processes differ at most, in microseconds.
    pub(crate) clocks: u64,
}

fn millis(from: u64, to: u64) -> Duration {
    Duration::from_millis(random(from..to))
}

/// What a run's servers are, and what goes wrong with them.
#[derive(Clone, Copy)]
struct Circumstances {
    topology: Topology,
    version: ServerVersion,
    protocol: Protocol,
    conditions: Conditions,
}

impl Circumstances {
    fn choose() -> Self {
        let topology = match random(0..11) {
            0 => Topology::Named,
            1 | 2 => Topology::Sentinels,
            3 | 4 => Topology::Cluster,
            5 => Topology::Quorum,
            _ => Topology::One,
        };
        let versions = [
            ServerVersion::V1_2,
            ServerVersion::V2_0,
            ServerVersion::V2_2,
            ServerVersion::V2_4,
            ServerVersion::V2_6,
            ServerVersion::V7,
            ServerVersion::V7,
            ServerVersion::V7,
            ServerVersion::V8_4,
            ServerVersion::Valkey9,
        ];
        // Sentinels tell an epoch from 2.8 on.
        let has_replicas = matches!(topology, Topology::Sentinels | Topology::Cluster);
        let version = versions[if has_replicas { 6 + index(4) } else { index(10) }];
        let protocols: &[Protocol] = if version < ServerVersion::V2_2 {
            &[Protocol::Classic]
        } else if version < ServerVersion::V2_6 {
            &[Protocol::Classic, Protocol::Watched]
        } else {
            &[Protocol::Classic, Protocol::Watched, Protocol::Ttl, Protocol::Auto]
        };
        let protocol = protocols[index(protocols.len() as u64)];
        let is_changing = has_replicas && chance(3);
        let conditions = match random(0..4) {
            _ if is_changing => Conditions::Failovers,
            0 => Conditions::NoFaults,
            1 => Conditions::BrokenConnections,
            _ if chance(6) => Conditions::LostKeys,
            _ if protocol == Protocol::Classic => Conditions::BrokenConnections,
            _ => Conditions::LateCommands,
        };
        Self { topology, version, protocol, conditions }
    }

    /// Returns true if it is one server that comes back as another version.
    fn changes_version(self) -> bool {
        matches!(self.topology, Topology::One | Topology::Named)
            && self.conditions == Conditions::BrokenConnections
            && self.protocol == Protocol::Auto
            && self.version > ServerVersion::V2_2
            && chance(2)
    }

    /// Returns true if passwords change in it.
    fn rotates(self) -> bool {
        self.version >= ServerVersion::V7
            && matches!(self.topology, Topology::One | Topology::Named | Topology::Sentinels)
            && self.conditions != Conditions::NoFaults
            && chance(4)
    }

    /// Returns how long clients begin something new.
    fn length(self) -> Duration {
        let least = if matches!(self.topology, Topology::One | Topology::Named) { 5 } else { 20 };
        Duration::from_secs(random(least..least + 35))
    }
}

impl Plan {
    pub(crate) fn choose(arguments: &Arguments) -> Self {
        let around = Circumstances::choose();
        let Circumstances { topology, version, protocol, conditions } = around;
        let processes = arguments.processes.unwrap_or(random(1..6));
        let threads = match arguments.clients {
            Some(clients) => clients.div_ceil(processes),
            None => arguments.threads.unwrap_or(random(1..7)),
        };
        let keys = if arguments.clients.is_some() { (processes * threads / 20).max(1) } else { random(1..4) };
        let least = if conditions == Conditions::NoFaults { 2000 } else { 300 };
        let command_timeout = millis(300, 2000);
        let changes_version = around.changes_version();
        let has = |part: &str| !arguments.without.iter().any(|name| name == part);
        let others =
            if changes_version { None } else { others::choose(topology, conditions, protocol, version) };
        let others = others.filter(|_| has("others"));
        let mut plan = Self {
            without: arguments.without.clone(),
            conditions,
            topology,
            others,
            changes_version,
            rotates: others.is_none() && around.rotates(),
            settles: topology == Topology::Sentinels && chance(2),
            protocol,
            version,
            processes,
            threads,
            keys,
            expirations: (0..keys).map(|_| millis(least, 6000)).collect(),
            shared_expiration: millis(least, 6000),
            permits: random(1..5),
            kept: [3, 20, 200][index(3)],
            prefix: if others.is_none() && chance(4) && has("prefix") { "app:" } else { "" },
            notifies: version >= ServerVersion::V2_0 && chance(2),
            poll_interval: if chance(2) { Duration::from_millis(100) } else { millis(20, 300) },
            command_timeout,
            connect_timeout: millis(300, 2000),
            retry_for: millis(300, 5000),
            pool_size: u32::try_from(random(1..9)).unwrap_or(1),
            faults: faults(conditions, protocol, command_timeout, has),
            length: arguments.length.unwrap_or(around.length()),
            clocks: 400_000,
        };
        if plan.knows_no_clocks() && plan.others.is_none() {
            plan.clocks = [400_000, 5_000_000][index(2)];
        }
        plan
    }

    /// Returns true if this part of it is not left out.
    pub(crate) fn has(&self, part: &str) -> bool {
        !self.without.iter().any(|name| name == part)
    }

    /// Returns the whole key of a lock with a number.
    pub(crate) fn key(&self, number: u64) -> String {
        format!("{}key {number}", self.prefix)
    }

    /// Returns the longest expiration of any lock.
    pub(crate) fn longest_lease(&self) -> Duration {
        self.expirations.iter().copied().max().unwrap_or_default().max(self.shared_expiration)
    }

    /// Returns true if the server can keep the names of holders.
    pub(crate) fn has_names(&self) -> bool {
        self.version >= ServerVersion::V2_0
    }

    /// Returns how long after a release a thread that waits asks for the lock at the latest, where nothing is wrong.
    pub(crate) fn reaction(&self) -> Duration {
        let asked_by = if self.notifies {
            Duration::from_millis(50).min(self.poll_interval)
        } else {
            self.poll_interval
        };
        // There and back, twice.
        asked_by + 4 * Duration::from_micros(self.faults.latency.1) + Duration::from_millis(5)
    }

    /// Returns true if no clock of a client decides who has a lock (limits.md, Clocks).
    pub(crate) fn knows_no_clocks(&self) -> bool {
        !self.changes_version
            && self.others.is_none()
            && self.version >= ServerVersion::V2_6
            && matches!(self.protocol, Protocol::Ttl | Protocol::Auto)
    }

    /// Returns true if two valid leases cannot be.
    pub(crate) fn is_exclusive(&self) -> bool {
        match self.conditions {
            // One server at a time loses its keys, and grants nothing until what it has lost is over.
            Conditions::LostKeys => self.topology == Topology::Quorum && self.protocol != Protocol::Classic,
            Conditions::Failovers => self.settles,
            _ if self.others == Some(Others::OldGemsThatDiffer) => false,
            _ => true,
        }
    }

    /// Returns true if servers forget nothing.
    pub(crate) fn keeps_keys(&self) -> bool {
        !matches!(self.conditions, Conditions::LostKeys | Conditions::Failovers)
    }

    pub(crate) fn has_late_commands(&self) -> bool {
        !matches!(self.conditions, Conditions::NoFaults | Conditions::BrokenConnections)
    }

    /// Returns true if it is known how soon a free lock is acquired that
    /// somebody waits for: nothing else uses it, and no address hangs.
    pub(crate) fn is_prompt(&self) -> bool {
        self.has_no_faults()
            && self.others.is_none()
            && !matches!(self.topology, Topology::Named | Topology::Quorum)
    }

    pub(crate) fn has_no_faults(&self) -> bool {
        self.conditions == Conditions::NoFaults
    }
}

fn index(count: u64) -> usize {
    usize::try_from(random(0..count)).unwrap_or_default()
}

fn faults(
    conditions: Conditions,
    protocol: Protocol,
    command_timeout: Duration,
    has: impl Fn(&str) -> bool,
) -> Faults {
    let latency = [(20, 60), (50, 300), (500, 5000)][index(3)];
    // Where much happens to servers, less does to messages.
    let often = if conditions == Conditions::Failovers {
        [400, 2000][index(2)]
    } else {
        [30, 100, 400, 2000][index(4)]
    };
    let mut faults = match conditions {
        Conditions::NoFaults => Faults { latency, ..Faults::NONE },
        Conditions::BrokenConnections => Faults {
            latency,
            lost_requests: 4 * often,
            lost_replies: 2 * often,
            delays: often,
            delay: Duration::from_millis(200).min(command_timeout / 2),
            ..Faults::NONE
        },
        Conditions::LateCommands | Conditions::Failovers | Conditions::LostKeys => Faults {
            latency,
            lost_requests: 4 * often,
            lost_replies: 2 * often,
            silences: 8 * often,
            delays: often,
            delay: millis(10, 5000),
        },
    };
    // A late GETSET overwrites a later holder's value (limits.md, Lost replies).
    if protocol == Protocol::Classic {
        faults.delay = faults.delay.min(command_timeout / 2);
    }
    for (part, often) in [
        ("requests", &mut faults.lost_requests),
        ("replies", &mut faults.lost_replies),
        ("silences", &mut faults.silences),
        ("delays", &mut faults.delays),
    ] {
        *often *= u64::from(has(part));
    }
    faults
}
