//! The gate itself: takes connections, writes down what is asked, and passes it on unless something else is to become of it.

use std::collections::HashMap;
use std::io::{BufReader, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use std::{fmt, io, mem, thread};

use super::faults::{Fault, Faults, Hold, Which};
use super::presence::Presence;
use super::quirks::{Memory, Player};
use super::real::Real;
use super::resp::{Request, read_trip, text};
use super::versions::Played;

/// After these a server talks without being asked: the rest of the connection is passed on as it is, and not written down.
const TALKATIVE: &[&str] = &["SUBSCRIBE", "PSUBSCRIBE", "MONITOR"];
/// More bytes than any client sends in one piece.
const LONGEST_TRIP: usize = 1 << 16;

/// One command as it came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Counts the connections.
    pub(crate) connection: usize,
    /// In upper case.
    pub(crate) name: String,
    pub(crate) arguments: Vec<String>,
    pub(crate) seat: Seat,
}

/// Where a command came in what its client sent in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    /// The first is 1.
    pub(crate) place: usize,
    /// How many came together, itself included.
    pub(crate) of: usize,
}

/// A server in front of another. Stops listening, and closes what is open, when dropped.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

type Delay = dyn Fn(&Asked) -> Duration + Send + Sync;

struct Shared {
    real: SocketAddr,
    played: Mutex<Option<Played>>,
    /// Whether the real server has a `maxmemory`. Only then is it worth a question each time.
    limited: AtomicBool,
    faults: Mutex<Faults>,
    /// How keys begin that nothing is written down of, and no harm is done to.
    overlooked: Mutex<Option<&'static str>>,
    delay: Mutex<Option<Arc<Delay>>>,
    asked: Mutex<Vec<Asked>>,
    /// Both ends of each connection.
    open: Mutex<HashMap<usize, Vec<TcpStream>>>,
    stopped: Mutex<bool>,
    stopping: Condvar,
}

impl Proxy {
    /// Starts one in front of the real server at `real`, which stays what it is.
    pub(crate) fn before(real: SocketAddr) -> io::Result<Self> {
        Self::start(real, None, false)
    }

    /// Starts one that makes the real server look like an old one.
    pub(crate) fn playing(version: Played, real: SocketAddr) -> io::Result<Self> {
        let limited = Memory::of(&mut Real::connect(real)?)?.is_limited();
        Self::start(real, Some(version), limited)
    }

