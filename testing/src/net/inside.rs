//! A server in this process: the pure one with a clock, and the clients that it sends something to.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::server::{ClientId, Output, Server};

/// How long a client may not read what it is sent. Then its connection is closed, as a server does with a slow
/// subscriber.
const SLOW: Duration = Duration::from_secs(5);
/// Much longer than any test takes.
const LONG: Duration = Duration::from_secs(3600);

/// The way back to one client. Bytes are put there in the order in
/// which the server sends them, whichever thread writes them out.
#[derive(Debug)]
pub(super) struct Outlet {
    stream: TcpStream,
    /// It looks at the server for a test.
    looks: bool,
    pending: Mutex<Pending>,
    writing: Mutex<()>,
}

#[derive(Debug, Default)]
struct Pending {
    bytes: Vec<u8>,
    closes: bool,
}

impl Outlet {
    pub(super) fn to(stream: TcpStream, looks: bool) -> Arc<Self> {
        let _as_before = stream.set_write_timeout(Some(SLOW));
        Arc::new(Self { stream, looks, pending: Mutex::default(), writing: Mutex::default() })
    }

    /// A client may leave before its replies come; what it has sent is executed all the same.
    fn flush(&self) {
        let _alone = lock(&self.writing);
        let Pending { bytes, closes } = std::mem::take(&mut *lock(&self.pending));
        if (&self.stream).write_all(&bytes).is_err() || closes {
            let _may_be_closed = self.stream.shutdown(Shutdown::Both);
        }
    }
}

/// The server and its clients.
#[derive(Debug)]
pub(crate) struct Inside {
    state: Mutex<State>,
    /// Something has happened that a waiting client may have waited for.
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    server: Server,
    /// How far its clock is ahead of the machine's.
    ahead: Duration,
    /// How often it has stopped. Clients of an earlier life are gone.
    stops: u64,
    /// It sends nothing.
    hangs: bool,
    outlets: HashMap<ClientId, Arc<Outlet>>,
    /// What goes to clients whose reply is kept.
    kept: HashMap<ClientId, Vec<u8>>,
    /// Clients that read no replies any more.
    left: HashSet<ClientId>,
}

impl State {
    fn now(&self) -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().saturating_add(self.ahead)
    }

    /// Puts what is sent where it is kept, or into the outlets, which the caller flushes.
    fn sort(&mut self, output: Vec<Output>) -> Vec<Arc<Outlet>> {
        let mut touched = Vec::new();
        for output in output {
            let (Output::Send(client, _) | Output::Close(client)) = output;
            let Some(outlet) = self.outlets.get(&client).cloned() else { continue };
            match (output, self.kept.get_mut(&client)) {
                (Output::Send(_, bytes), Some(kept)) => kept.extend(bytes),
                (Output::Send(_, bytes), None) => {
                    lock(&outlet.pending).bytes.extend(bytes);
                    touched.push(outlet);
                }
                (Output::Close(_), _) => {
                    lock(&outlet.pending).closes = true;
                    self.forget(client);
                    touched.push(outlet);
                }
            }
        }
        if self.hangs {
            touched.retain(|outlet| outlet.looks);
        }
        touched
    }

    /// What such a client has sent and was not executed yet never is.
    fn forget(&mut self, client: ClientId) {
        self.server.disconnect(client);
        self.outlets.remove(&client);
        self.kept.remove(&client);
        self.left.remove(&client);
    }
}

impl Inside {
    pub(crate) fn new(server: Server) -> Self {
        let state = State {
            server,
            ahead: Duration::ZERO,
            stops: 0,
            hangs: false,
            outlets: HashMap::new(),
            kept: HashMap::new(),
            left: HashSet::new(),
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Does something with the server, and sends what comes of it.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut Server, Duration) -> (T, Vec<Output>)) -> T {
        let mut state = self.state();
        let now = state.now();
        let (outcome, output) = act(&mut state.server, now);
        self.finish(state, output);
        outcome
    }

