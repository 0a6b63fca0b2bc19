//! What a run is to be, as the seed chooses it.

use std::time::Duration;

use setnx_lock::Protocol;
use setnx_lock_testing::ServerVersion;
use world::network::Faults;
use world::run::{chance, random};

use crate::Arguments;

/// What goes wrong in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conditions {
    /// Nothing. Then it is also known who gets the lock when.
    NoFaults,
    /// What leaves every protocol exclusive: connections break, and nothing arrives later than its sender waits for it.
    BrokenConnections,
    /// What leaves all but Classic exclusive: commands that arrive late, processes and servers that stand still.
    LateCommands,
    /// The same, and a server that loses its keys: then nothing is promised but that calls end, and leave nothing.
    LostKeys,
}

/// What a run is.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) conditions: Conditions,
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

impl Plan {
    pub(crate) fn choose(arguments: &Arguments) -> Self {
        let version = [
            ServerVersion::V1_2,
            ServerVersion::V2_0,
            ServerVersion::V2_4,
            ServerVersion::V2_6,
            ServerVersion::V7,
            ServerVersion::V7,
            ServerVersion::V7,
            ServerVersion::Valkey9,
        ][index(8)];
        let protocols: &[Protocol] = if version < ServerVersion::V2_4 {
            &[Protocol::Classic]
        } else if version < ServerVersion::V2_6 {
            &[Protocol::Classic, Protocol::Watched]
        } else {
            &[Protocol::Classic, Protocol::Watched, Protocol::Ttl, Protocol::Auto]
        };
        let protocol = protocols[index(protocols.len() as u64)];
        let conditions = match random(0..4) {
            0 => Conditions::NoFaults,
            1 => Conditions::BrokenConnections,
            _ if chance(6) => Conditions::LostKeys,
            _ if protocol == Protocol::Classic => Conditions::BrokenConnections,
            _ => Conditions::LateCommands,
        };
        let processes = arguments.processes.unwrap_or_else(|| random(1..6));
        let threads = match arguments.clients {
            Some(clients) => clients.div_ceil(processes),
            None => random(1..7),
        };
        let keys = if arguments.clients.is_some() { (processes * threads / 20).max(1) } else { random(1..4) };
        let least = if conditions == Conditions::NoFaults { 2000 } else { 300 };
        let command_timeout = millis(300, 2000);
        let mut plan = Self {
            conditions,
            protocol,
            version,
            processes,
            threads,
            keys,
            expirations: (0..keys).map(|_| millis(least, 6000)).collect(),
            shared_expiration: millis(least, 6000),
            permits: random(1..5),
            kept: [3, 20, 200][index(3)],
            notifies: version >= ServerVersion::V2_0 && chance(2),
            poll_interval: if chance(2) { Duration::from_millis(100) } else { millis(20, 300) },
            command_timeout,
            connect_timeout: millis(300, 2000),
            retry_for: millis(300, 5000),
            pool_size: u32::try_from(random(1..9)).unwrap_or(1),
            faults: faults(conditions, command_timeout),
            length: arguments.length.unwrap_or_else(|| Duration::from_secs(random(5..40))),
            clocks: 400_000,
        };
        if plan.knows_no_clocks() {
            plan.clocks = [400_000, 5_000_000][index(2)];
        }
        plan
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
        self.version >= ServerVersion::V2_6 && matches!(self.protocol, Protocol::Ttl | Protocol::Auto)
    }

    pub(crate) fn has_no_faults(&self) -> bool {
        self.conditions == Conditions::NoFaults
    }
}

fn index(count: u64) -> usize {
    usize::try_from(random(0..count)).unwrap_or_default()
}

fn faults(conditions: Conditions, command_timeout: Duration) -> Faults {
    let latency = [(20, 60), (50, 300), (500, 5000)][index(3)];
    let often = [30, 100, 400, 2000][index(4)];
    match conditions {
        Conditions::NoFaults => Faults { latency, ..Faults::NONE },
        Conditions::BrokenConnections => Faults {
            latency,
            lost_requests: 4 * often,
            lost_replies: 2 * often,
            delays: often,
            delay: Duration::from_millis(200).min(command_timeout / 2),
            ..Faults::NONE
        },
        Conditions::LateCommands | Conditions::LostKeys => Faults {
            latency,
            lost_requests: 4 * often,
            lost_replies: 2 * often,
            silences: 8 * often,
            delays: often,
            delay: millis(10, 5000),
        },
    }
}
