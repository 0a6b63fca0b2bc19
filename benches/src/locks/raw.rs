//! No locks: the commands that any lock on a Redis server takes at least, as a lower bound.

use redis::{Client as Opened, Connection, cmd};

use super::{Client, Locks, version_of};
use crate::Failure;

/// As long as what a lock of ours writes.
const VALUE: &str = "1795157376.4923038374650192";

#[derive(Clone, Copy)]
pub(super) enum What {
    /// SETNX and DEL.
    Pair,
    /// As many round trips, of PING.
    Echo,
}

pub(super) struct Raw {
    client: Opened,
    what: What,
}

impl Raw {
    pub(super) fn open(url: &str, what: What) -> Result<Self, Failure> {
        Ok(Self { client: Opened::open(url)?, what })
    }
}

impl Locks for Raw {
    fn version(&self) -> String {
        format!("redis {}", version_of("redis"))
    }

    fn client(&self) -> Result<Box<dyn Client>, Failure> {
        Ok(Box::new(Thread { connection: self.client.get_connection()?, what: self.what }))
    }
}

struct Thread {
    connection: Connection,
    what: What,
}

impl Client for Thread {
    fn hold(&mut self, key: &str, inside: &mut dyn FnMut()) -> Result<(), Failure> {
        let (mut first, mut second) = match self.what {
            What::Pair => (cmd("SETNX"), cmd("DEL")),
            What::Echo => (cmd("PING"), cmd("PING")),
        };
        if matches!(self.what, What::Pair) {
            first.arg(key).arg(VALUE);
            second.arg(key);
        }
        first.exec(&mut self.connection)?;
        inside();
        second.exec(&mut self.connection)?;
        Ok(())
    }
}
