//! What can go wrong: each error with the key, what happened, and what to do. Why it happened is the error's source.

mod contention;
mod inspection;
mod text;

use std::time::Duration;

use crate::backend::ConnectError;
use crate::backend::{ClockDifference, NoConnection, Refusal, TransportError};
use crate::key::{Cut, Key};
use crate::options::Protocol;
use crate::protocol::ownership::LossReason;
use crate::version::Version;
pub use contention::Contention;
pub use inspection::InspectionFailure;
use text::{Ended, LostBy, Others, TimedOut, TooOld, Unconnected, shown};

/// Why a call on a lock failed. Where contention is an expected answer, it is no error:
/// [`Lock::try_lock`](crate::Lock::try_lock) returns `None`.
///
/// An error's text says what happened to which key and what to do; its [`source`](std::error::Error::source) says why, where another
/// error is the reason. Print both, with `{:#}` of anyhow say. No text is longer than 1 kB: long keys and values are cut.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another holder had the lock until the timeout: the gem's `Redis::Lock::LockTimeout`, whose text this begins with if the timeout is
    /// not zero.
    #[error("{}{details}", TimedOut(key, *timeout))]
    #[non_exhaustive]
    Timeout {
        /// The lock's key.
        key: Key,
        /// The timeout as it was given.
        timeout: Duration,
        /// What was seen while waiting.
        details: Box<Contention>,
    },

    /// Another holder had the lock at each of the attempts that [`max_attempts`](crate::LockOptions::max_attempts) allows.
    #[error("lock {} not acquired: its attempts are used up{details}", shown(key))]
    #[non_exhaustive]
    AttemptsExhausted {
        /// The lock's key.
        key: Key,
        /// What was seen while waiting.
        details: Box<Contention>,
    },

    /// The wait was ended by its [`CancelToken`](crate::CancelToken), or began after that was cancelled.
    #[error("lock {} not acquired: {}", shown(key), Ended(*waited))]
    #[non_exhaustive]
    Cancelled {
        /// The lock's key.
        key: Key,
        /// How long the wait was.
        waited: Duration,
    },

    /// The locker was [shut down](crate::Locker::shut_down), and acquires no more locks.
    #[error(
        "lock {} not acquired: its locker was shut down; open a new one if the program goes on",
        shown(key)
    )]
    #[non_exhaustive]
    ShutDown {
        /// The lock's key.
        key: Key,
    },

    /// This thread is inside [`Lock::with`](crate::Lock::with), or a function with the attribute `locked`, on this key: waiting would
    /// wait for itself.
    #[error(
        "lock {} is already held by this thread, in an enclosing `with` or `#[locked]`: acquiring it again would wait for itself; pass the \
         guard down, use another key for the inner work, or have calls on a `Lock` or `Locks` join by `reentrant`",
        shown(key)
    )]
    #[non_exhaustive]
    Nested {
        /// The lock's key.
        key: Key,
    },

    /// This process was forked from the one that opened the locker, whose connections it must not use.
    #[error(
        "lock {}: this process was forked after its locker was opened; open a new one in the child",
        shown(key)
    )]
    #[non_exhaustive]
    Forked {
        /// The lock's key.
        key: Key,
    },

    /// The lock was lost while it was held: its lease has ended, or the server shows that it is not held any more. Another client may work
    /// under it at the same time, or have done so.
    #[error("lock {} is no longer held: {}", shown(key), LostBy(reason, *late))]
    #[non_exhaustive]
    Lost {
        /// The lock's key.
        key: Key,
        /// Why it is not held any more.
        reason: LossReason,
        /// How long ago the lease ended, if that is why.
        late: Option<Duration>,
    },

    /// The counter of fencing tokens holds no positive number.
    #[error(
        "lock {}: its fencing counter is at {found}, which is no token; set it to the greatest token that the storage has seen",
        shown(key)
    )]
    #[non_exhaustive]
    Fence {
        /// The lock's key.
        key: Key,
        /// What the counter holds.
        found: i64,
    },

    /// The reply to a command that may have changed the key was lost, and reading the key did not settle it.
    #[error(
        "lock {}: the reply to {command} was lost, so the server may or may not have carried it out; {advice}",
        shown(key)
    )]
    #[non_exhaustive]
    Unknown {
        /// The lock's key.
        key: Key,
        /// The command that got no reply.
        command: &'static str,
        /// What it means for the key and what to do.
        advice: &'static str,
        /// Why the reply was lost.
        #[source]
        cause: TransportError,
    },

    /// Several locks were not acquired or not released, and there is more to say than for one key: whether each of the others is held is
    /// unknown, or it was acquired and could not be given back.
    #[error("a call on several locks failed at lock {}{}", cause.key().map_or(Cut(b"?"), shown), Others(others))]
    #[non_exhaustive]
    Several {
        /// Why the call failed.
        #[source]
        cause: Box<Error>,
        /// What is the matter with other keys.
        others: Vec<Error>,
    },

    /// There was no connection to the server in time, and so the last command was not sent. Nothing is in doubt.
    #[error("lock {}: {}", shown(key), Unconnected(cause, *waited))]
    #[non_exhaustive]
    NoConnection {
        /// The lock's key.
        key: Key,
        /// How long a connection was waited for.
        waited: Duration,
        /// Why there was none.
        #[source]
        cause: NoConnection,
    },

    /// The server refused the last command, which was not carried out. Nothing is in doubt.
    #[error("lock {}: {refusal}{}", shown(key), advice.map(|advice| format!("; {advice}")).unwrap_or_default())]
    #[non_exhaustive]
    Refused {
        /// The lock's key.
        key: Key,
        /// The server's text, and what to do.
        refusal: Box<Refusal>,
        /// After a release: what it means for the lock.
        advice: Option<&'static str>,
    },

    /// The server is too old for the protocol of the options, or behind a proxy that does not forward its commands. Nothing is in doubt.
    #[error(
        "lock {}: {} protocol {protocol:?}, which needs Redis {}; {}",
        shown(key), TooOld(*version, refusal.as_deref()), protocol.needs(), protocol.instead()
    )]
    #[non_exhaustive]
    Unsupported {
        /// The lock's key.
        key: Key,
        /// The protocol that the server is too old for.
        protocol: Protocol,
        /// The server's version, where it is known: it is asked for when a connection is opened.
        version: Option<Version>,
        /// How the server refused a command that it does not know; `None` if its version was enough to know, or if
        /// connections are closed on WATCH, as proxies do.
        refusal: Option<Box<Refusal>>,
    },

    /// Talking to the server failed, for a command that changes nothing. Nothing is in doubt.
    #[error("lock {}: {command} failed; check the server and the network, then try again", shown(key))]
    #[non_exhaustive]
    Io {
        /// The lock's key.
        key: Key,
        /// The command that failed.
        command: &'static str,
        /// Why it failed.
        source: TransportError,
    },

    /// The options that the lock is made with, or the arguments of a call, make no sense.
    #[error("lock \"{}\": {problem}", shown(key))]
    #[non_exhaustive]
    Options {
        /// The lock's key.
        key: Key,
        /// What is wrong, and what to do instead.
        problem: &'static str,
    },

    /// A declared lock was asked for without an id: the gem's `NilObjectId`.
    #[error(
        "lock \"{}\" needs an id, and the id is empty (unsaved record?); give the record's id, or use `global` for the lock of the \
         whole class",
        shown(key)
    )]
    #[non_exhaustive]
    NoId {
        /// The key with `#{id}` in the place of the id.
        key: Key,
    },

    /// The server could not be inspected.
    #[error("cannot inspect the server{}", cause.advice())]
    #[non_exhaustive]
    Inspection {
        /// Why not.
        #[source]
        cause: Box<InspectionFailure>,
    },

    /// The server's clock and this machine's differ by more than the builder allows, or the server does not report its clock.
    #[error("cannot rely on clocks: {}", match difference {
        Some(difference) => format!("the server's is {difference}, and {limit:?} is allowed; set the clock that is wrong (NTP), then try again"),
        None => "the server does not report its own; permit TIME to this user, or build the locker without `max_clock_difference`".to_owned(),
    })]
    #[non_exhaustive]
    Clocks {
        /// How far they are apart; `None` if the server does not report its clock.
        difference: Option<ClockDifference>,
        /// What the builder allows.
        limit: Duration,
    },

    /// A locker was to be built with values that make no sense.
    #[error("cannot build a locker: {problem}")]
    #[non_exhaustive]
    Builder {
        /// What is wrong, and what to do instead.
        problem: &'static str,
    },

    /// The server's address cannot be used.
    #[error(
        "this is no address of a Redis server: {problem}; use redis://[:password@]host[:port][/database], \
         unix:///path, or with this crate's feature tls-rustls or tls-native-tls rediss://…"
    )]
    #[non_exhaustive]
    Address {
        /// What is wrong with it.
        problem: String,
    },
}

