//! The last failure of a call, and the user's error that it makes: the rules know only that there was one.

use std::time::Duration;

use super::Session;
use crate::net::{ConnectError, NoConnection, Refusal, RefusalKind, TooOld, TransportError};
use crate::report::error::Error;
use crate::rules::GiveUp;
use crate::rules::owned::LOOKS;
use crate::values::options::Protocol;
use crate::values::version::Version;

pub(super) enum LastFailure {
    TooOld { version: Version, protocol: Protocol },
    NoTransactions { refusal: Option<Refusal>, protocol: Protocol },
    Refused { command: &'static str, refusal: Refusal },
    NoConnection { cause: NoConnection, waited: Duration },
    Lost { command: &'static str, error: TransportError },
}

impl Session<'_> {
    /// Returns true if a command has failed, so that the next may not take long.
    pub(in crate::run) fn has_failed(&self) -> bool {
        matches!(
            self.last_failure.as_deref(),
            Some(LastFailure::Lost { .. } | LastFailure::NoConnection { .. })
        )
    }

    /// Returns how the server was found unreachable by the last command, if it was.
    pub(in crate::run) fn unreachable(&self) -> Option<NoConnection> {
        match self.last_failure.as_deref().filter(|_| self.unanswered_last) {
            Some(LastFailure::Lost { error, .. }) => {
                Some(NoConnection::Connect(ConnectError::Failed(error.clone())))
            }
            Some(LastFailure::NoConnection { cause, .. }) => Some(cause.clone()),
            _ => None,
        }
    }

    /// Returns how the server has refused the last command, if it has.
    pub(in crate::run) fn refusal(&self) -> Option<Refusal> {
        match self.last_failure.as_deref()? {
            LastFailure::Refused { refusal, .. } => Some(refusal.clone()),
            LastFailure::NoConnection {
                cause: NoConnection::Connect(ConnectError::Replica { address, of }),
                ..
            } => Some(Refusal::of_replica(address, of.as_deref())),
            _ => None,
        }
    }

    /// Returns true if a release that gave up for this reason may be tried again: not after a refusal that stays, nor after a command without
    /// a reply that compares nothing.
    pub(in crate::run) fn may_pass(&self, gave_up: GiveUp) -> bool {
        match gave_up {
            // A password may be about to change on this side as well.
            GiveUp::Refused => self.refusal().is_some_and(|refusal| {
                let of_login = [RefusalKind::NoPassword, RefusalKind::WrongPassword];
                refusal.is_transient() || of_login.contains(&refusal.kind())
            }),
            GiveUp::Unknown => self.unanswered.as_ref().is_some_and(|lost| lost.0 == "EXEC"),
            _ => true,
        }
    }

    /// Notes that nothing is sent, since another call has found the server unreachable.
    pub(in crate::run) fn fail(&mut self, cause: NoConnection) {
        self.last_failure = Some(Box::new(LastFailure::NoConnection { cause, waited: Duration::ZERO }));
    }

    /// Returns true if the last command was not sent because all connections were in use.
    pub(in crate::run) fn found_all_in_use(&self) -> bool {
        matches!(
            self.last_failure.as_deref(),
            Some(LastFailure::NoConnection {
                cause: NoConnection::PoolExhausted | NoConnection::Unanswering { .. },
                ..
            })
        )
    }

    /// Forgets how long a connection was waited for by the last command of a call that has waited much longer: it had little time left.
    pub(in crate::run) fn has_waited(&mut self, total: Duration) {
        if let Some(LastFailure::NoConnection { waited, .. }) = self.last_failure.as_deref_mut()
            && *waited < total / 2
        {
            *waited = Duration::ZERO;
        }
    }

    /// Makes the user's error: an unknown outcome comes first, then the last failure.
    pub(in crate::run) fn error(mut self, reason: GiveUp, advice: &'static str) -> Error {
        self.take_error(reason, advice)
    }

    /// The same for a release, which says also of another failure what it means for the lock.
    pub(in crate::run) fn take_release_error(
        &mut self,
        reason: GiveUp,
        if_unknown: &'static str,
        if_refused: &'static str,
    ) -> Error {
        self.take_error(reason, if_unknown).not_released(if_refused)
    }

    /// The same, once.
    pub(in crate::run) fn take_error(&mut self, reason: GiveUp, advice: &'static str) -> Error {
        let key = self.key.clone();
        if let (GiveUp::Unknown, Some((command, cause))) =
            (reason, self.unanswered.take().map(|unanswered| *unanswered))
        {
            return Error::InDoubt { key, command, advice, cause };
        }
        if reason == GiveUp::Rewritten {
            return Error::refused(key, Refusal::of_rewritten(LOOKS));
        }
        let too_old =
            |protocol, known_by| Error::refused(self.key.clone(), Refusal::too_old(protocol, known_by));
        match self.last_failure.take().map(|failure| *failure) {
            Some(LastFailure::TooOld { version, protocol }) => too_old(protocol, TooOld::Reported(version)),
            Some(LastFailure::NoTransactions { refusal, protocol }) => {
                too_old(protocol, refusal.as_ref().map_or(TooOld::HangsUp, TooOld::Refuses))
            }
            Some(LastFailure::Refused { command, refusal }) => match refusal.protocol_too_new(command) {
                Some(protocol) => too_old(protocol, TooOld::Refuses(&refusal)),
                None => Error::refused(key, refusal),
            },
            Some(LastFailure::Lost { command, error }) => Error::no_reply(key, command, error),
            Some(LastFailure::NoConnection { cause, waited }) => Error::no_connection(key, cause, waited),
            None => Error::no_connection(key, NoConnection::PoolExhausted, Duration::ZERO),
        }
    }
}
