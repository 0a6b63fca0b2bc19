//! What can go wrong, each with the key and what to do about it.

mod causes;

use std::fmt;
use std::time::Duration;

use crate::key::Key;
use crate::options::Protocol;
use crate::server::ClockDifference;
use crate::server::refusal::Refusal;
use crate::version::Version;
pub use causes::{Contention, NoAnswer, NoConnection};

/// Why a call on a lock failed. Contention is not among the reasons where it is an expected answer:
/// [`Lock::try_lock`](crate::Lock::try_lock) says `None`.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Somebody else held the lock until the timeout: the gem's `Redis::Lock::LockTimeout`, whose text this begins with.
    #[error("Timeout on lock {key} exceeded {} sec{details}", Seconds(*timeout))]
    #[non_exhaustive]
    Timeout {
        /// The lock's key.
        key: Key,
        /// The timeout as it was given.
        timeout: Duration,
        /// What was seen while waiting.
        details: Box<Contention>,
    },

    /// The wait was ended by its [`Canceller`](crate::Canceller), or would have begun after that was used.
    #[error("lock {key}: {}; it is not ours", Ended(*waited))]
    #[non_exhaustive]
    Cancelled {
        /// The lock's key.
        key: Key,
        /// How long the wait was.
        waited: Duration,
    },

    /// The locker was [shut down](crate::Locker::shut_down): nobody waits for its locks any more.
    #[error(
        "lock {key}: its locker was shut down, and gets no more locks; open a new one if the program is to go on"
    )]
    #[non_exhaustive]
    ShutDown {
        /// The lock's key.
        key: Key,
    },

    /// This thread is inside [`Lock::with`](crate::Lock::with) on this key: waiting would wait for itself.
    #[error(
        "lock {key} is already held by this thread, in an enclosing `with`: taking it again would wait for itself; pass the \
         guard down, or use another key for the inner work"
    )]
    #[non_exhaustive]
    Nested {
        /// The lock's key.
        key: Key,
    },

    /// This process was forked from the one that opened the locker, whose connections it must not use.
    #[error("lock {key}: this process was forked after its locker was opened; open a new one in the child")]
    #[non_exhaustive]
    Forked {
        /// The lock's key.
        key: Key,
    },

    /// The lease has passed while the lock was held: others may have it by now.
    #[error(
        "lock {key} is no longer ours: its lease ended {} ago; stop the protected work, and choose a longer expiration",
        Span(*late)
    )]
    #[non_exhaustive]
    Expired {
        /// The lock's key.
        key: Key,
        /// How long ago the lease ended.
        late: Duration,
    },

    /// A command that may have changed the key got no answer, and reading the key did not settle it.
    #[error(
        "lock {key}: the answer to {command} was lost ({cause}), so the server may or may not have carried it out; {advice}"
    )]
    #[non_exhaustive]
    Unknown {
        /// The lock's key.
        key: Key,
        /// The command that got no answer.
        command: &'static str,
        /// What it means for the key and what to do.
        advice: &'static str,
        /// The error that the answer was lost by.
        #[source]
        cause: redis::RedisError,
    },

    /// There was no connection to the server in time, and so the last command was not sent. Nothing is in doubt.
    #[error("lock {key}: {}", Unconnected(cause, *waited))]
    #[non_exhaustive]
    Pool {
        /// The lock's key.
        key: Key,
        /// How long a connection was waited for.
        waited: Duration,
        /// Why there was none.
        cause: NoConnection,
    },

    /// The server said no: the last command was not carried out. Nothing is in doubt.
    #[error("lock {key}: {refusal}")]
    #[non_exhaustive]
    Refused {
        /// The lock's key.
        key: Key,
        /// What the server said, and what to do.
        refusal: Box<Refusal>,
    },

    /// The server is too old for the protocol of the options. Nothing is in doubt.
    #[error(
        "lock {key}: {} protocol {protocol:?}, which needs Redis {}; {}",
        TooOld(*version, refusal.as_deref()), protocol.needs(), protocol.instead()
    )]
    #[non_exhaustive]
    Unsupported {
        /// The lock's key.
        key: Key,
        /// The protocol that the server is too old for.
        protocol: Protocol,
        /// The server's version, where it is known: it is asked for when a connection is opened.
        version: Option<Version>,
        /// What the server said to a command that it does not know; `None` if its version was enough to know.
        refusal: Option<Box<Refusal>>,
    },

    /// Talking to the server failed, for a command that changes nothing. Nothing is in doubt.
    #[error("lock {key}: {command} failed: {source}; check the server and the network, then try again")]
    #[non_exhaustive]
    Io {
        /// The lock's key.
        key: Key,
        /// The command that failed.
        command: &'static str,
        /// The error of the redis crate.
        source: redis::RedisError,
    },

    /// The lock was declared with options that make no sense.
    #[error("lock \"{key}\": {problem}")]
    #[non_exhaustive]
    Options {
        /// The lock's key.
        key: Key,
        /// What is wrong, and what to say instead.
        problem: &'static str,
    },

    /// A declared lock was asked for without an id: the gem's `NilObjectId`.
    #[error(
        "lock \"{key}\" needs an id, and there is none or an empty one, of a record that was not saved perhaps; give the record's \
         id, or for the lock of the whole class say `global`"
    )]
    #[non_exhaustive]
    NoId {
        /// The key with `#{id}` where the id would be.
        key: Key,
    },

    /// The server could not be asked what it is and can do.
    #[error("cannot find out what the server can do: {cause}")]
    #[non_exhaustive]
    Server {
        /// What was in the way.
        #[source]
        cause: Box<NoAnswer>,
    },

    /// The server's clock and ours are further apart than the settings allow, or the server does not tell its clock.
    #[error("cannot rely on clocks: {}", match difference {
        Some(difference) => format!("the server's is {difference}, and {limit:?} is allowed; set the clock that is wrong (NTP), then try again"),
        None => "the server does not tell its own; allow TIME to this user, or open the locker without `max_clock_difference`".to_owned(),
    })]
    #[non_exhaustive]
    Clocks {
        /// How far they are apart; `None` if the server does not tell.
        difference: Option<ClockDifference>,
        /// What the settings allow.
        limit: Duration,
    },

    /// A locker was to be opened with settings that make no sense.
    #[error("cannot open a locker: {problem}")]
    #[non_exhaustive]
    Settings {
        /// What is wrong, and what to say instead.
        problem: &'static str,
    },

    /// The server's address cannot be used.
    #[error(
        "cannot use this as the address of a Redis server: {source}; say redis://[:password@]host[:port][/database], \
         unix:///path, or with this crate's feature tls-rustls or tls-native-tls rediss://…"
    )]
    #[non_exhaustive]
    Address {
        /// The error of the redis crate.
        source: redis::RedisError,
    },
}

