//! A server to lock on: a pool of connections, and who is told of what happens.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::error::Error;
use crate::event::{LogObserver, Observe, Observer};
use crate::identity::Identity;
use crate::server::{Carrier, Manager, Pooled, Server, Window};

/// How many connections a pool opens at most when nothing else is said. A lock needs one only while a command is on its
/// way, so this serves many more threads than ten.
const DEFAULT_POOL_SIZE: u32 = 10;
/// How long a wait without a timeout puts up with a server that cannot be reached.
const DEFAULT_PATIENCE: Duration = Duration::from_secs(5);
/// How long after a server is up again it may take until that is noticed: r2d2 waits longer and longer between two tries to
/// connect, up to half of what it calls its connection timeout.
const RECONNECT_WITHIN: Duration = Duration::from_millis(500);
/// They are not used after some seconds any more; the server is not to keep them for ever.
const IDLE_TIMEOUT: Duration = Duration::from_secs(120);

/// The server that locks are made on: a pool of connections. Cheap to clone; one is enough for a program, and all its threads
/// share it.
///
/// Opening one connects to nothing yet: connections are opened when they are needed. One that has been idle for ten seconds is not
/// used again, since the server may have closed it, and closed after two to three minutes.
///
/// After a fork, make a new one in the child: connections cannot be shared between processes.
///
/// ```no_run
/// use setnx_lock::{Lock, LockOptions, Locker};
/// use std::time::Duration;
///
/// let locker = Locker::open("redis://127.0.0.1/")?;
/// let lock = Lock::new(&locker, "nightly_report", LockOptions::expiring_after(Duration::from_secs(60)))?;
/// if let Some(_held) = lock.try_lock()? {
///     println!("ours");
/// }
/// # Ok::<(), setnx_lock::Error>(())
/// ```
#[derive(Clone)]
pub struct Locker {
    engine: Arc<Engine>,
}

impl Locker {
    /// Returns a locker for the server at `address`, with the settings of [`Locker::at`]. Connects to nothing yet.
    ///
    /// The address is a URL: `redis://[[user]:password@]host[:port][/database]`, `unix:///path[?db=…&pass=…]`, or
    /// `rediss://…` for TLS with one of the features `tls-rustls` and `tls-native-tls`.
    ///
    /// # Errors
    ///
    /// [`Error::Address`] if that is not what `address` is.
    pub fn open(address: &str) -> Result<Self, Error> {
        Self::at(address)?.open()
    }

    /// Returns the settings of a locker for the server at `address`, to be changed and then [opened](Settings::open).
    ///
    /// # Errors
    ///
    /// [`Error::Address`] as [`open`](Self::open).
    pub fn at(address: &str) -> Result<Settings, Error> {
        redis::Client::open(address).map(Self::with_client).map_err(|source| Error::Address { source })
    }

    /// Returns the settings of a locker whose connections go where those of `client` go: for what an address cannot say,
    /// such as TLS certificates of one's own (`redis::Client::build_with_tls`).
    pub fn with_client(client: redis::Client) -> Settings {
        Settings {
            manager: Manager::new(client),
            pool_size: DEFAULT_POOL_SIZE,
            patience: DEFAULT_PATIENCE,
            max_clock_difference: None,
        }
    }

    /// Returns a locker that takes its connections from `pool`: one of [`Manager`], of [`redis::Client`], of a sentinel
    /// client, or of any connection that is a [`Carrier`]. (For a pool of `redis::Client`, your program depends on the redis
    /// crate in the version that this crate re-exports, with its feature `r2d2`.)
    ///
    /// Time-outs are the pool's and its connections' own. The redis crate's connections have none unless they are set (in
    /// an [`r2d2::CustomizeConnection`], say), so a server that stops answering blocks for ever; a pool of [`Manager`] has
    /// them. Turn `test_on_check_out` off: it costs a round trip for each command, and what it takes comes on top of a call's
    /// time.
    #[must_use]
    pub fn with_pool<M>(pool: r2d2::Pool<M>) -> Self
    where
        M: r2d2::ManageConnection,
        M::Connection: Carrier,
    {
        Self::through(Arc::new(Pooled::new(pool)))
    }

