//! Why a command has no reply that the rules could judge, from the socket up to the user's error.
//! The redis crate's error type ends here.

use std::fs::File;
use std::time::Duration;
use std::{fmt, io};

use proto::values::CutAt;

use super::Refusal;
use super::refusal::without_arguments;
use redis::RedisError;

/// Why a command has no reply, or a connection could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    /// The server refused the command or the connection, or it is known that it would: it is a replica or too old.
    /// Nothing was carried out.
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
    /// What opens the connection panicked: the TLS library, where the
    /// program has not set it up. It is called again after some seconds.
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

    /// There is no connection yet, since the program has not said in time how to log in.
    pub(crate) fn login_took_too_long() -> Self {
        let what = "the function given for the login has not returned within the time for connecting";
        Self::unreachable(TransportError::here(io::ErrorKind::TimedOut, what))
    }

    /// The connections to the server at this address carry commands that it
    /// has not answered. Without one: those of the user's pool are in use.
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

/// How many bytes of text are kept: an address, and why.
const LONGEST_TEXT: usize = 512;

/// Talking to the server failed: a timeout, a closed connection, or bytes that are no reply of a Redis server.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.text)]
pub struct TransportError(Box<ErrorParts>);

/// In a box, since what comes of a command is passed around, and hardly ever is an error.
#[derive(Clone, PartialEq, Eq)]
struct ErrorParts {
    kind: io::ErrorKind,
    /// Host and port, where they are known.
    address: Option<Box<str>>,
    text: Box<str>,
    /// True if the cause is this program or its machine, and not the server or the network.
    is_here: bool,
}

impl TransportError {
    pub(crate) fn new(kind: io::ErrorKind, text: &str) -> Self {
        let text = CutAt(without_arguments(text).as_bytes(), LONGEST_TEXT).to_string().into();
        Self(Box::new(ErrorParts { kind, address: None, text, is_here: false }))
    }

    /// Says what this program or its machine lacks.
    pub(crate) fn here(kind: io::ErrorKind, text: &str) -> Self {
        let mut error = Self::new(kind, text);
        error.0.is_here = true;
        error
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
        } else if let Some(lacking) = lacking_descriptor() {
            Self::here(
                lacking.kind(),
                &format!("this process has no file descriptor left for a connection: {lacking}"),
            )
        } else if error.is_io_error() {
            Self::at(address, io::ErrorKind::Other, &format!(": {error}"))
        } else {
            Self::unreadable(address, error)
        }
    }

    /// A reply that is none. The parser's words go over several lines.
    fn unreadable(server: &str, error: &RedisError) -> Self {
        let words = error.detail().map_or_else(|| error.to_string(), str::to_owned);
        let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
        Self::new(
            io::ErrorKind::InvalidData,
            &format!("{server} does not answer as a Redis server does: {words}"),
        )
    }

    /// Returns true if the cause is this program or its machine.
    pub(crate) fn is_here(&self) -> bool {
        self.0.is_here
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

/// Returns why no file can be opened, if so. What a lookup of a name says then is that there is no such name.
fn lacking_descriptor() -> Option<io::Error> {
    let error = File::open("/").err()?;
    error.raw_os_error().filter(|code| NO_DESCRIPTOR.contains(code)).map(|_| error)
}

/// `ENFILE` and `EMFILE`: no more in the system, or in the process.
const NO_DESCRIPTOR: [i32; 2] = [23, 24];

impl fmt::Debug for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The text is escaped already.
        f.debug_struct("TransportError")
            .field("kind", &self.0.kind)
            .field("text", &format_args!("\"{}\"", self.0.text))
            .finish_non_exhaustive()
    }
}
