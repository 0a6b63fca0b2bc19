//! The rules of the lock: what to send next, given a reply and the time. Pure code: no I/O, no clock, no sleep, no
//! randomness. The engine performs what the rules ask for and comes back with the answer and a fresh [`Now`].
//!
//! Where the rules come from: the "Handling deadlocks" section of the Redis documentation of SETNX, the lock of the
//! Ruby gem redis-objects 0.2.3 to 1.4.1, and for Watched and Ttl the Redis documentation of WATCH. `docs/algorithm.md` tells the story; these invariants are cited by number at
//! the lines that rely on them:
//!
//! - **I1** Only an absent key or a timestamp in the past is acquired.
//! - **I2** A value we write names us and nobody else (not `1`).
//! - **I3** Nothing is granted later than its own lease.
//! - **I4** GETSET's answer is judged by the clock read before it was sent, and it is sent soon after that or not at all.
//! - **I5** We delete only while our own lease has not passed (Classic), or only our own bytes and, within our lease, what a
//!   classic loser wrote over them (Watched and Ttl).
//! - **I6** No command whose outcome is unknown is ever sent again; that is resolved by reading, or reported as unknown.
//! - **I7** The deadline of a wait is monotonic; the lease is over when either clock says so.
//! - **I8** A connection that saw an I/O or protocol error is never used again.
//! - **I9** A waiting thread and a thread in its critical section hold no connection.
//! - **I10** A panic releases; releasing never panics; a forked child releases nothing.

pub(crate) mod acquire;
pub(crate) mod lease;
pub(crate) mod release;
pub(crate) mod renew;
#[cfg(test)]
mod scripts;
#[cfg(test)]
mod simulated;
#[cfg(test)]
mod simulation;

use std::time::Duration;

use crate::options::Protocol;
use lease::{End, GUARD, Lease};

/// A command on the lock's key. These are all that locking ever sends; Classic sends the first four.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// SETNX, or SET with NX and PX where the entry has a time to live.
    SetNx(Entry),
    Get,
    GetSet(Vec<u8>),
    Del,
    /// WATCH and GET. The connection is kept for the command that follows, if that is an [`Exec`](Command::Exec).
    WatchGet,
    /// MULTI, the change, EXEC, on the connection that watches: carried out only if nobody has written the key since.
    Exec(Change),
}

/// What is written into the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) value: Vec<u8>,
    /// After how long the server removes the key by itself; only in Ttl.
    pub(crate) ttl: Option<Duration>,
}

impl Entry {
    /// The entry of a lease of so long an expiration.
    fn of(lease: &Lease, protocol: Protocol, expiration: Option<Duration>) -> Self {
        let ttl = match protocol {
            Protocol::Ttl => expiration.map(|expiration| expiration.saturating_add(GUARD)),
            Protocol::Classic | Protocol::Watched => None,
        };
        Self { value: lease.value.clone(), ttl }
    }
}

/// What a transaction does to the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Set(Entry),
    Del,
}

impl Command {
    /// The command by which the key may be changed, or the one that reads it.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Command::SetNx(Entry { ttl: None, .. }) => "SETNX",
            Command::SetNx(Entry { ttl: Some(_), .. }) => "SET",
            Command::Get => "GET",
            Command::GetSet(_) => "GETSET",
            Command::Del => "DEL",
            Command::WatchGet => "WATCH",
            Command::Exec(_) => "EXEC",
        }
    }

    /// Whether it leaves the key as it is.
    pub(crate) fn only_reads(&self) -> bool {
        matches!(self, Command::Get | Command::WatchGet)
    }
}

/// A command as the rules ask for it to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) command: Command,
    /// With this end passed by the clocks as read with a connection in hand, it is not sent (I4, I5).
    pub(crate) before: Option<End>,
}

impl Request {
    pub(crate) fn at_any_time(command: Command) -> Self {
        Self { command, before: None }
    }

    pub(crate) fn before(end: End, command: Command) -> Self {
        Self { command, before: Some(end) }
    }
}

/// What came of a command, as far as the rules need to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// To SETNX and DEL. SET with NX answers the same in other words.
    Integer(i64),
    /// To GET and GETSET, also to GET after WATCH.
    Bulk(Option<Vec<u8>>),
    /// To EXEC: how many keys the change found to change, or `None` if it was not carried out because the key had been
    /// written since it was watched.
    Executed(Option<i64>),
    /// The server said no: the command was not carried out.
    Refused,
    /// An I/O error after sending began: carried out or not, nobody knows.
    Lost,
    /// There was no connection in time: nothing was sent.
    Unsent,
    /// The time that the command was bound to, a lease's or a takeover's, passed before it could be sent: nothing was sent.
    TooLate,
}

/// Why an attempt ended without what it was for. The engine makes the user's error of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GiveUp {
    /// Somebody else held the lock until the deadline.
    Timeout,
    /// A command that may have changed the key got no answer, and reading did not settle it (I6).
    Unknown,
    /// The server said no.
    Refused,
    /// Answers were lost until the deadline, but nothing is in doubt.
    Io,
    /// There was no connection until the deadline, and nothing is in doubt.
    Unsent,
}
