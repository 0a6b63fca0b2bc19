//! The rules of fencing tokens: a counter beside the lock's key, of which each holder takes a number. A number counts only if this holder had
//! the lock when the counter was increased, so a later holder's is greater.

use super::lease::Lease;
use super::ownership::LossReason;
use super::watched_change::{Found, Progress, WatchedChange};
use super::{Change, Command, GiveUp, Reply, Request, Rules, Step};
use crate::clock::Now;
use crate::options::Protocol;

/// The outcome of asking for a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fenced {
    Token(i64),
    Lost(LossReason),
}

/// Takes a number.
///
/// | state | reply | next |
/// |---|---|---|
/// | start | Classic, lease passed | lost |
/// | | Classic, or no expiration | INCR → `Counting` |
/// | | Watched and Ttl | WATCH, GET, MULTI → `Watching`; the change is INCR |
/// | `Counting` | a number, lease not passed | token |
/// | | a number, lease passed; or not sent before | lost: a later holder may have a smaller one |
/// | | no reply | once: INCR again, which leaves a number out; then give up |
/// | | refused, or not sent | give up |
/// | `Watching` | changed, and our own bytes were found | token |
/// | | changed, and a time close to ours was found | token if the lease has not passed |
/// | | not ours | lost |
/// | | no reply to the look or to EXEC | once: look again; then give up |
/// | | WATCH or MULTI refused, in Auto | the rules of Classic |
/// | | no lock, unsent, refused | give up |
#[derive(Clone, Debug)]
pub(crate) struct Fencing {
    lease: Lease,
    /// Whether the rules of Classic will do where WATCH or MULTI is refused, since Auto chose Watched by the server's version alone.
    or_classic: bool,
    asked_again: bool,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Counting,
    Watching(WatchedChange),
}

/// Returns a number as a token; `None` if it is none, since another program has set the counter.
pub(crate) fn usable(token: i64) -> Option<u64> {
    u64::try_from(token).ok().filter(|token| *token > 0)
}

impl Fencing {
    /// Begins, with a lease that was acquired by `protocol` where the options say `asked`.
    pub(crate) fn start(
        protocol: Protocol,
        asked: Protocol,
        lease: &Lease,
        now: Now,
    ) -> (Self, Step<Fenced>) {
        let mut fencing = Self {
            lease: lease.clone(),
            or_classic: asked == Protocol::Auto,
            asked_again: false,
            state: State::Counting,
        };
        let step = match (protocol, lease.end) {
            (Protocol::Watched | Protocol::Ttl, Some(_)) => fencing.watch(),
            (Protocol::Auto | Protocol::Classic, _) | (_, None) => fencing.count(now),
        };
        (fencing, step)
    }

    fn count(&mut self, now: Now) -> Step<Fenced> {
        self.state = State::Counting;
        match self.lease.end {
            Some(end) if end.has_passed(now) => Step::Done(Fenced::Lost(LossReason::Expired)),
            end => Step::Send(Request { command: Command::Count, before: end }),
        }
    }

    fn watch(&mut self) -> Step<Fenced> {
        let (change, request) = WatchedChange::start(self.lease.clone(), Change::Count);
        self.state = State::Watching(change);
        Step::Send(request)
    }

    fn token(&self, token: i64, proven: bool, now: Now) -> Step<Fenced> {
        let counted = proven || !self.lease.has_passed(now);
        Step::Done(if counted { Fenced::Token(token) } else { Fenced::Lost(LossReason::Expired) })
    }

    fn again(&mut self, now: Now) -> Step<Fenced> {
        if std::mem::replace(&mut self.asked_again, true) {
            return Step::GiveUp(GiveUp::Io);
        }
        match self.state {
            State::Counting => self.count(now),
            State::Watching(_) => self.watch(),
        }
    }
}

impl Rules for Fencing {
    type Outcome = Fenced;

    fn reply(&mut self, reply: &Reply, now: Now) -> Step<Fenced> {
        let State::Watching(change) = &mut self.state else {
            return match reply {
                Reply::Integer(token) => self.token(*token, false, now),
                Reply::TooLate => Step::Done(Fenced::Lost(LossReason::Expired)),
                Reply::Refused | Reply::NoLock => Step::GiveUp(GiveUp::Refused),
                Reply::Unsent => Step::GiveUp(GiveUp::Unsent),
                _ => self.again(now),
            };
        };
        match change.reply(reply, now) {
            Progress::Send(request) => Step::Send(request),
            Progress::Changed { found, count } => self.token(count, found == Found::Ours, now),
            Progress::NotOurs(_) if self.lease.has_passed(now) => {
                Step::Done(Fenced::Lost(LossReason::Expired))
            }
            Progress::NotOurs(reason) => Step::Done(Fenced::Lost(reason)),
            Progress::NotLooked(GiveUp::Refused) if self.or_classic => self.count(now),
            Progress::NotLooked(GiveUp::Io) | Progress::Checked { .. } | Progress::Unknown => self.again(now),
            Progress::NotLooked(reason) => Step::GiveUp(reason),
            Progress::Unsent => Step::GiveUp(GiveUp::Unsent),
            Progress::NoLock | Progress::Refused => Step::GiveUp(GiveUp::Refused),
        }
    }

    fn intended(&self) -> Option<(&[u8], &Change)> {
        match &self.state {
            State::Watching(change) => change.intended(),
            State::Counting => None,
        }
    }
}
