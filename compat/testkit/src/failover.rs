//! A master, two replicas and three Sentinels, which fail over from one to the other.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use setnx_lock::redis::{self, Cmd, FromRedisValue, RedisResult, cmd};

use crate::{LONG, RedisServer};

/// The master's name.
pub const MASTER: &str = "mymaster";

/// A master waits five seconds for further replicas otherwise.
pub(crate) const REPLICATES_AT_ONCE: &str = "repl-diskless-sync-delay 0";

/// How often it is looked whether something has happened.
const LOOK: Duration = Duration::from_millis(20);

/// Servers that replicate, and Sentinels. All end with this value.
#[derive(Debug)]
pub struct Failover {
    pub servers: Vec<RedisServer>,
    pub sentinels: Vec<RedisServer>,
}

impl Failover {
    /// Starts them. A master that gives no sign of life for `down_after` is down for a Sentinel.
    pub fn start(down_after: Duration) -> io::Result<Self> {
        Self::start_with(down_after, "", "")
    }

    /// The same with more lines of configuration.
    pub fn start_with(down_after: Duration, server: &str, sentinel: &str) -> io::Result<Self> {
        let server = &format!("{server}\n{REPLICATES_AT_ONCE}");
        let master = RedisServer::start_with(server)?;
        let port = master.port();
        let replica = format!("{server}\nreplicaof 127.0.0.1 {port}");
        let servers = vec![master, RedisServer::start_with(&replica)?, RedisServer::start_with(&replica)?];
        let failover = Self { servers, sentinels: Vec::new() };
        failover.until(|all| all.servers[1..].iter().all(|replica| link_is_up(replica).unwrap_or(false)));
        let config = format!(
            "sentinel monitor {MASTER} 127.0.0.1 {port} 2\nsentinel down-after-milliseconds {MASTER} {}\n\
             sentinel failover-timeout {MASTER} 5000\nsentinel parallel-syncs {MASTER} 2\n{sentinel}",
            down_after.as_millis(),
        );
        let sentinels =
            (0..3).map(|_| RedisServer::start_sentinel(&config)).collect::<io::Result<Vec<_>>>()?;
        let failover = Self { sentinels, ..failover };
        // Sentinels look every ten seconds otherwise, and tell each
        // other every two. Those before 7.0 have no such command.
        for sentinel in &failover.sentinels {
            let periods = ["INFO-PERIOD", "500", "PUBLISH-PERIOD", "500"];
            let _: RedisResult<()> = ask(sentinel, cmd("SENTINEL").arg("DEBUG").arg(&periods));
        }
        failover.until(|all| all.sentinels.iter().all(|sentinel| knows_all(sentinel).unwrap_or(false)));
        Ok(failover)
    }

    /// Host and port of each Sentinel.
    pub fn addresses(&self) -> Vec<String> {
        self.sentinels.iter().map(|sentinel| sentinel.address().to_string()).collect()
    }

    /// The URL of the master by its Sentinels.
    pub fn url(&self) -> String {
        format!("redis+sentinel://{}/{MASTER}", self.addresses().join(","))
    }

    /// Which of the servers most Sentinels call the master.
    pub fn master(&self) -> usize {
        let told: Vec<u16> = self.sentinels.iter().filter_map(|sentinel| master_by(sentinel).ok()).collect();
        let votes = |index: &usize| told.iter().filter(|port| **port == self.servers[*index].port()).count();
        (0..self.servers.len()).max_by_key(votes).unwrap_or_default()
    }

    /// Waits until a Sentinel calls another server than this one the master. Returns which.
    pub fn until_other_than(&self, index: usize) -> usize {
        let old = self.servers[index].port();
        let mut new = None;
        self.until(|all| {
            let told = all.sentinels.iter().filter_map(|sentinel| master_by(sentinel).ok());
            new = told.into_iter().find(|port| *port != old);
            new.is_some()
        });
        let position = self.servers.iter().position(|server| Some(server.port()) == new);
        position.unwrap_or_else(|| unreachable!("a Sentinel names a server that is none of these"))
    }

