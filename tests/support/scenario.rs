//! A scenario for faults: a server that injects them, and lockers with short time limits.

use std::cell::RefCell;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use setnx_lock::{Error, Lock, LockOptions, Locker, LockerBuilder};
use setnx_lock_testing::{Proxy, ServerVersion, TestServer, free_port};

use super::load_threads::{self, LoadThreads, Tolerance};
use super::{AnyServer, LONG, Load, Target, TestKey, releases, server_of};

/// A server that injects faults.
pub(crate) struct Scenario {
    load: Load,
    /// The threads on the locker that was opened last. They end before the server does.
    contention: RefCell<Option<LoadThreads>>,
    pub(crate) target: Target,
    pub(crate) server: Arc<TestServer>,
}

impl Scenario {
    pub(crate) fn set() -> Self {
        Self::of(ServerVersion::V7, Load::Any)
    }

    /// The same under this load. The server neither records nor disturbs the commands of the load threads.
    pub(crate) fn under_load(load: Load) -> Self {
        Self::of(ServerVersion::V7, load)
    }

    /// The same on a server of this version.
    pub(crate) fn of(version: ServerVersion, load: Load) -> Self {
        let server = Arc::new(server_of(version));
        server.overlook(load_threads::KEYS);
        Self { load, contention: RefCell::default(), target: Target::of(&server).past_faults(), server }
    }

    /// Opens a locker that the faults concern, with a pool of one and short time limits.
    pub(crate) fn locker(&self) -> Locker {
        self.open(brief(&self.server.url(), 1))
    }

    pub(crate) fn lock(&self, key: &TestKey, options: LockOptions) -> Lock {
        Lock::new(&self.locker(), &key.key, options).unwrap()
    }

    /// Opens a locker under the scenario's load.
    pub(crate) fn open(&self, builder: LockerBuilder) -> Locker {
        let (locker, contention) = self.load.open(builder, Tolerance::Patient).unwrap();
        self.contention.replace(contention);
        locker
    }

    /// The same with a locker that is open already and has one connection.
    pub(crate) fn join(&self, locker: Locker) -> Locker {
        let (locker, contention) = self.load.join(locker, Tolerance::Patient);
        self.contention.replace(contention);
        locker
    }
}

pub(crate) fn impatient(url: &str, pool_size: u32) -> Locker {
    brief(url, pool_size).build().unwrap()
}

/// Returns a builder of a locker with time limits that no pause of a busy machine exceeds, for tests without faults.
pub(crate) fn patient(url: &str) -> Result<LockerBuilder, Error> {
    Ok(Locker::builder(url)?
        .connect_timeout(LONG)
        .command_timeout(LONG)
        .retry_for(LONG)
        .observer(releases::record))
}

/// Opens a locker with such time limits.
pub(crate) fn opened(url: &str) -> Result<Locker, Error> {
    patient(url)?.build()
}

/// Calls until there is a connection: in a pool of the redis crate's connections a call waits for a new one for a time
/// that is too short on a busy machine.
pub(crate) fn until_connected<T>(call: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
    let end = Instant::now() + LONG;
    loop {
        match call() {
            Err(Error::Unavailable { problem, .. })
                if problem.starts_with("no connection") && Instant::now() < end => {}
            outcome => return outcome,
        }
    }
}

/// Calls until the reply comes in time.
pub(crate) fn until_answered<T>(call: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
    let end = Instant::now() + LONG;
    loop {
        match until_connected(&call) {
            Err(Error::InDoubt { .. } | Error::Unavailable { .. }) if Instant::now() < end => {}
            outcome => return outcome,
        }
    }
}

/// A locker on a pool of one, and the pool.
pub(crate) fn pool_of_one(server: &impl AnyServer, timeout: Duration) -> Result<(Locker, ClientPool), Error> {
    let pool = client_pool(&server.url());
    let builder = Locker::with_pool(pool.clone()).command_timeout(timeout).observer(releases::record);
    Ok((builder.build()?, pool))
}

pub(crate) type ClientPool = r2d2::Pool<redis::Client>;

/// A pool of one connection, as the redis crate makes it.
pub(crate) fn client_pool(url: &str) -> ClientPool {
    let builder = r2d2::Pool::builder().max_size(1).min_idle(Some(0)).test_on_check_out(false);
    builder.build_unchecked(redis::Client::open(url).unwrap())
}

/// Options of a waiter that never polls: it acquires the lock by a release of its process, however slow the machine is.
pub(crate) const QUEUED: LockOptions = LockOptions::expiring_after(LONG).poll_interval(LONG).timeout(LONG);

/// A value of another holder, a client of this library; it expires in 2030. In Classic, a loser of a takeover may have
/// written it as well, just after the holder's own.
pub(crate) const FOREIGN: &str = "1895000000.5000000000000001";

/// A value of another program.
pub(crate) const ANOTHERS: &str = "job 7";

/// How long a command of a brief locker may take: as short as a test likes to wait for a reply that does not come, and
/// much longer than a reply takes on a busy machine.
pub(crate) const BRIEF: Duration = Duration::from_secs(2);

/// Returns a builder of a locker with short time limits.
pub(crate) fn brief(url: &str, pool_size: u32) -> LockerBuilder {
    let builder = Locker::builder(url).unwrap().pool_size(pool_size).observer(releases::record);
    builder.connect_timeout(2 * BRIEF).command_timeout(BRIEF).retry_for(BRIEF)
}

/// Asserts that no value was sent by two commands.
#[track_caller]
pub(crate) fn assert_nothing_sent_twice(server: &Proxy) {
    let mut values: Vec<String> = server
        .log()
        .into_iter()
        .filter(|asked| ["SETNX", "GETSET", "SET"].contains(&asked.name.as_str()))
        .map(|asked| asked.arguments[1].clone())
        .collect();
    values.sort();
    let sent = values.len();
    values.dedup();
    assert_eq!(values.len(), sent, "a value was sent twice: {:?}", server.log());
}

/// Returns a port on which nothing listens, nor will while the tests run: a socket has it that does not listen.
pub(crate) fn closed_port() -> io::Result<u16> {
    static TAKEN: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());
    let socket = net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    loop {
        let port = free_port()?;
        if net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)).is_ok() {
            TAKEN.lock().unwrap_or_else(PoisonError::into_inner).push(socket);
            return Ok(port);
        }
    }
}
