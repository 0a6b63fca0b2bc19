//! The errors of commands that were not sent, or not answered.

use proto::values::Key;

use super::{Error, text};
use crate::net::{Failure, TransportError};

impl Error {
    /// Returns the error of a command, or of a call that was ended from outside, as one about this key.
    pub(crate) fn about(mut self, about: &Key) -> Self {
        if let Error::Cancelled { key, .. }
        | Error::ShutDown { key, .. }
        | Error::Unavailable { key, .. }
        | Error::Refused { key, .. } = &mut self
        {
            about.clone_into(key);
        }
        self
    }

    /// Returns the error of a command that has no reply, of which nothing is in doubt.
    pub(crate) fn of_failure(key: Key, command: &'static str, failure: Failure) -> Self {
        match failure {
            Failure::Refused(refusal) => Self::refused(key, refusal.of_command(command)),
            Failure::Unreachable { cause, waited, all_in_use } => {
                let within = text::within(waited);
                let problem = match (all_in_use, cause.address()) {
                    (true, Some(address)) => {
                        format!("no reply from {address}{within}; check the server and the network")
                    }
                    (true, None) => format!(
                        "no free connection of the pool{within}; make the pool larger, or hold its connections for less long"
                    ),
                    (false, address) => text::unconnected(address, &within, cause.is_here()),
                };
                Self::Unavailable { key, problem, cause }
            }
            Failure::Panicked(_) => {
                let problem = format!(
                    "{failure}; with the feature tls-rustls a program must choose its cryptography: let it depend on rustls with the \
                     feature ring or aws_lc_rs"
                );
                Self::invalid(key, problem)
            }
            Failure::Lost(cause) => Self::no_reply(key, command, cause),
            Failure::TooLate => Self::of_failure(key, command, Failure::all_in_use(None)),
        }
    }

    /// Returns the error of a command without a reply that changes nothing.
    fn no_reply(key: Key, command: &'static str, cause: TransportError) -> Self {
        let at = cause.address().map(|address| format!(" at {address}")).unwrap_or_default();
        let problem = format!("{command} failed{at}; check the server and the network, then try again");
        Self::Unavailable { key, problem, cause }
    }

    /// Returns the error of a release that was not carried out, with what that means for the lock.
    pub(crate) fn not_released(self, if_unknown: &'static str, means: &'static str) -> Self {
        match self {
            Self::InDoubt { key, command, cause, .. } => {
                Self::InDoubt { key, command, advice: if_unknown, cause }
            }
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
