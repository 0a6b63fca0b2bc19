//! The rules of Classic: DEL, while our own lease has not passed by either clock (I5). What the key holds is not looked at,
//! since there is no command on these servers that compares and deletes.

use super::{Release, Step, has_passed};
use crate::clock::Now;
use crate::protocol::lease::End;
use crate::protocol::{Command, GiveUp, Reply, Request};

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
#[derive(Clone, Debug)]
pub(crate) struct ByTheClocks {
    end: Option<End>,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Deleting,
    Checking,
}

impl ByTheClocks {
    pub(super) fn start(end: Option<End>, now: Now) -> (Self, Step) {
        let step = match end {
            Some(end) if end.has_passed(now) => Step::Done(Release::Overran), // I5
            Some(end) => Step::Send(Request::before(end, Command::Del)),
            None => Step::Send(Request::at_any_time(Command::Del)),
        };
        (Self { end, state: State::Deleting }, step)
    }

    pub(super) fn reply(&mut self, reply: &Reply, now: Now) -> Step {
        match (self.state, reply) {
            (State::Deleting, Reply::Integer(0)) => Step::Done(Release::Lost),
            (State::Deleting, Reply::Integer(_)) => Step::Done(Release::Released { certified: false }),
            (State::Deleting, Reply::TooLate) => Step::Done(Release::Overran),
            (State::Deleting, Reply::Refused) => Step::GiveUp(GiveUp::Refused),
            (State::Deleting, Reply::Unsent) if has_passed(self.end, now) => Step::Done(Release::Overran),
            (State::Deleting, Reply::Unsent) => Step::GiveUp(GiveUp::Unsent),
            (State::Deleting, Reply::Lost | Reply::Bulk(_) | Reply::Executed(_)) if self.end.is_some() => {
                self.state = State::Checking;
                Step::Send(Request::at_any_time(Command::Get))
            }
            (State::Checking, Reply::Bulk(None)) if !has_passed(self.end, now) => {
                Step::Done(Release::Released { certified: false })
            }
            (State::Deleting | State::Checking, _) => Step::GiveUp(GiveUp::Unknown),
        }
    }
}
