//! What can go wrong: each error with the key, what happened, and what to do. Why it happened is the error's source.

mod contention;
mod text;
mod unanswered;

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use proto::quorum;
use proto::values::{Cut, Key, Wall};

use crate::net::{Refusal, TransportError};
use crate::report::state::{LossReason, in_words};
pub use contention::Contention;
use text::{AnswersInWords, Cancellation, Chain, LostBy, Majority, Of, Others, Refused, TimedOut, shown};

/// Why a call on a lock failed.
///
/// The text says what happened to which key and what to do; the [`source`](std::error::Error::source), if any, says
/// why. [`chain`](Self::chain) shows both. No text is longer than 1 kB: long keys and values are cut.
///
/// Calls for which contention is an expected outcome, such as [`Lock::try_lock`](crate::Lock::try_lock), return `None`
/// instead of an error. [`is_contention`](Self::is_contention), [`is_lost`](Self::is_lost),
/// [`may_hold_lock`](Self::may_hold_lock) and [`is_transient`](Self::is_transient) classify errors.
///
/// ```
/// # use setnx_lock::{Error, LockGuard};
/// # fn handle(outcome: Result<LockGuard, Error>) {
/// match outcome {
///     Ok(held) => println!("{held:?}"),
///     Err(Error::Contended { details, .. }) => println!("held by another: {:?}", details.seen),
///     Err(Error::Lost { reason, .. }) => println!("lost: {reason}"),
///     Err(error) if error.is_transient() => println!("try again later: {error}"),
///     Err(error) => println!("{error}"),
/// }
/// # }
/// ```
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another holder had the lock until the timeout, or at each attempt that
    /// [`max_attempts`](crate::LockOptions::max_attempts) allows.
    #[error("{}{details}", TimedOut(key, *timeout))]
    #[non_exhaustive]
    Contended {
        /// The lock's key.
        key: Key,
        /// The timeout as given; `None` if the attempts were used up first.
        timeout: Option<Duration>,
        /// What was seen while waiting.
        details: Box<Contention>,
    },

    /// The [`CancelToken`](crate::CancelToken) of the lock was cancelled. The lock was not acquired.
    #[error("lock {} not acquired: {}", shown(key), Cancellation(*waited))]
    #[non_exhaustive]
    Cancelled {
        /// The lock's key.
        key: Key,
        /// How long the call had waited.
        waited: Duration,
    },

    /// The locker was [shut down](crate::Locker::shut_down) or
    /// [drained](crate::Locker::drain). The lock was not acquired.
    #[error(
        "lock {} not acquired: its locker was shut down; open a new one if the program goes on",
        shown(key)
    )]
    #[non_exhaustive]
    ShutDown {
        /// The lock's key.
        key: Key,
        /// How long the call had waited.
        waited: Duration,
    },

    /// The lock was lost: its lease has ended, or its key is missing or holds another client's value. Another client
    /// may hold the lock, or may have held it meanwhile.
    #[error("lock {}{}", shown(key), LostBy(reason, *late, *advice))]
    #[non_exhaustive]
    Lost {
        /// The lock's key.
        key: Key,
        /// Why it is lost.
        reason: LossReason,
        /// How long ago the lease ended, if that is why.
        late: Option<Duration>,
        /// What to do if a [token](crate::LockToken) was used, and the lock had not been held by this process.
        advice: Option<&'static str>,
    },

    /// The reply to a command that changes the key was lost, and
    /// reading the key did not show whether the command was executed.
    #[error(
        "lock {}: the reply to {command} was lost, so the server may or may not have carried it out; {advice}",
        shown(key)
    )]
    #[non_exhaustive]
    InDoubt {
        /// The lock's key.
        key: Key,
        /// The command that got no reply.
        command: &'static str,
        /// What this means for the key, and what to do.
        advice: &'static str,
        /// Why the reply was lost.
        #[source]
        cause: TransportError,
    },

    /// There was no connection in time, or no reply to a command that changes nothing. No key was changed.
    #[error("{}{problem}", Of(Some(key)))]
    #[non_exhaustive]
    Unavailable {
        /// The lock's key.
        key: Key,
        /// What happened, and what to do.
        problem: String,
        /// Why.
        #[source]
        cause: TransportError,
    },

    /// The server refused a command or the connection. No key was changed.
    #[error("{}{}", Of(Some(key)), Refused(refusal, *advice))]
    #[non_exhaustive]
    Refused {
        /// The lock's key.
        key: Key,
        /// Its [kind](Refusal::kind), the server's text, and what to do.
        refusal: Box<Refusal>,
        /// What it means for a lock that was to be released.
        advice: Option<&'static str>,
    },

    /// This thread is already inside [`Lock::with`](crate::Lock::with), or a function with the attribute `locked`, on
    /// this key, so it would wait for itself.
    #[error(
        "lock {} is already held by this thread, in an enclosing `with` or `#[locked]`: acquiring it again would wait for itself; pass the \
         guard down, use another key for the inner work, or have calls on a `Lock` or `MultiLock` join by `reentrant`",
        shown(key)
    )]
    #[non_exhaustive]
    Nested {
        /// The lock's key.
        key: Key,
    },

    /// The process was forked after the locker was opened. Open a new locker in the child.
    #[error(
        "{}this process was forked after its locker was opened; open a new one in the child",
        Of(Some(key))
    )]
    #[non_exhaustive]
    Forked {
        /// The lock's key.
        key: Key,
    },

    /// An argument or a setting is invalid: options, a key, an address, an id, a value of
    /// the builder, TLS without a crypto provider. Also for a clock of this machine that
    /// cannot be right, such as one that shows 1970, for a counter of fencing tokens that is
    /// not positive, and for a number of readers that differs from that of other callers.
    #[error("{}{problem}", Of(key.as_ref()))]
    #[non_exhaustive]
    Invalid {
        /// The lock's key; `None` if the error is about a locker.
        key: Option<Key>,
        /// What is wrong, and what to do instead.
        problem: Cow<'static, str>,
    },

    /// Fewer than a majority of the servers of a [`Quorum`](crate::Quorum) granted, extended, confirmed or released the
    /// lock. [`is_contention`](Error::is_contention) and [`is_lost`](Error::is_lost) tell the cases apart.
    #[error(
        "lock {}{}{}",
        shown(key),
        Majority { failed, agreed: *agreed, servers: agreed + answers.len(), lost: *lost },
        AnswersInWords(key, answers)
    )]
    #[non_exhaustive]
    NoMajority {
        /// The lock's key.
        key: Key,
        /// `not acquired` (with the time that was waited), `not extended`, `not verified` or `not released`.
        failed: String,
        /// How many servers agreed.
        agreed: usize,
        /// True if the lock was held, and too few servers still have it.
        lost: bool,
        /// Each other server's address and error; `None` if it did not reply in time or does not have the lock.
        answers: Vec<(String, Option<Error>)>,
    },

    /// A call on several keys failed, and some may still be held: they are in doubt, or were not released.
    #[error("a call on several locks failed at lock {}{}", cause.key().map_or(Cut(b"?"), shown), Others(others))]
    #[non_exhaustive]
    Several {
        /// Why the call failed.
        #[source]
        cause: Box<Error>,
        /// One error for each key that may still be held.
        others: Vec<Error>,
    },
}

