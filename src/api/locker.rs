//! A server to lock on: its connections, and what all its locks share.

mod builder;
mod held;
mod url;

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use crate::api::guard::LockGuard;
use crate::net::{Backend, Deployment, NodeId};
use crate::report::error::Error;
use crate::run::identity::Identity;
use crate::run::sink::noticing;
use crate::run::timer::Timer;
use crate::run::{Debt, Engine, Reports, engine_over};
use crate::system::clock;
use crate::values::contained::contained;
use crate::wait::WaitQueue;
pub use builder::LockerBuilder;
pub use held::{Drained, HeldKey, Unsettled};

/// A Redis server to lock on, with its connections. Create one for the program.
///
/// Clones share the connections, and all threads can use them. Creating a locker contacts no server and starts no
/// thread; connections are opened when they are needed. A connection that has been idle for ten seconds is not
/// used again, since the server may have closed it.
///
/// After a fork, create a new locker in the child. The parent's returns [`Error::Forked`] there.
///
/// ```
/// use setnx_lock::{Lock, LockOptions, Locker};
/// use std::time::Duration;
///
/// let url = "redis://127.0.0.1/";
/// # let server = setnx_lock_testing::TestServer::start();
/// # let url = &server.url();
/// let locker = Locker::open(url)?;
/// let lock = Lock::new(&locker, "nightly_report", LockOptions::expiring_after(Duration::from_secs(60)))?;
/// if let Some(_held) = lock.try_lock()? {
///     println!("acquired");
/// }
/// # Ok::<(), setnx_lock::Error>(())
/// ```
#[derive(Clone)]
pub struct Locker {
    engine: Arc<Engine>,
    /// The thread that a quorum has for this server.
    jobs: Arc<Timer<QuorumJob>>,
    /// The threads of which each wants one of several locks.
    lines: Arc<WaitQueue<LockGuard>>,
    end_of_use: Arc<EndOfUse>,
}

/// How long reports are waited for at least.
const REPORTED_WITHIN: Duration = Duration::from_millis(100);

/// What ends with the last clone of a locker, and the locks on it.
struct EndOfUse {
    debts: Arc<Timer<Debt>>,
    reports: Arc<Reports>,
    /// How long both are waited for.
    at_most: Duration,
}

impl EndOfUse {
    /// Waits until nothing is to be released any more, as far as is known, for at most this time.
    fn wait_for_releases(&self, at_most: Duration) {
        self.debts.wait_for(at_most, Debt::is_waited_for);
    }

    /// Has each release that has failed tried once more, and everything reported.
    fn finish(&self) {
        let until = clock::uptime().after(self.at_most);
        self.debts.finish(self.at_most);
        self.reports.wait(until.since(clock::uptime()).max(REPORTED_WITHIN));
    }
}

impl Drop for EndOfUse {
    fn drop(&mut self) {
        self.finish();
    }
}

/// A job for the thread that a quorum has for this server.
pub(crate) type QuorumJob = Box<dyn FnOnce() + Send>;

fn run(jobs: Vec<QuorumJob>) {
    for job in jobs {
        contained(|| noticing(job));
    }
}

// A panic in the user's code leaves nothing in a backend half done: it is reached only through mutexes that are
// released between two calls, and a connection that was in the middle of a command is not used again (I8).
impl UnwindSafe for Locker {}
impl RefUnwindSafe for Locker {}

impl fmt::Debug for Locker {
    /// Shows where the server is.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.engine.backend.address();
        let address = address.as_deref().unwrap_or("the pool's server");
        f.debug_struct("Locker").field("address", &address).finish_non_exhaustive()
    }
}

impl Locker {
    /// Returns a locker for the server at `url`, with the defaults of [`LockerBuilder`]. Contacts no server.
    ///
    /// The URL is one of
    ///
    /// - `redis://[[user]:password@]host[:port][/database]`,
    /// - `unix:///path[?db=…&pass=…]`,
    /// - `redis+sentinel://[[user]:password@]host[:port][,host[:port]…]/MASTER[/database]` for a master that
    ///   [Sentinels](Self::sentinel) know. User and password are the master's; those of the Sentinels follow as
    ///   `?sentinel_user=…&sentinel_password=…`,
    /// - `redis+cluster://[[user]:password@]host[:port][,host[:port]…]` for a [cluster](Self::cluster).
    ///
    /// With the feature `tls-rustls` or `tls-native-tls` each can also begin with `rediss`, for TLS. Locks use RESP2;
    /// `?protocol=resp3` changes nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for any other URL.
    pub fn open(url: &str) -> Result<Self, Error> {
        Self::builder(url)?.build()
    }

