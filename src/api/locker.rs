//! A server to lock on: a pool of connections, and what all its locks share.

mod builder;

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use crate::net::{Backend, Limits, Trip, Watch};
use crate::report::error::Error;
use crate::rules::{Change, Command, NewValue, Reply, Request};
use crate::run::Engine;
use crate::run::timer::Timer;
use crate::values::clock;
use crate::values::contained::contained;
use crate::values::identity::Identity;
use crate::values::key::{Cut, Key};
pub use builder::LockerBuilder;

/// The server that locks are made on: a pool of connections. Cheap to clone; one is enough for a program, and all its threads
/// share it.
///
/// Opening one connects to nothing yet, and starts no thread: connections are opened when they are needed, each by a thread that ends
/// then. One that has been idle for ten seconds is closed instead of being used again, since the server may have closed it.
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
///     println!("acquired");
/// }
/// # Ok::<(), setnx_lock::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Locker {
    engine: Arc<Engine>,
    /// The thread that a quorum has for this server.
    jobs: Arc<Timer<QuorumJob>>,
}

/// What a thread of its own does for this server.
pub(crate) type QuorumJob = Box<dyn FnOnce() + Send>;

fn run(jobs: Vec<(u64, QuorumJob)>) {
    for (_, job) in jobs {
        contained(job);
    }
}

// A panic in the user's code leaves nothing in a backend half done: it is reached only through mutexes that are released between
// two calls, and a connection that was in the middle of a command is not used again (I8).
impl UnwindSafe for Locker {}
impl RefUnwindSafe for Locker {}

impl Locker {
    /// Returns a locker for the server at `url`, with the defaults of [`LockerBuilder`]. Connects to nothing yet.
    ///
    /// The URL is `redis://[[user]:password@]host[:port][/database]`, `unix:///path[?db=…&pass=…]`, or
    /// `rediss://…` for TLS with one of the features `tls-rustls` and `tls-native-tls`.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for any other.
    pub fn open(url: &str) -> Result<Self, Error> {
        Self::builder(url)?.build()
    }

    /// Returns a builder of a locker for the server at `url`.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] as [`open`](Self::open).
    pub fn builder(url: &str) -> Result<LockerBuilder, Error> {
        let client = redis::Client::open(url);
        client.map(Self::with_client).map_err(|error| not_an_address(&error))
    }

    /// Returns a builder of a locker that connects as `client` does: for what a URL cannot express,
    /// such as your own TLS certificates (`redis::Client::build_with_tls`).
    pub fn with_client(client: redis::Client) -> LockerBuilder {
        LockerBuilder::new(client)
    }

    /// Returns a builder of a locker that takes its connections from `pool`, which other work may use as well: a pool of
    /// [`redis::Client`], of a sentinel client, or of any manager of [`redis::Connection`]s. (For `redis::Client`, your program depends on the
    /// redis crate in the version that this crate re-exports, with its feature `r2d2`.)
    ///
    /// A connection that was lent to a lock keeps the read and write timeouts of its last command; other work that waits for longer sets its
    /// own. A broken one is closed. The server is not asked for its role and version, so [`Protocol::Auto`](crate::Protocol::Auto) is
    /// Classic, without notifications, and [`notify_waiters(true)`](crate::LockOptions::notify_waiters), which needs a connection of its own, is
    /// refused.
    ///
    /// The pool must not test connections on check-out, r2d2's default: that costs a trip for each command, and has no time limit.
    ///
    /// ```
    /// use setnx_lock::{Error, Locker, r2d2, redis};
    ///
    /// /// On a pool that was built with `.test_on_check_out(false)`.
    /// fn locker<M>(pool: &r2d2::Pool<M>) -> Result<Locker, Error>
    /// where
    ///     M: r2d2::ManageConnection<Connection = redis::Connection>,
    /// {
    ///     Locker::with_pool(pool.clone()).holder_name("worker:7").build()
    /// }
    /// ```
    pub fn with_pool<M>(pool: r2d2::Pool<M>) -> LockerBuilder
    where
        M: r2d2::ManageConnection<Connection = redis::Connection>,
    {
        LockerBuilder::on_pool(pool)
    }

