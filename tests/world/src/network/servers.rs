//! What happens to servers.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use setnx_lock_testing::{ClusterNode, Server, ServerVersion, Snapshot, WatchedMaster};

use super::{PORT, network, now_of};
use crate::process::Process;
use crate::run;
use crate::scheduler::scheduler;
use crate::server::Node;

/// A server of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerId(pub(super) usize);

impl ServerId {
    /// Starts a server, with these lines of its configuration file.
    ///
    /// # Panics
    ///
    /// If it refuses a line.
    #[must_use]
    pub fn start(name: &str, version: ServerVersion, lines: &[&str]) -> Self {
        let mut network = network();
        let id = network.nodes.len();
        let mut core = Server::new(version);
        for line in lines {
            core.configure(line).expect("a line that the server takes");
        }
        let last = u8::try_from(id + 1).expect("few servers");
        network.nodes.push(Node {
            name: name.to_owned(),
            address: SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, last)), PORT),
            core,
            is_up: true,
            is_full: false,
            ahead: 0,
            stalled_until: 0,
            arrived: BTreeMap::new(),
            held_up: VecDeque::new(),
            wakes_at: None,
            per_command: 0,
            busy_until: 0,
            is_in_cluster: false,
            published: Vec::new(),
        });
        Self(id)
    }

    /// Returns its URL.
    #[must_use]
    pub fn url(self) -> String {
        format!("redis://{}/", network().nodes[self.0].address)
    }

    /// Returns its host and port.
    #[must_use]
    pub fn address(self) -> (String, u16) {
        let address = network().nodes[self.0].address;
        (address.ip().to_string(), address.port())
    }

    /// Ends it. Its connections are closed, and no new one is accepted.
    pub fn kill(self) {
        note(self, "is killed");
        let mut network = network();
        network.nodes[self.0].is_up = false;
        network.cut_all(self.0);
    }

    /// Starts it again: as it was, or without its keys.
    pub fn restart(self, keeps_keys: bool) {
        if !keeps_keys {
            network().nodes[self.0].core.clear();
        }
        self.start_again(if keeps_keys { "is back with its keys" } else { "is back without keys" }, None);
    }

    /// Starts it again with the keys that it had then.
    pub fn restart_with(self, snapshot: &Snapshot) {
        network().nodes[self.0].core.load(snapshot);
        self.start_again("is back with keys of before", None);
    }

    /// Starts it again as another version, with its keys.
    pub fn restart_as(self, version: ServerVersion) {
        self.start_again(&format!("is back as {}", version.number()), Some(version));
    }

    fn start_again(self, how: &str, version: Option<ServerVersion>) {
        note(self, how);
        let mut network = network();
        network.cut_all(self.0);
        let node = &mut network.nodes[self.0];
        let version = version.unwrap_or(node.core.version());
        let now = now_of(node);
        node.core.restart(version, now);
        node.is_up = true;
        node.stalled_until = 0;
        node.held_up.clear();
        network.note_trouble(scheduler().now());
    }

    /// Copies its keys as they are now.
    #[must_use]
    pub fn snapshot(self) -> Snapshot {
        network().nodes[self.0].core.snapshot()
    }

    /// Replaces its keys, as a replica's are by its master's.
    pub fn load(self, snapshot: &Snapshot) {
        network().nodes[self.0].core.load(snapshot);
    }

    /// Moves a key to another server, as `MIGRATE` does.
    pub fn give(self, to: Self, key: &str) {
        note(self, &format!("gives {key} away"));
        if let Ok([own, other]) = network().nodes.get_disjoint_mut([self.0, to.0]) {
            own.core.give(&mut other.core, key.as_bytes());
        }
    }

    /// Sets a line of its configuration.
    ///
    /// # Panics
    ///
    /// If it refuses the line.
    pub fn configure(self, line: &str) {
        note(self, &format!("is told: {line}"));
        let mut network = network();
        network.nodes[self.0].core.configure(line).expect("a line that the server takes");
        network.note_trouble(scheduler().now());
    }

    /// Makes it a replica, whose clients are told, or a master again.
    pub fn set_replica(self, is_replica: bool) {
        note(self, if is_replica { "is a replica" } else { "is a master" });
        let mut network = network();
        let outputs = network.nodes[self.0].core.set_replica(is_replica);
        network.send_all(self.0, outputs);
        network.note_trouble(scheduler().now());
    }

    /// Makes it a node of a cluster, or tells it what has changed there.
    pub fn set_cluster(self, node: ClusterNode) {
        note(self, &format!("has epoch {} in the cluster", node.epoch));
        let mut network = network();
        let own = &mut network.nodes[self.0];
        own.is_in_cluster = true;
        own.core.set_cluster(Some(node));
        network.note_trouble(scheduler().now());
    }

    /// Makes it a Sentinel, or tells it what has changed of what it watches.
    pub fn set_sentinel(self, watched: &WatchedMaster) {
        note(self, &format!("says {} in epoch {}", watched.address.0, watched.epoch));
        let mut network = network();
        network.nodes[self.0].core.set_sentinel(Some(vec![watched.clone()]));
        network.note_trouble(scheduler().now());
    }

    /// Has it execute nothing for this time: it is stopped, or busy.
    pub fn stall(self, time: Duration) {
        note(self, &format!("stands still for {time:?}"));
        let until = scheduler().now() + u64::try_from(time.as_nanos()).unwrap_or(0);
        let mut network = network();
        let node = &mut network.nodes[self.0];
        node.stalled_until = node.stalled_until.max(until);
        network.note_trouble(until);
    }

    /// Refuses what would add data, or no more.
    pub fn set_full(self, is_full: bool) {
        note(self, if is_full { "is full" } else { "has room" });
        let mut network = network();
        network.nodes[self.0].core.set_full(is_full);
        network.nodes[self.0].is_full = is_full;
        network.note_trouble(scheduler().now());
    }

    /// Has it answer this for now, or no more: see [`Server::set_refusing`].
    pub fn set_refusing(self, text: Option<&str>) {
        note(self, text.unwrap_or("refuses no more"));
        let mut network = network();
        network.nodes[self.0].core.set_refusing(text);
        network.note_trouble(scheduler().now());
    }

    /// Sets its clock forward or back by so many microseconds.
    pub fn set_clock(self, by: i64) {
        network().nodes[self.0].ahead += by;
    }

    /// Has it need so long for each command. None takes any time otherwise.
    pub fn set_speed(self, per_command: Duration) {
        network().nodes[self.0].per_command = u64::try_from(per_command.as_nanos()).unwrap_or(0);
    }

    /// Closes all its connections.
    pub fn cut_all(self) {
        note(self, "closes all connections");
        network().cut_all(self.0);
    }

    /// Lets nothing through between it and a process for this time. What was sent arrives afterwards.
    pub fn separate(self, process: Process, time: Duration) {
        note(self, &format!("is not reached by process {} for {time:?}", process.number()));
        let until = scheduler().now() + u64::try_from(time.as_nanos()).unwrap_or(0);
        let mut network = network();
        network.apart.insert((process.number(), self.0), until);
        network.note_trouble(until);
    }

    /// Executes a command for a test, and returns the reply as people read it.
    #[must_use]
    pub fn look(self, command: &[&str]) -> String {
        let mut network = network();
        let words: Vec<Vec<u8>> = command.iter().map(|word| word.as_bytes().to_vec()).collect();
        let node = &mut network.nodes[self.0];
        let now = now_of(node);
        let (text, outputs) = node.core.look(&words, now);
        network.send_all(self.0, outputs);
        text
    }

    /// Returns how many connections each process has not closed.
    #[must_use]
    pub fn connections(self) -> BTreeMap<Process, usize> {
        let mut by_process = BTreeMap::new();
        for connection in network().open.values().filter(|one| one.server == self.0) {
            *by_process.entry(connection.process).or_default() += 1;
        }
        by_process
    }
}

fn note(server: ServerId, what: &str) {
    let name = network().nodes[server.0].name.clone();
    run::note_of(&mut scheduler().lock(), &name, what);
}
