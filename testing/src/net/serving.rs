//! What accepts connections, records commands and applies faults, and has a server execute the rest.

use std::collections::HashMap;
use std::io::{self, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::fault::{Fault, Faults, Which};
use super::received::{Position, Received};
use super::resp::{Request, read_batch};
use super::session::{Behind, Session, shut};
use super::twemproxy;

/// More bytes than any client sends in one piece.
const LONGEST_BATCH: usize = 1 << 16;
/// The number of the first connection that looks at the server for a test.
const FIRST_LOOK: usize = 1 << 30;

pub(super) type Delay = dyn Fn(&Received) -> Duration + Send + Sync;

/// A command that has arrived.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) request: Request,
    position: Position,
    /// A command of its batch closes the connection.
    closes: bool,
}

pub(super) struct Shared {
    pub(super) behind: Behind,
    /// Closes connections as twemproxy does.
    pub(super) forwards_little: AtomicBool,
    pub(super) faults: Mutex<Faults>,
    /// The prefix of keys whose commands are neither recorded nor given faults.
    pub(super) overlooked: Mutex<Option<String>>,
    pub(super) delay: Mutex<Option<Arc<Delay>>>,
    pub(super) log: Mutex<Vec<Received>>,
    connections: [AtomicUsize; 2],
    pub(super) open: Mutex<HashMap<usize, Open>>,
    /// Where it listens. What is taken from here ends.
    pub(super) listening: Mutex<Vec<SocketAddr>>,
    power: Mutex<Power>,
    changed: Condvar,
}

/// A connection, and that to the server behind it.
#[derive(Debug, Default)]
pub(super) struct Open {
    pub(super) streams: Vec<TcpStream>,
    /// It looks at the server for a test.
    looks: bool,
}

