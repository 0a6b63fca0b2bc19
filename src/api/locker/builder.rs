//! What a locker is built with: the pool, the timeouts, and the checks of the server.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Locker;
use crate::net::{DEFAULT_COMMAND_TIMEOUT, Opener, PooledBackend};
use crate::report::error::Error;
use crate::report::event::{EventSink, Observer};

/// How many connections a pool opens at most unless set. A lock needs one only while a command is on its
/// way, so this serves thousands of threads.
const DEFAULT_POOL_SIZE: u32 = 16;
/// How long a call retries while the server is unreachable unless set.
const DEFAULT_RETRY_FOR: Duration = Duration::from_secs(5);
/// How many connections one client address can have to a port.
const MOST_CONNECTIONS: u32 = 65_535;
/// The length from which on a holder's name is refused, in bytes.
const MAX_NAME: usize = 257;

/// What a [`Locker`] is built with.
///
/// ```no_run
/// use setnx_lock::Locker;
/// use std::time::Duration;
///
/// let locker = Locker::builder("redis://127.0.0.1/")?.pool_size(32).command_timeout(Duration::from_millis(500)).build()?;
/// # Ok::<(), setnx_lock::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "no locker is built until `build` is called"]
pub struct LockerBuilder {
    connections: Connections,
    pool_size: Option<u32>,
    connect_timeout: Option<Duration>,
    command_timeout: Duration,
    retry_for: Duration,
    observer: EventSink,
    holder_name: Option<String>,
    checks_server: bool,
    settles: Duration,
    /// Whether threads look for a reply before they sleep.
    looks: bool,
}

/// Where the locker's connections come from.
#[derive(Clone, Debug)]
enum Connections {
    Own(Box<redis::Client>),
    Shared(UserPool),
}

/// A pool of the user's own, of any manager: builds a locker on it with a limit for commands, and one for the time that a server may be
/// unreachable.
#[derive(Clone)]
struct UserPool {
    locker: Arc<dyn Fn(Duration, Duration) -> Locker + Send + Sync>,
    tests_on_check_out: bool,
}

impl fmt::Debug for UserPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserPool")
            .field("tests_on_check_out", &self.tests_on_check_out)
            .finish_non_exhaustive()
    }
}

impl LockerBuilder {
    pub(super) fn new(client: redis::Client) -> Self {
        Self::over(Connections::Own(Box::new(client)))
    }

    pub(super) fn on_pool<M>(pool: r2d2::Pool<M>) -> Self
    where
        M: r2d2::ManageConnection<Connection = redis::Connection>,
    {
        let tests_on_check_out = pool.test_on_check_out();
        let locker = move |command_timeout, retry_for| {
            Locker::over(Arc::new(PooledBackend::shared(pool.clone(), command_timeout, retry_for)))
        };
        Self::over(Connections::Shared(UserPool { locker: Arc::new(locker), tests_on_check_out }))
    }

    fn over(connections: Connections) -> Self {
        Self {
            connections,
            pool_size: None,
            connect_timeout: None,
            command_timeout: DEFAULT_COMMAND_TIMEOUT,
            retry_for: DEFAULT_RETRY_FOR,
            observer: EventSink::default(),
            holder_name: None,
            checks_server: true,
            settles: Duration::ZERO,
            looks: true,
        }
    }

    /// Limits the number of connections: 16 unless set. A lock uses one only while a command is on its way; more serve more
    /// threads that lock different keys at the same moment. A pool of your own has its own size.
    pub fn pool_size(self, pool_size: u32) -> Self {
        Self { pool_size: Some(pool_size), ..self }
    }

    /// Limits how long connecting may take: 2 s unless set. A pool of your own connects as its manager does.
    pub fn connect_timeout(self, limit: Duration) -> Self {
        Self { connect_timeout: Some(limit), ..self }
    }

    /// Limits how long one command may take: 2 s unless set. A call on a lock ends within its timeout and this.
    pub fn command_timeout(self, limit: Duration) -> Self {
        Self { command_timeout: limit, ..self }
    }

    /// For `make bench-gate`: what it counts does not depend on how often a thread looks for its reply.
    #[doc(hidden)]
    pub fn without_looks(self) -> Self {
        Self { looks: false, ..self }
    }

    /// Limits how long a call that acquires retries while the server is unreachable, or while replies are lost in a row: 5 s
    /// unless set, and at most the call's own timeout. Zero fails at the first failure to connect, as the gem does. A server that
    /// refuses connections for now, since it is loading its data or has too many clients, is waited for up to the call's timeout.
    ///
    /// Calls that do not wait, for example [`Lock::try_lock`](crate::Lock::try_lock) and [`LockGuard::release`](crate::LockGuard::release), never
    /// retry. If the pool has open connections they wait for one, within one command timeout; a release on the locker's own connections waits
    /// until its lease ends.
    pub fn retry_for(self, limit: Duration) -> Self {
        Self { retry_for: limit, ..self }
    }

