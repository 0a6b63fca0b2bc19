//! How the parts of errors read.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use proto::quorum;
use proto::values::{Cut, CutAt, Key};

use crate::net::Refusal;
use crate::report::state::LossReason;

/// A key, cut where it is long.
pub(super) fn shown(key: &Key) -> Cut<'_> {
    Cut(key.as_bytes())
}

/// What an error is about: a lock, or a locker, which has no name.
pub(super) struct Of<'a>(pub(super) Option<&'a Key>);

impl fmt::Display for Of<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(key) if key.as_bytes().is_empty() => f.write_str("lock \"\": "),
            Some(key) => write!(f, "lock {}: ", shown(key)),
            None => Ok(()),
        }
    }
}

/// An error with its causes, in a line.
pub(super) struct Chain<'a>(pub(super) &'a dyn Error);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        self.0.source().map_or(Ok(()), |cause| write!(f, ": {}", Chain(cause)))
    }
}

/// When a wait was cancelled, which may have been before it began.
pub(super) struct Cancellation(pub(super) Duration);

impl fmt::Display for Cancellation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < Duration::from_millis(1) {
            return f.write_str("its cancel token was already cancelled");
        }
        write!(f, "the wait was cancelled after {}", Span(self.0))
    }
}

/// That a lock is not held any more, or not by a token, why, and what to do.
pub(super) struct LostBy<'a>(
    pub(super) &'a LossReason,
    pub(super) Option<Duration>,
    pub(super) Option<&'static str>,
);

impl fmt::Display for LostBy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(reason, late, advice) = self;
        if let Some(advice) = advice {
            f.write_str(": its token cannot be used: ")?;
            match reason {
                LossReason::Expired | LossReason::ClockUnset => write!(f, "{reason}"),
                LossReason::Gone => f.write_str("its key is missing, as after a use, a release or a clear"),
                LossReason::Taken(_) => write!(f, "{reason}, as after a use or a takeover"),
            }?;
            return write!(f, "; {advice}");
        }
        f.write_str(" is no longer held: ")?;
        match late {
            Some(late) => {
                let ago = if *late < Duration::from_millis(1) {
                    "now".to_owned()
                } else {
                    format!("{} ago", Span(*late))
                };
                write!(
                    f,
                    "its lease ended {ago}; stop the protected work, and choose a longer expiration, or extend the lease for longer"
                )
            }
            None => write!(f, "{reason}; stop the protected work"),
        }
    }
}

/// Returns how long a connection was waited for; nothing for a call that does not wait.
pub(super) fn within(waited: Duration) -> String {
    if waited < Duration::from_millis(1) { String::new() } else { format!(" within {}", Span(waited)) }
}

/// Returns that there was no connection, and what to do. `is_here`: the server has nothing to do with it.
pub(super) fn unconnected(address: Option<&str>, within: &str, is_here: bool) -> String {
    if is_here {
        return format!(
            "no connection could be opened{within}; the cause is this program or its machine, not the server"
        );
    }
    let server = address.unwrap_or("the server");
    format!("no connection to {server}{within}; check that the server is up and that the address is right")
}

/// A refusal, and what it means for the lock.
pub(super) struct Refused<'a>(pub(super) &'a Refusal, pub(super) Option<&'static str>);

impl fmt::Display for Refused<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        self.1.map_or(Ok(()), |advice| write!(f, "; {advice}"))
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

/// How many servers of a quorum agreed, and how many must.
pub(super) struct Majority<'a> {
    pub(super) failed: &'a str,
    pub(super) agreed: usize,
    pub(super) servers: usize,
    pub(super) lost: bool,
}

impl fmt::Display for Majority<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { failed, agreed, servers, lost } = self;
        let needed = quorum::majority(*servers);
        if *lost {
            write!(
                f,
                " is no longer held: {agreed} of {servers} servers still have it, and {needed} must; stop the protected work"
            )
        } else {
            write!(f, " {failed}: {agreed} of {servers} servers agreed, and {needed} must")
        }
    }
}

/// What the other servers of a quorum said about the lock of this key.
pub(super) struct AnswersInWords<'a>(pub(super) &'a Key, pub(super) &'a [(String, Option<super::Error>)]);

/// How many servers' answers are shown, and how much of each.
const ANSWERS_SHOWN: usize = 5;
const ANSWER_SHOWN: usize = 160;

impl fmt::Display for AnswersInWords<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lock = format!("lock {}", shown(self.0));
        for (server, error) in self.1.iter().take(ANSWERS_SHOWN) {
            let said = match error {
                None => "no answer in time, or not held there".to_owned(),
                Some(super::Error::Contended { details, .. }) => {
                    details.seen.as_ref().map_or_else(|| "held".to_owned(), ToString::to_string)
                }
                Some(error) => {
                    let text = error.to_string();
                    text.strip_prefix(&lock).unwrap_or(&text).trim_start_matches([':', ' ']).to_owned()
                }
            };
            write!(
                f,
                "; {}: {}",
                CutAt(server.as_bytes(), ANSWER_SHOWN),
                CutAt(said.as_bytes(), ANSWER_SHOWN)
            )?;
        }
        match self.1.len().saturating_sub(ANSWERS_SHOWN) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

/// That the lock was not acquired: in time, with the seconds as
/// the gem writes them, `5` or `0.25`, or by the allowed attempts.
pub(super) struct TimedOut<'a>(pub(super) &'a Key, pub(super) Option<Duration>);

impl fmt::Display for TimedOut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = shown(self.0);
        match self.1 {
            None => write!(f, "lock {key} not acquired: its attempts are used up"),
            Some(Duration::ZERO) => write!(f, "lock {key} not acquired without waiting"),
            Some(timeout) => write!(f, "Timeout on lock {key} exceeded {} sec", Seconds(timeout)),
        }
    }
}

/// Seconds with as many decimals as they have.
struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = format!("{:09}", self.0.subsec_nanos());
        match decimals.trim_end_matches('0') {
            "" => write!(f, "{}", self.0.as_secs()),
            decimals => write!(f, "{}.{decimals}", self.0.as_secs()),
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