    /// Returns a locker that takes its connections from a pool of `manager`, which was built with a clone of it: for a pool
    /// that is set up in a way of your own, or shared with other work. Unlike [`with_pool`](Self::with_pool) it keeps to the
    /// manager's time-outs, and tells at once and in full why a connection could not be opened. A wait without a timeout gives up
    /// after the pool's `connection_timeout`, half of which is also what r2d2 waits at most between two tries to connect.
    ///
    /// ```no_run
    /// use setnx_lock::{Locker, Manager};
    ///
    /// let manager = Manager::new(redis::Client::open("redis://127.0.0.1/")?);
    /// let builder = r2d2::Pool::builder().max_size(32).min_idle(Some(0)).test_on_check_out(false);
    /// let builder = builder.connection_timeout(std::time::Duration::from_secs(5));
    /// let pool = builder.build_unchecked(manager.clone());
    /// let locker = Locker::with_managed_pool(pool.clone(), &manager);
    /// # Ok::<(), redis::RedisError>(())
    /// ```
    #[must_use]
    pub fn with_managed_pool(pool: r2d2::Pool<Manager>, manager: &Manager) -> Self {
        let patience = pool.connection_timeout();
        Self::through(Arc::new(Pooled::managed(pool, manager, patience)))
    }

    /// Asks the server what it is and can do: its version, its role, which protocols work there and why not, its clock, and what
    /// of its configuration may do harm to locks. Works on every version from 1.2 on; a user who may not ask for something is told
    /// the rest. Print it to read it, and look at [`Server::warnings`].
    ///
    /// Waits for the server as a lock without a timeout does ([`Settings::patience`]), and at most a command time-out for each
    /// answer. Sends INFO, and what the version knows of CONFIG GET, SETNX, GET, GETSET, SET, DEL, WATCH, UNWATCH, MULTI, EXEC, DISCARD and
    /// TIME, on a key of its own named `setnx-lock:probe:…`, which it removes. A server before 2.6 has no TIME; there that key is given a
    /// time to end at and watched for up to a second. One connection of the pool is in use meanwhile, and closed then.
    ///
    /// # Errors
    ///
    /// [`Error::Server`] if it cannot be reached, or refuses INFO. A replica is refused as everywhere, unless the settings say
    /// [`without_info`](Settings::without_info).
    ///
    /// ```no_run
    /// # let locker = setnx_lock::Locker::open("redis://127.0.0.1/")?;
    /// let server = locker.server()?;
    /// println!("{server}");
    /// for warning in server.warnings() {
    ///     eprintln!("{warning}");
    /// }
    /// # Ok::<(), setnx_lock::Error>(())
    /// ```
    pub fn server(&self) -> Result<Server, Error> {
        self.engine.survey()
    }

    /// Ends all waits for locks of this locker and its clones, at once and for good: each fails with [`Error::ShutDown`], as does
    /// whoever asks for a lock from now on. A command that is on its way is waited for first; if it gets the lock, the wait ends with
    /// the lock. Locks that are held stay held, and can be given back. Returns without waiting for any of that.
    ///
    /// The gem has no such thing.
    pub fn shut_down(&self) {
        // I10: a forked child has no threads that wait, and may find the lines in the middle of a change.
        if self.engine.identity.is_this_process() {
            self.engine.lines.close();
        }
    }

    /// Returns the locker with another observer than [`LogObserver`]. Locks made from it report there.
    #[must_use]
    pub fn observed_by(self, observer: impl Observe) -> Self {
        let observer = Observer(Arc::new(observer));
        Self { engine: Arc::new(Engine { observer, ..(*self.engine).clone() }) }
    }

    /// Returns the locker with combining on or off; it is on unless given. Locks made from it, and from its clones, do as it says.
    ///
    /// With it on, threads that want a command sent at the same moment share a trip to the server: one of them sends what all want over
    /// one connection, and hands out the answers. Nobody waits for company: up to four threads use a connection each, as without it (fewer
    /// where the pool has not so many), and send the same bytes in the same order. Beyond that, a thread waits to be taken along while others'
    /// commands are under way; when nobody has been taken along for 0.15 ms, it goes alone. On a machine of two cores with the server
    /// on the same, eight threads that lock different keys get 1.4 times as much done as raw commands with a connection each, 64 get 3.6 times
    /// ([`documentation::performance`](crate::documentation::performance)).
    ///
    /// Each command's outcome stays its own, and so does each thread's time, but for 50 ms that an answer may come later. If the thread that
    /// sent the command does not come back by then, its outcome is unknown, as after an answer that was lost; what came of it goes
    /// to the log. Watched and Ttl release by transactions; these always have a connection to themselves.
    ///
    /// Turn it off behind a proxy that spreads keys over several servers. With [`with_pool`](Self::with_pool) it works for connections that
    /// say they can do it ([`Carrier::COMBINES`]).
    ///
    /// The gem has no such thing.
    #[must_use]
    pub fn combining(self, combines: bool) -> Self {
        Self { engine: Arc::new(Engine { combines, ..(*self.engine).clone() }) }
    }