impl Error {
    /// Returns the key that the error is about; `None` if it is about a locker.
    #[must_use]
    pub fn key(&self) -> Option<&Key> {
        match self {
            Error::Contended { key, .. }
            | Error::Cancelled { key, .. }
            | Error::ShutDown { key, .. }
            | Error::Lost { key, .. }
            | Error::InDoubt { key, .. }
            | Error::NoMajority { key, .. }
            | Error::Unavailable { key, .. }
            | Error::Refused { key, .. }
            | Error::Forked { key }
            | Error::Nested { key } => Some(key),
            Error::Invalid { key, .. } => key.as_ref(),
            Error::Several { cause, .. } => cause.key(),
        }
    }

    /// Returns true if another holder had the lock until the timeout, or at the last attempt.
    #[must_use]
    pub fn is_contention(&self) -> bool {
        match self {
            Error::Contended { .. } => true,
            Error::NoMajority { .. } => self.majority(|answer| answer.is_some_and(Error::is_contention)),
            _ => false,
        }
    }

    /// Returns true if a majority of a quorum's servers agreed or gave such an answer, and the lock was not lost.
    pub(crate) fn majority(&self, is_such: impl Fn(Option<&Error>) -> bool) -> bool {
        let Error::NoMajority { agreed, lost: false, answers, .. } = self else { return false };
        let such = answers.iter().filter(|(_, answer)| is_such(answer.as_ref())).count();
        agreed + such >= quorum::majority(agreed + answers.len())
    }

