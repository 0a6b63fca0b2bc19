//! One run of the search: two servers, of which one is the master and the other its replica, or the old master still.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{CLIENTS, Conditions, Flaw};
use crate::simulated::{Leg, Next, Server};
use setnx_lock_proto::fencing::Epoch;
use setnx_lock_proto::hold::{self, Counted};
use setnx_lock_proto::lease::Lease;
use setnx_lock_proto::task::{Rules as _, Task};
use setnx_lock_proto::values::{Nonce, Now, Uptime, Wall};
use setnx_lock_proto::{Command, Replies, Reply, Step, Trip};

/// Who acts, what happens, and a number that decides the rest.
type Choice = (usize, u8, usize);

#[derive(Debug)]
pub(super) struct Run {
    conditions: Conditions,
    servers: [Node; 2],
    /// Which is the master by the newest configuration.
    master: usize,
    epoch: u64,
    clients: Vec<Client>,
    /// The tokens that holders have got, and of which epoch the server was then.
    tokens: BTreeMap<u64, u64>,
    pub(super) taken: u64,
    pub(super) raised: u64,
    pub(super) lost: u64,
    nonces: u64,
    log: Vec<String>,
}

#[derive(Debug)]
struct Node {
    server: Server,
    /// In which epoch it is a master; `None` for a replica.
    epoch: Option<u64>,
    /// Each number that its counter has had, also before it was a master.
    history: Vec<i64>,
}

#[derive(Debug)]
struct Client {
    connection: Option<Connection>,
    hold: Option<(Hold, Doing)>,
}

#[derive(Clone, Copy, Debug)]
struct Connection {
    server: usize,
    epoch: Option<Epoch>,
}

/// A client that has the lock on a server, and takes a token.
#[derive(Debug)]
struct Hold {
    server: usize,
    lease: Lease,
    task: Task<Counted>,
    /// What its commands have increased the counter to, and in which epoch the server was.
    increased: Vec<(i64, u64)>,
}

#[derive(Debug)]
enum Doing {
    Sends(Trip),
    Sent(Leg),
    Replied(Leg, Reply),
}

fn now() -> Now {
    let time = Duration::from_secs(1_795_000_000);
    Now { wall: Wall(1_795_000_000_000_000), uptime: Uptime::of(time) }
}

impl Run {
    pub(super) fn new(conditions: Conditions) -> Self {
        let node = |epoch| Node { server: Server::default(), epoch, history: vec![0] };
        let client = || Client { connection: None, hold: None };
        Self {
            conditions,
            servers: [node(Some(1)), node(None)],
            master: 0,
            epoch: 1,
            clients: (0..CLIENTS).map(|_| client()).collect(),
            tokens: BTreeMap::new(),
            taken: 0,
            raised: 0,
            lost: 0,
            nonces: 0,
            log: Vec::new(),
        }
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.conditions.flaw == Some(flaw)
    }

