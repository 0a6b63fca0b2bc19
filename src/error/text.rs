//! How the parts of errors read.

use std::fmt;
use std::time::Duration;

use crate::backend::{ConnectError, NoConnection, Refusal};
use crate::key::{Cut, Key};
use crate::protocol::ownership::LossReason;
use crate::version::Version;

/// A key, cut where it is long.
pub(super) fn shown(key: &Key) -> Cut<'_> {
    Cut(key.as_bytes())
}

/// How a wait was cancelled, which may have been before it began.
pub(super) struct Ended(pub(super) Duration);

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < Duration::from_millis(1) {
            return f.write_str("its cancel token was already cancelled");
        }
        write!(f, "the wait was cancelled after {}", Span(self.0))
    }
}

/// Why a lock is not held any more, and what to do.
pub(super) struct LostBy<'a>(pub(super) &'a LossReason, pub(super) Option<Duration>);

impl fmt::Display for LostBy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            Some(late) => write!(
                f,
                "its lease ended {} ago; stop the protected work, and choose a longer expiration or extend the lease",
                Span(late)
            ),
            None => write!(f, "{}; stop the protected work", self.0),
        }
    }
}

/// That there was no connection, and what to do.
pub(super) struct Unconnected<'a>(pub(super) &'a NoConnection, pub(super) Duration);

impl fmt::Display for Unconnected<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let within = match self.1 {
            // A call that does not wait.
            waited if waited < Duration::from_millis(1) => String::new(),
            waited => format!(" within {}", Span(waited)),
        };
        match self.0 {
            NoConnection::PoolExhausted => write!(
                f,
                "no free connection of the pool{within}; make the pool larger, or hold its connections for less long"
            ),
            NoConnection::Connect(ConnectError::Replica { .. } | ConnectError::Sentinel { .. }) => {
                f.write_str("the server cannot be used; lock on its master")
            }
            NoConnection::Connect(ConnectError::Panicked(_)) => f.write_str(
                "connecting panicked; with the feature tls-rustls a program must choose its cryptography: let it depend on rustls \
                 with the feature ring or aws_lc_rs",
            ),
            NoConnection::Pool(_) => write!(
                f,
                "no connection{within}; check that the server is up and that the pool is large enough"
            ),
            NoConnection::Connecting { .. } | NoConnection::Connect(_) => write!(
                f,
                "no connection to the server{within}; check that the server is up and that the address is right"
            ),
        }
    }
}

/// How a server is known to be too old.
pub(super) struct TooOld<'a>(pub(super) Option<Version>, pub(super) Option<&'a Refusal>);

impl fmt::Display for TooOld<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0, self.1) {
            (Some(version), _) => write!(f, "the server is Redis {version}, too old for the"),
            (None, Some(refusal)) => {
                write!(f, "the server refused with \"{}\", so it lacks the commands of the", refusal.text())
            }
            (None, None) => f.write_str(
                "connections are closed on WATCH, as a proxy does, so it lacks the commands of the",
            ),
        }
    }
}

/// What is the matter with other keys.
pub(super) struct Others<'a, E>(pub(super) &'a [E]);

/// How many of them are shown.
const SHOWN: usize = 2;

impl<E: fmt::Display> fmt::Display for Others<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for error in self.0.iter().take(SHOWN) {
            write!(f, "; and {error}")?;
        }
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            1 => f.write_str("; and the same of another key"),
            more => write!(f, "; and the same of {more} other keys"),
        }
    }
}

/// That the lock was not acquired in time, with the seconds as the gem writes them: `5`, `0.25`.
pub(super) struct TimedOut<'a>(pub(super) &'a Key, pub(super) Duration);

impl fmt::Display for TimedOut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            Duration::ZERO => write!(f, "lock {} not acquired without waiting", shown(self.0)),
            timeout => write!(f, "Timeout on lock {} exceeded {} sec", shown(self.0), timeout.as_secs_f64()),
        }
    }
}

/// A duration to the millisecond.
pub(super) struct Span(pub(super) Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", Duration::from_millis(u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)))
    }
}
