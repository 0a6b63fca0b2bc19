//! What is reported of notifications that do not work.

use crate::net::{Failure, Refusal, RefusalKind};

/// Returns true if the server will refuse the same for each key, and for some time.
pub(super) fn concerns_all_keys(failure: &Failure) -> bool {
    // One list may be something else, or on a node of its own.
    let of_one = [RefusalKind::WrongType, RefusalKind::OtherNode];
    let of_all = |refusal: &Refusal| !refusal.is_transient() && !of_one.contains(&refusal.kind());
    matches!(failure, Failure::Refused(refusal) if of_all(refusal))
}

pub(super) fn describe(failure: &Failure) -> String {
    match failure {
        Failure::Refused(refusal) => {
            let text = refusal.text().trim_end_matches('.');
            match refusal.kind() {
                RefusalKind::NotPermitted => format!(
                    "the server refused: {text}: the user needs RPUSH, LPOP, LRANGE, LREM and EXPIRE on KEY:setnx-lock:waiters, and \
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
        failure => failure.to_string(),
    }
}