    /// Has a server that was killed, or goes on as it was, be a replica of the master, and waits until that is so for
    /// all. Returns false if the Sentinels have made another server the master meanwhile.
    pub fn rejoin(&mut self, index: usize, master: usize) -> io::Result<bool> {
        let port = self.servers[master].port();
        self.servers[index].restart_with(&format!("{REPLICATES_AT_ONCE}\nreplicaof 127.0.0.1 {port}"))?;
        let mut is_known = false;
        self.until(|all| {
            let is_master = all.master() == master;
            if is_known && !is_master {
                return true;
            }
            is_known |= is_master;
            let mut replicas = all.servers.iter().enumerate().filter(|(at, _)| *at != master);
            replicas.all(|(_, replica)| follows(replica, port).unwrap_or(false))
                && all.sentinels.iter().all(|sentinel| is_ready(sentinel, port).unwrap_or(false))
        });
        Ok(self.master() == master)
    }

    /// Cuts the master off from its replicas, which get no further lock, and cannot connect again as long as it runs.
    pub fn cut_replication(&self, master: usize) -> RedisResult<()> {
        let () = ask(&self.servers[master], cmd("ACL").arg(&["SETUSER", "default", "-psync", "-sync"]))?;
        ask(&self.servers[master], cmd("CLIENT").arg(&["KILL", "TYPE", "replica"]))
    }

    fn until(&self, mut is_so: impl FnMut(&Self) -> bool) {
        let end = Instant::now() + LONG;
        while !is_so(self) {
            assert!(Instant::now() < end, "the servers and Sentinels are not ready: {self:?}");
            thread::sleep(LOOK);
        }
    }
}

/// Sends one command on a connection of its own.
pub fn ask<T: FromRedisValue>(server: &RedisServer, command: &Cmd) -> RedisResult<T> {
    let client = redis::Client::open(server.url())?;
    let mut connection = client.get_connection_with_timeout(Duration::from_secs(5))?;
    connection.set_read_timeout(Some(Duration::from_secs(5)))?;
    command.query(&mut connection)
}

fn info(server: &RedisServer) -> RedisResult<redis::InfoDict> {
    ask(server, cmd("INFO").arg("replication"))
}

fn link_is_up(replica: &RedisServer) -> RedisResult<bool> {
    Ok(info(replica)?.get::<String>("master_link_status").as_deref() == Some("up"))
}

/// True if a replica follows the master at this port.
pub fn follows(replica: &RedisServer, port: u16) -> RedisResult<bool> {
    let info = info(replica)?;
    let is_up = info.get::<String>("master_link_status").as_deref() == Some("up");
    Ok(is_up && info.get::<u16>("master_port") == Some(port))
}

fn master_by(sentinel: &RedisServer) -> RedisResult<u16> {
    let (_, port): (String, u16) = ask(sentinel, cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(MASTER))?;
    Ok(port)
}

/// True if a Sentinel knows the others and both replicas, which it can promote.
fn knows_all(sentinel: &RedisServer) -> RedisResult<bool> {
    let master: Vec<String> = ask(sentinel, cmd("SENTINEL").arg("MASTER").arg(MASTER))?;
    let number = |field| value(&master, field).and_then(|number| number.parse::<usize>().ok());
    Ok(number("num-slaves") == Some(2)
        && number("num-other-sentinels") == Some(2)
        && value(&master, "flags") == Some("master")
        && replicas_are_up(sentinel)?)
}

fn replicas_are_up(sentinel: &RedisServer) -> RedisResult<bool> {
    let replicas: Vec<Vec<String>> = ask(sentinel, cmd("SENTINEL").arg("SLAVES").arg(MASTER))?;
    Ok(replicas.iter().all(|replica| {
        value(replica, "flags") == Some("slave") && value(replica, "master-link-status") == Some("ok")
    }))
}

/// True if a Sentinel has ended the failover to this master, and could begin the next.
fn is_ready(sentinel: &RedisServer, master: u16) -> RedisResult<bool> {
    Ok(master_by(sentinel)? == master && knows_all(sentinel)?)
}

fn value<'a>(described: &'a [String], field: &str) -> Option<&'a str> {
    described.chunks_exact(2).find(|pair| pair[0] == field).map(|pair| pair[1].as_str())
}
