//! What is sent in one round trip, and what it is answered.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use crate::fencing::Epoch;
use crate::lease::{End, NewValue};
use crate::values::{Key, Protocol, ValueBytes};
use crate::waiting_list::Waiting;

/// A command on the lock's key, on one of its side keys, or on a channel of its waiting list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// SETNX, or SET with NX and PX where the value has a time to live.
    SetNx(NewValue),
    /// GET.
    Get,
    /// PTTL.
    TimeToLive,
    /// MGET.
    GetAll(Arc<[Key]>),
    /// GETSET.
    GetSet(ValueBytes),
    /// SET, with PX in Ttl. Always with [`Trip::if_holds`].
    Set(NewValue),
    /// As [`Set`](Self::Set), and EXPIRE of the counter of fencing
    /// tokens in the same transaction. Boxed, since it is rare.
    Renew(Box<(NewValue, Duration)>),
    /// DEL.
    Del,
    /// GETDEL, since Redis 6.2.
    GetDel,
    /// INCR of the counter of fencing tokens.
    Count {
        /// For how long the counter is kept; `None` is for ever.
        forget_after: Option<Duration>,
    },
    /// INCRBY of the counter, only if it holds what is expected.
    Raise {
        /// What is added.
        by: u64,
        /// The only epoch in which it is sent.
        epoch: Epoch,
    },
    /// EXPIRE of the counter.
    ForgetAfter(Duration),
    /// On the waiting list: see [`waiting_list`](crate::waiting_list). No rule in this crate sends it.
    Waiting(Waiting),
    /// Takes the first entry of each waiting list that these keys have, in [`Next`](Waiting::Next) or
    /// [`NextAfter`](Waiting::NextAfter).
    Take(Box<[(Key, Waiting)]>),
}

impl Command {
    /// Returns its name in Redis.
    #[inline]
    pub fn name(&self) -> &'static str {
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
            Command::Take(_) => "LPOP",
        }
    }

    /// Returns the only epoch in which it may be sent; `None` for any.
    #[inline]
    pub fn only_in(&self) -> Option<Epoch> {
        if let Command::Raise { epoch, .. } = self { Some(*epoch) } else { None }
    }

    /// Returns true if a call that acquires sends it to be granted the lock.
    #[inline]
    pub fn may_grant(&self) -> bool {
        matches!(self, Command::SetNx(_) | Command::GetSet(_) | Command::Set(_))
    }

    /// Returns true if it leaves the lock's key as it is.
    #[inline]
    pub fn leaves_key(&self) -> bool {
        match self {
            Command::Get | Command::TimeToLive | Command::GetAll(_) => true,
            Command::Count { .. } | Command::Raise { .. } | Command::ForgetAfter(_) => true,
            Command::Waiting(_) | Command::Take(_) => true,
            Command::SetNx(_) | Command::GetSet(_) | Command::Set(_) => false,
            Command::Renew(_) | Command::Del | Command::GetDel => false,
        }
    }
}

/// What is sent for one key, or to look at several, in one round trip; in two if the command depends on what the key
/// holds and the server cannot compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trip {
    /// Carried out at most once. It is sent again only if the server certainly has not carried it out.
    pub command: Command,
    /// The command is not sent once this has passed, by clocks that are read after the wait for a connection (I4, I5).
    pub before: Option<End>,
    /// If set, the command is sent only if the key holds this, and is carried out only if no client has written the key
    /// since: a transaction. The key is the lock's, except that [`Command::Raise`] is about the counter alone.
    pub if_holds: Option<Expected>,
    /// Sent right behind the command, if that is sent.
    /// [`before`](Self::before) does not apply to it. Boxed, since it is rare.
    pub behind: Option<Box<Command>>,
}

/// What a key must hold for a command to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// True if it must have no time to live: such a key is left to the server.
    pub without_ttl: bool,
}

impl Trip {
    /// Returns the trip of a command alone, at any time.
    #[inline]
    pub fn of(command: Command) -> Self {
        Self { command, before: None, if_holds: None, behind: None }
    }

    /// Returns the weakest protocol that has such trips: Ttl if it writes a time to live, Watched for a transaction,
    /// else Classic. GETDEL and PTTL do not count: a server without them refuses them.
    #[inline]
    pub fn needs(&self) -> Protocol {
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
    #[inline]
    pub fn name(&self) -> &'static str {
        if self.if_holds.is_some() { "EXEC" } else { self.command.name() }
    }
}

/// The replies to a trip.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replies {
    /// With `if_holds`: what the key was found to hold. `None` otherwise, or if the server compared by itself.
    pub found: Option<Reply>,
    /// The reply to the command. With `if_holds`, `None` if it was not sent.
    pub reply: Option<Reply>,
    /// The reply to the command behind it, if there was one.
    pub behind: Option<Reply>,
    /// The epoch of the server that got the command, if known.
    pub epoch: Option<Epoch>,
}

impl Replies {
    /// Returns the reply to a command that depends on nothing.
    #[inline]
    pub fn plain(self) -> Reply {
        self.reply.unwrap_or(Reply::TooLate)
    }
}

impl From<Reply> for Replies {
    #[inline]
    fn from(reply: Reply) -> Self {
        Self { reply: Some(reply), ..Self::default() }
    }
}

/// The outcome of a command, as far as the rules need to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To SETNX, and SET with NX: 1 or 0. To DEL, INCR, PTTL, EXPIRE, PUBLISH and LREM: their number.
    Integer(i64),
    /// To GET, GETSET, GETDEL and LPOP, and what a key was found to hold.
    Bulk(Option<Vec<u8>>),
    /// A key that must have no time to live has one: what it holds, and after how long the server removes it.
    Expiring(Box<(Vec<u8>, Duration)>),
    /// To MGET and LRANGE, and to LPOP of several lists. A key that holds something else than a string looks absent.
    Bulks(Vec<Option<Vec<u8>>>),
    /// To EXEC: the command's own number, or `None` if it was not carried out because the key was written since WATCH.
    /// The number is for Del how many keys were deleted, for Set 1, for Renew 1 if the counter exists and 0 if not, for
    /// Count and Raise the counter.
    Executed(Option<i64>),
    /// The server refused: the command was not carried out.
    Refused(WhyRefused),
    /// An I/O error after sending began: whether the command was carried out is unknown.
    Lost,
    /// There was no connection in time: nothing was sent.
    Unsent,
    /// The time limit of the command passed before it could be sent: nothing was sent.
    TooLate,
}

/// Why the server refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhyRefused {
    /// It lacks the command, or this user may not send it.
    Command,
    /// It is too old for the protocol that Auto has selected, as after a restart, and has this one. Nothing was sent.
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
