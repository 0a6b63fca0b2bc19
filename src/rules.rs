//! The rules of the lock: what to send next, given a reply and the time. Pure code: no I/O, no clock, no sleep, no
//! randomness. The engine performs what the rules ask for and returns with the reply and a fresh [`Now`](crate::values::clock::Now).
//!
//! Where the rules come from: the "Handling deadlocks" section of the Redis documentation of SETNX, the lock of the
//! Ruby gem redis-objects 0.2.3 to 1.4.1, and for Watched and Ttl the Redis documentation of WATCH. `docs/internals.md` explains them.
//! These invariants are cited by number at the lines that rely on them:
//!
//! - **I1** Only an absent key or a timestamp in the past is acquired.
//! - **I2** An expiring value that we write names this holder and no other (not `1`).
//! - **I3** Nothing is granted later than its own lease.
//! - **I4** GETSET's reply is judged by the clock read before it was sent, and it is sent soon after that or not at all.
//! - **I5** We delete only while our own lease has not passed (Classic), or only our own bytes and, within our lease, what a
//!   classic loser wrote over them (Watched and Ttl). Where the server has no memory for a transaction, our own bytes that were just seen, one
//!   command timeout before our lease ends at the latest. On a server that has come back without WATCH, as Classic, after a look.
//! - **I6** A command with an unknown outcome is never sent again: that is resolved by reading, or reported as unknown. Except INCR of a
//!   token, since numbers may be skipped, EXPIRE of the counter, and a release of Watched or Ttl, whose later attempts change our own bytes only; none follows
//!   a deletion alone.
//! - **I7** The deadline of a wait is monotonic; the lease is over when either clock says so.
//! - **I8** A connection that saw an I/O or protocol error is never used again.
//! - **I9** A waiting thread and a thread in its critical section hold no connection.
//! - **I10** A panic releases; releasing never panics; a forked child releases nothing.

pub(crate) mod acquire;

pub(crate) mod choose;
pub(crate) mod fencing;
pub(crate) mod hold;
pub(crate) mod keeping;
pub(crate) mod lease;
pub(crate) mod ownership;

pub(crate) mod quorum;
#[cfg(test)]
mod scenarios;
pub(crate) mod several;
#[cfg(test)]
mod simulated;
pub(crate) mod task;
pub(crate) mod unresolved;
pub(crate) mod waiting_list;
pub(crate) mod window;

use std::sync::Arc;
use std::time::Duration;

use crate::values::clock::{Now, Uptime};
use crate::values::key::Key;
use crate::values::options::Protocol;
use crate::values::value::{Expiry, LockState, ValueBytes};
use fencing::Epoch;
use lease::{End, GUARD, Lease};
use waiting_list::Waiting;

/// A command on the lock's key, or on a key with its name in front. Locking sends no others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// SETNX, or SET with NX and PX where the value has a time to live.
    SetNx(NewValue),
    Get,
    /// PTTL.
    TimeToLive,
    /// MGET.
    GetAll(Arc<[Key]>),
    GetSet(ValueBytes),
    /// Only if the key holds what is expected.
    Set(NewValue),
    /// The same, and EXPIRE of the key's counter of fencing tokens. Of a transaction that is carried out, the reply says whether there is one. Boxed,
    /// since it is rare.
    Renew(Box<(NewValue, Duration)>),
    Del,
    /// GETDEL, since Redis 6.2.
    GetDel,
    /// Increases that counter, which the server forgets this long after the last token.
    Count {
        forget_after: Option<Duration>,
    },
    /// INCRBY of that counter, only if it holds what is expected, over a connection to a server of this epoch.
    Raise {
        by: u64,
        epoch: Epoch,
    },
    /// EXPIRE of that counter.
    ForgetAfter(Duration),
    /// On the waiting list. Part of no rules.
    Waiting(Waiting),
}

/// What is written into the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewValue {
    pub(crate) value: ValueBytes,
    /// After how long the server removes the key by itself; only in Ttl.
    pub(crate) ttl: Option<Duration>,
}

impl Command {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Command::SetNx(NewValue { ttl: None, .. }) => "SETNX",
            Command::SetNx(NewValue { ttl: Some(_), .. }) | Command::Set(_) | Command::Renew(_) => "SET",
            Command::GetAll(_) => "MGET",
            Command::Get => "GET",
            Command::TimeToLive => "PTTL",
            Command::GetSet(_) => "GETSET",
            Command::Del => "DEL",
            Command::GetDel => "GETDEL",
            Command::Count { .. } => "INCR",
            Command::Raise { .. } => "INCRBY",
            Command::ForgetAfter(_) => "EXPIRE",
            Command::Waiting(waiting) => waiting.name(),
        }
    }

    /// Returns the epoch of the server that it may be sent to, if not to any.
    pub(crate) fn only_in(&self) -> Option<Epoch> {
        if let Command::Raise { epoch, .. } = self { Some(*epoch) } else { None }
    }

    /// Returns true if a call that acquires sends it to be granted the lock.
    pub(crate) fn may_grant(&self) -> bool {
        matches!(self, Command::SetNx(_) | Command::GetSet(_) | Command::Set(_))
    }

    /// Returns true if it leaves the lock's key as it is.
    pub(crate) fn only_reads(&self) -> bool {
        match self {
            Command::Get | Command::TimeToLive | Command::GetAll(_) => true,
            Command::Count { .. } | Command::Raise { .. } | Command::ForgetAfter(_) => true,
            Command::Waiting(_) => true,
            Command::SetNx(_) | Command::GetSet(_) | Command::Set(_) => false,
            Command::Renew(_) | Command::Del | Command::GetDel => false,
        }
    }
}