/// What the server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Power {
    On,
    /// It keeps its connections and answers nothing.
    Hung,
    Off,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(behind: Behind) -> Self {
        Self {
            behind,
            forwards_little: AtomicBool::new(false),
            faults: Mutex::default(),
            overlooked: Mutex::default(),
            delay: Mutex::default(),
            log: Mutex::default(),
            connections: Default::default(),
            open: Mutex::default(),
            listening: Mutex::default(),
            power: Mutex::new(Power::On),
            changed: Condvar::new(),
        }
    }

    pub(super) fn accept(self: &Arc<Self>, listener: TcpListener, looks: bool) {
        let accepting = Arc::clone(self);
        let Ok(address) = listener.local_addr() else { return };
        lock(&self.listening).push(address);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { break };
                if !lock(&accepting.listening).contains(&address) {
                    break;
                }
                let shared = Arc::clone(&accepting);
                // Those that look do not count.
                let first = if looks { FIRST_LOOK } else { 0 };
                let connection =
                    first + shared.connections[usize::from(looks)].fetch_add(1, Ordering::SeqCst);
                lock(&shared.open).insert(connection, Open { streams: Vec::new(), looks });
                shared.keep(connection, &stream);
                thread::spawn(move || {
                    // A client that leaves ends its connection, and nothing else.
                    let _ended = shared.serve(connection, &stream, looks);
                    shared.behind.disconnect(connection as u64);
                    shared.close(connection);
                });
            }
        });
    }

    pub(super) fn turn(&self, power: Power) {
        *lock(&self.power) = power;
        self.changed.notify_all();
        if power == Power::Off {
            self.cut();
        }
    }

    pub(super) fn cut(&self) {
        let open = lock(&self.open);
        open.values().filter(|open| !open.looks).flat_map(|open| &open.streams).for_each(shut);
    }

    /// Returns once nothing listens there.
    pub(super) fn end_listening(&self, address: SocketAddr) {
        lock(&self.listening).retain(|listening| *listening != address);
        while TcpListener::bind(address).is_err() {
            let _wakes_the_listener = TcpStream::connect(address);
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Reads at all times, also while a command is executed, so that it notices a client that leaves.
    fn serve(&self, connection: usize, client: &TcpStream, looks: bool) -> io::Result<()> {
        client.set_nodelay(true)?;
        let session = self.behind.connect(connection as u64, client, looks)?;
        if let Some(stream) = session.stream() {
            self.keep(connection, stream);
        }
        let (sender, requests) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut from_client = BufReader::with_capacity(LONGEST_BATCH, client);
                loop {
                    let batch = read_batch(&mut from_client);
                    let of = batch.len();
                    // The replies to what came before it in one piece are lost as well.
                    let closes = batch.iter().any(|request| self.closes_on(&request.name()));
                    let arrived =
                        |(place, request)| Arrived { request, position: Position { place, of }, closes };
                    let mut requests = (1..).zip(batch).map(arrived);
                    if of == 0 || requests.any(|request| sender.send(request).is_err()) {
                        break;
                    }
                }
                // What it has sent before it left is executed all the same, but for nothing in a list is waited any more.
                self.behind.leaves(connection as u64);
                drop(sender);
            });
            let ended = self.answer(connection, requests, session, looks);
            shut(client);
            ended
        })
    }

    fn answer(
        &self,
        connection: usize,
        requests: Receiver<Arrived>,
        mut session: Session,
        looks: bool,
    ) -> io::Result<()> {
        while let Ok(Arrived { request, position, closes }) = requests.recv() {
            if looks {
                session.answer(&request)?;
                continue;
            }
            let text = |word: &Vec<u8>| String::from_utf8_lossy(word).into_owned();
            let arguments = request.words[1..].iter().map(text).collect();
            let received = Received { connection, name: request.name(), arguments, position };
            let fault = self.record(&received);
            if self.closes_on(&received.name) || !self.wait_while_hung() {
                return Ok(());
            }
            let delay = lock(&self.delay).clone();
            if let Some(delay) = delay {
                thread::sleep(delay(&received));
            }
            match fault {
                None if session.must_forward(&request) => return session.forward(&request, requests),
                None if closes => drop(session.execute(&request)?),
                None => session.answer(&request)?,
                Some(fault) => {
                    if !self.apply(fault, &request, &mut session)? {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns false if the connection is to be closed.
    fn apply(&self, fault: Fault, request: &Request, session: &mut Session) -> io::Result<bool> {
        match fault {
            Fault::LoseRequest => {}
            Fault::LoseReply => drop(session.execute(request)?),
            Fault::DelayReply(delay) => {
                let reply = session.execute(request)?;
                thread::sleep(delay);
                session.send(&reply);
            }
            Fault::CutBefore => return Ok(false),
            Fault::CutAfter => {
                session.execute(request)?;
                return Ok(false);
            }
            Fault::CutWithin => {
                let reply = session.execute(request)?;
                session.send(&reply[..reply.len() / 2]);
                return Ok(false);
            }
            Fault::Hang => {
                let off = |power: &mut Power| *power != Power::Off;
                drop(self.changed.wait_while(lock(&self.power), off).unwrap_or_else(PoisonError::into_inner));
                return Ok(false);
            }
            Fault::Refuse(error) => session.send(format!("-{error}\r\n").as_bytes()),
            Fault::Say(bytes) => session.send(bytes.as_bytes()),
            Fault::StopAfter => {
                session.execute(request)?;
                self.turn(Power::Off);
                return Ok(false);
            }
            Fault::Pause(handle) => {
                handle.0.wait();
                session.answer(request)?;
            }
        }
        Ok(true)
    }

    /// Returns false if the server has stopped.
    fn wait_while_hung(&self) -> bool {
        let hung = |power: &mut Power| *power == Power::Hung;
        let power = self.changed.wait_while(lock(&self.power), hung).unwrap_or_else(PoisonError::into_inner);
        *power == Power::On
    }

    fn closes_on(&self, name: &str) -> bool {
        self.forwards_little.load(Ordering::SeqCst) && !twemproxy::FORWARDED.contains(&name)
    }

    /// Records a command, and returns its fault.
    fn record(&self, received: &Received) -> Option<Fault> {
        let overlooked = lock(&self.overlooked).clone();
        let key = received.arguments.first();
        if overlooked.is_some_and(|keys| key.map_or(keys.is_empty(), |key| key.starts_with(&keys))) {
            return None;
        }
        lock(&self.log).push(received.clone());
        lock(&self.faults).due(received)
    }

    pub(super) fn add(&self, which: Which, fault: Fault) {
        lock(&self.faults).add(which, fault);
    }

    fn keep(&self, connection: usize, stream: &TcpStream) {
        let mut all = lock(&self.open);
        let open = all.entry(connection).or_default();
        open.streams.extend(stream.try_clone());
        // It came too late to be closed with the others.
        if *lock(&self.power) == Power::Off && !open.looks {
            shut(stream);
        }
    }

    fn close(&self, connection: usize) {
        lock(&self.open).remove(&connection).iter().flat_map(|open| &open.streams).for_each(shut);
    }
}