    /// Shows the error with its causes in a line, for a log or a terminal, as anyhow's `{:#}` does.
    ///
    /// ```
    /// use setnx_lock::{Lock, LockOptions, Locker};
    /// use std::time::Duration;
    ///
    /// let locker = Locker::builder("redis://127.0.0.1:1/")?.retry_for(Duration::ZERO).build()?;
    /// let lock = Lock::new(&locker, "report", LockOptions::expiring_after(Duration::from_secs(60)))?;
    /// if let Err(error) = lock.with(|_held| println!("building the report")) {
    ///     eprintln!("{}", error.chain());
    ///     // lock report: no connection to 127.0.0.1:1 …; check that the server is up …: 127.0.0.1:1: Connection refused
    ///     # assert!(error.chain().to_string().contains("refused"));
    /// }
    /// # Ok::<(), setnx_lock::Error>(())
    /// ```
    #[must_use]
    pub fn chain(&self) -> impl fmt::Display + '_ {
        Chain(self)
    }

    /// Returns true if a lock that was held was lost: another client may have worked under it at the same time.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        match self {
            Error::Lost { .. } => true,
            Error::NoMajority { lost, .. } => *lost,
            Error::Several { cause, .. } => cause.is_lost(),
            _ => false,
        }
    }

    /// Returns true if the same call may succeed later without any change: after contention, while the server is
    /// unreachable, restarts, is a replica (as in a failover) or is over its memory, and after a lost reply.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Error::Contended { .. } | Error::InDoubt { .. } | Error::Unavailable { .. } => true,
            Error::Refused { refusal, .. } => refusal.is_transient(),
            Error::Several { cause, others } => {
                cause.is_transient() && others.iter().all(Error::is_transient)
            }
            // A server that did not answer may answer later.
            Error::NoMajority { .. } => self.majority(|answer| answer.is_none_or(Error::is_transient)),
            Error::Cancelled { .. }
            | Error::ShutDown { .. }
            | Error::Lost { .. }
            | Error::Nested { .. }
            | Error::Forked { .. }
            | Error::Invalid { .. } => false,
        }
    }

    /// Returns true if the lock may be held although the call failed: the reply to a command that acquires, extends,
    /// releases or clears it was lost. An expiring lock frees itself then.
    #[must_use]
    pub fn may_hold_lock(&self) -> bool {
        match self {
            Error::InDoubt { .. } => true,
            Error::NoMajority { answers, .. } => {
                answers.iter().any(|(_, error)| error.as_ref().is_some_and(Error::may_hold_lock))
            }
            Error::Several { cause, others } => {
                cause.may_hold_lock() || others.iter().any(Error::may_hold_lock)
            }
            _ => false,
        }
    }

    /// Returns the error of a call that was ended from outside.
    pub(crate) fn ended(key: Key, waited: Duration, shut_down: bool) -> Self {
        if shut_down { Self::ShutDown { key, waited } } else { Self::Cancelled { key, waited } }
    }

    /// Returns the error of a call on a lock that is invalid.
    pub(crate) fn invalid(key: Key, problem: impl Into<Cow<'static, str>>) -> Self {
        Self::Invalid { key: Some(key), problem: problem.into() }
    }

    /// Returns the error of a call on a lock by a clock that shows this.
    pub(crate) fn clock_unset(key: Key, shows: Wall) -> Self {
        let problem = format!(
            "the clock of this machine shows {}, which cannot be right, and others would take the lock's time for none; set the clock, for \
             example by NTP, and then acquire the lock",
            in_words(shows)
        );
        Self::invalid(key, problem)
    }

    /// Returns the error of a locker that is invalid.
    pub(crate) fn invalid_locker(problem: impl Into<Cow<'static, str>>) -> Self {
        Self::Invalid { key: None, problem: problem.into() }
    }

    pub(crate) fn refused(key: Key, refusal: Refusal) -> Self {
        Self::Refused { key, refusal: Box::new(refusal), advice: None }
    }

    /// Returns why a lock on one server was lost, if this is such an error.
    pub(crate) fn loss_reason(&self) -> Option<LossReason> {
        if let Error::Lost { reason, .. } = self { Some(reason.clone()) } else { None }
    }

    /// Returns the error of a quorum as that of a loss.
    pub(crate) fn of_loss(self) -> Self {
        match self {
            Self::NoMajority { key, failed, agreed, answers, .. } => {
                Self::NoMajority { key, failed, agreed, lost: true, answers }
            }
            error => error,
        }
    }

    /// Returns the error of a loss; any other failure leaves a call with a body as it is.
    pub(crate) fn unless_lost(self) -> Result<(), Self> {
        if self.is_lost() { Err(self) } else { Ok(()) }
    }

    /// Returns `None` where the lock was not acquired because other holders have it.
    pub(crate) fn unless_contended<T>(acquired: Result<T, Self>) -> Result<Option<T>, Self> {
        match acquired {
            Err(error) if error.is_contention() => Ok(None),
            acquired => acquired.map(Some),
        }
    }

    /// Returns the failures of a call on several keys as one error: the first loss if there is one, else the first
    /// failure with the others.
    pub(crate) fn of_all(outcomes: impl Iterator<Item = Result<(), Self>>) -> Result<(), Self> {
        let mut failures = Vec::new();
        outcomes.filter_map(Result::err).for_each(|failure| failures.push(failure));
        match failures.iter().position(Self::is_lost) {
            _ if failures.is_empty() => Ok(()),
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

#[cfg(test)]
mod tests;
