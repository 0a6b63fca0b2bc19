//! The rules of asking the server whether a lock is still held: one look, which changes nothing.

use super::lease::Lease;
use super::ownership::{LossReason, Ownership};
use super::{Command, GiveUp, Reply, Request, Rules, Step};
use crate::clock::Now;
use crate::options::Protocol;

/// What the server says of a held lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verification {
    /// The key holds this holder's value.
    Held {
        /// Whether that proves that no other client has had the lock from its acquisition until the server answered, whatever the
        /// clocks did. `false` without an expiration, where the value `1` names no holder, and after an extension that was not certified.
        certified: bool,
    },
    /// The key holds a time close to the one that this holder wrote: a client that lost the takeover of the same expired lock has
    /// overwritten this holder's value, as the classic protocol does. Or, in Classic, the value of an extension whose reply was lost. By the
    /// clocks the lock is held; the server proves nothing.
    Overwritten,
    /// The lock is not held any more.
    Lost(LossReason),
}

/// | state | reply | next |
/// |---|---|---|
/// | start | | GET → `Looking` |
/// | `Looking` | our own bytes | held, certified with an expiration, if all extensions were |
/// | | a time close to ours, lease not passed | overwritten |
/// | | anything else, or absent | lost |
/// | | no reply | once: GET again; then give up |
/// | | refused, or not sent | give up |
#[derive(Clone, Debug)]
pub(crate) struct Verifying {
    lease: Lease,
    protocol: Protocol,
    looked_again: bool,
}

impl Verifying {
    pub(crate) fn start(protocol: Protocol, lease: &Lease) -> (Self, Step<Verification>) {
        let verifying = Self { lease: lease.clone(), protocol, looked_again: false };
        (verifying, Step::Send(Request::at_any_time(Command::Get)))
    }
}

impl Rules for Verifying {
    type Outcome = Verification;

    fn reply(&mut self, reply: &Reply, now: Now) -> Step<Verification> {
        let found = match reply {
            Reply::Bulk(found) => found.as_deref(),
            Reply::Refused | Reply::NoLock => return Step::GiveUp(GiveUp::Refused),
            Reply::Unsent | Reply::TooLate => return Step::GiveUp(GiveUp::Unsent),
            _ if std::mem::replace(&mut self.looked_again, true) => return Step::GiveUp(GiveUp::Io),
            _ => return Step::Send(Request::at_any_time(Command::Get)),
        };
        Step::Done(match Ownership::judge(&self.lease, self.protocol, found, now) {
            Ownership::Ours => Verification::Held { certified: self.lease.proven },
            Ownership::Unproven => Verification::Overwritten,
            Ownership::Lost(_) if self.lease.has_passed(now) => Verification::Lost(LossReason::Expired),
            Ownership::Lost(reason) => Verification::Lost(reason),
        })
    }
}
