//! A scene for faults: a real server, a gate before it, and lockers that do not wait long.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;

use setnx_lock::{Lock, LockOptions, Locker, Settings};

use super::companions::{self, Companions, Temper};
use super::{Company, Ground, RedisServer, TestKey, millis};
use crate::servers::{Gate, Played};

/// A real server and a gate before it.
pub(crate) struct Scene {
    company: Company,
    /// Around the locker that came last. It leaves before there is no server any more.
    crowd: RefCell<Option<Companions>>,
    pub(crate) ground: Ground,
    pub(crate) gate: Gate,
}

impl Scene {
    pub(crate) fn set() -> Result<Self, io::Error> {
        Self::of(&Arc::new(RedisServer::start()?), None, Company::Any)
    }

    /// The same in company, of which the gate does not speak.
    pub(crate) fn in_company(company: Company) -> Result<Self, io::Error> {
        Self::of(&Arc::new(RedisServer::start()?), None, company)
    }

    /// The same with a server that is there, and maybe plays an old version.
    pub(crate) fn of(
        server: &Arc<RedisServer>,
        played: Option<Played>,
        company: Company,
    ) -> Result<Self, io::Error> {
        let gate = match played {
            Some(version) => Gate::playing(version, server.address())?,
            None => Gate::before(server.address())?,
        };
        gate.overlook(companions::KEYS);
        Ok(Self { company, crowd: RefCell::default(), ground: Ground::of(server), gate })
    }

    /// A locker through the gate, with a pool of one and short time-outs.
    pub(crate) fn locker(&self) -> Locker {
        self.open(brief(&self.gate.url(), 1))
    }

    pub(crate) fn lock(&self, key: &TestKey, options: LockOptions) -> Lock {
        Lock::new(&self.locker(), &key.key, options).unwrap()
    }

    /// Opens a locker that is in company.
    pub(crate) fn open(&self, settings: Settings) -> Locker {
        let (locker, crowd) = self.company.open(settings, Temper::Patient).unwrap();
        self.crowd.replace(crowd);
        locker
    }

    /// The same with a locker that is open already, and has one connection.
    pub(crate) fn join(&self, locker: Locker) -> Locker {
        let (locker, crowd) = self.company.join(locker, Temper::Patient);
        self.crowd.replace(crowd);
        locker
    }
}

pub(crate) fn impatient(url: &str, pool_size: u32) -> Locker {
    brief(url, pool_size).open().unwrap()
}

/// What opens a locker with short time-outs.
pub(crate) fn brief(url: &str, pool_size: u32) -> Settings {
    let settings = Locker::at(url).unwrap().pool_size(pool_size);
    settings.connect_timeout(millis(500)).command_timeout(millis(300)).patience(millis(500))
}

/// Asserts that none of our values was sent by more than one command.
#[track_caller]
pub(crate) fn assert_nothing_sent_twice(gate: &Gate) {
    let mut values: Vec<String> = gate
        .asked()
        .into_iter()
        .filter(|asked| ["SETNX", "GETSET", "SET"].contains(&asked.name.as_str()))
        .map(|asked| asked.arguments[1].clone())
        .collect();
    values.sort();
    let sent = values.len();
    values.dedup();
    assert_eq!(values.len(), sent, "a value was sent twice: {:?}", gate.asked());
}