    pub(super) fn perform(&mut self, steps: &[Choice]) -> Option<&'static str> {
        steps.iter().find_map(|(who, what, drawn)| match who {
            n if *n < CLIENTS => self.act(*n, *what, *drawn),
            _ => {
                self.change(*drawn);
                None
            }
        })
    }

    /// The old master becomes a replica, or the replica a master that may have lost the last numbers.
    fn change(&mut self, drawn: usize) {
        let other = 1 - self.master;
        if self.servers[other].epoch.take().is_some() {
            if self.conditions.closes {
                self.close_all(other);
            }
            self.log.push(format!("{other} is a replica"));
            return;
        }
        let history = &self.servers[self.master].history;
        // Seldom nothing is lost, seldom all.
        let kept = (history.len() - 1).saturating_sub(drawn % 5).max(drawn % history.len() / 2);
        let history = history[..=kept].to_vec();
        let counter = history[kept];
        self.lost += u64::from(kept + 1 < self.servers[self.master].history.len());
        self.epoch += 1;
        let mut server = Server::default();
        server.set_counter(counter);
        self.servers[other] = Node { server, epoch: Some(self.epoch), history };
        if !self.has(Flaw::KeepsConnections) {
            // A failover takes longer than an idle connection is trusted.
            self.close_all(other);
        }
        self.master = other;
        self.log.push(format!("{other} is the master of epoch {} with {counter}", self.epoch));
    }

    fn close_all(&mut self, server: usize) {
        for client in &mut self.clients {
            client.connection.take_if(|connection| connection.server == server);
        }
    }

    /// Opens a connection, to the old master as long as that may be called so.
    fn connect(&mut self, n: usize, drawn: usize) -> Connection {
        let old = 1 - self.master;
        let server =
            if drawn.is_multiple_of(3) && self.servers[old].epoch.is_some() { old } else { self.master };
        let own = if self.has(Flaw::WrongPair) { Some(self.epoch) } else { self.servers[server].epoch };
        let epoch = own.filter(|_| !self.has(Flaw::NoEpoch)).map(Epoch::from);
        *self.clients[n].connection.insert(Connection { server, epoch })
    }

    /// Has a client take a step. Returns the law that is broken then.
    fn act(&mut self, n: usize, what: u8, drawn: usize) -> Option<&'static str> {
        let Some((mut hold, doing)) = self.clients[n].hold.take() else {
            self.acquire(n, drawn);
            return None;
        };
        if matches!(doing, Doing::Sends(_)) && what < 3 {
            // Another connection of the locker is free.
            self.clients[n].connection = None;
        }
        let is_lost = what == 0 || self.clients[n].connection.is_none();
        let replies = match doing {
            Doing::Sends(trip) if self.goes(n, &trip, drawn) => {
                self.clients[n].hold = Some((hold, Doing::Sent(Leg::first(trip))));
                return None;
            }
            Doing::Sends(_) => Replies::default(),
            Doing::Sent(mut leg) => {
                let reply = if is_lost { None } else { self.carry_out(n, &mut hold.increased, &mut leg) };
                let doing = match reply {
                    Some(reply) => Doing::Replied(leg, reply),
                    // A replica refuses it, so that it is sent to the master.
                    None if !is_lost => Doing::Sends(leg.into_trip()),
                    None => Doing::Replied(leg, Reply::Lost),
                };
                self.clients[n].hold = Some((hold, doing));
                return None;
            }
            Doing::Replied(leg, reply) => {
                let reply = if is_lost { Reply::Lost } else { reply };
                if reply == Reply::Lost {
                    self.clients[n].connection = None;
                }
                match leg.answered(reply) {
                    Next::Leg(leg) => {
                        self.clients[n].hold = Some((hold, Doing::Sent(leg)));
                        return None;
                    }
                    Next::End(replies) => replies,
                }
            }
        };
        let epoch = self.clients[n].connection.and_then(|connection| connection.epoch);
        let step = hold.task.resume(Replies { epoch, ..replies }, now());
        self.go_on(n, hold, step)
    }

    fn acquire(&mut self, n: usize, drawn: usize) {
        let Connection { server, .. } = self.connection(n, drawn);
        let node = &mut self.servers[server];
        if node.epoch.is_none() {
            self.clients[n].connection = None;
            return;
        }
        if node.server.value(Duration::ZERO).is_some() {
            return;
        }
        self.nonces += 1;
        let expiration = Some(Duration::from_secs(10));
        let nonce = Nonce::from_random(self.nonces);
        let lease = Lease::beginning(now(), expiration, self.conditions.protocol, nonce);
        node.server.set(Some(lease.value.to_vec()));
        let own = lease.clone();
        let (task, step) = Task::begin(now(), async move |io| hold::count(io, &own, None).await);
        let Step::Send(trip) = step else { unreachable!("it counts") };
        let doing = Doing::Sends(trip);
        self.clients[n].hold = Some((Hold { server, lease, task, increased: Vec::new() }, doing));
    }

    /// Returns the connection of a client, which is opened if there is none.
    fn connection(&mut self, n: usize, drawn: usize) -> Connection {
        match self.clients[n].connection {
            Some(connection) => connection,
            None => self.connect(n, drawn),
        }
    }

    /// Returns true if a trip goes over the connection of a client.
    fn goes(&mut self, n: usize, trip: &Trip, drawn: usize) -> bool {
        let connection = self.connection(n, drawn);
        let only_in = trip.command.only_in();
        only_in.is_none() || only_in == connection.epoch || self.has(Flaw::RaisedElsewhere)
    }

    /// Carries out a step of a trip; not on a replica, whose connection is not used again.
    fn carry_out(&mut self, n: usize, increased: &mut Vec<(i64, u64)>, leg: &mut Leg) -> Option<Reply> {
        let Connection { server, .. } = self.clients[n].connection?;
        let node = &mut self.servers[server];
        let Some(epoch) = node.epoch else {
            self.clients[n].connection = None;
            return None;
        };
        let reply = node.server.carry_out(Duration::ZERO, leg);
        let counter = node.server.counter();
        if node.history.last() != Some(&counter) {
            node.history.push(counter);
            match leg.command() {
                Some(Command::Raise { .. }) => self.raised += 1,
                _ => increased.push((counter, epoch)),
            }
        }
        self.log.push(format!("client {n} on {server}: {leg:?}: {reply:?}"));
        Some(reply)
    }

    fn go_on(&mut self, n: usize, hold: Hold, step: Step<Counted>) -> Option<&'static str> {
        let outcome = match step {
            Step::Send(trip) => {
                self.clients[n].hold = Some((hold, Doing::Sends(trip)));
                return None;
            }
            step => step.outcome().ok()?,
        };
        let server = &mut self.servers[hold.server].server;
        if server.value(Duration::ZERO) == Some(&*hold.lease.value) {
            server.set(None);
        }
        let Ok(Counted::Token(token)) = outcome else { return None };
        self.log.push(format!("client {n}: token {} of epoch {}", token & 0xffff_ffff, token >> 32));
        self.taken += 1;
        // A number that was lost in a failover may come again.
        let of_token = |(number, _): &&(i64, u64)| u64::try_from(*number) == Ok(token);
        let Some((_, epoch)) = hold.increased.iter().rev().find(of_token) else {
            return Some("a token is no number that was counted for it");
        };
        if self.tokens.insert(token, *epoch).is_some() {
            return Some("two holders have the same token");
        }
        // Those of a master are in the order of its counter, which only grows.
        let in_order = self.tokens.values().is_sorted();
        (!in_order).then_some("a token is not greater than those of an earlier epoch")
    }
}
