//! The settings of a locker: its connections, the timeouts, and the checks of the server.

mod login;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use proto::values::{Key, is_name};

use super::Locker;
use crate::net::Deployment;
use crate::report::error::Error;
use crate::report::event::Observer;
use crate::run::sink::EventSink;

const BAD_NAME: &str =
    "a holder's name has 1 to 64 bytes of printable characters; give for example the host and the process id";

/// The settings of a [`Locker`] that is to be built.
///
/// Made by [`Locker::builder`], [`Locker::with_client`] or [`Locker::with_pool`].
///
/// ```
/// use setnx_lock::Locker;
/// use std::time::Duration;
///
/// let url = "redis://127.0.0.1/";
/// # let server = setnx_lock_testing::TestServer::start();
/// # let url = &server.url();
/// let locker = Locker::builder(url)?.pool_size(32).command_timeout(Duration::from_millis(500)).build()?;
/// # Ok::<(), setnx_lock::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "no locker is built until `build` is called"]
pub struct LockerBuilder {
    deployment: Deployment,
    observer: EventSink,
    holder_name: Option<String>,
}

impl fmt::Debug for LockerBuilder {
    /// Leaves the login out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockerBuilder")
            .field(
                "address",
                &self.deployment.login().map(|client| client.get_connection_info().addr().to_string()),
            )
            .field("command_timeout", &self.deployment.command_timeout)
            .field("retry_for", &self.deployment.retry_for)
            .finish_non_exhaustive()
    }
}

impl LockerBuilder {
    pub(super) fn on(deployment: Deployment) -> Self {
        Self { deployment, observer: EventSink::default(), holder_name: None }
    }

    fn set(mut self, change: impl FnOnce(&mut Deployment)) -> Self {
        change(&mut self.deployment);
        self
    }

    /// Sets the maximum number of connections, 16 by default.
    ///
    /// A lock uses a connection only while a command is under way, so 16 serve thousands of threads. More help threads
    /// that lock different keys at the same moment. Not for [your own pool](Locker::with_pool), which has its own size.
    pub fn pool_size(self, pool_size: u32) -> Self {
        self.set(|deployment| deployment.pool_size = Some(pool_size))
    }

    /// Closes connections that were not used for this time, down to one; one minute by default. A burst of calls opens
    /// up to [`pool_size`](Self::pool_size), which others cannot use while they are open.
    ///
    /// They are closed up to a quarter of the time later, by a thread that is there while there are several. Not for
    /// [your own pool](Locker::with_pool), which has its own.
    pub fn idle_timeout(self, time: Duration) -> Self {
        self.set(|deployment| deployment.idle_timeout = Some(time))
    }

    /// Uses no connection for longer than this time; without a limit by default. The next command opens another one,
    /// which asks the name service for the address: set it if the name of a server comes to stand for another machine
    /// while the old one still answers.
    ///
    /// A command that is under way is not interrupted. Not for [your own pool](Locker::with_pool), which has its own.
    pub fn max_connection_age(self, age: Duration) -> Self {
        self.set(|deployment| deployment.max_connection_age = Some(age))
    }

    /// Limits the time for connecting, 2 s by default. Not for
    /// [your own pool](Locker::with_pool), whose manager connects.
    pub fn connect_timeout(self, limit: Duration) -> Self {
        self.set(|deployment| deployment.connect_timeout = Some(limit))
    }

    /// Limits the time for one command, 2 s by default.
    ///
    /// A call that waits for a lock returns at most this long after its timeout, with
    /// [exceptions](crate::documentation::limits#how-long-a-call-takes).
    pub fn command_timeout(self, limit: Duration) -> Self {
        self.set(|deployment| deployment.command_timeout = limit)
    }

    /// Sets whether a thread that waits for a reply spins before it sleeps. On by default.
    ///
    /// It looks for the reply up to a hundred times, and yields its processor in
    /// between. Where that is often in vain, it is soon left out. Turn it off to count
    /// what a program does, since how often a thread looks depends on the server.
    pub fn spin(self, spins: bool) -> Self {
        self.set(|deployment| deployment.spins = spins)
    }

    /// Limits how long a waiting call retries while the server is unreachable or a replica, or while replies are lost
    /// in a row. The default is 5 s.
    ///
    /// The call never retries for longer than its own timeout. With zero it fails at the first failure to connect.
    /// A server that [refuses for now](crate::RefusalKind), because it is loading its data or has too few replicas,
    /// is retried up to the call's timeout.
    ///
    /// Calls that do not wait, for example [`Lock::try_lock`](crate::Lock::try_lock)
    /// and [`LockGuard::release`](crate::LockGuard::release), never retry. If all
    /// connections are in use, they wait for one, for at most one command timeout. On
    /// the locker's own connections, a release waits for one until its lease ends.
    pub fn retry_for(self, limit: Duration) -> Self {
        self.set(|deployment| deployment.retry_for = limit)
    }

