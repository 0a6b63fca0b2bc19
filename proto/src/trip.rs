//! What goes to the server for one key in one round trip, and what it is answered.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use crate::fencing::Epoch;
use crate::lease::End;
use crate::values::key::Key;
use crate::values::protocol::Protocol;
use crate::values::value::ValueBytes;
use crate::waiting_list::Waiting;

/// A command on the lock's key, or on a key with its name in front. Locking sends no others.
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
    /// Only if the key holds what is expected.
    Set(NewValue),
    /// The same, and EXPIRE of the key's counter of fencing tokens. Of a transaction that is carried out, the reply
    /// says whether there is one. Boxed, since it is rare.
    Renew(Box<(NewValue, Duration)>),
    /// DEL.
    Del,
    /// GETDEL, since Redis 6.2.
    GetDel,
    /// Increases that counter, which the server forgets this long after the last token.
    Count {
        /// For how long the counter is kept; `None` is for ever.
        forget_after: Option<Duration>,
    },
    /// INCRBY of that counter, only if it holds what is expected, over a connection to a server of this epoch.
    Raise {
        /// What is added.
        by: u64,
        /// The only epoch in which it is sent.
        epoch: Epoch,
    },
    /// EXPIRE of that counter.
    ForgetAfter(Duration),
    /// On the waiting list. Part of no rules.
    Waiting(Waiting),
}

/// What is written into the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewValue {
    /// The bytes.
    pub value: ValueBytes,
    /// After how long the server removes the key by itself; only in Ttl.
    pub ttl: Option<Duration>,
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
        }
    }

    /// Returns the epoch of the server that it may be sent to, if not to any.
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
    pub fn only_reads(&self) -> bool {
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
pub struct Trip {
    /// Sent once, unless the server refused it unread because it has no room for the connection.
    pub command: Command,
    /// The command is not sent once this has passed, by the clocks as read
    /// after the last wait, that for a connection among them (I4, I5).
    pub before: Option<End>,
    /// If set, the command is sent only if the key holds this, and is carried out only if no client has written the key
    /// since: a transaction. The key is the lock's, except that [`Command::Raise`] is about the counter alone.
    pub if_holds: Option<Expected>,
    /// Goes right behind the command, at any time. Boxed, since it is rare.
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

    /// Returns the weakest protocol whose servers have all commands of the trip.
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

/// What a trip was answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replies {
    /// What a key was found to hold that must hold something. `None` of other trips.
    pub found: Option<Reply>,
    /// `None` if the command was not sent: the key was found to
    /// hold something else, could not be read, or it was too late.
    pub reply: Option<Reply>,
    /// `None` if nothing was sent behind the command.
    pub behind: Option<Reply>,
    /// That of the server which the command was sent to, if it is known.
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
    /// To SETNX, DEL, INCR and PTTL. SET with NX has the same reply in other words.
    Integer(i64),
    /// To GET and GETSET, and what a key was found to hold.
    Bulk(Option<Vec<u8>>),
    /// A key that must have no time to live was found to have one:
    /// what it holds, and after how long the server removes it.
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
    /// The time that the command was bound to, a lease's or a
    /// takeover's, passed before it could be sent: nothing was sent.
    TooLate,
}

/// Why the server refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhyRefused {
    /// It lacks the command, or this user may not send it.
    Command,
    /// It is too old for the protocol that Auto has selected, as after
    /// a restart or a failover, and has this one. Nothing was sent.
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