    /// Returns a builder for a locker on the server at `url`, in the form that [`open`](Self::open) takes.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the URL is invalid.
    pub fn builder(url: &str) -> Result<LockerBuilder, Error> {
        match url::read(url) {
            Some(deployment) => deployment.map(LockerBuilder::on),
            None => url::client(url).map(Self::with_client),
        }
    }

    /// Returns a locker for the master that `sentinels` know by a name, with the defaults of [`LockerBuilder`].
    /// Contacts no server.
    ///
    /// Whenever a connection is opened, or the server has become a replica, it asks the Sentinels, one after the other
    /// until one answers, and checks that the server is a master. So it follows a failover. A command is never sent
    /// twice, unless a replica has refused it.
    ///
    /// Each Sentinel is `host:port` or a URL, which can have its own password and TLS. `master` is the master's name,
    /// or a URL with that name as its host, for a user, a password, a database or TLS: `rediss://:secret@mymaster/2`.
    ///
    /// **A failover can lose locks**: see [`settle_after_failover`](LockerBuilder::settle_after_failover). To wait
    /// through one, set [`retry_for`](LockerBuilder::retry_for) to more than it takes.
    ///
    /// ```no_run
    /// # // Not run: it needs Sentinels.
    /// use setnx_lock::Locker;
    /// use std::time::Duration;
    ///
    /// let sentinels = ["10.0.0.1:26379", "10.0.0.2:26379", "10.0.0.3:26379"];
    /// let locker = Locker::sentinel_builder(sentinels, "mymaster")?
    ///     .retry_for(Duration::from_secs(60))
    ///     .settle_after_failover(Duration::from_secs(30))
    ///     .build()?;
    /// # Ok::<(), setnx_lock::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if there is no Sentinel, or an address or the name is invalid. Later, a call fails with
    /// [`Error::Refused`] if an address is no Sentinel's or if no Sentinel knows the name, and with
    /// [`Error::Unavailable`] if no Sentinel answers.
    pub fn sentinel(
        sentinels: impl IntoIterator<Item = impl AsRef<str>>,
        master: &str,
    ) -> Result<Self, Error> {
        Self::sentinel_builder(sentinels, master)?.build()
    }

    /// Returns a builder for a locker on the master that `sentinels` know, named as for [`sentinel`](Self::sentinel).
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if an address or the name is invalid.
    pub fn sentinel_builder(
        sentinels: impl IntoIterator<Item = impl AsRef<str>>,
        master: &str,
    ) -> Result<LockerBuilder, Error> {
        url::sentinels(sentinels, master).map(LockerBuilder::on)
    }

    /// Returns a builder for a locker on the master that `sentinels` know. It connects to each Sentinel the way its
    /// client does, and to the master the way `master` does, whose host is the master's name.
    ///
    /// For what a URL cannot express, such as your own TLS certificates. The master's certificate must name the address
    /// that the Sentinels return.
    pub fn with_sentinels(sentinels: Vec<redis::Client>, master: redis::Client) -> LockerBuilder {
        LockerBuilder::on(Deployment::sentinels(sentinels, master))
    }

    /// Returns a builder for a locker that connects the way `client` does.
    ///
    /// For what a URL cannot express, such as your own TLS certificates (`redis::Client::build_with_tls`).
    pub fn with_client(client: redis::Client) -> LockerBuilder {
        LockerBuilder::on(Deployment::one(client))
    }

