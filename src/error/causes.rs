//! What errors tell of how they came about.

use std::fmt;
use std::time::Duration;

use super::Unconnected;
use crate::server::ConnectError;
use crate::server::refusal::Refusal;
use crate::value::Content;

/// What a waiter saw of the lock that it did not get.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Contention {
    /// How often we looked whether the lock is free; 0 if other threads of this process were before us all the time.
    pub tries: u32,
    /// How long the wait was.
    pub waited: Duration,
    /// What the key was last seen to hold; `None` if it was not read, as for a lock without an expiration.
    pub seen: Option<Content>,
    /// Whether the lock that was waited for has an expiration, and so takes over from the dead.
    pub expiring: bool,
    /// How much longer than its time an expired lock is left alone, by the options.
    pub takeover_margin: Duration,
    /// How many threads of this process, waiting for the same key through the same locker, were still before us at the end.
    pub ahead: usize,
    /// Whether the calling thread itself took this lock and has not released it: a nested lock that waits for itself,
    /// unless the guard was moved to another thread.
    pub taken_by_this_thread: bool,
}

impl fmt::Display for Contention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.tries == 1 { "try" } else { "tries" };
        write!(f, " after {} {plural}", self.tries)?;
        if self.tries == 0 {
            let plural = if self.ahead == 1 { "thread" } else { "threads" };
            write!(
                f,
                ", since others of this process were before us in the line ({} {plural} still)",
                self.ahead
            )?;
        }
        match &self.seen {
            _ if !self.expiring => f.write_str(
                "; a lock without an expiration is never taken over: if its holder is dead, clear it by hand",
            )?,
            Some(content) => {
                write!(f, "; last seen: {content}")?;
                if let Some(advice) = content.advice() {
                    write!(f, ", {advice}")?;
                } else if !self.takeover_margin.is_zero() {
                    write!(
                        f,
                        ", and left alone for a takeover margin of {:?} after that",
                        self.takeover_margin
                    )?;
                }
            }
            None => {}
        }
        if self.taken_by_this_thread {
            f.write_str(
                "; this very thread took the lock and has not released it: a nested lock waits for itself, unless its guard was moved to \
                 another thread",
            )?;
        }
        Ok(())
    }
}

/// Why there was no connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum NoConnection {
    /// All connections of the pool were in use all the time.
    PoolExhausted,
    /// The pool has no connection yet, and the server has not answered the attempt to open one.
    StillConnecting,
    /// The server is a replica: it repeats what its master does, and a lock on it protects nothing.
    #[non_exhaustive]
    Replica {
        /// The master's host and port, where the server tells them.
        of: Option<String>,
    },
    /// Connecting failed.
    Failed(redis::RedisError),
    /// Whatever was to open the connection panicked: for TLS, a library that the program has not set up.
    Panicked(String),
    /// Connecting failed in a pool that is not this library's, which keeps only the words.
    Said(String),
}

impl NoConnection {
    pub(crate) fn has_a_cause(&self) -> bool {
        match self {
            NoConnection::PoolExhausted | NoConnection::StillConnecting => false,
            NoConnection::Replica { .. } | NoConnection::Failed(_) | NoConnection::Panicked(_) => true,
            // r2d2's own words, and a colon before whatever was the matter.
            NoConnection::Said(text) => text.contains(": "),
        }
    }
}

impl fmt::Display for NoConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoConnection::PoolExhausted => f.write_str(
                "none was free and none could be opened in that time; make the pool larger, or hold its connections for less long",
            ),
            NoConnection::StillConnecting => f.write_str(
                "still connecting; check that the server is up, that it answers, and that the address is right",
            ),
            NoConnection::Replica { of } => {
                write!(f, "{}", ConnectError::Replica { of: of.clone() })
            }
            NoConnection::Failed(error) => write!(f, "{error}; check that the server is up and the address is right"),
            NoConnection::Panicked(text) => write!(
                f,
                "connecting panicked ({text}); with the feature tls-rustls a program must choose its cryptography: let it depend \
                 on rustls with the feature ring or aws_lc_rs"
            ),
            NoConnection::Said(text) => write!(f, "{text}; check that the server is up and the pool is large enough"),
        }
    }
}

/// Why a server did not say what it can do.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoAnswer {
    /// There was no connection to it in time.
    #[error("{}", Unconnected(cause, *waited))]
    #[non_exhaustive]
    NoConnection {
        /// How long one was waited for.
        waited: Duration,
        /// Why there was none.
        cause: NoConnection,
    },
    /// It refused INFO, without which nothing is known of it.
    #[error("it refused INFO: {}", .0.text())]
    Refused(Refusal),
    /// Talking to it failed.
    #[error("{0}; check the server and the network, then try again")]
    Lost(#[source] redis::RedisError),
    /// This process was forked from the one that opened the locker.
    #[error("this process was forked after its locker was opened; open a new one in the child")]
    Forked,
}
