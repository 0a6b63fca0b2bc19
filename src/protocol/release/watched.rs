//! The rules of Watched and Ttl: looks at the key, and deletes it by a transaction that fails if anybody has written it since.
//! So our own bytes there are proof that nobody took the lock during our hold, and another's lock is never deleted (I5).

use super::by_the_clocks::ByTheClocks;
use super::{Release, Step};
use crate::clock::Now;
use crate::protocol::lease::End;
use crate::protocol::{Change, Command, GiveUp, Reply, Request};
use crate::value;

/// How often in a row the key is looked at again because it was written after we had looked.
const LOOKS: u32 = 3;

/// | state | reply | next |
/// |---|---|---|
/// | start | | WATCH, GET → `Looking` |
/// | `Looking` | our own bytes | MULTI, DEL, EXEC → `Deleting`, certified: also after our lease has passed |
/// | | the bytes of a loser of the classic takeover, lease not passed | the same, not certified |
/// | | anything else | left alone; done: overran if the lease has passed, else lost |
/// | | no answer | once: WATCH, GET again, which change nothing; then give up, nothing was deleted |
/// | `Deleting` | 1 deleted | done: released |
/// | | 0 deleted: the server's time to live was over | done: overran if the lease has passed, else lost |
/// | | not carried out, since the key was written | WATCH, GET → `Looking`, three times in a row at most |
/// | | refused (up to 2.4 EXEC itself, over `maxmemory`) | DEL by the clocks: what we saw was ours |
/// | | no answer | GET → `Checking`; nothing is sent again (I6) |
/// | `Checking` | absent, lease not passed | done: released, not certified |
/// | | anything else | unknown |
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    value: Vec<u8>,
    end: End,
    looks: u32,
    unanswered_looks: u32,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Looking,
    Deleting { certified: bool },
    Checking,
    Fallback(ByTheClocks),
}

impl Watched {
    pub(super) fn start(value: Vec<u8>, end: End) -> (Self, Step) {
        let mut releasing = Self { value, end, looks: 0, unanswered_looks: 0, state: State::Looking };
        let step = releasing.look();
        (releasing, step)
    }

    pub(super) fn reply(&mut self, reply: &Reply, now: Now) -> Step {
        match (&mut self.state, reply) {
            (State::Looking, Reply::Bulk(found)) => self.judge(found.as_deref(), now),
            (State::Looking, Reply::Refused) => Step::GiveUp(GiveUp::Refused),
            (State::Looking, Reply::Unsent | Reply::TooLate) => Step::GiveUp(GiveUp::Unsent),
            (State::Looking, _) => {
                self.unanswered_looks += 1;
                if self.unanswered_looks == 1 { self.look() } else { Step::GiveUp(GiveUp::Io) }
            }
            (State::Deleting { .. }, Reply::Executed(Some(0))) => self.not_ours(now),
            (State::Deleting { certified }, Reply::Executed(Some(_))) => {
                Step::Done(Release::Released { certified: *certified })
            }
            (State::Deleting { .. }, Reply::Executed(None)) => {
                if self.looks < LOOKS {
                    self.look()
                } else {
                    self.not_ours(now)
                }
            }
            (State::Deleting { .. }, Reply::Refused) => {
                let (releasing, step) = ByTheClocks::start(Some(self.end), now);
                self.state = State::Fallback(releasing);
                step
            }
            (State::Deleting { .. }, Reply::Unsent | Reply::TooLate) => Step::GiveUp(GiveUp::Unsent),
            (State::Deleting { .. }, Reply::Lost | Reply::Integer(_) | Reply::Bulk(_)) => {
                self.state = State::Checking;
                Step::Send(Request::at_any_time(Command::Get))
            }
            (State::Checking, Reply::Bulk(None)) if !self.end.has_passed(now) => {
                Step::Done(Release::Released { certified: false })
            }
            (State::Checking, _) => Step::GiveUp(GiveUp::Unknown),
            (State::Fallback(releasing), reply) => releasing.reply(reply, now),
        }
    }

    fn look(&mut self) -> Step {
        self.looks += 1;
        self.state = State::Looking;
        Step::Send(Request::at_any_time(Command::WatchGet))
    }

    fn judge(&mut self, found: Option<&[u8]>, now: Now) -> Step {
        // At any time: it deletes what was watched, or nothing.
        let delete = Step::Send(Request::at_any_time(Command::Exec(Change::Del)));
        if found == Some(self.value.as_slice()) {
            self.state = State::Deleting { certified: true };
            return delete;
        }
        let of_a_loser = found
            .and_then(value::classic_time)
            .is_some_and(|until| self.end.may_be_a_loser_s(until) && !self.end.has_passed(now));
        if of_a_loser {
            self.state = State::Deleting { certified: false };
            return delete;
        }
        self.not_ours(now)
    }

    fn not_ours(&self, now: Now) -> Step {
        Step::Done(if self.end.has_passed(now) { Release::Overran } else { Release::Lost })
    }
}
