//! The server as the engine sees it: a command goes in, a reply comes out. Which connection carries it, and together with which other
//! commands, is known here and nowhere above. A thread that has its reply holds no connection (I9), except one that
//! watches a key, for the transaction that may follow.
//!
//! Parts that change for different reasons: `lanes`, by which threads share connections; `connections`; `item`, what goes over them; and
//! `inspection`, which locking does not use.

mod bulk;
mod codec;
mod connections;
mod errors;
mod inspection;
mod item;
mod lanes;
mod limits;
mod own;
mod patience;
mod pooled;
mod resp;
#[cfg(test)]
pub(crate) mod scripted;
mod transactions;
mod watch;

use std::fmt;
use std::time::Duration;

use crate::key::Key;
use crate::options::Protocol;
use crate::protocol::{Change, Command, Reply, Request};
use crate::sync;
use crate::version::Version;
pub(crate) use connections::Heard;
use connections::NEEDED_TO_PUBLISH;
pub use connections::Role;
pub(crate) use connections::{DEFAULT_COMMAND_TIMEOUT, Opener};
pub(crate) use errors::{ConnectError, Failure, NoConnection, TooOld};
pub use errors::{Refusal, RefusalKind, TransportError};
pub(crate) use inspection::Inspect;
pub use inspection::{ClockDifference, Persistence, ServerReport, Warning};
pub(crate) use limits::{Budget, Incident, Limits, Report, StopCheck};
pub(crate) use pooled::PooledBackend;

/// A command of another thread, which goes right behind one that deletes the key, in the same trip.
#[derive(Clone, Debug)]
pub(crate) struct Next {
    pub(crate) request: Request,
    /// A server that is known to be too old for this protocol does not get it.
    pub(crate) needs: Protocol,
}

/// What came of a command, and of the one behind it.
#[derive(Debug)]
pub(crate) struct Answers {
    pub(crate) own: Result<Reply, Failure>,
    /// `None` if it was not sent.
    pub(crate) next: Option<Result<Reply, Failure>>,
}

impl From<Result<Reply, Failure>> for Answers {
    /// Of a command without another behind it.
    fn from(own: Result<Reply, Failure>) -> Self {
        Self { own, next: None }
    }
}

/// The replies to GET of many keys, and the connection that watches them.
pub(crate) type WatchedAll = (Vec<Result<Reply, Failure>>, Box<dyn WatchedConnection>);

/// What followed when a key was watched for a change.
#[derive(Debug)]
pub(crate) enum Changed {
    /// The change was sent.
    Sent(Answers),
    /// The key holds something else, and this connection watches it.
    Watched(Box<dyn WatchedConnection>),
    /// The key holds something else.
    Not,
}

/// A command on one of many keys.
#[derive(Clone, Debug)]
pub(crate) struct KeyRequest {
    pub(crate) key: Key,
    pub(crate) request: Request,
    /// What goes behind it on the same key.
    pub(crate) next: Option<Next>,
}

impl KeyRequest {
    pub(crate) fn new(key: &Key, request: Request) -> Self {
        Self { key: key.clone(), request, next: None }
    }
}

/// What the engine needs of a server.
pub(crate) trait Backend: Send + Sync + fmt::Debug {
    /// Sends a command, with `next` behind it, and returns the replies in the form that the commands have. Sends each once, unless the
    /// server refused it unread because it has no room for the connection.
    fn call(&self, key: &Key, request: &Request, next: Option<&Next>, limits: &Limits<'_>) -> Answers;

    /// Sends commands on many keys in one trip, and returns the answers to each. They wait for nothing but a connection.
    fn call_all(&self, requests: &[KeyRequest], limits: &Limits<'_>) -> Vec<Answers>;

    /// Sends WATCH and GET for each of many keys, and MULTI. Returns the replies to GET, with the connection that watches.
    fn watch_all(&self, keys: &[Key], limits: &Limits<'_>) -> Result<WatchedAll, Failure>;

    /// Sends a command that watches the key, and returns its reply, with the connection that watches.
    fn watch(
        &self,
        key: &Key,
        command: &Command,
        limits: &Limits<'_>,
    ) -> Result<(Reply, Box<dyn WatchedConnection>), Failure>;

    /// Sends WATCH, GET and MULTI, and if the key holds `own` the change and EXEC, with `next` behind it. Returns the reply to GET, and what
    /// followed.
    fn change(
        &self,
        key: &Key,
        own: &[u8],
        change: &Change,
        next: Option<&Next>,
        limits: &Limits<'_>,
    ) -> Result<(Reply, Changed), Failure>;

    /// Returns host and port of the server, if they are known.
    fn address(&self) -> Option<String> {
        None
    }

    /// Wakes the threads that wait for a connection, so that each looks whether its wait has been ended.
    fn wake_waiting(&self) {}

    /// Returns the version that the server reported on the connection opened last.
    fn server_version(&self) -> Option<Version>;

    /// Whether it can open a connection that listens.
    fn can_listen(&self) -> bool {
        false
    }

    /// Subscribes to a channel, and gives `heard` what is published there, until that returns `false` or the connection fails. Called only
    /// if it can listen.
    fn listen(&self, _channel: &[u8], _heard: &mut dyn FnMut(Heard<'_>) -> bool) -> Result<(), Failure> {
        unreachable!("a lock on a backend that cannot listen has no notifications")
    }

    /// Whether the server has channels: from Redis 2.0 on, and if it did not report its version.
    fn has_channels(&self) -> bool {
        self.server_version().is_none_or(|version| version >= NEEDED_TO_PUBLISH)
    }

    /// How long one command may take.
    fn command_timeout(&self) -> Duration;

    /// How long an unreachable server is waited for.
    fn retry_for(&self) -> Duration;
}

/// A connection that watches a key, with a transaction open: for one change, or to be unwatched. A dropped one is not used again.
pub(crate) trait WatchedConnection: fmt::Debug {
    /// Sends the change, which ends the transaction, with `next` behind it.
    fn exec(
        self: Box<Self>,
        key: &Key,
        command: &Command,
        next: Option<&Next>,
        limits: &Limits<'_>,
    ) -> Answers;

    /// Sends the changes of many keys, and the end of the transaction, with what goes behind each change after that. Returns the answers to
    /// each, as if it had been the only one. Without changes it stops watching.
    fn exec_all(self: Box<Self>, changes: &[KeyRequest], limits: &Limits<'_>) -> Vec<Answers>;

    /// Stops watching, and returns the connection to its pool.
    fn unwatch(self: Box<Self>, limits: &Limits<'_>);
}
