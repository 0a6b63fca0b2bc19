//! Servers, the way to them, and what goes wrong on it.

mod connection;
mod faults;
mod names;
mod servers;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{io, mem};

use setnx_lock_testing::{ClientId, Output};

use crate::process::Process;
use crate::run;
use crate::scheduler::{Nanos, scheduler};
use crate::server::Node;
use crate::time;

pub(crate) use connection::Connection;
use connection::EndOfStream;
pub use faults::{Faults, Injected};
pub(crate) use names::addresses;
pub use names::set_name;
pub use servers::ServerId;

/// How long after something was wrong calls may fail by it.
const AFTERMATH: Nanos = 1_000_000_000;

/// The port of each server.
const PORT: u16 = 6379;

static NETWORK: Mutex<Network> = Mutex::new(Network::new());

/// All servers and connections of the run.
#[derive(Debug)]
struct Network {
    nodes: Vec<Node>,
    /// Those that servers know.
    connections: BTreeMap<ClientId, Arc<Connection>>,
    /// Those that clients have not closed.
    open: BTreeMap<ClientId, Arc<Connection>>,
    opened: ClientId,
    faults: Faults,
    injected: Injected,
    /// The addresses of each name.
    names: BTreeMap<String, Vec<IpAddr>>,
    /// Nothing gets through between these before a time.
    apart: BTreeMap<(usize, usize), Nanos>,
    commands: u64,
    /// After how many more commands these processes are killed, and whether their connections are closed then.
    killed_after: BTreeMap<Process, (u64, bool)>,
    /// Until when something has been wrong.
    trouble: Nanos,
}

impl Network {
    const fn new() -> Self {
        Self {
            nodes: Vec::new(),
            connections: BTreeMap::new(),
            open: BTreeMap::new(),
            opened: 0,
            faults: Faults::NONE,
            injected: Injected::NONE,
            names: BTreeMap::new(),
            apart: BTreeMap::new(),
            commands: 0,
            killed_after: BTreeMap::new(),
            trouble: 0,
        }
    }
}

fn network() -> MutexGuard<'static, Network> {
    NETWORK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets what goes wrong at random from now on.
pub fn set_faults(faults: Faults) {
    network().faults = faults;
}

/// Returns what has gone wrong so far.
#[must_use]
pub fn injected() -> Injected {
    network().injected
}

/// Returns how many commands were executed.
#[must_use]
pub fn commands() -> u64 {
    network().commands
}

thread_local! {
    /// Whether nothing was wrong when the last call of this thread began, and when that was.
    static BEGAN: Cell<(bool, Nanos)> = const { Cell::new((false, 0)) };
}

/// Notes that the calling thread begins a call, for [`was_well`].
pub fn begin_call() {
    let (process, now) = (Process::current(), scheduler().now());
    let network = network();
    let is_broken = |one: &Arc<Connection>| one.process == process && one.is_broken();
    let is_well = network.trouble.max(process.resumed()) + AFTERMATH < now && network.is_well();
    BEGAN.set((is_well && !network.open.values().any(is_broken), now));
}

/// Kills a process as soon as servers have executed so many more of
/// its commands, before it has the last reply: see [`Process::kill`].
pub fn kill_after(process: Process, commands: u64, closes: bool) {
    network().killed_after.insert(process, (commands, closes));
}

/// Says that something is wrong for this time: calls may fail.
pub fn trouble_for(time: Duration) {
    let until = scheduler().now() + u64::try_from(time.as_nanos()).unwrap_or(0);
    network().note_trouble(until);
}

/// Returns true if nothing has been wrong between the calling thread's process and a server since its call began.
#[must_use]
pub fn was_well() -> bool {
    let (was_well, since) = BEGAN.get();
    let network = network();
    was_well && network.is_well() && network.trouble.max(Process::current().resumed()) < since
}

/// Returns what the clock of a server shows.
fn now_of(node: &Node) -> Duration {
    let ahead = Duration::from_micros(node.ahead.unsigned_abs());
    if node.ahead < 0 { time::true_time().saturating_sub(ahead) } else { time::true_time() + ahead }
}

