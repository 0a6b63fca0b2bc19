//! Trips to the servers. Above it is decided what is sent for a key; here, over which connection, with which other
//! trips, and whether it goes again. A thread that has its reply holds no connection (I9).
//!
//! This page is the contract. The rest of the library may know twelve names, and the errors that users see as well,
//! [`Refusal`], [`RefusalKind`] and [`TransportError`]; of the rules this layer knows their values (keys, clocks,
//! protocols with the versions that have them), when a lease ends, epochs, what a key should hold, and what a reply is.
//!
//! | | what it is | what holds |
//! |---|---|---|
//! | [`Backend`] | servers that carry trips | A trip blocks for no longer than its limits say; listening, until it is told to end. |
//! | [`KeyTrip`] | what is sent for a key | Its command is carried out at most once, and only if the key holds what it should. The command is not sent once `before` has passed. What goes behind it is sent only if it is sent. |
//! | [`Request`] | a command, which packs itself | Its words are not known here. |
//! | [`Packed`] | its bytes, and the form of its replies | Which of them count was said when they were packed. |
//! | [`Limits`] | how long a trip may wait, and for what | After each wait the clocks are read again, before a trip is sent. |
//! | [`Stop`] | ends a wait from outside | A command that was sent is waited for. |
//! | [`Sent`] | what came of a trip | It is about this trip alone: see below. |
//! | [`Failure`] | why there is no reply | `Refused`: the server has refused it, or one of several commands that it is. `Unreachable`, `Panicked`, `TooLate`: it was not carried out. `Lost`: it may have been. |
//! | [`Compares`] | how a server compares and changes in one command | On a server without it a transaction does the same. |
//! | [`NodeId`] | a node of a cluster | One that hangs holds up the keys of no other. |
//! | [`Heard`] | what a listener receives | What was published before `Subscribed` is lost. |
//! | [`Deployment`] | servers to open: one, Sentinels, a cluster, a user's pool | Opening it connects to nothing. |
//!
//! **What is shared decides nothing about one.** Trips of many keys and threads share connections, round trips and
//! transactions. If one of them is refused, late, or about a key that was written meanwhile, or if its thread gives up,
//! the others come to what they would have come to alone. If what was shared does not tell what a trip comes to, it is
//! [`Undecided`] and goes again, with fewer others; nothing above sees that. `server/tests.rs` searches for a case in
//! which this does not hold.
//!
//! Parts that change for different reasons: `deployment`, what is opened; `connections`; `lanes`, by which threads share
//! them; `request` and `packed`, what they carry; `jobs`, `item` and `trip`, what is on the wire; `replies`, what comes
//! back; `server`, for one server, with `server/again.rs`, what goes again; and `cluster`.

mod abilities;
mod cluster;
mod connections;
mod deployment;
mod errors;
mod incoming;
mod item;
mod jobs;
mod lanes;
mod limits;
mod packed;
mod patience;
mod replies;
mod request;
mod resp;
#[cfg(test)]
pub(crate) mod scripted;
mod server;
mod threads;
mod trip;

use std::fmt;
use std::time::Duration;

use proto::Reply;
use proto::fencing::Epoch;
use proto::values::{Key, Now, Protocol, Uptime, Version};

use crate::system::sync;
pub(crate) use connections::Heard;
use connections::NEEDED_TO_PUBLISH;
pub(crate) use deployment::Deployment;
pub(crate) use errors::Failure;
#[cfg(test)]
pub(crate) use errors::TooOld;
pub use errors::{Refusal, RefusalKind, TransportError};
pub(crate) use limits::{Limits, Stop};
pub(crate) use packed::Packed;
#[cfg(test)]
pub(crate) use replies::ReadReply;
pub(crate) use request::{Compares, KeyTrip, Request};

/// The number of a cluster's node. A node that hangs holds up the keys of no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeId(u32);

impl NodeId {
    /// The one server, if there is no cluster; also stands for the node of a slot that has none, as far as is known.
    pub(crate) const ONLY: Self = Self(0);

