//! The way from clients to a server, as a test sees it.

use std::borrow::Cow;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use std::{fmt, io, thread};

use super::fault::{Fault, Paused, Which};
use super::inside::{Inside, lock};
use super::port::{listen, listen_again};
use super::received::Received;
use super::serving::Shared;
use super::session::{Behind, shut};

/// The way from clients to a server: it records what they send, and
/// has commands and replies delayed, refused and lost on request.
///
/// [`TestServer`](crate::TestServer) has one in front of a server in this process, and all its methods.
/// [`Proxy::before`] puts one in front of a real server, for what only a real one does. It stops, and closes its
/// connections, when it is dropped.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Starts a proxy in front of the server at this address.
    ///
    /// # Errors
    ///
    /// If no port can be listened on.
    pub fn before(server: SocketAddr) -> io::Result<Self> {
        Self::start(Behind::Real(server), None)
    }

    pub(crate) fn before_inside(inside: Arc<Inside>, port: Option<u16>) -> io::Result<Self> {
        Self::start(Behind::Inside(inside), port)
    }

    fn start(behind: Behind, port: Option<u16>) -> io::Result<Self> {
        let listener = match port {
            Some(port) => TcpListener::bind((Ipv4Addr::LOCALHOST, port))?,
            None => listen()?,
        };
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::new(behind, address));
        shared.accept(listener, false);
        Ok(Self { address, shared })
    }

    /// Opens one more port, for clients that look at the server for a test.
    pub(crate) fn listen_for_looks(&self) -> io::Result<SocketAddr> {
        let listener = listen()?;
        let address = listener.local_addr()?;
        self.shared.accept(listener, true);
        Ok(address)
    }

    /// Returns the address, for example `127.0.0.1:12345`.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Returns the URL, for example `redis://127.0.0.1:12345/`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }

    /// Applies a fault to the next command of this name. Several apply to one command each, in this order.
    pub fn next(&self, command: &str, fault: Fault) {
        self.nth(command, 1, fault);
    }

    /// Applies a fault to the nth command of this name from now; the next is the first.
    ///
    /// # Panics
    ///
    /// If `n` is 0.
    pub fn nth(&self, command: &str, n: usize, fault: Fault) {
        assert!(n > 0, "the next {command} is the first, so there is none with the number 0");
        self.shared.add(Which::Nth(command.to_uppercase(), n), fault);
    }

    /// Applies a fault to each command of this name, until [`clear_faults`](Self::clear_faults).
    pub fn every(&self, command: &str, fault: Fault) {
        self.shared.add(Which::Every(command.to_uppercase()), fault);
    }

    /// Applies a fault to the nth command from now, of any name except INFO, which clients send when they connect.
    pub fn at(&self, n: usize, fault: Fault) {
        self.shared.add(Which::At(n), fault);
    }

    /// Applies a fault to the command at this place of the next
    /// batch of at least so many commands. The first place is 1.
    pub fn in_batch(&self, place: usize, least: usize, fault: Fault) {
        self.shared.add(Which::InBatch { place, least }, fault);
    }

    /// Removes the faults that have not happened yet, and the delay.
    pub fn clear_faults(&self) {
        lock(&self.shared.faults).clear();
        *lock(&self.shared.delay) = None;
    }

    /// Returns how many faults have not happened yet. Assert that it is 0 at the end of a test.
    #[must_use]
    pub fn faults_left(&self) -> usize {
        lock(&self.shared.faults).left()
    }

    /// Refuses the next command of this name with this error, for
    /// example `OOM command not allowed when used memory > 'maxmemory'.`
    pub fn refuse(&self, command: &str, error: impl Into<Cow<'static, str>>) {
        self.next(command, Fault::Refuse(error.into()));
    }

    /// Executes the next command of this name, and loses its reply and all later ones on the connection. Name the
    /// command whose reply the client waits for: of a transaction that is EXEC.
    pub fn lose_reply(&self, command: &str) {
        self.next(command, Fault::LoseReply);
    }

    /// Loses the next command of this name, and all later ones on the connection: the server never gets them.
    pub fn lose_request(&self, command: &str) {
        self.next(command, Fault::Hang);
    }

    /// Delays the reply to the next command of this name.
    pub fn delay_reply(&self, command: &str, time: Duration) {
        self.next(command, Fault::DelayReply(time));
    }

    /// Pauses the nth command of this name from now before it is executed, so that a test can do something in between.
    pub fn pause(&self, command: &str, n: usize) -> Paused {
        let (paused, fault) = Paused::new();
        self.nth(command, n, fault);
        paused
    }

    /// Delays each batch of commands by this time before it is executed, as a slow network does, until
    /// [`clear_faults`](Self::clear_faults).
    pub fn delay(&self, time: Duration) {
        self.delay_by(move |_| time);
    }

    /// The same with a time that depends on the first command of the batch.
    pub fn delay_by(&self, delay: impl Fn(&Received) -> Duration + Send + Sync + 'static) {
        *lock(&self.shared.delay) = Some(Arc::new(delay));
    }

    /// Closes all connections. New ones are accepted.
    pub fn cut(&self) {
        self.shared.cut();
    }

    /// Answers nothing from now on, as a machine that is suspended: connections stay open.
    pub fn hang(&self) {
        self.shared.hang(true);
    }

    /// Executes what has come since [`hang`](Self::hang), and answers again.
    pub fn resume(&self) {
        self.shared.hang(false);
    }

    /// Stops: connections are closed, and new ones refused.
    pub fn stop(&self) {
        self.shared.stop();
    }

    /// Listens again after [`stop`](Self::stop), on the same port.
    ///
    /// # Panics
    ///
    /// If something else listens there by now.
    pub fn start_again(&self) {
        self.shared.start_again(|address| {
            listen_again(address).unwrap_or_else(|error| panic!("cannot listen on {address} again: {error}"))
        });
    }

    /// From now on, or no longer, closes the connection on a command that twemproxy does not forward.
    pub fn forward_little(&self, little: bool) {
        self.shared.forwards_little.store(little, Ordering::SeqCst);
    }

    /// From now on neither records commands whose first key begins with
    /// this nor applies faults to them. An empty text means all commands.
    pub fn overlook(&self, prefix: &str) {
        *lock(&self.shared.overlooked) = Some(prefix.to_owned());
    }

    /// Returns the commands that have arrived, without INFO, which clients send when they connect.
    #[must_use]
    pub fn log(&self) -> Vec<Received> {
        self.whole_log().into_iter().filter(|received| received.name != "INFO").collect()
    }

    /// Returns the commands that have arrived, with INFO.
    #[must_use]
    pub fn whole_log(&self) -> Vec<Received> {
        lock(&self.shared.log).clone()
    }

    /// Returns the names of the commands that have arrived, without INFO.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.log().into_iter().map(|received| received.name).collect()
    }

    /// Returns the commands that have arrived, without INFO, in the pieces in which clients sent them.
    #[must_use]
    pub fn batches(&self) -> Vec<Vec<Received>> {
        let together =
            |a: &Received, b: &Received| a.connection == b.connection && a.position.place < b.position.place;
        let mut log = self.whole_log();
        // The commands of several connections are recorded in the order in which they arrive.
        log.sort_by_key(|received| received.connection);
        let without_info =
            |batch: &[Received]| batch.iter().filter(|one| one.name != "INFO").cloned().collect();
        log.chunk_by(together).map(without_info).filter(|batch: &Vec<_>| !batch.is_empty()).collect()
    }

    /// Returns once so many commands of this name have arrived, counted from the start or from
    /// [`clear_log`](Self::clear_log).
    ///
    /// # Panics
    ///
    /// After a minute.
    pub fn wait_for(&self, command: &str, count: usize) {
        let command = command.to_uppercase();
        let end = Instant::now() + Duration::from_secs(60);
        while self.whole_log().iter().filter(|received| received.name == command).count() < count {
            assert!(Instant::now() < end, "{count} times {command} never came: {:?}", self.names());
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Clears the log.
    pub fn clear_log(&self) {
        lock(&self.shared.log).clear();
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stop();
        let listening: Vec<SocketAddr> =
            lock(&self.shared.listening).iter().map(|(address, _)| *address).collect();
        for address in listening {
            self.shared.end_listening(address);
        }
        lock(&self.shared.open).values().flat_map(|open| &open.streams).for_each(shut);
    }
}