/// Opens a connection until a time.
pub(crate) fn connect(address: SocketAddr, until: Nanos) -> io::Result<Arc<Connection>> {
    scheduler().step();
    let process = Process::current();
    let (server, arrives) = {
        let network = network();
        let server = network.nodes.iter().position(|node| node.address == address);
        let arrives = server.map(|server| network.arrival(process, server)).unwrap_or_default();
        (server, arrives)
    };
    let wait = |time: Nanos| {
        while scheduler().now() < time {
            scheduler().block(Some(time));
        }
    };
    let Some(server) = server else {
        wait(until);
        return Err(io::ErrorKind::TimedOut.into());
    };
    // There and back.
    let back = arrives + (arrives - scheduler().now().min(arrives));
    if back > until {
        wait(until);
        return Err(io::ErrorKind::TimedOut.into());
    }
    wait(back);
    let who = scheduler().lock().processes[process.number()].name.clone();
    let mut network = network();
    if !network.nodes[server].is_up {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    network.opened += 1;
    let id = network.opened;
    let connection = Arc::new(Connection::new(id, server, process, format!("{who}:{id}")));
    network.connections.insert(id, Arc::clone(&connection));
    network.open.insert(id, Arc::clone(&connection));
    let node = &mut network.nodes[server];
    let now = now_of(node);
    let outputs = node.core.connect(id, &format!("10.0.1.1:{id}"), now);
    network.send_all(server, outputs);
    Ok(connection)
}

/// What a killed process leaves: connections that the system closes, or that servers keep.
pub(crate) fn left_by(process: Process, closes: bool) {
    let own = |one: &&Arc<Connection>| one.process == process;
    let left: Vec<Arc<Connection>> = network().open.values().filter(own).cloned().collect();
    for connection in left {
        if closes {
            connection.close();
        } else {
            network().open.remove(&connection.id);
        }
    }
}

impl Network {
    /// Notes that something is wrong until a time.
    fn note_trouble(&mut self, until: Nanos) {
        self.trouble = self.trouble.max(until);
    }

    /// Returns true if every server does what it is asked.
    fn is_well(&self) -> bool {
        self.nodes.iter().all(|node| node.is_up && !node.is_full)
    }

    /// Returns when a message of a process arrives that is sent now.
    fn arrival(&self, process: Process, server: usize) -> Nanos {
        let mut state = scheduler().lock();
        let Faults { latency: (least, most), .. } = self.faults;
        let takes = state.random.u64(least..=most) * 1000;
        let apart = self.apart.get(&(process.number(), server)).copied().unwrap_or_default();
        state.now.max(apart) + takes
    }

    /// The server knows the connection no more.
    fn forget(&mut self, id: ClientId) {
        if let Some(connection) = self.connections.remove(&id) {
            let node = &mut self.nodes[connection.server];
            node.arrived.remove(&id);
            node.core.disconnect(id);
        }
    }

    /// Closes a connection at once, for both.
    fn cut(&mut self, id: ClientId) {
        self.note_trouble(scheduler().now());
        if let Some(connection) = self.connections.get(&id).cloned() {
            self.forget(id);
            connection.end(EndOfStream::Reset);
        }
    }

    fn cut_all(&mut self, server: usize) {
        let of_server = self.connections.iter().filter(|(_, one)| one.server == server);
        for id in of_server.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.cut(id);
        }
    }

    /// Sends what a server has for its clients.
    fn send_all(&mut self, server: usize, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Send(id, bytes) => {
                    let Some(connection) = self.connections.get(&id).cloned() else { continue };
                    let busy = self.nodes[server].busy_until.saturating_sub(scheduler().now());
                    let arrives = self.arrival(connection.process, server) + busy;
                    connection.deliver(bytes, arrives);
                }
                Output::Close(id) => {
                    let Some(connection) = self.connections.get(&id).cloned() else { continue };
                    let arrives = self.arrival(connection.process, server);
                    self.forget(id);
                    connection.ends_at(arrives);
                }
            }
        }
        self.plan_pass(server);
    }

    /// Has the server end the next wait for an element in time.
    fn plan_pass(&mut self, server: usize) {
        let node = &mut self.nodes[server];
        let Some(next) = node.core.next_timeout() else { return };
        if node.wakes_at.is_some_and(|at| at <= next) {
            return;
        }
        node.wakes_at = Some(next);
        let left = next.saturating_sub(now_of(node)) + Duration::from_micros(100);
        run::after(left, move || {
            let mut network = network();
            let node = &mut network.nodes[server];
            node.wakes_at = None;
            if !node.is_up {
                return;
            }
            if node.stalled_until > scheduler().now() {
                scheduler().at(node.stalled_until, move || self::network().plan_pass(server));
                return;
            }
            let now = now_of(node);
            let name = node.name.clone();
            let outputs = node.pass(now, |words| run::note_of(&mut scheduler().lock(), &name, &words));
            network.send_all(server, outputs);
        });
    }

    /// What a client has sent arrives. `cuts`: the connection is closed once it is executed.
    fn arrive(&mut self, id: ClientId, bytes: Vec<u8>, cuts: bool) {
        let Some(connection) = self.connections.get(&id).cloned() else { return };
        let server = connection.server;
        let node = &mut self.nodes[server];
        if node.stalled_until > scheduler().now() || !node.held_up.is_empty() {
            node.held_up.push_back((id, bytes, cuts));
            if node.held_up.len() == 1 {
                scheduler().at(node.stalled_until, move || network().go_on(server));
            }
            return;
        }
        if cuts && bytes.is_empty() {
            return self.cut(id);
        }
        self.execute(&connection, bytes);
        if cuts {
            // What the client has of the reply comes first.
            self.note_trouble(scheduler().now());
            let arrives = self.arrival(connection.process, server);
            self.forget(id);
            connection.ends_at(arrives);
        }
    }

    /// A server that stood still executes what has arrived meanwhile.
    fn go_on(&mut self, server: usize) {
        let node = &mut self.nodes[server];
        if node.stalled_until > scheduler().now() {
            scheduler().at(node.stalled_until, move || network().go_on(server));
            return;
        }
        for (id, bytes, cuts) in mem::take(&mut node.held_up) {
            self.arrive(id, bytes, cuts);
        }
    }

    fn execute(&mut self, connection: &Connection, bytes: Vec<u8>) {
        let node = &mut self.nodes[connection.server];
        node.arrived.entry(connection.id).or_default().extend(bytes);
        let time = now_of(node);
        let before = self.commands;
        let commands = &mut self.commands;
        let outputs = node.execute(connection.id, time, |words| {
            *commands += 1;
            run::note_of(&mut scheduler().lock(), &connection.name, &words);
        });
        let executed = self.commands - before;
        let (now, node) = (scheduler().now(), &mut self.nodes[connection.server]);
        node.busy_until = node.busy_until.max(now) + executed * node.per_command;
        self.send_all(connection.server, outputs);
        self.count_down(connection.process, executed);
        let published = mem::take(&mut self.nodes[connection.server].published);
        for message in published {
            self.spread(connection.server, &message);
        }
    }

    /// The process has fewer commands left.
    fn count_down(&mut self, process: Process, executed: u64) {
        let Some((left, closes)) = self.killed_after.get_mut(&process) else { return };
        *left = left.saturating_sub(executed);
        if *left == 0 {
            let closes = *closes;
            self.killed_after.remove(&process);
            run::after(Duration::ZERO, move || process.kill(closes));
        }
    }

    /// Nodes of a cluster pass on what is published to one of them.
    fn spread(&mut self, from: usize, message: &[Vec<u8>]) {
        let others: Vec<usize> =
            (0..self.nodes.len()).filter(|at| *at != from && self.nodes[*at].is_in_cluster).collect();
        for server in others {
            let message = message.to_vec();
            let takes = scheduler().lock().random.u64(100..2000);
            run::after(Duration::from_micros(takes), move || {
                let mut network = network();
                let node = &mut network.nodes[server];
                if node.is_up {
                    let now = now_of(node);
                    let (_, outputs) = node.core.look(&message, now);
                    network.send_all(server, outputs);
                }
            });
        }
    }
}