    /// Acquires no locks until the server has run for `time`. Zero by default.
    ///
    /// A restart may have lost locks that their holders still rely on. Choose the longest expiration of any lock on
    /// the server. Use it for servers without persistence, above all for those of a [`Quorum`](crate::Quorum).
    ///
    /// Until then, calls wait up to their timeout and fail with
    /// [`RefusalKind::Settling`](crate::RefusalKind::Settling). The server counts whole seconds of its wall clock,
    /// so the wait may last up to two seconds longer. The user needs the right to run `INFO`.
    ///
    /// Locks that are held can be extended and released meanwhile. It does not help if locks are lost without a
    /// restart; after a failover, see [`settle_after_failover`](Self::settle_after_failover).
    pub fn settle_after_restart(self, time: Duration) -> Self {
        self.set(|deployment| deployment.settles = time)
    }

    /// With Sentinels, acquires no locks until the server has been the master for `time`. Zero by default.
    ///
    /// Replication is asynchronous, so the new master may not know the last locks of the old one, whose holders
    /// still rely on them. Choose the longest expiration of any lock on the server.
    ///
    /// Until then, calls wait up to their timeout and fail with
    /// [`RefusalKind::Settling`](crate::RefusalKind::Settling). Locks that are held can be extended and released
    /// meanwhile. Since when the server has been the master is asked of a Sentinel (2.8 or newer), which counts from
    /// its own start at the latest.
    ///
    /// It does not help if the old master goes on granting locks, as it may when the network is partitioned. Set
    /// `min-replicas-to-write` there.
    pub fn settle_after_failover(self, time: Duration) -> Self {
        self.set(|deployment| deployment.settles_after_failover = time)
    }

    /// Sends no `INFO` on new connections.
    ///
    /// The server's role and version are then unknown. [`Protocol::Auto`](crate::Protocol::Auto) is Classic, and a
    /// server that is too old for a protocol refuses an unknown command. A replica refuses writes, **but up to
    /// Redis 2.4 it accepts them**. On [your own pool](Locker::with_pool), new connections send no `INFO` anyway.
    pub fn skip_server_check(self) -> Self {
        self.set(|deployment| deployment.checks_server = false)
    }

    /// Sets a name that shows who holds the lock, for example `host:pid`: 1 to 64 bytes of printable
    /// characters. None by default.
    ///
    /// [`Lock::holder`](crate::Lock::holder) and [`Lock::state`](crate::Lock::state) return it, and the error of a wait
    /// that ends without the lock shows it. A lock without an expiration shows no
    /// name, and the error of a waiter without an expiration shows none.
    ///
    /// The name stands in the lock's key behind the time, with the time of the acquisition:
    /// `1795157376.4923038374650192:1795157361:host:pid`. It costs no further command. Every version of redis-objects
    /// reads only the time, as `String#to_f` does; other programs that read the key as a number may fail on the name.
    pub fn holder_name(self, name: impl Into<String>) -> Self {
        Self { holder_name: Some(name.into()), ..self }
    }

    /// Has all that the locker writes, reads or listens to begin with `prefix`, for example `app1:`. None by default.
    ///
    /// That goes for the keys of locks, their side keys, and the channels of notifications, so that a user may be
    /// limited to them (`~app1:*`, `&app1:*`), and programs on a shared server stay apart. A lock `report` then has the
    /// key `app1:report`, which [`Lock::key`](crate::Lock::key), errors and events show. Ruby programs on the same keys
    /// have to write the whole key too, as redis-namespace does.
    pub fn key_prefix(self, prefix: impl Into<Key>) -> Self {
        self.set(|deployment| deployment.key_prefix = prefix.into())
    }

    /// Sets the observer, which receives the events of the locker's
    /// locks. None by default; a second call replaces the first observer.
    ///
    /// Events still go to the [`log`](https://docs.rs/log) crate, under the target `setnx_lock`. To silence them,
    /// filter that target in your logger (`RUST_LOG=warn,setnx_lock=off` with `env_logger`).
    pub fn observer(self, observer: impl Observer) -> Self {
        Self { observer: EventSink::new(observer), ..self }
    }

    /// Builds the locker. Contacts no server.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for
    ///
    /// - a pool size of zero or above 65,535,
    /// - a command or connect timeout of zero,
    /// - a holder's name that is empty, longer than 64 bytes or not printable,
    /// - [`settle_after_restart`](Self::settle_after_restart) without the server check, on your own pool or after
    ///   [`skip_server_check`](Self::skip_server_check),
    /// - [`settle_after_failover`](Self::settle_after_failover) without Sentinels,
    /// - no Sentinel, no name of the master, or no node of a cluster,
    /// - your own pool with a pool size, a time for connections or credentials, which are set on that pool,
    /// - credentials of Sentinels without Sentinels,
    /// - your own pool if it tests connections on check-out.
    pub fn build(self) -> Result<Locker, Error> {
        let has_bad_name = self.holder_name.as_deref().is_some_and(|name| !is_name(name));
        if let Some(problem) = self.deployment.problem().or(has_bad_name.then_some(BAD_NAME)) {
            return Err(Error::invalid_locker(format!("cannot build a locker: {problem}")));
        }
        let locker = Locker::over(self.deployment.open()).with_engine(|engine| {
            engine.observe(self.observer);
            engine.holder_name = self.holder_name.map(Arc::from);
            engine.begin_keys_with(self.deployment.key_prefix);
        });
        Ok(locker)
    }
}
