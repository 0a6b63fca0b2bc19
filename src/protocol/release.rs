//! The rules of giving a lock back.

use super::lease::Lease;
use super::{Command, GiveUp, Reply, Request};
use crate::clock::Now;

/// What became of a lock that was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[must_use = "`Overran` and `Lost` say that others may have been at work at the same time"]
pub enum Release {
    /// The key was deleted within the lease: the next contender gets the lock.
    Released,
    /// The lease had passed before the release, by the wall clock or by the monotonic one. Nothing was deleted, since the
    /// key may be another's by now; **others may have worked at the same time**. Choose a longer expiration.
    Overran,
    /// The key was gone although the lease had not passed: somebody cleared it, or the server lost it (eviction, a
    /// failover, a restart without persistence). **Others may have worked at the same time.**
    Lost,
    /// This process is a forked child of the one that took the lock: nothing was sent, the parent holds it.
    Inherited,
}

/// What to do next to give a lock back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Send(Request),
    Done(Release),
    GiveUp(GiveUp),
}

/// Gives one lease back.
///
/// | state | reply | next |
/// |---|---|---|
/// | start | lease passed | done: overran |
/// | | else | DEL → `Deleting` |
/// | `Deleting` | 1 | done: released |
/// | | 0 | done: lost |
/// | | not sent until the lease had passed | done: overran |
/// | | no answer, expiring | GET → `Checking`; DEL is never sent again (I6) |
/// | | no answer, unexpiring | unknown: `1` names nobody |
/// | `Checking` | absent, lease not passed | done: released |
/// | | anything else | unknown: the DEL may still come, and others' bytes may stand for our lock (a loser's of a takeover) |
#[derive(Debug)]
pub(crate) struct Releasing<'a> {
    lease: &'a Lease,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Deleting,
    Checking,
}

impl<'a> Releasing<'a> {
    pub(crate) fn start(lease: &'a Lease, now: Now) -> (Self, Step) {
        let step = match lease.end {
            Some(end) if end.has_passed(now) => Step::Done(Release::Overran), // I5
            Some(end) => Step::Send(Request::before(end, Command::Del)),
            None => Step::Send(Request::at_any_time(Command::Del)),
        };
        (Self { lease, state: State::Deleting }, step)
    }

    pub(crate) fn reply(&mut self, reply: &Reply, now: Now) -> Step {
        match (self.state, reply) {
            (State::Deleting, Reply::Integer(0)) => Step::Done(Release::Lost),
            (State::Deleting, Reply::Integer(_)) => Step::Done(Release::Released),
            (State::Deleting, Reply::TooLate) => Step::Done(Release::Overran),
            (State::Deleting, Reply::Refused) => Step::GiveUp(GiveUp::Refused),
            (State::Deleting, Reply::Unsent) if self.lease.has_passed(now) => Step::Done(Release::Overran),
            (State::Deleting, Reply::Unsent) => Step::GiveUp(GiveUp::Unsent),
            (State::Deleting, Reply::Lost | Reply::Bulk(_)) if self.lease.end.is_some() => {
                self.state = State::Checking;
                Step::Send(Request::at_any_time(Command::Get))
            }
            (State::Checking, Reply::Bulk(None)) if !self.lease.has_passed(now) => {
                Step::Done(Release::Released)
            }
            (State::Deleting | State::Checking, _) => Step::GiveUp(GiveUp::Unknown),
        }
    }
}