    fn start(real: SocketAddr, played: Option<Played>, limited: bool) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            real,
            played: Mutex::new(played),
            limited: AtomicBool::new(limited),
            faults: Mutex::default(),
            overlooked: Mutex::default(),
            delay: Mutex::default(),
            asked: Mutex::default(),
            open: Mutex::default(),
            stopped: Mutex::default(),
            stopping: Condvar::new(),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for (connection, stream) in listener.incoming().enumerate() {
                let Ok(stream) = stream else { break };
                if *accepting.stopped.lock().unwrap() {
                    break;
                }
                let shared = Arc::clone(&accepting);
                shared.keep(connection, &stream);
                thread::spawn(move || {
                    // A client that goes away ends its connection, and nothing else.
                    let _ended = shared.serve(connection, &stream);
                    shared.close(connection);
                });
            }
        });
        Ok(Self { address, shared })
    }

    /// Closes all connections, and is another version from then on: a server that is stopped and started anew.
    pub(crate) fn restart_as(&self, version: Played) {
        *self.shared.played.lock().unwrap() = Some(version);
        self.shared.open.lock().unwrap().values().flatten().for_each(shut);
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }

    /// Lets the next command of this name come to harm; several wait in a row.
    pub(crate) fn next(&self, command: &'static str, fault: Fault) {
        self.shared.add(Which::Next(command), fault);
    }

    /// Lets the nth command of this name from now come to harm; the next is the first.
    pub(crate) fn nth(&self, command: &'static str, n: usize, fault: Fault) {
        self.shared.add(Which::Nth(command, n), fault);
    }

    /// Lets the nth command from now come to harm, whatever it is; INFO does not count.
    pub(crate) fn at(&self, n: usize, fault: Fault) {
        self.shared.add(Which::At(n), fault);
    }

    /// Lets a command come to harm by its place in a trip: in the next that carries at least so many.
    pub(crate) fn aboard(&self, place: usize, least: usize, fault: Fault) {
        self.shared.add(Which::Aboard { place, least }, fault);
    }

    /// Holds the nth command of this name from now before it is carried out.
    pub(crate) fn hold(&self, command: &'static str, n: usize) -> Hold {
        let (hold, fault) = Hold::new();
        self.nth(command, n, fault);
        hold
    }

    /// From now on does no harm to what is asked of keys that begin like this, and does not write it down.
    pub(crate) fn overlook(&self, keys: &'static str) {
        *self.shared.overlooked.lock().unwrap() = Some(keys);
    }

    /// Sleeps so long before each command is carried out, as if the request were that long on its way.
    pub(crate) fn slow_down(&self, delay: impl Fn(&Asked) -> Duration + Send + Sync + 'static) {
        *self.shared.delay.lock().unwrap() = Some(Arc::new(delay));
    }

    /// Returns how many of the faults that were asked for have not happened.
    pub(crate) fn faults_left(&self) -> usize {
        self.shared.faults.lock().unwrap().left()
    }

    /// Forgets what was asked so far.
    pub(crate) fn forget(&self) {
        self.shared.asked.lock().unwrap().clear();
    }

    /// Returns what was asked so far, but for INFO: a connection looks at its server when it is opened.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.everything().into_iter().filter(|asked| asked.name != "INFO").collect()
    }

    /// Returns the names of what was asked so far, but for INFO.
    pub(crate) fn names(&self) -> Vec<String> {
        self.asked().into_iter().map(|asked| asked.name).collect()
    }

    /// Returns what was asked so far, but for INFO, with what came in one piece together.
    pub(crate) fn trips(&self) -> Vec<Vec<Asked>> {
        let together = |a: &Asked, b: &Asked| a.connection == b.connection && a.seat.place < b.seat.place;
        let mut asked = self.asked();
        // Those of several connections are written down in between each other.
        asked.sort_by_key(|asked| asked.connection);
        asked.chunk_by(together).map(<[Asked]>::to_vec).collect()
    }

    /// Returns what was asked so far.
    pub(crate) fn everything(&self) -> Vec<Asked> {
        self.shared.asked.lock().unwrap().clone()
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        *self.shared.stopped.lock().unwrap() = true;
        self.shared.stopping.notify_all();
        let _wakes_the_listener = TcpStream::connect(self.address);
        let open = mem::take(&mut *self.shared.open.lock().unwrap());
        open.values().flatten().for_each(shut);
    }
}

fn shut(stream: &TcpStream) {
    let _may_be_closed = stream.shutdown(Shutdown::Both);
}

