//! Why a command has no reply that the rules could judge.

use std::time::Duration;

use super::{ConnectError, Refusal, TransportError};
use crate::values::version::Version;

/// Why a command has no reply for the rules to judge.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// There was no connection in time. Nothing was sent.
    NoConnection { cause: NoConnection, waited: Duration },
    /// The time that the command was bound to had passed. Nothing was sent.
    TooLate,
    /// The server is too old for the command. Nothing was sent.
    TooOld(Version),
    /// Transactions do not reach the server: it refuses WATCH or MULTI as unknown, or connections are closed on it. Nothing was sent.
    NoTransactions(Option<Refusal>),
    /// The server refused the command, which was not carried out.
    Refused(Refusal),
    /// The reply was lost: the command may have been carried out.
    Lost(TransportError),
}

impl Failure {
    /// What a failed attempt to connect comes to, `waited` after the connection was asked for.
    pub(in crate::net) fn of_connecting(error: ConnectError, waited: Duration) -> Self {
        match error {
            ConnectError::Refused(refusal) => Failure::Refused(refusal),
            error => Failure::NoConnection { cause: NoConnection::Connect(error), waited },
        }
    }

    /// Returns how the server was found unreachable, if it was.
    pub(in crate::net) fn unanswered(&self) -> Option<NoConnection> {
        match self {
            Failure::NoConnection {
                cause: NoConnection::PoolExhausted | NoConnection::Unanswering { .. },
                ..
            } => None,
            Failure::Lost(error) => Some(NoConnection::Connect(ConnectError::Failed(error.clone()))),
            Failure::NoConnection { cause, .. } => Some(cause.clone()),
            _ => None,
        }
    }
}

impl From<TransportError> for Failure {
    fn from(error: TransportError) -> Self {
        Failure::Lost(error)
    }
}

/// Why there was no connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum NoConnection {
    /// All connections of a pool of the user's own were in use all the time.
    #[error("all connections of the pool were in use")]
    PoolExhausted,
    /// All own connections carry commands that the server has not answered.
    #[error("{address} has not answered earlier commands")]
    #[non_exhaustive]
    Unanswering {
        /// The server's host and port.
        address: String,
    },
    /// The pool has no connection yet, and the server has not answered the attempt to open one.
    #[error("{address} has not answered the attempt to connect yet")]
    #[non_exhaustive]
    Connecting {
        /// The server's host and port.
        address: String,
    },
    /// Connecting failed.
    #[error(transparent)]
    Connect(ConnectError),
}
