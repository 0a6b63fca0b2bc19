//! Why a connection could not be opened.

use super::refusal::Refusal;
use super::transport_error::TransportError;

/// Why a connection could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ConnectError {
    /// The server answered, and refused.
    #[error("{0}")]
    Refused(Refusal),
    /// The server is a replica, and a lock there protects nothing.
    #[error(
        "{address} is a replica{}, and a lock there protects nothing",
        of.as_ref().map_or(String::new(), |master| format!(" of {master}"))
    )]
    #[non_exhaustive]
    Replica {
        /// The replica's own host and port.
        address: String,
        /// The master's host and port, where the server tells them.
        of: Option<String>,
    },
    /// The server is a Sentinel, which has no keys.
    #[error(
        "{address} is a Sentinel, which has no keys; it returns the master's address for SENTINEL GET-MASTER-ADDR-BY-NAME"
    )]
    #[non_exhaustive]
    Sentinel {
        /// The Sentinel's host and port.
        address: String,
    },
    /// The server cannot be reached, or does not answer as a Redis server does.
    #[error("{0}")]
    Failed(TransportError),
    /// The library that opens the connection panicked: for TLS, one that the program has not set up. It is called again after
    /// some seconds.
    #[error("connecting panicked: {0}")]
    Panicked(String),
}
