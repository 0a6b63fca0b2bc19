//! The rules of releasing in Classic: DEL, while our own lease has not passed by either clock (I5). What the key holds is not looked at,
//! since these servers have no command that compares and deletes.

use super::{Release, Step};
use crate::clock::Now;
use crate::protocol::lease::End;
use crate::protocol::ownership::LossReason;
use crate::protocol::{Command, GiveUp, Reply, Request};

/// | state | reply | next |
/// |---|---|---|
/// | start | lease passed | done: expired |
/// | | else | DEL → `Deleting` |
/// | `Deleting` | 1 | done: released |
/// | | 0 | done: lost |
/// | | not sent until the lease had passed | done: expired |
/// | | no reply, expiring | GET → `Checking`; DEL is never sent again (I6) |
/// | | no reply, unexpiring | unknown: `1` names no holder |
/// | `Checking` | absent, lease not passed | done: released |
/// | | anything else | unknown: the DEL may still come, and a loser's bytes may stand for our lock |
#[derive(Clone, Debug)]
pub(crate) struct ClassicRelease {
    end: Option<End>,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Deleting,
    Checking,
}

const EXPIRED: Step<Release> = Step::Done(Release::Lost(LossReason::Expired));

impl ClassicRelease {
    pub(super) fn start(end: Option<End>, now: Now) -> (Self, Step<Release>) {
        let releasing = Self { end, state: State::Deleting };
        let step = match end {
            Some(end) if end.has_passed(now) => EXPIRED, // I5
            Some(end) => Step::Send(Request::before(end, Command::Del)),
            None => Step::Send(Request::at_any_time(Command::Del)),
        };
        (releasing, step)
    }

    pub(super) fn reply(&mut self, reply: &Reply, now: Now) -> Step<Release> {
        let passed = self.end.is_some_and(|end| end.has_passed(now));
        match (self.state, reply) {
            (State::Deleting, Reply::Integer(0)) => Step::Done(Release::Lost(LossReason::Gone)),
            (State::Deleting, Reply::Integer(_)) => Step::Done(Release::Released { certified: false }),
            (State::Deleting, Reply::TooLate) => EXPIRED,
            (State::Deleting, Reply::Refused | Reply::NoLock) => Step::GiveUp(GiveUp::Refused),
            (State::Deleting, Reply::Unsent) if passed => EXPIRED,
            (State::Deleting, Reply::Unsent) => Step::GiveUp(GiveUp::Unsent),
            (State::Checking, Reply::Bulk(None)) if !passed => {
                Step::Done(Release::Released { certified: false })
            }
            (State::Deleting, _) if self.end.is_some() => {
                self.state = State::Checking;
                Step::Send(Request::at_any_time(Command::Get))
            }
            (State::Deleting | State::Checking, _) => Step::GiveUp(GiveUp::Unknown),
        }
    }
}
