//! What is reported of notifications that do not work: once, until they have worked again.

use crate::backend::{Failure, RefusalKind};
use crate::key::Key;

/// What has been reported as not working, and has not worked since.
#[derive(Default)]
pub(super) struct Reported {
    pub(super) listening: bool,
    sending: Option<Cause>,
}

/// What does not work: one list, since its key is used for something else, or any.
#[derive(Clone, PartialEq, Eq)]
enum Cause {
    List(Key),
    Any,
}

impl Reported {
    /// Notes that something was sent for this key.
    pub(super) fn sending_worked(&mut self, key: &Key) {
        let worked = |cause: &Cause| *cause == Cause::Any || *cause == Cause::List(key.clone());
        if self.sending.as_ref().is_some_and(worked) {
            self.sending = None;
        }
    }

    /// Notes that something could not be sent for this key. Returns whether that is to be reported.
    pub(super) fn sending_failed(&mut self, key: &Key, failure: &Failure) -> bool {
        let cause = if is_of_one_list(failure) { Cause::List(key.clone()) } else { Cause::Any };
        let is_known = match &self.sending {
            Some(Cause::Any) => true,
            Some(Cause::List(_)) => cause != Cause::Any,
            None => false,
        };
        if !is_known {
            self.sending = Some(cause);
        }
        !is_known
    }
}

/// Whether the server will refuse the same for each key, and for some time.
pub(super) fn concerns_all_keys(failure: &Failure) -> bool {
    matches!(failure, Failure::Refused(refusal) if !refusal.passes_by_waiting()) && !is_of_one_list(failure)
}

fn is_of_one_list(failure: &Failure) -> bool {
    matches!(failure, Failure::Refused(refusal) if refusal.kind() == RefusalKind::WrongType)
}

pub(super) fn describe(failure: &Failure) -> String {
    match failure {
        Failure::NoConnection { cause, .. } => cause.to_string(),
        Failure::Refused(refusal) => {
            let text = refusal.text().trim_end_matches('.');
            match refusal.kind() {
                RefusalKind::NotPermitted => format!(
                    "the server refused: {text}: the user needs RPUSH, LPUSH, LPOP, LRANGE, LREM and EXPIRE on KEY:setnx-lock:waiters, and \
                     PUBLISH and SUBSCRIBE on the channels setnx-lock:wake-up:*"
                ),
                RefusalKind::WrongType => {
                    format!(
                        "the server refused: {text}: for one of the keys, KEY:setnx-lock:waiters holds no list"
                    )
                }
                _ => refusal.to_string(),
            }
        }
        Failure::Lost(error) => error.to_string(),
        Failure::TooOld(version) => format!("the server is Redis {version}, and notifications need 2.0"),
        Failure::NoTransactions(_) => unreachable!("no notification needs a transaction"),
        Failure::TooLate => "there was no time left".to_owned(),
    }
}
