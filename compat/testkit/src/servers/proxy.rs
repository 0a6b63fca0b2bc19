//! The proxy itself: accepts connections, records commands, applies faults, and forwards.

use std::collections::HashMap;
use std::io::{BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Condvar, Mutex, RwLock};
use std::time::Duration;
use std::{fmt, io, mem, thread};

use super::asked::{Asked, Position};
use super::comparing::Comparing;
use super::faults::{Fault, Faults, Hold, Which};
use super::quirks::{EmulatedServer, Memory};
use super::real::Real;
use super::resp::{Request, read_batch, text};
use super::twemproxy;
use super::versions::Emulated;
use crate::redis_server::listen;

/// After these a server pushes data by itself: the rest of the connection is forwarded as it is, and not recorded.
const PUSHING: &[&str] = &["SUBSCRIBE", "PSUBSCRIBE", "MONITOR"];
/// More bytes than any client sends in one piece.
const LONGEST_BATCH: usize = 1 << 16;

/// A proxy in front of a server. Stops listening, and closes its connections, when dropped.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

type Delay = dyn Fn(&Asked) -> Duration + Send + Sync;

/// A command that has arrived.
struct Arrived {
    request: Request,
    position: Position,
    /// Whether a command of its batch closes the connection.
    closes: bool,
}

struct Shared {
    real: SocketAddr,
    emulated: Mutex<Option<Emulated>>,
    comparing: Option<Comparing>,
    /// Whether it closes connections as twemproxy does.
    forwards_little: AtomicBool,
    /// Whether the real server has a `maxmemory`: only then is it asked each time.
    limited: AtomicBool,
    /// Taken for writing while that limit is lifted.
    limit: Arc<RwLock<()>>,
    faults: Mutex<Faults>,
    /// The prefix of keys whose commands are neither recorded nor given faults.
    overlooked: Mutex<Option<&'static str>>,
    delay: Mutex<Option<Arc<Delay>>>,
    asked: Mutex<Vec<Asked>>,
    /// Both streams of each connection.
    open: Mutex<HashMap<usize, Vec<TcpStream>>>,
    stopped: Mutex<bool>,
    stopping: Condvar,
}

impl Proxy {
    /// Starts a proxy in front of the server at `real` that emulates no old version.
    pub fn before(real: SocketAddr) -> io::Result<Self> {
        Self::start(real, None, None, false)
    }

    /// Starts a proxy that gives the server at `real` commands which compare and change a key.
    pub fn comparing(comparing: Comparing, real: SocketAddr) -> io::Result<Self> {
        Self::start(real, None, Some(comparing), false)
    }

    /// Starts a proxy that makes the server at `real` behave like an old version.
    pub fn emulating(version: Emulated, real: SocketAddr) -> io::Result<Self> {
        let limited = Memory::of(&mut Real::connect(real)?)?.is_limited();
        Self::start(real, Some(version), None, limited)
    }

