//! A scene for faults: a real server, a gate before it, and lockers that do not wait long.

use std::sync::Arc;

use setnx_lock::{Lock, LockOptions, Locker};

use super::{Ground, RedisServer, TestKey, millis};
use crate::servers::Gate;

/// A real server and a gate before it.
pub(crate) struct Scene {
    pub(crate) ground: Ground,
    pub(crate) gate: Gate,
}

impl Scene {
    pub(crate) fn set() -> Result<Self, std::io::Error> {
        let server = Arc::new(RedisServer::start()?);
        Ok(Self { gate: Gate::before(server.address())?, ground: Ground::of(&server) })
    }

    /// A locker through the gate, with a pool of one and short time-outs.
    pub(crate) fn locker(&self) -> Locker {
        impatient(&self.gate.url(), 1)
    }

    pub(crate) fn lock(&self, key: &TestKey, options: LockOptions) -> Lock {
        Lock::new(&self.locker(), &key.key, options).unwrap()
    }
}

pub(crate) fn impatient(url: &str, pool_size: u32) -> Locker {
    let settings = Locker::at(url).unwrap().pool_size(pool_size);
    settings.connect_timeout(millis(500)).command_timeout(millis(300)).patience(millis(500)).open().unwrap()
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
