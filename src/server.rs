//! The window to the server: a command goes in, a reply comes out, and nobody above knows which connection carried it.
//! Takes a connection for one trip, with one command or those of several threads, and gives it back before the replies are handed out
//! (I9); only a watched key keeps its connection for the transaction that may follow.

mod burst;
mod carrier;
mod combining;
mod connection;
#[cfg(test)]
mod fake;
mod form;
mod health;
mod info;
mod manager;
mod pace;
mod pool;
mod pooled;
pub(crate) mod refusal;
mod report;
mod token;
mod trip;

use std::time::Duration;
use std::{fmt, io};

use crate::clock::{Now, Uptime};
use crate::error::NoConnection;
use crate::key::Key;
use crate::options::Protocol;
use crate::protocol::{Command, Reply, Request};
use crate::sync;
use crate::version::Version;
pub use carrier::Carrier;
pub use connection::Connection;
pub use info::Role;
pub use manager::{ConnectError, Manager};
pub(crate) use pooled::Pooled;
use refusal::Refusal;
pub use report::{ClockDifference, Persistence, Server, Warning};

/// What a command is sent under: what the server must be able to do, and until when what is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits<'a> {
    /// A server that is known to be too old for this gets nothing sent.
    pub(crate) needs: Protocol,
    /// When the command was decided on.
    pub(crate) asked: Now,
    /// A connection that cannot be opened is waited for until here.
    pub(crate) reachable_by: Uptime,
    /// A connection that is in use, or is being opened, is waited for until here.
    pub(crate) connected_by: Uptime,
    /// The answer is waited for until here, where the connection knows time-outs.
    pub(crate) answered_by: Uptime,
    /// No connection is waited for any longer once this says so.
    pub(crate) over: Over<'a>,
    /// Whether it may go together with others' commands.
    pub(crate) combines: bool,
}

/// Says whether waiting has been ended from outside.
#[derive(Clone, Copy)]
pub(crate) struct Over<'a>(pub(crate) &'a dyn Fn() -> bool);

impl Over<'_> {
    pub(crate) const NEVER: Over<'static> = Over(&|| false);
}

impl fmt::Debug for Over<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Over").field(&self.0()).finish()
    }
}

/// Why a command has no reply for the rules to judge.
#[derive(Debug)]
pub(crate) enum Failure {
    NoConnection { cause: NoConnection, waited: Duration },
    TooLate,
    TooOld(Version),
    Refused(Refusal),
    Lost(redis::RedisError),
}

/// What the engine needs of a server.
pub(crate) trait Window: Send + Sync + fmt::Debug {
    /// Sends one command and returns its reply in the form that the command has. Once, but for a command that the
    /// server refused unread because it has no room for the connection.
    fn call(&self, key: &Key, request: &Request, limits: &Limits<'_>) -> Result<Reply, Failure>;

    /// Sends WATCH and GET and returns GET's reply, with the connection that watches.
    fn watch(&self, key: &Key, limits: &Limits<'_>) -> Result<(Reply, Box<dyn Burst>), Failure>;

    /// Asks the server what it is and can do, with the help of a key that is nobody's.
    fn survey(&self, probe: &Key, limits: &Limits<'_>) -> Result<Server, Failure>;

    /// Whether it can open connections of its own. The two that follow are asked only where it can.
    fn can_listen(&self) -> bool {
        false
    }

    /// Leaves a token in a list, for whoever waits there; on a server that is too old for waiting nothing is sent.
    fn leave_token(&self, _list: &[u8], _limits: &Limits<'_>) -> Result<(), Failure> {
        unreachable!("a lock through a window that cannot listen has no wake-ups")
    }

    /// Opens a connection for nothing but waiting for tokens.
    fn listen(&self) -> Result<Box<dyn Ear>, Failure> {
        unreachable!("a lock through a window that cannot listen has no wake-ups")
    }

    /// The longest that one command takes.
    fn command_timeout(&self) -> Duration;

    /// How long a connection is waited for when the caller sets no limit.
    fn patience(&self) -> Duration;
}

/// A connection that watches a key: for one transaction, or to be left. When it is dropped it is not used again.
pub(crate) trait Burst: fmt::Debug {
    /// Sends the transaction and returns what came of it.
    fn exec(self: Box<Self>, key: &Key, command: &Command, limits: &Limits<'_>) -> Result<Reply, Failure>;

    /// Stops watching, and gives the connection back.
    fn leave(self: Box<Self>, limits: &Limits<'_>);
}

/// A connection that waits for tokens.
pub(crate) trait Ear: Send + fmt::Debug {
    /// Waits for some seconds; returns the list that a token was taken from, the first of these that had one.
    fn hear(&mut self, lists: &[&[u8]]) -> Result<Option<Vec<u8>>, Failure>;
}

/// Returns the refusal in an error, if it is the server's own word and not a failure to understand it.
pub(crate) fn refusal_in(error: &redis::RedisError) -> Option<Refusal> {
    match error.kind() {
        redis::ErrorKind::Server(_) | redis::ErrorKind::Extension => {
            let code = error.code().unwrap_or("ERR");
            Some(Refusal::new(match error.detail() {
                Some(detail) => format!("{code} {detail}"),
                None => code.to_owned(),
            }))
        }
        _ => None,
    }
}

/// What an error of the server's own making comes to.
fn refused(error: &redis::RedisError) -> Failure {
    Failure::Refused(refusal_in(error).unwrap_or_else(|| Refusal::new(error.to_string())))
}

/// What an error comes to that is no refusal.
fn failure_of(error: redis::RedisError) -> Failure {
    let understood = error.is_io_error();
    Failure::Lost(if understood { error } else { not_understood(&error, "the server") })
}

/// An answer that is none, on one line: the parser's words go over several.
fn not_understood(error: &redis::RedisError, who: &str) -> redis::RedisError {
    let text = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("{who} does not answer as a Redis server does: {text}"),
    )
    .into()
}
