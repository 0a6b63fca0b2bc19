//! The errors of commands that were not sent, or not answered.

use std::io;
use std::time::Duration;

use super::{Error, text};
use crate::net::{ConnectError, NoConnection, Refusal, TransportError};
use crate::values::key::Key;

impl Error {
    /// Returns the error of a connection that was waited for that long.
    pub(crate) fn no_connection(key: Key, cause: NoConnection, waited: Duration) -> Self {
        let within = text::within(waited);
        let (problem, cause) = match cause {
            NoConnection::Connect(ConnectError::Refused(refusal)) => return Self::refused(key, refusal),
            NoConnection::Connect(ConnectError::Replica { address, of }) => {
                return Self::refused(key, Refusal::of_replica(&address, of.as_deref()));
            }
            NoConnection::Connect(ConnectError::Sentinel { address }) => {
                return Self::refused(key, Refusal::of_sentinel(&address));
            }
            NoConnection::Connect(ConnectError::Panicked(panic)) => {
                let problem = format!(
                    "connecting panicked: {panic}; with the feature tls-rustls a program must choose its cryptography: let it depend on \
                     rustls with the feature ring or aws_lc_rs"
                );
                return Self::invalid(key, problem);
            }
            NoConnection::PoolExhausted => (
                format!(
                    "no free connection of the pool{within}; make the pool larger, or hold its connections for less long"
                ),
                TransportError::new(io::ErrorKind::WouldBlock, "all connections of the pool were in use"),
            ),
            NoConnection::Unanswering { address } => (
                format!("no reply from {address}{within}; check the server and the network"),
                TransportError::at(&address, io::ErrorKind::TimedOut, " has not answered earlier commands"),
            ),
            NoConnection::Connecting { address } => (
                text::unconnected(Some(&address), &within),
                TransportError::at(
                    &address,
                    io::ErrorKind::TimedOut,
                    " has not answered the attempt to connect yet",
                ),
            ),
            NoConnection::Connect(ConnectError::Failed(error)) => {
                (text::unconnected(error.address(), &within), error)
            }
        };
        Self::Unavailable { key, problem, cause }
    }

    /// Returns the error of a command without a reply that changes nothing.
    pub(crate) fn no_reply(key: Key, command: &'static str, cause: TransportError) -> Self {
        let at = cause.address().map(|address| format!(" at {address}")).unwrap_or_default();
        let problem = format!("{command} failed{at}; check the server and the network, then try again");
        Self::Unavailable { key, problem, cause }
    }

    /// Returns the error of a release that was not carried out, with what that means for the lock.
    pub(crate) fn not_released(self, means: &'static str) -> Self {
        match self {
            Self::Refused { key, refusal, .. } => Self::Refused { key, refusal, advice: Some(means) },
            Self::Unavailable { key, mut problem, cause } => {
                let what = problem.split(';').next().unwrap_or_default().len();
                problem.truncate(what);
                Self::Unavailable { key, problem: format!("{problem}; {means}"), cause }
            }
            error => error,
        }
    }
}
