//! Why a command has no reply that the rules could judge, from the socket up to the user's error.

use std::io;
use std::time::Duration;

use super::{Refusal, TransportError};

/// Why a command has no reply, or a connection could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    /// The server refused the command or the connection, or it is known that it would: it is a replica or too old. Nothing was carried out.
    #[error("{0}")]
    Refused(Refusal),
    /// There was no connection in time. Nothing was sent.
    #[error("{cause}")]
    Unreachable {
        cause: TransportError,
        /// How long one was waited for.
        waited: Duration,
        /// True if there were connections, all of them in use.
        all_in_use: bool,
    },
    /// What opens the connection panicked: the TLS library, where the program has not set it up. It is called again after some seconds.
    #[error("connecting panicked: {0}")]
    Panicked(String),
    /// The time that the command was bound to had passed. Nothing was sent.
    #[error("there was no time left")]
    TooLate,
    /// The reply was lost: the command may have been carried out.
    #[error("{0}")]
    Lost(TransportError),
}

impl Failure {
    /// The server cannot be reached, or does not answer as a Redis server does.
    pub(crate) fn unreachable(cause: TransportError) -> Self {
        Self::Unreachable { cause, waited: Duration::ZERO, all_in_use: false }
    }

    /// There is no connection yet, and the server at this address has not answered the attempt to open one.
    pub(crate) fn connecting(address: &str) -> Self {
        let what = " has not answered the attempt to connect yet";
        Self::unreachable(TransportError::at(address, io::ErrorKind::TimedOut, what))
    }

    /// The connections to the server at this address carry commands that it has not answered. Without one: those of the user's pool are in use.
    pub(crate) fn all_in_use(address: Option<&str>) -> Self {
        let cause = match address {
            Some(address) => {
                TransportError::at(address, io::ErrorKind::TimedOut, " has not answered earlier commands")
            }
            None => TransportError::new(io::ErrorKind::WouldBlock, "all connections of the pool were in use"),
        };
        Self::Unreachable { cause, waited: Duration::ZERO, all_in_use: true }
    }

    /// Returns it as that of a command that has waited for a connection for so long.
    pub(crate) fn after(self, waited: Duration) -> Self {
        match self {
            Self::Unreachable { cause, all_in_use, .. } => Self::Unreachable { cause, waited, all_in_use },
            other => other,
        }
    }

    /// Returns it as that of a command which is not sent for this reason, if there was no connection or no reply.
    pub(crate) fn of_the_next(&self) -> Option<Self> {
        match self {
            Self::Lost(cause) => Some(Self::unreachable(cause.clone())),
            other => other.is_unanswered().then(|| other.clone()),
        }
    }

    /// Returns true if there was no connection or no reply.
    pub(crate) fn is_unanswered(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::Unreachable { .. } | Self::Panicked(_))
    }

    pub(crate) fn found_all_in_use(&self) -> bool {
        matches!(self, Self::Unreachable { all_in_use: true, .. })
    }
}