    pub(crate) fn numbered(number: u32) -> Self {
        Self(number)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What came of a trip.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sent {
    /// What a key was found to hold that must hold something, by WATCH and GET.
    pub(crate) found: Option<Result<Reply, Failure>>,
    /// `None` if the command was not sent: the key holds something else than
    /// expected, could not be read, or it was too late for the command.
    pub(crate) reply: Option<Result<Reply, Failure>>,
    /// `None` if nothing was sent behind it.
    pub(crate) behind: Option<Result<Reply, Failure>>,
    /// Set if what it comes to is not known yet.
    undecided: Option<Undecided>,
    /// That of the server which the command was sent to, if it is known.
    pub(crate) epoch: Option<Epoch>,
    /// When the first of its commands was sent, if one was.
    pub(crate) began_at: Option<Uptime>,
    /// When it was, if this thread has read the clocks then.
    pub(crate) at: Option<Now>,
    /// The name of the command that changed the key, if that is not as the trip says.
    pub(crate) changed_by: Option<&'static str>,
}

/// Why it is not known yet what a trip comes to: it was shared, and what is shared decides nothing about one; or it was
/// not sent.
#[derive(Clone, Debug)]
enum Undecided {
    /// A transaction of several keys was not carried out: one of the keys was written meanwhile, or a change was
    /// refused, or two were of one key.
    Together,
    /// The same, since the keys have several slots of a cluster.
    CrossSlot,
    /// It is not sent yet.
    Unsent,
    /// The server had no room for the connection, and has read nothing.
    NoRoom(Box<Refusal>),
    /// The server settles, and this may grant a lock.
    Settles(Box<Refusal>),
    /// The server was too old for it when the connection was opened.
    TooOld(Box<Refusal>),
}

impl Sent {
    /// Returns what came of a trip that failed as a whole.
    pub(crate) fn failed(trip: &KeyTrip<'_>, failure: Failure) -> Self {
        let failed = Some(Err(failure));
        let (found, reply) = if trip.transacts() { (failed, None) } else { (None, failed) };
        Self { found, reply, changed_by: trip.changed_by(), ..Self::default() }
    }

    /// Returns how the server was found unreachable, if it was: not by all connections being in use.
    fn unreachable(&self) -> Option<Failure> {
        let outcomes = [&self.found, &self.reply, &self.behind];
        let failures = outcomes.into_iter().flatten().filter_map(|outcome| outcome.as_ref().err());
        failures.filter(|failure| !failure.found_all_in_use()).find_map(Failure::of_the_next)
    }

    /// Returns the strongest protocol of a server that is too old for the trip.
    pub(crate) fn protocol_instead(&self) -> Option<Protocol> {
        match self.found.as_ref().or(self.reply.as_ref()) {
            Some(Err(Failure::Refused(refusal))) => refusal.protocol_instead(),
            _ => None,
        }
    }

    /// Replaces it by what came of [sending the rest again](Self::again).
    fn replace(&mut self, again: Self) {
        let (behind, began_at) = (self.behind.take(), self.began_at);
        *self = again;
        self.behind = self.behind.take().or(behind);
        self.began_at = began_at.or(self.began_at);
    }

    /// Returns what is to be sent again of a trip: what went behind
    /// the command has been carried out, unless it was refused.
    fn again<'a>(&self, trip: &KeyTrip<'a>) -> KeyTrip<'a> {
        let goes_again = self.behind.is_none() || is_refused(self.behind.as_ref());
        KeyTrip { behind: trip.behind.filter(|_| goes_again), ..*trip }
    }

    /// Returns what came of a command that depends on nothing.
    pub(crate) fn plain(self) -> Result<Reply, Failure> {
        self.reply.unwrap_or(Err(Failure::TooLate))
    }
}

/// Returns true if the server has refused a command.
fn is_refused(outcome: Option<&Result<Reply, Failure>>) -> bool {
    matches!(outcome, Some(Err(Failure::Refused(_))))
}

/// What the engine needs of a server.
pub(crate) trait Backend: Send + Sync {
    /// Sends what one key sends, with what other threads send, and returns what came of it.
    fn send(&self, trip: &KeyTrip<'_>, limits: &Limits<'_>) -> Sent;

    /// Sends what several keys send together, and returns what came of each. Those that are changed by transactions
    /// share one, as far as that is carried out.
    fn send_all(&self, trips: &[KeyTrip<'_>], limits: &Limits<'_>) -> Vec<Sent>;

    /// Returns which node has a key, as far as is known.
    fn node_of(&self, key: &Key) -> NodeId;

    /// Returns true if keys have slots. A key and its side keys may then be on different nodes.
    fn has_slots(&self) -> bool;

    /// Returns host and port of the server, if they are known.
    fn address(&self) -> Option<String>;

    /// Wakes the threads that wait for a connection, so that each looks whether its wait has been ended.
    fn wake_waiting(&self);

    /// Probes, on this key, whether the server has what the protocol needs and the user may use it. Fails if not,
    /// unless the protocol is Auto; and as sending does.
    fn probe(&self, key: &Key, protocol: Protocol, limits: &Limits<'_>) -> Result<(), Failure>;

    /// Returns true if there is nothing to probe.
    fn knows(&self, protocol: Protocol) -> bool;

    /// Returns what Auto means for locks that expire, as far as is known.
    fn best_protocol(&self) -> Protocol;

    /// Returns true if a connection was opened, so that the server's
    /// version is known if it reports it; or whether it is never asked.
    fn is_known(&self) -> bool;

    /// Returns the version that the server reported last.
    fn server_version(&self) -> Option<Version>;

    /// Returns true if it can open a connection that listens.
    fn can_listen(&self) -> bool;

    /// Subscribes to a channel on this node, and gives `heard` what is published there, until that returns `false` or
    /// the connection fails. Called only if it can listen.
    fn listen(
        &self,
        node: NodeId,
        channel: &[u8],
        heard: &mut dyn FnMut(Heard<'_>) -> bool,
    ) -> Result<(), Failure>;

    /// Returns true if the server has channels: from Redis 2.0 on, and if it did not report its version.
    fn has_channels(&self) -> bool {
        self.server_version().is_none_or(|version| version >= NEEDED_TO_PUBLISH)
    }

    /// Returns true if it can wake processes that listen, and be woken, as far as is known.
    fn notifies(&self) -> bool {
        self.can_listen() && self.server_version().is_some_and(|version| version >= NEEDED_TO_PUBLISH)
    }

    /// How long one command may take.
    fn command_timeout(&self) -> Duration;

    /// How long an unreachable server is waited for.
    fn retry_for(&self) -> Duration;
}
