//! A scene for faults: a real server, a gate before it, and lockers that do not wait long.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;

use setnx_lock::{Lock, LockOptions, Locker, LockerBuilder};

use super::load_threads::{self, LoadThreads, Tolerance};
use super::{Load, RedisServer, Target, TestKey, millis};
use crate::servers::{Played, Proxy};

/// A real server and a gate before it.
pub(crate) struct Scenario {
    load: Load,
    /// Around the locker that came last. It leaves before there is no server any more.
    contention: RefCell<Option<LoadThreads>>,
    pub(crate) target: Target,
    pub(crate) proxy: Proxy,
}

impl Scenario {
    pub(crate) fn set() -> Result<Self, io::Error> {
        Self::of(&Arc::new(RedisServer::start()?), None, Load::Any)
    }

    /// The same in company, of which the gate does not speak.
    pub(crate) fn under_load(load: Load) -> Result<Self, io::Error> {
        Self::of(&Arc::new(RedisServer::start()?), None, load)
    }

    /// The same with a server that is there, and maybe plays an old version.
    pub(crate) fn of(
        server: &Arc<RedisServer>,
        played: Option<Played>,
        load: Load,
    ) -> Result<Self, io::Error> {
        let proxy = match played {
            Some(version) => Proxy::playing(version, server.address())?,
            None => Proxy::before(server.address())?,
        };
        proxy.overlook(load_threads::KEYS);
        Ok(Self { load, contention: RefCell::default(), target: Target::of(server), proxy })
    }

    /// A locker through the gate, with a pool of one and short time-outs.
    pub(crate) fn locker(&self) -> Locker {
        self.open(brief(&self.proxy.url(), 1))
    }

    pub(crate) fn lock(&self, key: &TestKey, options: LockOptions) -> Lock {
        Lock::new(&self.locker(), &key.key, options).unwrap()
    }

    /// Opens a locker that is in company.
    pub(crate) fn open(&self, settings: LockerBuilder) -> Locker {
        let (locker, contention) = self.load.open(settings, Tolerance::Patient).unwrap();
        self.contention.replace(contention);
        locker
    }

    /// The same with a locker that is open already, and has one connection.
    pub(crate) fn join(&self, locker: Locker) -> Locker {
        let (locker, contention) = self.load.join(locker, Tolerance::Patient);
        self.contention.replace(contention);
        locker
    }
}

pub(crate) fn impatient(url: &str, pool_size: u32) -> Locker {
    brief(url, pool_size).build().unwrap()
}

/// What opens a locker with short time-outs.
pub(crate) fn brief(url: &str, pool_size: u32) -> LockerBuilder {
    let settings = Locker::builder(url).unwrap().pool_size(pool_size);
    settings.connect_timeout(millis(500)).command_timeout(millis(300)).unreachable_timeout(millis(500))
}

/// Asserts that none of our values was sent by more than one command.
#[track_caller]
pub(crate) fn assert_nothing_sent_twice(proxy: &Proxy) {
    let mut values: Vec<String> = proxy
        .asked()
        .into_iter()
        .filter(|asked| ["SETNX", "GETSET", "SET"].contains(&asked.name.as_str()))
        .map(|asked| asked.arguments[1].clone())
        .collect();
    values.sort();
    let sent = values.len();
    values.dedup();
    assert_eq!(values.len(), sent, "a value was sent twice: {:?}", proxy.asked());
}
