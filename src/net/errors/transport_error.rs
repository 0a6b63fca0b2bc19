//! An I/O error, or bytes that are no reply, as a command's caller gets it. The redis crate's error type ends here.

use std::time::Duration;
use std::{fmt, io};

use redis::RedisError;

use super::refusal::without_arguments;
use crate::values::key::CutAt;

/// How many bytes of text are kept: an address, and why.
const LONGEST_TEXT: usize = 512;

/// Talking to the server failed: a timeout, a closed connection, or bytes that are no reply of a Redis server.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.text)]
pub struct TransportError(Box<Parts>);

/// In a box, since what comes of a command is passed around, and hardly ever is an error.
#[derive(Clone, PartialEq, Eq)]
struct Parts {
    kind: io::ErrorKind,
    /// Host and port, where they are known.
    address: Option<Box<str>>,
    text: Box<str>,
}

impl TransportError {
    pub(crate) fn new(kind: io::ErrorKind, text: &str) -> Self {
        let text = CutAt(without_arguments(text).as_bytes(), LONGEST_TEXT).to_string().into();
        Self(Box::new(Parts { kind, address: None, text }))
    }

    /// Says of the server at this address what it has done.
    pub(crate) fn at(address: &str, kind: io::ErrorKind, what: &str) -> Self {
        let mut error = Self::new(kind, &format!("{address}{what}"));
        error.0.address = Some(address.into());
        error
    }

    /// Returns the server's host and port, where they are known.
    pub(crate) fn address(&self) -> Option<&str> {
        self.0.address.as_deref()
    }

    /// Describes an error of a connection to `address`, on which an answer may take `limit`. The system's own words are
    /// "Resource temporarily unavailable" when time is up, and name no address.
    pub(in crate::net) fn on(address: &str, limit: Duration, error: &RedisError) -> Self {
        if error.is_timeout() {
            Self::at(address, io::ErrorKind::TimedOut, &format!(" gave no reply within {limit:?}"))
        } else if error.is_connection_refusal() {
            Self::at(address, io::ErrorKind::ConnectionRefused, &format!(": {error}"))
        } else if error.is_connection_dropped() {
            Self::at(address, io::ErrorKind::ConnectionReset, &format!(" closed the connection: {error}"))
        } else if error.is_io_error() {
            Self::at(address, io::ErrorKind::Other, &format!(": {error}"))
        } else {
            Self::unreadable(address, error)
        }
    }

    /// A reply that is none. The parser's words go over several lines.
    fn unreadable(server: &str, error: &RedisError) -> Self {
        let words = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        Self::new(
            io::ErrorKind::InvalidData,
            &format!("{server} does not answer as a Redis server does: {words}"),
        )
    }

    /// Returns what kind of I/O error it is; [`InvalidData`](io::ErrorKind::InvalidData) for bytes that are no reply.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        self.0.kind
    }

    /// Returns true if the server, or something on the way to it, closed the connection.
    pub(crate) fn is_disconnect(&self) -> bool {
        self.0.kind == io::ErrorKind::ConnectionReset
    }
}

impl fmt::Debug for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The text is escaped already.
        f.debug_struct("TransportError")
            .field("kind", &self.0.kind)
            .field("text", &format_args!("\"{}\"", self.0.text))
            .finish_non_exhaustive()
    }
}