    /// Returns a locker for a Redis Cluster (3.0 or newer), with the defaults of [`LockerBuilder`]. Contacts no server.
    ///
    /// `nodes` are some of its nodes, each `host:port` or a URL, by which the others are found. The first one's user,
    /// password and TLS are used for all.
    ///
    /// Each key is on the node that has its slot, with [`pool_size`](LockerBuilder::pool_size) connections for each
    /// node. A command that a node refuses because it does not have the slot is sent to the one that has it; no other
    /// command is sent again. If a node fails, its keys can be locked again once its replica has been promoted.
    ///
    /// The side keys of a lock (fencing counter, waiting list) have its slot. A key with a brace but no hash tag, which
    /// is text in braces, can have none: it has no notifications, and
    /// [`fencing_token`](crate::LockGuard::fencing_token) fails with [`Error::Invalid`].
    ///
    /// **A failover can lose locks**, as on one server. Several keys, permits and readers take one round trip for each
    /// slot; with a hash tag they share one.
    ///
    /// ```no_run
    /// # // Not run: it needs a cluster.
    /// use setnx_lock::Locker;
    ///
    /// let locker = Locker::cluster(["10.0.0.1:6379", "10.0.0.2:6379", "10.0.0.3:6379"])?;
    /// # Ok::<(), setnx_lock::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if there is no node, or an address is invalid. Later, a call fails with [`Error::Refused`] if
    /// an address is no cluster's, and with [`Error::Unavailable`] if no node answers.
    pub fn cluster(nodes: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, Error> {
        Self::cluster_builder(nodes)?.build()
    }

    /// Returns a builder for a locker on a cluster, named as for [`cluster`](Self::cluster).
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if an address is invalid.
    pub fn cluster_builder(nodes: impl IntoIterator<Item = impl AsRef<str>>) -> Result<LockerBuilder, Error> {
        url::cluster(nodes).map(LockerBuilder::on)
    }

    /// Returns a builder for a locker on the cluster of these nodes.
    /// It connects to all nodes the way the first client does.
    ///
    /// For what a URL cannot express, such as your own TLS certificates.
    pub fn with_cluster(nodes: Vec<redis::Client>) -> LockerBuilder {
        LockerBuilder::on(Deployment::cluster(nodes))
    }

    /// Returns a builder for a locker on your own pool, which lends a
    /// connection for each command. Other code can use the pool as well.
    ///
    /// The manager can be [`redis::Client`], a sentinel client, or another manager of [`redis::Connection`]s. For
    /// `redis::Client`, enable the feature `r2d2` of the redis crate, in the version that this crate re-exports.
    ///
    /// The pool must not test connections on check-out, which is r2d2's default: such a test costs a round trip for
    /// each command, and has no time limit. [`build`](LockerBuilder::build) refuses such a pool.
    ///
    /// - The server's role and version are not checked. [`Protocol::Auto`](crate::Protocol::Auto) is therefore
    ///   Classic without notifications, and [`notify_waiters(true)`](crate::LockOptions::notify_waiters) is
    ///   refused.
    /// - A connection keeps the read and write timeouts of the lock's last
    ///   command. Other code that needs longer ones must set its own.
    /// - A broken connection is closed.
    /// - Threads share round trips, so they use few of its connections.
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
        LockerBuilder::on(Deployment::pool(pool))
    }

    /// Ends all waits for locks of this locker and its clones, at once and for good. To also wait for the locks that
    /// are held, use [`drain`](Self::drain).
    ///
    /// Each waiting call, and every later call that acquires a lock, fails with [`Error::ShutDown`]. A command
    /// that has been sent is not interrupted; if it acquires the lock, the call succeeds. Locks that are held stay
    /// held, and can be released.
    ///
    /// What is [released in the background](crate::LockGuard::release_later), and what has failed or is in doubt, is
    /// tried once more, and then what the library's threads have noticed is reported. This
    /// call waits for that, for at most one command timeout. So does the drop of the last clone of a locker and of the
    /// locks on it. A thread that a [`Quorum`](crate::Quorum) uses for this server finishes its work and ends.
    pub fn shut_down(&self) {
        let _ = self.drain(Duration::ZERO);
    }

    fn with_engine(self, change: impl FnOnce(&mut Engine)) -> Self {
        let mut engine = (*self.engine).clone();
        change(&mut engine);
        Self { engine: Arc::new(engine), ..self }
    }

    pub(crate) fn over(backend: Arc<dyn Backend>) -> Self {
        let lines = Arc::<WaitQueue<LockGuard>>::default();
        let engine = engine_over(backend, Identity::new(), Arc::clone(&lines) as _);
        let jobs = Arc::new(Timer::new("setnx-lock quorum", run));
        let debts = Arc::clone(&engine.debts);
        let reports = Arc::clone(&engine.reports);
        let end_of_use = EndOfUse { debts, reports, at_most: engine.backend.command_timeout() };
        let end_of_use = Arc::new(end_of_use);
        Self { engine: Arc::new(engine), jobs, lines, end_of_use }
    }

    pub(crate) fn lines(&self) -> &Arc<WaitQueue<LockGuard>> {
        &self.lines
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Lets the quorum's thread do this job, after earlier ones. If there is no such thread, this thread does it now.
    pub(crate) fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        let added = self.jobs.add(NodeId::ONLY, clock::uptime(), Duration::ZERO, Box::new(job));
        if let Err((_, job)) = added {
            job();
        }
    }

    #[cfg(test)]
    pub(crate) fn observed_by(self, observer: impl crate::Observer) -> Self {
        self.with_engine(|engine| engine.observe(crate::run::sink::EventSink::new(observer)))
    }

    /// Makes each start of a quorum's thread fail.
    #[cfg(test)]
    pub(crate) fn refuse_threads(&self) {
        self.jobs.refuse_threads(true);
    }

    #[cfg(test)]
    pub(crate) fn in_forked_child(self) -> Self {
        self.with_engine(|engine| engine.identity = Arc::new(Identity::in_forked_child()))
    }
}
