//! The rules of releasing in Watched and Ttl: the key is read, and deleted by a transaction that fails if any client has written it
//! since. Our own bytes there prove that no other holder had the lock during our hold, and another's value is left alone, unless a loser
//! of the classic takeover may have written it (I5).

use super::classic::ClassicRelease;
use super::{Release, Step};
use crate::clock::Now;
use crate::protocol::lease::Lease;
use crate::protocol::ownership::LossReason;
use crate::protocol::watched_change::{Found, Progress, WatchedChange};
use crate::protocol::{Change, GiveUp, Reply};

/// | state | outcome of the change | next |
/// |---|---|---|
/// | `Deleting` | 1 deleted | done: released, certified if our own bytes were found |
/// | | 0 deleted: the server's time to live was over | done: expired if the lease has passed, else lost |
/// | | not ours | the same |
/// | | not looked, for want of a reply | once: look again, which changes nothing; then give up, nothing was deleted |
/// | | not looked, since WATCH or MULTI was refused, in Auto | the rules of Classic |
/// | | no lock, not looked, unsent, or refused | give up: nothing was deleted, and a plain DEL could delete another's key (I5) |
/// | | checked: absent, lease not passed | done: released, not certified |
/// | | checked: anything else, or unknown | unknown |
#[derive(Clone, Debug)]
pub(crate) struct WatchedRelease {
    lease: Lease,
    /// Whether the rules of Classic will do where WATCH or MULTI is refused, since Auto chose Watched by the server's version alone.
    or_classic: bool,
    looked_again: bool,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Deleting(WatchedChange),
    Fallback(ClassicRelease),
}

impl WatchedRelease {
    pub(super) fn start(lease: Lease, or_classic: bool) -> (Self, Step<Release>) {
        let (change, request) = WatchedChange::start(lease.clone(), Change::Del);
        let releasing = Self { lease, or_classic, looked_again: false, state: State::Deleting(change) };
        (releasing, Step::Send(request))
    }

    pub(super) fn intended(&self) -> Option<(&[u8], &Change)> {
        match &self.state {
            State::Deleting(change) => change.intended(),
            State::Fallback(_) => None,
        }
    }

    pub(super) fn reply(&mut self, reply: &Reply, now: Now) -> Step<Release> {
        let change = match &mut self.state {
            State::Deleting(change) => change,
            State::Fallback(releasing) => return releasing.reply(reply, now),
        };
        match change.reply(reply, now) {
            Progress::Send(request) => Step::Send(request),
            Progress::Changed { count: 0, .. } => self.not_ours(LossReason::Gone, now),
            Progress::NotOurs(reason) => self.not_ours(reason, now),
            Progress::Changed { found, .. } => {
                Step::Done(Release::Released { certified: found == Found::Ours && self.lease.proven })
            }
            Progress::NotLooked(GiveUp::Io) if !self.looked_again => {
                self.looked_again = true;
                Step::Send(change.look())
            }
            Progress::NotLooked(GiveUp::Refused) if self.or_classic => self.fall_back(now),
            Progress::NotLooked(reason) => Step::GiveUp(reason),
            Progress::NoLock | Progress::Refused => Step::GiveUp(GiveUp::Refused),
            Progress::Unsent => Step::GiveUp(GiveUp::Unsent),
            Progress::Checked { holds: None, .. } if !self.lease.has_passed(now) => {
                Step::Done(Release::Released { certified: false })
            }
            Progress::Checked { .. } | Progress::Unknown => Step::GiveUp(GiveUp::Unknown),
        }
    }

    fn fall_back(&mut self, now: Now) -> Step<Release> {
        let (releasing, step) = ClassicRelease::start(self.lease.end, now);
        self.state = State::Fallback(releasing);
        step
    }

    fn not_ours(&self, reason: LossReason, now: Now) -> Step<Release> {
        let reason = if self.lease.has_passed(now) { LossReason::Expired } else { reason };
        Step::Done(Release::Lost(reason))
    }
}
