//! Why a server could not be inspected.

use std::time::Duration;

use super::text::Unconnected;
use crate::backend::{NoConnection, Refusal, TransportError};

/// Why a server could not be inspected.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InspectionFailure {
    /// There was no connection in time.
    #[error("{}", Unconnected(cause, *waited))]
    #[non_exhaustive]
    NoConnection {
        /// How long a connection was waited for.
        waited: Duration,
        /// Why there was none.
        #[source]
        cause: NoConnection,
    },
    /// The server refused the connection, or the user.
    #[error("{0}")]
    ConnectionRefused(Refusal),
    /// The server refused INFO, without which nothing is known of it.
    #[error("it refused INFO: {}", .0.text())]
    InfoRefused(Refusal),
    /// Talking to the server failed.
    #[error(transparent)]
    Lost(TransportError),
    /// This process was forked from the one that opened the locker.
    #[error("this process was forked after its locker was opened")]
    Forked,
}

impl InspectionFailure {
    pub(super) fn advice(&self) -> &'static str {
        match self {
            InspectionFailure::NoConnection { .. } | InspectionFailure::ConnectionRefused(_) => "",
            InspectionFailure::InfoRefused(_) => "; permit INFO to this user",
            InspectionFailure::Lost(_) => "; check the server and the network, then try again",
            InspectionFailure::Forked => "; open a new locker in the child",
        }
    }
}