impl Error {
    /// Returns the key that the error is about; `None` where it is about a locker.
    #[must_use]
    pub fn key(&self) -> Option<&Key> {
        match self {
            Error::Timeout { key, .. }
            | Error::AttemptsExhausted { key, .. }
            | Error::Lost { key, .. }
            | Error::Fence { key, .. }
            | Error::Cancelled { key, .. }
            | Error::ShutDown { key }
            | Error::Nested { key }
            | Error::Forked { key }
            | Error::Unknown { key, .. }
            | Error::NoConnection { key, .. }
            | Error::Refused { key, .. }
            | Error::Unsupported { key, .. }
            | Error::Io { key, .. }
            | Error::Options { key, .. }
            | Error::NoId { key } => Some(key),
            Error::Several { cause, .. } => cause.key(),
            Error::Inspection { .. }
            | Error::Clocks { .. }
            | Error::Builder { .. }
            | Error::Address { .. } => None,
        }
    }

    /// Returns whether the lock was not acquired because another holder had it until the timeout, or at the last attempt.
    #[must_use]
    pub fn is_contention(&self) -> bool {
        matches!(self, Error::Timeout { .. } | Error::AttemptsExhausted { .. })
    }

    /// Returns whether the same call may succeed later without any change: after contention, while the server is unreachable, restarts,
    /// is a replica (as in a failover) or is over its memory, and after a lost reply.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Error::Timeout { .. } | Error::AttemptsExhausted { .. } => true,
            Error::Unknown { .. } | Error::Io { .. } => true,
            Error::Several { cause, others } => {
                cause.is_transient() && others.iter().all(Error::is_transient)
            }
            Error::NoConnection { cause, .. } => may_pass(cause),
            Error::Refused { refusal, .. } => refusal.may_pass(),
            Error::Inspection { cause } => match &**cause {
                InspectionFailure::NoConnection { cause, .. } => may_pass(cause),
                InspectionFailure::ConnectionRefused(refusal) | InspectionFailure::InfoRefused(refusal) => {
                    refusal.may_pass()
                }
                InspectionFailure::Lost(_) => true,
                InspectionFailure::Forked => false,
            },
            Error::Cancelled { .. }
            | Error::ShutDown { .. }
            | Error::Nested { .. }
            | Error::Forked { .. }
            | Error::Lost { .. }
            | Error::Fence { .. }
            | Error::Unsupported { .. }
            | Error::Options { .. }
            | Error::NoId { .. }
            | Error::Clocks { .. }
            | Error::Builder { .. }
            | Error::Address { .. } => false,
        }
    }

    /// Returns whether the lock may be held although the call failed: the reply to a command that acquires, extends, releases or clears it
    /// was lost. An expiring lock frees itself then.
    #[must_use]
    pub fn may_hold_lock(&self) -> bool {
        match self {
            Error::Unknown { .. } => true,
            Error::Several { cause, others } => {
                cause.may_hold_lock() || others.iter().any(Error::may_hold_lock)
            }
            _ => false,
        }
    }

    /// Returns true if a lock that was held was lost: another client may have worked under it at the same time. For several keys, if one of
    /// them was.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        match self {
            Error::Lost { .. } => true,
            Error::Several { cause, others } => cause.is_lost() || others.iter().any(Error::is_lost),
            _ => false,
        }
    }

    /// Returns the error of a loss; any other failure leaves a call with a body as it is.
    pub(crate) fn unless_lost(self) -> Result<(), Self> {
        if self.is_lost() { Err(self) } else { Ok(()) }
    }

    /// Returns the failures of a call on several keys as one error: the first loss if there is one, else the first failure with the others.
    pub(crate) fn of_all(outcomes: Vec<Result<(), Self>>) -> Result<(), Self> {
        let mut failures: Vec<Self> = outcomes.into_iter().filter_map(Result::err).collect();
        if failures.is_empty() {
            return Ok(());
        }
        match failures.iter().position(Self::is_lost) {
            Some(lost) => Err(failures.swap_remove(lost)),
            None => Err(failures.remove(0).and(failures)),
        }
    }

    /// Returns the error of a call on several keys, with what is the matter with others.
    pub(crate) fn and(self, others: Vec<Error>) -> Self {
        match self {
            _ if others.is_empty() => self,
            Self::Several { cause, others: mut all } => {
                all.extend(others);
                Self::Several { cause, others: all }
            }
            cause => Self::Several { cause: Box::new(cause), others },
        }
    }
}

fn may_pass(cause: &NoConnection) -> bool {
    match cause {
        NoConnection::Connect(ConnectError::Sentinel { .. } | ConnectError::Panicked(_)) => false,
        NoConnection::Connect(ConnectError::Refused(refusal)) => refusal.may_pass(),
        NoConnection::Connect(ConnectError::Failed(_) | ConnectError::Replica { .. })
        | NoConnection::PoolExhausted
        | NoConnection::Connecting { .. }
        | NoConnection::Pool(_) => true,
    }
}

#[cfg(test)]
mod tests;