impl Shared {
    /// Reads all the time, also while something is carried out: so a client that leaves is noticed.
    fn serve(&self, connection: usize, client: &TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        let real = Real::connect(self.real)?;
        self.keep(connection, real.stream());
        let presence = Presence::new(real.stream())?;
        let (sender, requests) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut from_client = BufReader::with_capacity(LONGEST_TRIP, client);
                loop {
                    let trip = read_trip(&mut from_client);
                    let of = trip.len();
                    let seated =
                        trip.into_iter().zip(1..).map(|(request, place)| (request, Seat { place, of }));
                    if of == 0 || seated.map(|seated| sender.send(seated)).any(|sent| sent.is_err()) {
                        break;
                    }
                }
                presence.ends();
                drop(sender);
            });
            let ended = self.answer(connection, requests, client, real, &presence);
            shut(client);
            ended
        })
    }

    fn answer(
        &self,
        connection: usize,
        requests: Receiver<(Request, Seat)>,
        mut to_client: &TcpStream,
        mut real: Real,
        presence: &Presence,
    ) -> io::Result<()> {
        let mut player = self.played.lock().unwrap().map(|version| Player::new(version, self.real));
        while let Ok((request, seat)) = requests.recv() {
            let arguments: Vec<String> = request.words[1..].iter().map(|word| text(word)).collect();
            let asked = Asked { connection, name: request.name(), arguments, seat };
            let fault = self.note(&asked);
            let delay = self.delay.lock().unwrap().clone();
            if let Some(delay) = delay {
                thread::sleep(delay(&asked));
            }

            let taken = player.as_ref().is_none_or(|player| player.takes(&request));
            if TALKATIVE.contains(&asked.name.as_str()) && taken && fault.is_none() {
                real.send(&request)?;
                return pass_on(requests, to_client, &mut real);
            }
            self.watch_limit(&asked);
            let mut carry_out = || {
                presence.during(&asked.name, || match &mut player {
                    Some(player) => player.answer(&request, &mut real, self.limited.load(Ordering::SeqCst)),
                    None => real.ask(&request),
                })
            };
            // A client may leave before its answers come; what it has sent is carried out nevertheless.
            let mut say = |reply: &[u8]| drop(to_client.write_all(reply));
            match fault {
                None => say(&carry_out()?),
                Some(Fault::SwallowRequest) => {}
                Some(Fault::SwallowAnswer) => drop(carry_out()?),
                Some(Fault::AnswerLate(delay)) => {
                    let reply = carry_out()?;
                    thread::sleep(delay);
                    say(&reply);
                }
                Some(Fault::CutBefore) => return Ok(()),
                Some(Fault::CutAfter) => return carry_out().map(drop),
                Some(Fault::CutWithin) => {
                    let reply = carry_out()?;
                    return to_client.write_all(&reply[..reply.len() / 2]);
                }
                Some(Fault::HalfOpen) => return self.wait_for_the_end(),
                Some(Fault::Say(text)) => say(text.as_bytes()),
                Some(Fault::Hold(door)) => {
                    door.wait();
                    say(&carry_out()?);
                }
            }
        }
        Ok(())
    }

    /// Writes down what is asked, and returns what is to become of it.
    fn note(&self, asked: &Asked) -> Option<Fault> {
        let overlooked = *self.overlooked.lock().unwrap();
        let key = asked.arguments.first();
        if overlooked.is_some_and(|keys| key.is_some_and(|key| key.starts_with(keys))) {
            return None;
        }
        self.asked.lock().unwrap().push(asked.clone());
        self.faults.lock().unwrap().due(asked)
    }

    fn add(&self, which: Which, fault: Fault) {
        self.faults.lock().unwrap().add(which, fault);
    }

    fn keep(&self, connection: usize, stream: &TcpStream) {
        self.open.lock().unwrap().entry(connection).or_default().extend(stream.try_clone());
        // Too late to be closed with the others.
        if *self.stopped.lock().unwrap() {
            shut(stream);
        }
    }

    fn close(&self, connection: usize) {
        self.open.lock().unwrap().remove(&connection).iter().flatten().for_each(shut);
    }

    fn wait_for_the_end(&self) -> io::Result<()> {
        drop(self.stopping.wait_while(self.stopped.lock().unwrap(), |stopped| !*stopped).unwrap());
        Ok(())
    }

    /// Notices a limit that is set through the gate.
    fn watch_limit(&self, asked: &Asked) {
        if asked.name == "CONFIG" && asked.arguments.iter().any(|word| word.eq_ignore_ascii_case("maxmemory"))
        {
            self.limited.store(true, Ordering::SeqCst);
        }
    }
}

/// Passes on both ways until one side ends.
fn pass_on(requests: Receiver<(Request, Seat)>, client: &TcpStream, real: &mut Real) -> io::Result<()> {
    let real_stream = real.stream().try_clone()?;
    thread::scope(|scope| {
        scope.spawn(move || {
            let _ended =
                requests.into_iter().try_for_each(|(request, _)| (&real_stream).write_all(&request.raw));
            shut(&real_stream);
        });
        let _ended = io::copy(real.reader(), &mut &*client);
        shut(client);
    });
    Ok(())
}