/// What is sent for one key in one round trip; in two where the command depends on what the key holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trip {
    /// Sent once, unless the server refused it unread because it has no room for the connection.
    pub(crate) command: Command,
    /// The command is not sent once this has passed, by the clocks as read after the last wait, that for a connection among them (I4, I5).
    pub(crate) before: Option<End>,
    /// If set, the command is sent only if the key holds this, and is carried out only if no client has written the key since: a transaction. The
    /// key is the lock's, except that [`Command::Raise`] is about the counter alone.
    pub(crate) if_holds: Option<Expected>,
    /// Goes right behind the command, at any time. Boxed, since it is rare.
    pub(crate) behind: Option<Box<Command>>,
}

/// What a key must hold for a command to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) bytes: Vec<u8>,
    /// True if it must have no time to live: such a key is left to the server.
    pub(crate) without_ttl: bool,
}

impl Trip {
    /// Returns the trip of a command alone, at any time.
    pub(crate) fn of(command: Command) -> Self {
        Self { command, before: None, if_holds: None, behind: None }
    }

    /// Returns the weakest protocol whose servers have all commands of the trip.
    pub(crate) fn needs(&self) -> Protocol {
        let gives_ttl = match &self.command {
            Command::SetNx(value) | Command::Set(value) => value.ttl.is_some(),
            Command::Renew(renewed) => renewed.0.ttl.is_some(),
            _ => false,
        };
        match self.if_holds {
            _ if gives_ttl => Protocol::Ttl,
            Some(_) => Protocol::Watched,
            None => Protocol::Classic,
        }
    }

    /// The name of the command that may change the key, or of the one that reads it.
    pub(crate) fn name(&self) -> &'static str {
        if self.if_holds.is_some() { "EXEC" } else { self.command.name() }
    }
}

/// What a trip was answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Replies {
    /// What a key was found to hold that must hold something. `None` of other trips.
    pub(crate) found: Option<Reply>,
    /// `None` if the command was not sent: the key was found to hold something else, could not be read, or it was too late.
    pub(crate) reply: Option<Reply>,
    /// `None` if nothing was sent behind the command.
    pub(crate) behind: Option<Reply>,
    /// That of the server which the command was sent to, if it is known.
    pub(crate) epoch: Option<Epoch>,
}

impl Replies {
    /// Returns the reply to a command that depends on nothing.
    pub(crate) fn plain(self) -> Reply {
        self.reply.unwrap_or(Reply::TooLate)
    }
}

impl From<Reply> for Replies {
    fn from(reply: Reply) -> Self {
        Self { reply: Some(reply), ..Self::default() }
    }
}

/// The outcome of a command, as far as the rules need to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// To SETNX, DEL, INCR and PTTL. SET with NX has the same reply in other words.
    Integer(i64),
    /// To GET and GETSET, and what a key was found to hold.
    Bulk(Option<Vec<u8>>),
    /// A key that must have no time to live was found to have one: what it holds, and after how long the server removes it.
    Expiring(Box<(Vec<u8>, Duration)>),
    /// To MGET. A key that holds something else than a string looks absent.
    Bulks(Vec<Option<Vec<u8>>>),
    /// To EXEC: how many keys the change found to change, or `None` if it was not carried out because this key had been
    /// written since it was watched.
    Executed(Option<i64>),
    /// The server refused: the command was not carried out.
    Refused(WhyRefused),
    /// An I/O error after sending began: whether the command was carried out is unknown.
    Lost,
    /// There was no connection in time: nothing was sent.
    Unsent,
    /// The time that the command was bound to, a lease's or a takeover's, passed before it could be sent: nothing was sent.
    TooLate,
}

impl Reply {
    /// Returns why a call ends with this, which can do nothing else, and has left nothing in doubt.
    pub(crate) fn gives_up(&self) -> GiveUp {
        match self {
            Reply::Refused(WhyRefused::OverMemory) => GiveUp::OverMemory,
            Reply::Refused(WhyRefused::TooOld(has)) => GiveUp::TooOld(*has),
            Reply::Refused(_) => GiveUp::Refused,
            Reply::Unsent | Reply::TooLate => GiveUp::Unsent,
            _ => GiveUp::Io,
        }
    }
}