    fn finish(&self, mut state: MutexGuard<'_, State>, output: Vec<Output>) {
        let touched = state.sort(output);
        drop(state);
        self.changed.notify_all();
        for outlet in touched {
            outlet.flush();
        }
    }

    pub(crate) fn advance(&self, time: Duration) {
        let mut state = self.state();
        state.ahead = state.ahead.saturating_add(time);
        drop(state);
        self.with(|server, now| ((), server.pass(now)));
    }

    /// Forgets all clients except those that look at it. It has stopped so many times.
    pub(super) fn stop(&self, stops: u64) {
        let mut state = self.state();
        (state.stops, state.hangs) = (stops, false);
        let gone: Vec<ClientId> =
            state.outlets.iter().filter(|(_, outlet)| !outlet.looks).map(|(client, _)| *client).collect();
        for client in gone {
            state.forget(client);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Keeps back, or no longer, what it sends.
    pub(super) fn hang(&self, hangs: bool) {
        let mut state = self.state();
        state.hangs = hangs;
        let all: Vec<_> = if hangs { Vec::new() } else { state.outlets.values().cloned().collect() };
        drop(state);
        self.changed.notify_all();
        for outlet in all {
            outlet.flush();
        }
    }

    /// Takes a connection that was accepted in the life after so many stops.
    pub(super) fn connect(&self, client: ClientId, outlet: Arc<Outlet>, address: &str, stops: u64) {
        let mut state = self.state();
        if state.stops != stops && !outlet.looks {
            return;
        }
        let (looks, now) = (outlet.looks, state.now());
        state.outlets.insert(client, outlet);
        if looks {
            state.server.privilege(client);
            return;
        }
        let output = state.server.connect(client, address, now);
        self.finish(state, output);
    }

    /// The client no longer waits for an element of a list, and later commands that would get no reply.
    pub(super) fn leaves(&self, client: ClientId) {
        let mut state = self.state();
        state.server.stop_waiting(client);
        state.left.insert(client);
        drop(state);
        self.changed.notify_all();
    }

    pub(super) fn disconnect(&self, client: ClientId) {
        self.state().forget(client);
    }

    /// Executes a command, and returns once its reply is sent.
    pub(super) fn answer(&self, client: ClientId, words: &[Vec<u8>]) {
        self.execute(client, words, false);
        self.until_served(client);
    }

    /// Executes a command, and returns its reply. What else goes to the client is kept until [`send`](Self::send).
    pub(super) fn answer_aside(&self, client: ClientId, words: &[Vec<u8>]) -> Vec<u8> {
        self.execute(client, words, true);
        self.until_served(client);
        self.state().kept.get_mut(&client).map(std::mem::take).unwrap_or_default()
    }

    fn execute(&self, client: ClientId, words: &[Vec<u8>], keeps: bool) {
        let mut state = self.state();
        if !state.outlets.contains_key(&client) {
            return;
        }
        if keeps {
            state.kept.insert(client, Vec::new());
        }
        let now = state.now();
        let output = state.server.handle(client, words, now);
        if state.left.contains(&client) {
            state.server.stop_waiting(client);
        }
        self.finish(state, output);
    }

    /// Sends bytes, and then what was kept.
    pub(super) fn send(&self, client: ClientId, bytes: &[u8]) {
        let mut state = self.state();
        let rest = state.kept.remove(&client).unwrap_or_default();
        let output = vec![Output::Send(client, [bytes, &rest].concat())];
        self.finish(state, output);
    }

    /// Returns once the client no longer waits for an element of a list.
    fn until_served(&self, client: ClientId) {
        let mut state = self.state();
        while state.server.is_waiting(client) {
            let now = state.now();
            let left = match state.server.next_timeout() {
                Some(end) if !state.hangs => end.saturating_sub(now),
                _ => LONG,
            };
            if left.is_zero() {
                let output = state.server.pass(now);
                self.finish(state, output);
                state = self.state();
                continue;
            }
            (state, _) = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
