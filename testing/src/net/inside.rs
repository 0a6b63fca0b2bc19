//! A server in this process: the pure one with a clock, and the clients that it sends something to.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::server::{ClientId, Output, Server};

/// The way back to one client. Bytes are put there in the order in which the server sends them, whichever thread writes them out.
#[derive(Debug)]
pub(super) struct Outlet {
    stream: TcpStream,
    pending: Mutex<Pending>,
    writing: Mutex<()>,
}

#[derive(Debug, Default)]
struct Pending {
    bytes: Vec<u8>,
    closes: bool,
}

impl Outlet {
    pub(super) fn to(stream: TcpStream) -> Arc<Self> {
        Arc::new(Self { stream, pending: Mutex::default(), writing: Mutex::default() })
    }

    /// A client may leave before its replies come; what it has sent is executed all the same.
    fn flush(&self) {
        let _alone = lock(&self.writing);
        let Pending { bytes, closes } = std::mem::take(&mut *lock(&self.pending));
        let _sent = (&self.stream).write_all(&bytes);
        if closes {
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
    outlets: HashMap<ClientId, Arc<Outlet>>,
    /// Clients that read no replies any more.
    left: HashSet<ClientId>,
}

impl State {
    fn now(&self) -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() + self.ahead
    }

    /// Puts what is sent into the outlets, which the caller flushes. Returns what goes to `kept` instead of putting it there.
    fn sort(&self, output: Vec<Output>, kept: Option<ClientId>) -> (Vec<u8>, Vec<Arc<Outlet>>) {
        let (mut own, mut touched) = (Vec::new(), Vec::new());
        for output in output {
            match output {
                Output::Send(client, bytes) if Some(client) == kept => own.extend(bytes),
                Output::Send(client, bytes) => {
                    let Some(outlet) = self.outlets.get(&client) else { continue };
                    lock(&outlet.pending).bytes.extend(bytes);
                    touched.push(Arc::clone(outlet));
                }
                Output::Close(client) => {
                    let Some(outlet) = self.outlets.get(&client) else { continue };
                    lock(&outlet.pending).closes = true;
                    touched.push(Arc::clone(outlet));
                }
            }
        }
        (own, touched)
    }
}

impl Inside {
    pub(crate) fn new(server: Server) -> Self {
        let state = State { server, ahead: Duration::ZERO, outlets: HashMap::new(), left: HashSet::new() };
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
        let (_, touched) = state.sort(output, None);
        drop(state);
        self.flush(&touched);
        outcome
    }

    fn flush(&self, touched: &[Arc<Outlet>]) {
        for outlet in touched {
            outlet.flush();
        }
        self.changed.notify_all();
    }

    pub(crate) fn advance(&self, time: Duration) {
        self.state().ahead += time;
        self.with(|server, now| ((), server.pass(now)));
    }

    /// Takes a connection. `looks`: it is one that looks at the server for a test.
    pub(super) fn connect(&self, client: ClientId, outlet: Arc<Outlet>, address: &str, looks: bool) {
        self.state().outlets.insert(client, outlet);
        self.with(|server, now| {
            if looks {
                server.privilege(client);
                return ((), Vec::new());
            }
            ((), server.connect(client, address, now))
        });
    }

    /// The client waits for no element of a list any more, and later commands that do so get no reply.
    pub(super) fn leaves(&self, client: ClientId) {
        let mut state = self.state();
        state.server.stop_waiting(client);
        state.left.insert(client);
        drop(state);
        self.changed.notify_all();
    }

    pub(super) fn disconnect(&self, client: ClientId) {
        let mut state = self.state();
        state.server.disconnect(client);
        state.outlets.remove(&client);
        state.left.remove(&client);
    }

    /// Executes a command. Its reply is sent, or kept and returned.
    pub(super) fn execute(&self, client: ClientId, words: &[Vec<u8>], keep: bool) -> Vec<u8> {
        let mut state = self.state();
        let now = state.now();
        let output = state.server.handle(client, words, now);
        if state.left.contains(&client) {
            state.server.stop_waiting(client);
        }
        let (own, touched) = state.sort(output, keep.then_some(client));
        drop(state);
        self.flush(&touched);
        own
    }

    /// Sends bytes that were kept.
    pub(super) fn send(&self, client: ClientId, bytes: &[u8]) {
        let outlet = self.state().outlets.get(&client).cloned();
        if let Some(outlet) = outlet {
            lock(&outlet.pending).bytes.extend(bytes);
            outlet.flush();
        }
    }

    /// Returns once the client no longer waits for an element of a list.
    pub(super) fn until_served(&self, client: ClientId) {
        let mut state = self.state();
        while state.server.is_waiting(client) {
            let now = state.now();
            let left =
                state.server.next_timeout().map_or(Duration::from_secs(3600), |end| end.saturating_sub(now));
            if left.is_zero() {
                let output = state.server.pass(now);
                let (_, touched) = state.sort(output, None);
                drop(state);
                self.flush(&touched);
                state = self.state();
                continue;
            }
            (state, _) = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