impl fmt::Debug for Error {
    /// The same words as for people, after the name of the variant: this is what a `main` that returns an error, and an
    /// `unwrap`, show to one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let variant = match self {
            Error::Timeout { .. } => "Timeout",
            Error::Cancelled { .. } => "Cancelled",
            Error::ShutDown { .. } => "ShutDown",
            Error::Nested { .. } => "Nested",
            Error::Forked { .. } => "Forked",
            Error::Expired { .. } => "Expired",
            Error::Unknown { .. } => "Unknown",
            Error::Pool { .. } => "Pool",
            Error::Refused { .. } => "Refused",
            Error::Unsupported { .. } => "Unsupported",
            Error::Io { .. } => "Io",
            Error::Options { .. } => "Options",
            Error::NoId { .. } => "NoId",
            Error::Server { .. } => "Server",
            Error::Clocks { .. } => "Clocks",
            Error::Settings { .. } => "Settings",
            Error::Address { .. } => "Address",
        };
        write!(f, "{variant}(\"{self}\")")
    }
}

impl Error {
    /// Returns the key that the error is about; `None` where it is about a locker.
    #[must_use]
    pub fn key(&self) -> Option<&Key> {
        match self {
            Error::Timeout { key, .. }
            | Error::Cancelled { key, .. }
            | Error::ShutDown { key }
            | Error::Nested { key }
            | Error::Forked { key }
            | Error::Expired { key, .. }
            | Error::Unknown { key, .. }
            | Error::Pool { key, .. }
            | Error::Refused { key, .. }
            | Error::Unsupported { key, .. }
            | Error::Io { key, .. }
            | Error::Options { key, .. }
            | Error::NoId { key } => Some(key),
            Error::Server { .. } | Error::Clocks { .. } | Error::Settings { .. } | Error::Address { .. } => {
                None
            }
        }
    }
}

/// How a wait was cancelled, which may have been before it began.
struct Ended(Duration);

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < Duration::from_millis(1) {
            return f.write_str("not waited for, since its canceller had been used before");
        }
        write!(f, "the wait was cancelled after {}", Span(self.0))
    }
}

/// Why there was no connection, and how long one was waited for where that matters.
struct Unconnected<'a>(&'a NoConnection, Duration);

impl fmt::Display for Unconnected<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            NoConnection::Replica { .. } => write!(f, "the server cannot be used: {}", self.0),
            cause => write!(f, "no connection to the server within {}: {cause}", Span(self.1)),
        }
    }
}

/// How a server is known to be too old.
struct TooOld<'a>(Option<Version>, Option<&'a Refusal>);

impl fmt::Display for TooOld<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0, self.1) {
            (Some(version), _) => write!(f, "the server is Redis {version}, too old for the"),
            (None, Some(refusal)) => {
                write!(f, "the server said \"{}\", so it does not know the commands of the", refusal.text())
            }
            (None, None) => f.write_str("the server is too old for the"),
        }
    }
}

/// Seconds as the gem writes them: `5`, `0.25`.
struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_secs_f64().fmt(f)
    }
}

/// A duration to the millisecond, for reading.
struct Span(Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", Duration::from_millis(u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)))
    }
}