    fn start(
        real: SocketAddr,
        emulated: Option<Emulated>,
        comparing: Option<Comparing>,
        limited: bool,
    ) -> io::Result<Self> {
        let listener = listen()?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            real,
            emulated: Mutex::new(emulated),
            comparing,
            forwards_little: AtomicBool::new(false),
            limited: AtomicBool::new(limited),
            limit: Arc::default(),
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
                    // A client that leaves ends its connection, and nothing else.
                    let _ended = shared.serve(connection, &stream);
                    shared.close(connection);
                });
            }
        });
        Ok(Self { address, shared })
    }

    /// Closes all connections and emulates another version from then on, as a server that is restarted.
    pub fn restart_as(&self, version: Emulated) {
        *self.shared.emulated.lock().unwrap() = Some(version);
        self.shared.open.lock().unwrap().values().flatten().for_each(shut);
    }

    /// From now on closes the connection, as twemproxy does, on a command that twemproxy does not forward.
    pub fn forward_little(&self, little: bool) {
        self.shared.forwards_little.store(little, Ordering::SeqCst);
    }

    pub fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }

    /// Applies a fault to the next command of this name. Several apply to one command each, in order.
    pub fn next(&self, command: &'static str, fault: Fault) {
        self.shared.add(Which::Next(command), fault);
    }

    /// Applies a fault to the nth command of this name from now; the next is the first.
    pub fn nth(&self, command: &'static str, n: usize, fault: Fault) {
        self.shared.add(Which::Nth(command, n), fault);
    }

    /// Applies a fault to the nth command from now, of any name but INFO, which does not count.
    pub fn at(&self, n: usize, fault: Fault) {
        self.shared.add(Which::At(n), fault);
    }

    /// Applies a fault to the command at this place of the next batch of at least so many commands.
    pub fn in_batch(&self, place: usize, least: usize, fault: Fault) {
        self.shared.add(Which::InBatch { place, least }, fault);
    }

    /// Holds the nth command of this name from now before it is executed.
    pub fn hold(&self, command: &'static str, n: usize) -> Hold {
        let (hold, fault) = Hold::new();
        self.nth(command, n, fault);
        hold
    }

    /// From now on neither records commands on keys with this prefix nor applies faults to them.
    pub fn overlook(&self, keys: &'static str) {
        *self.shared.overlooked.lock().unwrap() = Some(keys);
    }

    /// Delays each command by what `delay` returns before it is executed, as a slow network does.
    pub fn slow_down(&self, delay: impl Fn(&Asked) -> Duration + Send + Sync + 'static) {
        *self.shared.delay.lock().unwrap() = Some(Arc::new(delay));
    }

    /// Returns how many faults have not happened yet.
    pub fn faults_left(&self) -> usize {
        self.shared.faults.lock().unwrap().left()
    }

    /// Clears the record.
    pub fn forget(&self) {
        self.shared.asked.lock().unwrap().clear();
    }

    /// Returns the recorded commands without INFO, which every new connection sends.
    pub fn asked(&self) -> Vec<Asked> {
        self.everything().into_iter().filter(|asked| asked.name != "INFO").collect()
    }

    /// Returns the names of the recorded commands without INFO.
    pub fn names(&self) -> Vec<String> {
        self.asked().into_iter().map(|asked| asked.name).collect()
    }

    /// Returns the recorded commands without INFO, batch by batch.
    pub fn batches(&self) -> Vec<Vec<Asked>> {
        let together =
            |a: &Asked, b: &Asked| a.connection == b.connection && a.position.place < b.position.place;
        let mut asked = self.asked();
        // The commands of several connections are recorded in the order in which they arrive.
        asked.sort_by_key(|asked| asked.connection);
        asked.chunk_by(together).map(<[Asked]>::to_vec).collect()
    }

    /// Returns the recorded commands, INFO included.
    pub fn everything(&self) -> Vec<Asked> {
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
    /// Reads at all times, also while a command is executed, so that it notices a client that leaves.
    fn serve(&self, connection: usize, client: &TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        let real = Real::connect(self.real)?;
        self.keep(connection, real.stream());
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
                drop(sender);
            });
            let ended = self.answer(connection, requests, client, real);
            shut(client);
            ended
        })
    }

    fn answer(
        &self,
        connection: usize,
        requests: Receiver<Arrived>,
        mut to_client: &TcpStream,
        mut real: Real,
    ) -> io::Result<()> {
        let version = *self.emulated.lock().unwrap();
        let mut emulated = version.map(|version| EmulatedServer::new(version, self.real, &self.limit));
        while let Ok(Arrived { request, position, closes }) = requests.recv() {
            let arguments: Vec<String> = request.words[1..].iter().map(|word| text(word)).collect();
            let asked = Asked { connection, name: request.name(), arguments, position };
            let fault = self.record(&asked);
            if self.closes_on(&asked.name) {
                return Ok(());
            }
            let delay = self.delay.lock().unwrap().clone();
            if let Some(delay) = delay {
                thread::sleep(delay(&asked));
            }

            let accepted = emulated.as_ref().is_none_or(|emulated| emulated.accepts(&request));
            if PUSHING.contains(&asked.name.as_str()) && accepted && fault.is_none() {
                real.send(&request)?;
                return forward(requests, to_client, &mut real);
            }
            self.notice_limit(&asked);
            let mut execute = || match (&mut emulated, self.comparing) {
                (Some(emulated), _) => {
                    emulated.answer(&request, &mut real, self.limited.load(Ordering::SeqCst))
                }
                (None, Some(comparing)) => comparing.answer(&request, &mut real),
                (None, None) => real.ask(&request),
            };
            // A client may leave before its replies come; what it has sent is executed all the same.
            let mut reply_with = |reply: &[u8]| {
                if !closes {
                    drop(to_client.write_all(reply));
                }
            };
            match fault {
                None => reply_with(&execute()?),
                Some(Fault::SwallowRequest) => {}
                Some(Fault::SwallowAnswer) => drop(execute()?),
                Some(Fault::AnswerLate(delay)) => {
                    let reply = execute()?;
                    thread::sleep(delay);
                    reply_with(&reply);
                }
                Some(Fault::CutBefore) => return Ok(()),
                Some(Fault::CutAfter) => return execute().map(drop),
                Some(Fault::CutWithin) => {
                    let reply = execute()?;
                    return to_client.write_all(&reply[..reply.len() / 2]);
                }
                Some(Fault::HalfOpen) => return self.wait_until_stopped(),
                Some(Fault::Say(text)) => reply_with(text.as_bytes()),
                Some(Fault::Hold(held)) => {
                    held.wait();
                    reply_with(&execute()?);
                }
            }
        }
        Ok(())
    }

    fn closes_on(&self, name: &str) -> bool {
        self.forwards_little.load(Ordering::SeqCst) && !twemproxy::FORWARDED.contains(&name)
    }

    /// Records a command, and returns its fault.
    fn record(&self, asked: &Asked) -> Option<Fault> {
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
        // It came too late to be closed with the others.
        if *self.stopped.lock().unwrap() {
            shut(stream);
        }
    }

    fn close(&self, connection: usize) {
        self.open.lock().unwrap().remove(&connection).iter().flatten().for_each(shut);
    }

    fn wait_until_stopped(&self) -> io::Result<()> {
        drop(self.stopping.wait_while(self.stopped.lock().unwrap(), |stopped| !*stopped).unwrap());
        Ok(())
    }

    /// Notices a memory limit that is set through the proxy.
    fn notice_limit(&self, asked: &Asked) {
        if asked.name == "CONFIG" && asked.arguments.iter().any(|word| word.eq_ignore_ascii_case("maxmemory"))
        {
            self.limited.store(true, Ordering::SeqCst);
        }
    }
}

/// Forwards both ways until one side ends.
fn forward(requests: Receiver<Arrived>, client: &TcpStream, real: &mut Real) -> io::Result<()> {
    let real_stream = real.stream().try_clone()?;
    thread::scope(|scope| {
        scope.spawn(move || {
            let _ended = requests
                .into_iter()
                .try_for_each(|Arrived { request, .. }| (&real_stream).write_all(&request.raw));
            shut(&real_stream);
        });
        let _ended = io::copy(real.reader(), &mut &*client);
        shut(client);
    });
    Ok(())
}
