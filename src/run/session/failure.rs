//! The last failure of a call, and the user's error that it makes: the rules know only that there was one.

use std::time::Duration;

use super::Session;
use crate::net::{Failure, Refusal, RefusalKind};
use crate::report::error::Error;
use crate::rules::GiveUp;
use crate::rules::owned::LOOKS;

impl Session<'_> {
    /// Returns true if a command has had no connection or no reply, so that the next may not take long.
    pub(in crate::run) fn has_failed(&self) -> bool {
        self.failure().is_some_and(Failure::is_unanswered)
    }

    /// Returns how the server was found unreachable by the last command, if it was.
    pub(in crate::run) fn unreachable(&self) -> Option<Failure> {
        self.failure().filter(|_| self.unanswered_last)?.of_the_next()
    }

    /// Returns how the server has refused the last command, if it has.
    pub(in crate::run) fn refusal(&self) -> Option<Refusal> {
        if let Failure::Refused(refusal) = self.failure()? { Some(refusal.clone()) } else { None }
    }

    fn failure(&self) -> Option<&Failure> {
        self.failed.as_deref().map(|(_, failure)| failure)
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
            GiveUp::Unknown => {
                self.unanswered.as_ref().is_some_and(|lost| !matches!(lost.0, "DEL" | "GETSET"))
            }
            _ => true,
        }
    }

    /// Notes that nothing is sent, since another call has found the server unreachable.
    pub(in crate::run) fn fail(&mut self, failure: Failure) {
        self.failed = Some(Box::new(("", failure.after(Duration::ZERO))));
    }

    /// Returns true if the last command was not sent because all connections were in use.
    pub(in crate::run) fn found_all_in_use(&self) -> bool {
        self.failure().is_some_and(Failure::found_all_in_use)
    }

    /// Forgets how long a connection was waited for by the last command of a call that has waited much longer: it had little time left.
    pub(in crate::run) fn has_waited(&mut self, total: Duration) {
        if let Some((_, Failure::Unreachable { waited, .. })) = self.failed.as_deref_mut()
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
    pub(in crate::run) fn release_error(
        self,
        reason: GiveUp,
        if_unknown: &'static str,
        if_refused: &'static str,
    ) -> Error {
        self.error(reason, if_unknown).not_released(if_refused)
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
        let (command, failure) = self.failed.take().map_or(("", Failure::TooLate), |failed| *failed);
        Error::of_failure(key, command, failure)
    }
}