    pub(crate) fn through(window: Arc<dyn Window>) -> Self {
        let observer = Observer(Arc::new(LogObserver));
        Self { engine: Arc::new(Engine::new(window, observer, Identity::new())) }
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    #[cfg(test)]
    pub(crate) fn of_a_parent(&self) -> Self {
        let identity = Arc::new(Identity::of_a_parent());
        Self { engine: Arc::new(Engine { identity, ..(*self.engine).clone() }) }
    }
}

impl fmt::Debug for Locker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locker").field("engine", &self.engine).finish_non_exhaustive()
    }
}

/// What a [`Locker`] is opened with.
///
/// ```no_run
/// use setnx_lock::Locker;
/// use std::time::Duration;
///
/// let locker = Locker::at("redis://127.0.0.1/")?.pool_size(32).command_timeout(Duration::from_millis(500)).open()?;
/// # Ok::<(), setnx_lock::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is opened until `open` is called"]
pub struct Settings {
    manager: Manager,
    pool_size: u32,
    patience: Duration,
    max_clock_difference: Option<Duration>,
}

impl Settings {
    /// Opens at most this many connections: 10 unless given, at least one; wake-ups need one more. One is enough for any number of threads to
    /// work. More than ten are of use only without [`combining`](Locker::combining), or far from the server: then about as many as threads that
    /// lock different keys at the same moment.
    pub fn pool_size(self, pool_size: u32) -> Self {
        Self { pool_size, ..self }
    }

    /// Limits how long connecting may take: 2 s unless given.
    pub fn connect_timeout(self, limit: Duration) -> Self {
        Self { manager: self.manager.connect_timeout(limit), ..self }
    }

    /// Limits how long one command may take: 2 s unless given. A call on a lock ends within its timeout and this.
    pub fn command_timeout(self, limit: Duration) -> Self {
        Self { manager: self.manager.command_timeout(limit), ..self }
    }

    /// Limits how long a wait without a timeout puts up with a server that cannot be reached: 5 s unless given.
    pub fn patience(self, limit: Duration) -> Self {
        Self { patience: limit, ..self }
    }

    /// Checks, when the locker is opened, that the server's clock and this machine's are at most this far apart; not checked unless
    /// given. Opening connects to the server then, and on servers before 2.6 takes up to a second.
    ///
    /// What the clocks differ by is known to within the time that the server takes to answer: one that takes longer than the limit is
    /// refused as well.
    ///
    /// Locks compare expiry times by the clients' clocks, and the value in a key names a time one second after its lease, so that
    /// clients within a second of each other never overlap. Two clients that are both within 0.4 s of the server are, with 0.2 s
    /// left for their commands, of which in Classic a GETSET may wait for a connection for 0.1 s.
    pub fn max_clock_difference(self, limit: Duration) -> Self {
        Self { max_clock_difference: Some(limit), ..self }
    }

    /// Sends no INFO when a connection is opened. A replica is then found out by what it refuses, which up to 2.4 is nothing, and
    /// a server that is too old for a protocol by not knowing a command.
    pub fn without_info(self) -> Self {
        Self { manager: self.manager.without_info(), ..self }
    }

    /// Makes the locker. Connects to nothing yet, unless clocks are to be checked.
    ///
    /// # Errors
    ///
    /// [`Error::Settings`] for a pool of no connections, or a time-out of zero. With
    /// [`max_clock_difference`](Self::max_clock_difference) also [`Error::Clocks`], and [`Error::Server`] if the server cannot be
    /// asked.
    pub fn open(self) -> Result<Locker, Error> {
        if let Some(problem) = self.problem() {
            return Err(Error::Settings { problem });
        }
        let pool = r2d2::Pool::builder()
            .max_size(self.pool_size)
            .min_idle(Some(0))
            .test_on_check_out(false)
            .idle_timeout(Some(IDLE_TIMEOUT))
            .connection_timeout(RECONNECT_WITHIN * 2)
            // What goes wrong is told to whoever waits for a connection, with its cause.
            .error_handler(Box::new(r2d2::NopErrorHandler))
            .build_unchecked(self.manager.clone());
        let locker = Locker::through(Arc::new(Pooled::managed(pool, &self.manager, self.patience)));
        if let Some(limit) = self.max_clock_difference {
            let difference = locker.server()?.clock();
            if difference.is_none_or(|difference| difference.at_most() > limit) {
                return Err(Error::Clocks { difference, limit });
            }
        }
        Ok(locker)
    }

    fn problem(&self) -> Option<&'static str> {
        if self.max_clock_difference == Some(Duration::ZERO) {
            return Some(
                "no two clocks show the very same time; allow a difference of some hundred milliseconds",
            );
        }
        if self.pool_size == 0 {
            return Some("a pool of no connections can do nothing; give it at least one");
        }
        let limits = [self.manager.limits(), [self.patience; 2]].concat();
        limits
            .contains(&Duration::ZERO)
            .then_some("a time-out of zero leaves no time for anything; give it some milliseconds at least")
    }
}