    /// Leaves a server alone until it has run for `time`: a restart may have lost the locks that holders still rely on. Choose the longest
    /// expiration of any lock there. Zero unless set.
    ///
    /// The server is asked on each new connection how long it has run, and a restart ends all connections. Until then calls wait for it up to
    /// their timeout and fail with [`RefusalKind::Settling`](crate::RefusalKind::Settling). The server counts by its wall clock, in whole
    /// seconds, so it may take up to two seconds longer. Needs the right to run INFO. It does not help after a failover, or if locks are lost
    /// without a restart. For servers without persistence, above all those of a [`Quorum`](crate::Quorum).
    pub fn settle_after_restart(self, time: Duration) -> Self {
        Self { settles: time, ..self }
    }

    /// Sends no INFO on new connections. A replica then shows only by refusing (up to 2.4 it refuses nothing), and a server too old for a
    /// protocol by refusing an unknown command. [`Protocol::Auto`](crate::Protocol::Auto) is then Classic. A pool of your own opens its
    /// connections without INFO anyway.
    pub fn skip_server_check(self) -> Self {
        Self { checks_server: false, ..self }
    }

    /// Sets a name for people, for example `host:pid`, 1 to 256 bytes. [`Lock::holder`](crate::Lock::holder) shows it, and so does the error of
    /// a wait that ends without the lock, if the waiting locker has a name too. The trip after the acquisition, and after each extension, writes
    /// it by SETEX (Redis 2.0) to `KEY:setnx-lock:holder`, for one second longer than the lease. If that fails, an event reports it; the lock is
    /// not affected. A lock without an expiration shows no name.
    pub fn holder_name(self, name: impl Into<String>) -> Self {
        Self { holder_name: Some(name.into()), ..self }
    }

    /// Sets an observer, which receives the events of the locker's locks. Events still go to the
    /// [`log`](https://docs.rs/log) crate, under the target `setnx_lock`; to silence them there, filter that target in your logger
    /// (`RUST_LOG=warn,setnx_lock=off` with `env_logger`). An observer replaces an earlier one.
    pub fn observer(self, observer: impl Observer) -> Self {
        Self { observer: EventSink::new(observer), ..self }
    }

    /// Builds the locker. Connects to nothing yet.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a pool of no connections or of over 65,535, a timeout of zero, and a holder's name of no or
    /// over 256 bytes; on a pool of your own for a size or a time for connecting, which are that pool's, and for a pool that tests connections
    /// on check-out; for [`settle_after_restart`](Self::settle_after_restart) without the server check.
    pub fn build(self) -> Result<Locker, Error> {
        if let Some(problem) = self.problem() {
            return Err(Error::invalid_locker(format!("cannot build a locker: {problem}")));
        }
        let locker = match self.connections {
            Connections::Own(client) => {
                let mut opener = Opener::new(*client);
                opener.connect_timeout = self.connect_timeout.unwrap_or(opener.connect_timeout);
                opener.command_timeout = self.command_timeout;
                opener.checks_server = self.checks_server;
                opener.settles = self.settles;
                if !self.looks {
                    opener.never_look();
                }
                let pool_size = self.pool_size.unwrap_or(DEFAULT_POOL_SIZE);
                Locker::over(Arc::new(PooledBackend::own(opener, pool_size, self.retry_for)))
            }
            Connections::Shared(pool) => (pool.locker)(self.command_timeout, self.retry_for),
        };
        let locker = locker.with_engine(|engine| {
            engine.observer = self.observer;
            engine.holder_name = self.holder_name.map(Arc::from);
        });
        Ok(locker)
    }

    fn problem(&self) -> Option<&'static str> {
        let asks = self.checks_server && matches!(self.connections, Connections::Own(_));
        if !asks && !self.settles.is_zero() {
            return Some(
                "`settle_after_restart` needs the check of the server on each new connection; leave out `skip_server_check`, and give no pool of \
                 your own",
            );
        }
        match self.holder_name.as_deref().map(str::len) {
            Some(0) => {
                return Some(
                    "the holder's name is empty; give what tells people who it is, such as the host and the process id",
                );
            }
            Some(MAX_NAME..) => {
                return Some("the holder's name is longer than 256 bytes; give a shorter one");
            }
            _ => {}
        }
        if let Connections::Shared(pool) = &self.connections {
            if self.pool_size.is_some() || self.connect_timeout.is_some() {
                return Some(
                    "a pool of your own has its size and its time for connecting already; set them there",
                );
            }
            if pool.tests_on_check_out {
                return Some(
                    "the pool tests each connection on check-out, without a time limit, so a call could block for ever; build the pool \
                     with `.test_on_check_out(false)`",
                );
            }
        }
        match self.pool_size {
            Some(0) => return Some("a pool of no connections can do nothing; give it at least one"),
            Some(size) if size > MOST_CONNECTIONS => {
                return Some(
                    "a client can have 65,535 connections to a server at most; ten serve thousands of threads",
                );
            }
            _ => {}
        }
        (self.command_timeout.is_zero() || self.connect_timeout == Some(Duration::ZERO))
            .then_some("a timeout of zero leaves no time for anything; give it some milliseconds at least")
    }
}