    /// For `make bench`: SETNX and DEL by the network layer alone; `watched`: DEL by a transaction. Returns whether both changed the key.
    #[doc(hidden)]
    #[must_use]
    pub fn set_and_delete(&self, key: &Key, value: &[u8], watched: bool) -> bool {
        let entry = NewValue { value: value.into(), ttl: None };
        let (set, delete) = (Command::SetNx(entry), Request::at_any_time(Command::Del));
        let backend = &self.engine.backend;
        let limits = || {
            let now = clock::now();
            Limits::within(self.engine.budget(Some(now.uptime)), now)
        };
        let set = backend.send(&Trip::new(key, &Request::at_any_time(set)), &limits()).own();
        let exec = Request::at_any_time(Command::Exec(Change::Del));
        let watch = Watch { command: &Command::WatchGet, expected: value };
        let deleted = if watched {
            Trip { watch: Some(watch), ..Trip::new(key, &exec) }
        } else {
            Trip::new(key, &delete)
        };
        let deleted = backend.send(&deleted, &limits()).own();
        matches!(set, Ok(Reply::Integer(1)))
            && matches!(deleted, Ok(Reply::Integer(1) | Reply::Executed(Some(1))))
    }

    /// Ends all waits for locks of this locker and its clones, at once and for good: each fails with [`Error::Cancelled`], as does
    /// every later call that asks for a lock. A command on its way is waited for first; if it acquires the lock, the wait ends with
    /// the lock. Locks that are held stay held, and can be released. Returns without waiting. What the thread of a
    /// [`Quorum`](crate::Quorum) has left to do for this server, it does, and ends.
    ///
    /// The gem has no such thing.
    pub fn shut_down(&self) {
        // I10: a forked child has no threads that wait, and may find the queue in the middle of a change.
        if self.engine.identity.is_this_process() {
            self.engine.queue.close();
            self.engine.backend.wake_waiting();
            self.jobs.close();
        }
    }

    fn with_engine(self, change: impl FnOnce(&mut Engine)) -> Self {
        let mut engine = (*self.engine).clone();
        change(&mut engine);
        Self { engine: Arc::new(engine), ..self }
    }

    pub(crate) fn over<B: Backend + 'static>(backend: Arc<B>) -> Self {
        let engine = Engine::new(backend, Identity::new());
        let jobs = Arc::new(Timer::new("setnx-lock quorum", run));
        Self { engine: Arc::new(engine), jobs }
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Has a thread of its own do this job, after those that it has. Without a thread it is done here and now.
    pub(crate) fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        let added = self.jobs.add(self.jobs.new_id(), clock::uptime(), Duration::ZERO, Box::new(job));
        if let Err((_, job)) = added {
            job();
        }
    }

    /// Has that thread do this job after a time. Without a thread it is not done.
    pub(crate) fn spawn_later(&self, delay: Duration, job: impl FnOnce() + Send + 'static) {
        let due = clock::uptime().after(delay);
        let _ = self.jobs.add(self.jobs.new_id(), due, Duration::ZERO, Box::new(job));
    }

    #[cfg(test)]
    pub(crate) fn observed_by(self, observer: impl crate::Observer) -> Self {
        self.with_engine(|engine| engine.observer = crate::report::event::EventSink::new(observer))
    }

    /// Has each start of a thread for a quorum fail.
    #[cfg(test)]
    pub(crate) fn refuse_threads(&self) {
        self.jobs.refuse_threads(true);
    }

    #[cfg(test)]
    pub(crate) fn named(self, name: &str) -> Self {
        self.with_engine(|engine| engine.holder_name = Some(name.into()))
    }

    #[cfg(test)]
    pub(crate) fn in_forked_child(self) -> Self {
        self.with_engine(|engine| engine.identity = Arc::new(Identity::in_forked_child()))
    }
}

fn not_an_address(error: &redis::RedisError) -> Error {
    Error::invalid_locker(format!(
        "this is no address of a Redis server: {}; use redis://[:password@]host[:port][/database], \
         unix:///path, or with this crate's feature tls-rustls or tls-native-tls rediss://…",
        Cut(error.to_string().as_bytes())
    ))
}
