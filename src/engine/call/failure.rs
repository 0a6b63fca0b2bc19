//! The last failure of a call, and the user's error that it makes: the rules know only that there was one.

use std::time::Duration;

use super::Call;
use crate::backend::{ConnectError, NoConnection, Refusal, TransportError};
use crate::error::Error;
use crate::options::Protocol;
use crate::protocol::GiveUp;
use crate::version::Version;

pub(super) enum LastFailure {
    TooOld { version: Version, protocol: Protocol },
    NoTransactions { refusal: Option<Refusal>, protocol: Protocol },
    Refused { command: &'static str, refusal: Refusal },
    NoConnection { cause: NoConnection, waited: Duration },
    Lost { command: &'static str, error: TransportError },
}

impl Call<'_> {
    /// Returns the last command that may have changed a key and has no reply, and why not.
    pub(in crate::engine) fn take_unanswered(&mut self) -> Option<(&'static str, TransportError)> {
        self.unanswered.take()
    }

    /// Whether a command has failed, so that the next may not take long.
    pub(in crate::engine) fn has_failed(&self) -> bool {
        matches!(self.last_failure, Some(LastFailure::Lost { .. } | LastFailure::NoConnection { .. }))
    }

    /// Returns how the server was found unreachable by the last command, if it was.
    pub(in crate::engine) fn unreachable(&self) -> Option<NoConnection> {
        match self.last_failure.as_ref().filter(|_| self.unanswered_last) {
            Some(LastFailure::Lost { error, .. }) => {
                Some(NoConnection::Connect(ConnectError::Failed(error.clone())))
            }
            Some(LastFailure::NoConnection { cause, .. }) => Some(cause.clone()),
            _ => None,
        }
    }

    /// Notes that nothing is sent, since another call has found the server unreachable.
    pub(in crate::engine) fn fail(&mut self, cause: NoConnection) {
        self.last_failure = Some(LastFailure::NoConnection { cause, waited: Duration::ZERO });
    }

    /// Whether the last command was not sent because all connections were in use.
    pub(in crate::engine) fn found_pool_exhausted(&self) -> bool {
        matches!(
            self.last_failure,
            Some(LastFailure::NoConnection { cause: NoConnection::PoolExhausted, .. })
        )
    }

    /// Makes the user's error: an unknown outcome comes first, then the last failure.
    pub(in crate::engine) fn error(mut self, reason: GiveUp, advice: &'static str) -> Error {
        self.take_error(reason, advice)
    }

    /// The same for a release, which says also of a refusal what it means for the lock.
    pub(in crate::engine) fn take_release_error(
        &mut self,
        reason: GiveUp,
        if_unknown: &'static str,
        if_refused: &'static str,
    ) -> Error {
        match self.take_error(reason, if_unknown) {
            Error::Refused { key, refusal, .. } => Error::Refused { key, refusal, advice: Some(if_refused) },
            error => error,
        }
    }

    /// The same, once.
    pub(in crate::engine) fn take_error(&mut self, reason: GiveUp, advice: &'static str) -> Error {
        let key = self.key.clone();
        match (self.unanswered.take(), self.last_failure.take()) {
            (Some((command, cause)), _) if reason == GiveUp::Unknown => {
                Error::Unknown { key, command, advice, cause }
            }
            (_, Some(LastFailure::TooOld { version, protocol })) => {
                Error::Unsupported { key, protocol, version: Some(version), refusal: None }
            }
            (_, Some(LastFailure::NoTransactions { refusal, protocol })) => {
                Error::Unsupported { key, protocol, version: None, refusal: refusal.map(Box::new) }
            }
            (_, Some(LastFailure::Refused { command, refusal })) => match refusal.protocol_too_new(command) {
                Some(protocol) => {
                    Error::Unsupported { key, protocol, version: None, refusal: Some(Box::new(refusal)) }
                }
                None => Error::Refused { key, refusal: Box::new(refusal), advice: None },
            },
            (_, Some(LastFailure::Lost { command, error })) => Error::Io { key, command, source: error },
            (_, Some(LastFailure::NoConnection { cause, waited })) => {
                Error::NoConnection { key, waited, cause }
            }
            (_, None) => {
                Error::NoConnection { key, waited: Duration::ZERO, cause: NoConnection::PoolExhausted }
            }
        }
    }
}
