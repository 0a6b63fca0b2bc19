//! What a call remembers of its failures: the last one, and the last command whose outcome is unknown.

use std::time::Duration;

use proto::hold::LOOKS;
use proto::values::{Key, Protocol};
use proto::{GiveUp, Reply, WhyRefused};

use super::Effect;
use crate::net::{Failure, Refusal, RefusalKind, TransportError};
use crate::report::error::Error;
use crate::system::clock;

/// How a call has failed so far. In a box, since most do not.
#[derive(Default)]
pub(in crate::run) struct Failures(Option<Box<Failed>>);

#[derive(Default)]
struct Failed {
    /// The last command that has failed, and how.
    last: Option<(&'static str, Failure)>,
    /// The last command that may have changed the key and whose reply was lost, and why.
    unanswered: Option<(&'static str, TransportError)>,
}

impl Failures {
    /// Notes a failure of a command.
    #[cold]
    pub(in crate::run) fn note(&mut self, command: &'static str, failure: Failure, effect: Effect) {
        let failed = self.0.get_or_insert_default();
        if let (Failure::Lost(error), Effect::Changes) = (&failure, effect) {
            failed.unanswered = Some((command, error.clone()));
        }
        failed.last = Some((command, failure));
    }

    /// Returns how the last command has failed, if one has.
    #[inline]
    pub(in crate::run) fn last(&self) -> Option<&Failure> {
        Some(&self.0.as_deref()?.last.as_ref()?.1)
    }

    /// Returns true if a command has had no connection or no reply, so that the next may not take long.
    pub(in crate::run) fn are_unanswered(&self) -> bool {
        self.last().is_some_and(Failure::is_unanswered)
    }

    /// Returns true if the last command was not sent because all connections were in use.
    pub(in crate::run) fn found_all_in_use(&self) -> bool {
        self.last().is_some_and(Failure::found_all_in_use)
    }

    /// Returns how the server has refused the last command, if it has.
    pub(in crate::run) fn refusal(&self) -> Option<&Refusal> {
        if let Failure::Refused(refusal) = self.last()? { Some(refusal) } else { None }
    }

    /// Returns true if a release that gave up for this reason may be tried again: not after a refusal that stays.
    pub(in crate::run) fn may_pass(&self, gave_up: GiveUp) -> bool {
        match gave_up {
            // A password may be about to change on this side as well.
            GiveUp::Refused => self.refusal().is_some_and(|refusal| {
                let of_login = [RefusalKind::NoPassword, RefusalKind::WrongPassword];
                refusal.is_transient() || of_login.contains(&refusal.kind())
            }),
            _ => true,
        }
    }

    /// Forgets for how long the last command of a call waited for a connection: it had little time left.
    pub(in crate::run) fn has_waited(&mut self, total: Duration) {
        let last = self.0.as_deref_mut().and_then(|failed| failed.last.as_mut());
        if let Some((_, Failure::Unreachable { waited, .. })) = last
            && *waited < total / 2
        {
            *waited = Duration::ZERO;
        }
    }

    /// Makes the user's error of a call by this protocol, and forgets the failure that it names. An unknown outcome
    /// comes first, then the last failure.
    pub(in crate::run) fn take_error(
        &mut self,
        key: &Key,
        protocol: Protocol,
        reason: GiveUp,
        advice: &'static str,
    ) -> Error {
        let (key, mut failed) = (key.clone(), self.0.as_deref_mut());
        let unanswered = failed.as_mut().and_then(|failed| failed.unanswered.take());
        match (reason, unanswered) {
            (GiveUp::Unknown | GiveUp::UnknownAlone, Some((command, cause))) => {
                return Error::InDoubt { key, command, advice, cause };
            }
            (GiveUp::Rewritten, _) => return Error::refused(key, Refusal::of_rewritten(LOOKS)),
            (GiveUp::ClockUnset, _) => return Error::clock_unset(key, clock::now().wall),
            _ => {}
        }
        let last = failed.and_then(|failed| failed.last.take());
        match last.unwrap_or(("", Failure::TooLate)) {
            // Auto has used what the server had, so that another protocol is no advice.
            (_, Failure::Refused(refusal)) if protocol == Protocol::Auto => Error::refused(key, refusal),
            (command, failure) => Error::of_failure(key, command, failure),
        }
    }
}

/// Returns the rules' reply for a failure of a call with this protocol. Only Auto switches to another one.
pub(in crate::run) fn unanswered(failure: &Failure, protocol: Protocol) -> Reply {
    match failure {
        Failure::TooLate => Reply::TooLate,
        Failure::Refused(refusal) => Reply::Refused(match refusal.kind() {
            RefusalKind::WrongType => WhyRefused::NoLock,
            RefusalKind::ReadOnly => WhyRefused::ReadOnly,
            RefusalKind::OverMemory => WhyRefused::OverMemory,
            _ if refusal.is_transient() => WhyRefused::ForNow,
            _ if refusal.is_about_the_command() => match refusal.protocol_instead() {
                Some(has) if protocol == Protocol::Auto => WhyRefused::TooOld(has),
                _ => WhyRefused::Command,
            },
            _ => WhyRefused::Otherwise,
        }),
        Failure::Unreachable { .. } | Failure::Panicked(_) => Reply::Unsent,
        Failure::Lost(_) => Reply::Lost,
    }
}