/// Why the server refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhyRefused {
    /// It lacks the command, or this user may not send it.
    Command,
    /// It is too old for the protocol that Auto has selected, as after a restart or a failover, and has this one. Nothing was sent.
    TooOld(Protocol),
    /// The key holds something else than a string: it is no lock.
    NoLock,
    /// It is over its `maxmemory`.
    OverMemory,
    /// For another reason that passes by itself: it loads its data, has too few replicas.
    ForNow,
    /// It is a replica, as a master that has just failed over; or its address leads to one, for now.
    ReadOnly,
    /// For another reason.
    Otherwise,
}

/// Why an attempt ended without its goal. The engine makes the user's error of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GiveUp {
    /// Another holder had the lock until the deadline.
    Timeout,
    /// The reply to a command that may have changed the key was lost, and reading did not settle it (I6).
    Unknown,
    /// The same of a command that compares nothing, and may still come: no other attempt follows.
    UnknownAlone,
    /// The server refused.
    Refused,
    /// The server refused, since it is over its `maxmemory`.
    OverMemory,
    /// The server is too old for the protocol that Auto has selected, and has this one.
    TooOld(Protocol),
    /// Replies were lost until the attempt gave up, but nothing is in doubt.
    Io,
    /// There was no connection until the attempt gave up, and nothing is in doubt.
    Unsent,
    /// Nothing was carried out: the key was written each time after it had been read, and holds this holder's value still.
    Rewritten,
    /// This machine's wall clock shows a time that cannot be right. In a value it would be taken for no time.
    ClockUnset,
}

/// How an attempt begins, or goes on after a pause.
#[derive(Clone)]
pub(crate) enum Cue {
    /// The lock is probably free.
    Ask,
    /// Another client probably has it.
    Look,
    /// Another thread has just seen this, as if the attempt had looked itself. Only the beginning of an attempt.
    Behind(Observation),
    /// The key was read meanwhile.
    Saw(Option<Vec<u8>>),
    /// What asks for the lock was sent for the attempt, with this lease and these replies.
    Sent(Lease, Replies),
    /// A holder of the same process has written this lease for the attempt. If that is `in_doubt`, the key decides (I6).
    HandedOver { lease: Lease, in_doubt: bool },
    /// The lock is left to other processes until then.
    Leave(Uptime),
    /// It is left to pollers in a window that ends then. Now and then the attempt looks at it, and asks for it for a moment if a poller
    /// has it.
    Window(Uptime),
}

/// A pause of an attempt, with what others may know of it. No connection is held meanwhile (I9).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pause {
    pub(crate) time: Duration,
    /// What the key was last seen to hold.
    pub(crate) seen: Option<LockState>,
    /// True if a command whose reply was lost may have acquired the lock.
    pub(crate) in_doubt: bool,
    /// True if the lock is not asked for meanwhile, even if it is free: it is left to other processes, or the server refuses.
    pub(crate) leaves: bool,
}

/// Something that happened on the way and is reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// The attempt holds the lock, taken over from a holder whose time had passed.
    TakenOver(LockState),
    /// The attempt lost a takeover and has overwritten the winner's value, as the gem does: GETSET cannot prevent it.
    ValueOverwritten(LockState),
    /// A loser's value was found in the place of the holder's own, and replaced or deleted.
    WasOverwritten(LockState),
    /// An earlier value of the holder's was found, and replaced or deleted: the server has lost what was written since.
    WentBack,
    /// The grant came after its own lease, and was not used.
    LateGrant,
    /// The key holds what never expires and cannot be taken over. Reported once for an attempt.
    NeverExpires(LockState),
    /// The server refuses for now.
    RefusedForNow,
    /// In a window, a poller has the lock.
    PollerMet,
}

/// What was last seen of a lock, and when: by the thread that talked to the server before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Observation {
    pub(crate) seen: Option<LockState>,
    pub(crate) at: Uptime,
}

impl Observation {
    /// What others see of a lease in its key.
    pub(crate) fn of(lease: &Lease, now: Now) -> Self {
        let until = |end: End| Expiry(end.wall.after(GUARD));
        let seen = lease.end.map(|end| LockState::Until { expiry: until(end), holder: lease.value.holder() });
        Self { seen, at: now.uptime }
    }
}

/// What a task does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step<T> {
    Send(Trip),
    /// Only to acquire.
    Sleep(Pause),
    Done(T),
    GiveUp(GiveUp),
}

impl<T> Step<T> {
    /// Returns the outcome of code that never pauses, or the trip that is next.
    pub(crate) fn outcome(self) -> Result<Result<T, GiveUp>, Trip> {
        match self {
            Step::Send(trip) => Err(trip),
            Step::Done(outcome) => Ok(Ok(outcome)),
            Step::GiveUp(reason) => Ok(Err(reason)),
            Step::Sleep(_) => unreachable!("only an attempt to acquire pauses"),
        }
    }
}
