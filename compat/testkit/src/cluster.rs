//! Three masters with a replica each, which share the slots of a Redis Cluster.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use setnx_lock::redis::{Cmd, FromRedisValue, InfoDict, RedisResult, cmd};

use crate::failover::{REPLICATES_AT_ONCE, ask};
use crate::relay::Relay;
use crate::{Failure, LONG, RedisServer};
use setnx_lock_testing::free_port;

/// How often it is looked whether something has happened.
const LOOK: Duration = Duration::from_millis(20);
const SLOTS: usize = 16384;
const MASTERS: usize = 3;

/// Six nodes: the masters first, then their replicas in the same order. All end with this value.
#[derive(Debug)]
pub struct Cluster {
    pub nodes: Vec<RedisServer>,
}

impl Cluster {
    /// Starts them. A node that gives no sign of life for `down_after` is down for the others.
    pub fn start(down_after: Duration) -> Result<Self, Failure> {
        let start = || -> io::Result<RedisServer> {
            let config = format!(
                "cluster-enabled yes\ncluster-config-file nodes.conf\ncluster-node-timeout {}\ncluster-port {}\n\
                 {REPLICATES_AT_ONCE}",
                down_after.as_millis(),
                free_port()?
            );
            RedisServer::start_with(&config)
        };
        let nodes = (0..2 * MASTERS).map(|_| start()).collect::<io::Result<Vec<_>>>()?;
        let cluster = Self { nodes };
        for (n, master) in cluster.nodes[..MASTERS].iter().enumerate() {
            let bound = |n: usize| SLOTS * n / MASTERS;
            let range = [bound(n), bound(n + 1) - 1];
            let () = ask(master, cmd("CLUSTER").arg("ADDSLOTSRANGE").arg(&range))?;
            let () = ask(master, cmd("CLUSTER").arg("SET-CONFIG-EPOCH").arg(n + 1))?;
        }
        for node in &cluster.nodes[1..] {
            let bus: String = ask(node, cmd("CONFIG").arg("GET").arg("cluster-port"))
                .map(|found: Vec<String>| found[1].clone())?;
            let meet = ["MEET", "127.0.0.1", &node.port().to_string(), &bus];
            let () = ask(&cluster.nodes[0], cmd("CLUSTER").arg(&meet))?;
        }
        cluster.until(|all| all.nodes.iter().all(|node| knows_all(node).unwrap_or(false)));
        for (master, replica) in cluster.nodes[..MASTERS].iter().zip(&cluster.nodes[MASTERS..]) {
            let () = ask(replica, cmd("CLUSTER").arg("REPLICATE").arg(id(master)?))?;
        }
        cluster.until(|all| {
            all.nodes.iter().all(|node| is_up(node).unwrap_or(false))
                && all.nodes[MASTERS..].iter().all(|replica| follows(replica).unwrap_or(false))
        });
        Ok(cluster)
    }

    /// Has clients reach each master only through a relay that delays each way.
    pub fn delayed(&self, delay: Duration) -> Result<Vec<Relay>, Failure> {
        let relay = |master: &RedisServer| -> Result<Relay, Failure> {
            let relay = Relay::start(master.address(), delay)?;
            let bus: Vec<String> = ask(master, cmd("CONFIG").arg("GET").arg("cluster-port"))?;
            let announced = relay.address().port().to_string();
            for (name, port) in
                [("cluster-announce-bus-port", &bus[1]), ("cluster-announce-port", &announced)]
            {
                let () = ask(master, cmd("CONFIG").arg("SET").arg(name).arg(port))?;
            }
            Ok(relay)
        };
        let relays: Vec<Relay> = self.nodes[..MASTERS].iter().map(relay).collect::<Result<_, _>>()?;
        let is_announced = |node: &RedisServer, relay: &Relay| {
            let nodes: RedisResult<String> = ask(node, cmd("CLUSTER").arg("NODES"));
            nodes.is_ok_and(|nodes| nodes.contains(&format!(":{}@", relay.address().port())))
        };
        self.until(|all| {
            all.nodes[..MASTERS].iter().all(|node| relays.iter().all(|relay| is_announced(node, relay)))
        });
        Ok(relays)
    }

    /// Host and port of each master.
    pub fn addresses(&self) -> Vec<String> {
        self.nodes[..MASTERS].iter().map(|node| node.address().to_string()).collect()
    }

    /// The URL of the cluster.
    pub fn url(&self) -> String {
        format!("redis+cluster://{}", self.addresses().join(","))
    }

    /// The slot of a key.
    pub fn slot(&self, key: &str) -> RedisResult<u16> {
        ask(&self.nodes[0], cmd("CLUSTER").arg("KEYSLOT").arg(key))
    }

    /// Which of the masters has a slot, by the first of them.
    pub fn owner(&self, slot: u16) -> RedisResult<usize> {
        let nodes: String = ask(&self.nodes[0], cmd("CLUSTER").arg("NODES"))?;
        let has = |line: &&str| line.split(' ').skip(8).any(|range| includes(range, slot));
        let id_of_owner = nodes.lines().find(has).and_then(|line| line.split(' ').next()).unwrap_or_default();
        let position = self.nodes.iter().position(|node| id(node).is_ok_and(|id| id == id_of_owner));
        Ok(position.unwrap_or_else(|| unreachable!("slot {slot} has no node of these: {nodes}")))
    }

    /// Moves a slot from one master to another, with a pause between the steps.
    pub fn move_slot(&self, slot: u16, path: [usize; 2], pause: Duration) -> RedisResult<()> {
        self.begin_to_move(slot, path)?;
        thread::sleep(pause);
        loop {
            let source = &self.nodes[path[0]];
            let keys: Vec<String> = ask(source, cmd("CLUSTER").arg("GETKEYSINSLOT").arg(slot).arg(10))?;
            let Some(key) = keys.first() else { break };
            self.move_key(key, path)?;
        }
        thread::sleep(pause);
        self.end_move(slot, path)
    }

