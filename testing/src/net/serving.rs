//! What accepts connections, records commands and applies faults, and has a server execute the rest.

use std::collections::HashMap;
use std::io::{self, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::fault::{Fault, Faults, Which};
use super::inside::lock;
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
    /// The address for clients.
    address: SocketAddr,
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
    pub(super) listening: Mutex<Vec<(SocketAddr, JoinHandle<()>)>>,
    life: Mutex<Life>,
    /// Locked while it stops, or starts again: one that a fault stops may be started meanwhile.
    switching: Mutex<()>,
    changed: Condvar,
}

/// What becomes of a connection after a fault.
enum Then {
    GoOn,
    /// Its client gets no replies any more.
    Mute,
    Close,
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

/// What the server does, and how often it was turned off: connections of an earlier life are over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    pub(super) power: Power,
    stops: u64,
}

impl Shared {
    pub(super) fn new(behind: Behind, address: SocketAddr) -> Self {
        Self {
            address,
            behind,
            forwards_little: AtomicBool::new(false),
            faults: Mutex::default(),
            overlooked: Mutex::default(),
            delay: Mutex::default(),
            log: Mutex::default(),
            connections: Default::default(),
            open: Mutex::default(),
            listening: Mutex::default(),
            life: Mutex::new(Life { power: Power::On, stops: 0 }),
            switching: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    pub(super) fn accept(self: &Arc<Self>, listener: TcpListener, looks: bool) {
        let accepting = Arc::clone(self);
        let Ok(address) = listener.local_addr() else { return };
        // Until it is entered the thread takes nothing.
        let mut listening = lock(&self.listening);
        let thread = thread::spawn(move || {
            for stream in listener.incoming() {
                if !lock(&accepting.listening).iter().any(|(listed, _)| *listed == address) {
                    break;
                }
                match stream {
                    Ok(stream) => accepting.take(stream, looks),
                    // For example too many open files.
                    Err(_) => thread::sleep(Duration::from_millis(10)),
                }
            }
        });
        listening.push((address, thread));
    }

    fn take(self: &Arc<Self>, stream: TcpStream, looks: bool) {
        let shared = Arc::clone(self);
        // Those that look do not count.
        let first = if looks { FIRST_LOOK } else { 0 };
        let connection = first + self.connections[usize::from(looks)].fetch_add(1, Ordering::SeqCst);
        let stops = lock(&self.life).stops;
        lock(&self.open).insert(connection, Open { streams: Vec::new(), looks });
        self.keep(connection, &stream);
        thread::spawn(move || {
            let ended = Ended { shared: &shared, connection };
            // A client that leaves ends its connection, and nothing else.
            let _ended = shared.serve(connection, &stream, stops, looks);
            drop(ended);
        });
    }

    /// Turns it off or on, even if it is off. Nothing listens meanwhile.
    pub(super) fn turn(&self, power: Power) {
        let mut life = lock(&self.life);
        life.power = power;
        life.stops += u64::from(power == Power::Off);
        let stops = life.stops;
        drop(life);
        self.changed.notify_all();
        if power == Power::Off {
            self.behind.stop(stops);
            self.cut();
        }
    }

    /// Has it hang or go on. One that is off stays so.
    pub(super) fn hang(&self, hangs: bool) {
        let mut life = lock(&self.life);
        if life.power == Power::Off {
            return;
        }
        life.power = if hangs { Power::Hung } else { Power::On };
        drop(life);
        self.behind.hang(hangs);
        self.changed.notify_all();
    }

    pub(super) fn stop(&self) {
        let _switching = lock(&self.switching);
        self.end_all();
    }

    /// Listens at its address, which `listen` returns, after it has stopped.
    pub(super) fn start_again(self: &Arc<Self>, listen: impl FnOnce(SocketAddr) -> TcpListener) {
        let _switching = lock(&self.switching);
        self.end_all();
        let listener = listen(self.address);
        self.turn(Power::On);
        self.accept(listener, false);
    }

    fn end_all(&self) {
        self.end_listening(self.address);
        self.turn(Power::Off);
    }

    pub(super) fn cut(&self) {
        let open = lock(&self.open);
        open.values().filter(|open| !open.looks).flat_map(|open| &open.streams).for_each(shut);
    }

    /// Returns once nothing listens there.
    pub(super) fn end_listening(&self, address: SocketAddr) {
        let mut listening = lock(&self.listening);
        let at = listening.iter().position(|(listed, _)| *listed == address);
        let thread = at.map(|at| listening.swap_remove(at).1);
        drop(listening);
        if let Some(thread) = thread {
            // Not at once if too many files are open.
            while !thread.is_finished() {
                let _wakes_the_thread = TcpStream::connect(address);
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Reads at all times, also while a command is executed, so that it notices a client that leaves.
    fn serve(&self, connection: usize, client: &TcpStream, stops: u64, looks: bool) -> io::Result<()> {
        client.set_nodelay(true)?;
        let session = self.behind.connect(connection as u64, client, stops, looks)?;
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
                // What it has sent before it left is executed all the same,
                // but it no longer waits for an element of a list.
                self.behind.leaves(connection as u64);
                drop(sender);
            });
            let ended = self.answer(connection, requests, session, (!looks).then_some(stops));
            shut(client);
            ended
        })
    }

    fn answer(
        &self,
        connection: usize,
        requests: Receiver<Arrived>,
        mut session: Session,
        stops: Option<u64>,
    ) -> io::Result<()> {
        let mut is_mute = false;
        while let Ok(Arrived { request, position, closes }) = requests.recv() {
            // Those that look are past all faults.
            let Some(stops) = stops else {
                session.answer(&request)?;
                continue;
            };
            if !self.goes_on(stops) {
                return Ok(());
            }
            let text = |word: &Vec<u8>| String::from_utf8_lossy(word).into_owned();
            let arguments = request.words[1..].iter().map(text).collect();
            let received = Received { connection, name: request.name(), arguments, position };
            let fault = self.record(&received);
            if self.closes_on(&received.name) {
                return Ok(());
            }
            let delay = lock(&self.delay).clone().filter(|_| position.place == 1);
            if delay.is_some_and(|delay| !self.sleep(delay(&received), stops)) {
                return Ok(());
            }
            match fault {
                _ if is_mute => drop(session.answer_aside(&request)?),
                None if session.must_forward(&request) => return session.forward(&request, requests),
                None if closes => drop(session.answer_aside(&request)?),
                None => session.answer(&request)?,
                Some(fault) => match self.apply(fault, &request, &mut session, stops)? {
                    Then::GoOn => {}
                    Then::Mute => is_mute = true,
                    Then::Close => return Ok(()),
                },
            }
        }
        Ok(())
    }

    fn apply(&self, fault: Fault, request: &Request, session: &mut Session, stops: u64) -> io::Result<Then> {
        match fault {
            Fault::LoseReply => {
                session.answer_aside(request)?;
                return Ok(Then::Mute);
            }
            Fault::DelayReply(delay) => {
                let reply = session.answer_aside(request)?;
                if !self.sleep(delay, stops) {
                    return Ok(Then::Close);
                }
                session.send(&reply);
            }
            Fault::CutBefore => return Ok(Then::Close),
            Fault::CutAfter => {
                session.answer_aside(request)?;
                return Ok(Then::Close);
            }
            Fault::CutWithin => {
                let reply = session.answer_aside(request)?;
                session.send(&reply[..reply.len() / 2]);
                return Ok(Then::Close);
            }
            Fault::Hang => {
                let lives = |life: &mut Life| life.stops == stops;
                drop(
                    self.changed.wait_while(lock(&self.life), lives).unwrap_or_else(PoisonError::into_inner),
                );
                return Ok(Then::Close);
            }
            Fault::Refuse(error) => session.send(format!("-{error}\r\n").as_bytes()),
            Fault::Say(bytes) => session.send(bytes.as_bytes()),
            Fault::StopAfter => {
                session.answer_aside(request)?;
                self.stop();
                return Ok(Then::Close);
            }
            Fault::Pause(handle) => {
                handle.0.wait();
                if !self.goes_on(stops) {
                    return Ok(Then::Close);
                }
                session.answer(request)?;
            }
        }
        Ok(Then::GoOn)
    }

    /// Waits while the server hangs. Returns false if it has stopped since.
    fn goes_on(&self, stops: u64) -> bool {
        let hangs = |life: &mut Life| life.power == Power::Hung && life.stops == stops;
        let life = self.changed.wait_while(lock(&self.life), hangs).unwrap_or_else(PoisonError::into_inner);
        life.power == Power::On && life.stops == stops
    }

    /// Waits, and then while the server hangs. Returns false if it has stopped since.
    fn sleep(&self, time: Duration, stops: u64) -> bool {
        let lives = |life: &mut Life| life.stops == stops;
        let slept = self.changed.wait_timeout_while(lock(&self.life), time, lives);
        drop(slept.unwrap_or_else(PoisonError::into_inner));
        self.goes_on(stops)
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
        if lock(&self.life).power == Power::Off && !open.looks {
            shut(stream);
        }
    }

    fn close(&self, connection: usize) {
        lock(&self.open).remove(&connection).iter().flat_map(|open| &open.streams).for_each(shut);
    }
}

/// A connection, at whose end its client is told, also if a function of the test has panicked.
struct Ended<'s> {
    shared: &'s Shared,
    connection: usize,
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.shared.behind.disconnect(self.connection as u64);
        self.shared.close(self.connection);
    }
}