    /// Has a slot move from one master to another. No key does yet.
    pub fn begin_to_move(&self, slot: u16, [from, to]: [usize; 2]) -> RedisResult<()> {
        // The new owner's claim counts by its epoch, which has to be the highest.
        self.until(|all| {
            let epoch = |node: &RedisServer| field(node, "cluster_current_epoch").unwrap_or_default();
            all.nodes.iter().all(|node| epoch(node) == epoch(&all.nodes[to]))
        });
        let [source, target] = [from, to].map(|at| &self.nodes[at]);
        let () = ask(target, &set_slot(slot, "IMPORTING", source)?)?;
        ask(source, &set_slot(slot, "MIGRATING", target)?)
    }

    /// Moves a key of a slot that moves, unless it is gone. Fails if the other node has one of this name.
    pub fn move_key(&self, key: &str, [from, to]: [usize; 2]) -> RedisResult<()> {
        let address = ("127.0.0.1", self.nodes[to].port());
        ask::<String>(&self.nodes[from], cmd("MIGRATE").arg(address).arg(key).arg(0).arg(5000)).map(drop)
    }

    /// Makes the other master the one that has the slot.
    pub fn end_move(&self, slot: u16, [from, to]: [usize; 2]) -> RedisResult<()> {
        for node in [to, from] {
            let () = ask(&self.nodes[node], &set_slot(slot, "NODE", &self.nodes[to])?)?;
        }
        Ok(())
    }

    /// Asks a node directly, without redirections.
    pub fn ask<T: FromRedisValue>(&self, node: usize, command: &Cmd) -> RedisResult<T> {
        ask(&self.nodes[node], command)
    }

    /// Waits until all other nodes name a replica of this one as the master of its slots. Returns which.
    pub fn until_promoted(&self, index: usize) -> usize {
        let replica = index + MASTERS;
        self.until(|all| is_master(&all.nodes[replica]).unwrap_or(false));
        replica
    }

    /// Has the replica of the node that has a slot be the master in its place, by what `disturb` does to the cluster,
    /// the node and the replica. Waits until the old master, which goes on as it was, or begins again, follows it.
    pub fn fail_over(
        &mut self,
        slot: u16,
        disturb: impl FnOnce(&mut Self, usize, usize) -> RedisResult<()>,
    ) -> Result<(), Failure> {
        let is_running = |node: &RedisServer| is_master(node).unwrap_or(false);
        let has_slot = |all: &Self, at: usize| {
            is_running(&all.nodes[at]) && has_slot(&all.nodes[at], slot).unwrap_or(false)
        };
        let master = (0..self.nodes.len()).find(|at| has_slot(self, *at)).ok_or("no master has the slot")?;
        // Both are those of the same slots.
        let replica = if master < MASTERS { master + MASTERS } else { master - MASTERS };
        disturb(self, master, replica)?;
        self.until(|all| has_slot(all, replica));
        self.nodes[master].thaw_or_restart()?;
        self.until(|all| {
            follows(&all.nodes[master]).unwrap_or(false)
                && all.nodes.iter().all(|node| is_up(node).unwrap_or(false))
        });
        Ok(())
    }

    fn until(&self, mut is_so: impl FnMut(&Self) -> bool) {
        let end = Instant::now() + LONG;
        while !is_so(self) {
            assert!(Instant::now() < end, "the cluster is not ready: {self:?}");
            thread::sleep(LOOK);
        }
    }
}

fn set_slot(slot: u16, state: &str, node: &RedisServer) -> RedisResult<Cmd> {
    Ok(cmd("CLUSTER").arg("SETSLOT").arg(slot).arg(state).arg(id(node)?).clone())
}

fn id(node: &RedisServer) -> RedisResult<String> {
    ask(node, cmd("CLUSTER").arg("MYID"))
}

fn field(node: &RedisServer, name: &str) -> RedisResult<Option<String>> {
    let info: InfoDict = ask(node, cmd("CLUSTER").arg("INFO"))?;
    Ok(info.get(name))
}

fn knows_all(node: &RedisServer) -> RedisResult<bool> {
    Ok(field(node, "cluster_known_nodes")?.as_deref() == Some("6") && is_up(node)?)
}

fn is_up(node: &RedisServer) -> RedisResult<bool> {
    Ok(field(node, "cluster_state")?.as_deref() == Some("ok"))
}

fn replication(node: &RedisServer) -> RedisResult<InfoDict> {
    ask(node, cmd("INFO").arg("replication"))
}

fn follows(replica: &RedisServer) -> RedisResult<bool> {
    Ok(replication(replica)?.get::<String>("master_link_status").as_deref() == Some("up"))
}

/// True if a node says that it has this slot itself.
fn has_slot(node: &RedisServer, slot: u16) -> RedisResult<bool> {
    let nodes: String = ask(node, cmd("CLUSTER").arg("NODES"))?;
    let own = nodes.lines().find(|line| line.contains("myself")).unwrap_or_default();
    Ok(own.split(' ').skip(8).any(|range| includes(range, slot)))
}

fn includes(range: &str, slot: u16) -> bool {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    first.parse().is_ok_and(|first: u16| first <= slot) && last.parse().is_ok_and(|last: u16| slot <= last)
}

fn is_master(node: &RedisServer) -> RedisResult<bool> {
    Ok(replication(node)?.get::<String>("role").as_deref() == Some("master") && is_up(node)?)
}
