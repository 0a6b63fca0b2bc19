//! The rules of renewing a held lease: our value is replaced by one with a later time. Used where the lock passes to the next
//! thread of the process without being released. It begins only while the old lease lasts, and never on a guess: what the key
//! held decides.

use std::time::Duration;

use super::acquire::GETSET_TIME_LIMIT;
use super::lease::{End, Lease};
pub(crate) use super::watched_change::Found;
use super::watched_change::{Progress, WatchedChange};
use super::{Change, Command, Entry, GiveUp, Reply, Request, Rules, Step};
use crate::clock::Now;
use crate::options::Protocol;
use crate::value::{Expiry, LockState, Nonce};

/// The outcome of renewing a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// The new lease is ours. The thread that receives it checks whether it still lasts (I3).
    Renewed(Renewed),
    /// The old lease stands as it was, and may be released by the rules.
    NotRenewed,
    /// The lock was another's; in Classic its value has been overwritten.
    Lost { overwrote: LockState },
}

/// A lease that replaces another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Renewed {
    pub(crate) lease: Lease,
    pub(crate) found: Found,
}

/// Renews one lease.
///
/// | state | reply | next |
/// |---|---|---|
/// | start | no expiration, old and new | renewed: there is nothing that could pass |
/// | | only one of them has an expiration | not renewed |
/// | | lease passed | not renewed |
/// | | Classic | GETSET → `Swapping`; Watched and Ttl: WATCH, GET, MULTI → `Replacing` |
/// | `Swapping` | our own bytes, a time close to ours, or absent | renewed |
/// | | anything else | lost; another's value is overwritten, as by a loser of the classic takeover |
/// | | refused, or not sent in time | not renewed |
/// | | no reply | GET → `Checking`; nothing is sent again (I6) |
/// | `Replacing` | changed | renewed |
/// | | old lease passed before the change was sent, not ours, not looked, unsent, refused | not renewed: a release looks again |
/// | | checked: our new bytes, old lease not passed | renewed |
/// | | checked: anything else, or unknown | unknown |
/// | `Checking` | our new bytes, old lease not passed | renewed |
/// | | anything else | unknown |
#[derive(Clone, Debug)]
pub(crate) struct Renewing {
    old: Lease,
    new: Lease,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Swapping,
    Replacing(WatchedChange),
    Checking,
}

impl Renewing {
    /// Begins to replace `old` by a lease of `expiration` that begins now.
    pub(crate) fn start(
        protocol: Protocol,
        old: &Lease,
        expiration: Option<Duration>,
        nonce: Nonce,
        now: Now,
    ) -> (Self, Step<Renewal>) {
        let new = Lease::beginning(now, expiration, nonce);
        let mut renewing = Self { old: old.clone(), new, state: State::Swapping };
        let step = match (old.end, protocol) {
            // What has no end names no holder, and what names a holder has one.
            _ if old.end.is_some() != expiration.is_some() => Step::Done(Renewal::NotRenewed),
            (None, _) => renewing.renewed(Found::Unproven),
            (Some(end), _) if end.has_passed(now) => Step::Done(Renewal::NotRenewed),
            (Some(end), Protocol::Auto | Protocol::Classic) => {
                // Neither after our lease nor after the time limit of a GETSET (I4): by then another client may hold the lock.
                let time = end.remaining(now).min(GETSET_TIME_LIMIT);
                let swap = Command::GetSet(renewing.new.value.clone());
                Step::Send(Request::before(End::of(now, time), swap))
            }
            (Some(end), Protocol::Watched | Protocol::Ttl) => {
                let entry = Entry::of(&renewing.new, protocol, expiration);
                let (change, request) = WatchedChange::start(old.value.clone(), end, Change::Set(entry));
                renewing.state = State::Replacing(change);
                Step::Send(request)
            }
        };
        (renewing, step)
    }

    /// GETSET has put our new value into the key, and returned what it held.
    fn swapped(&self, found: Option<&[u8]>) -> Step<Renewal> {
        let state = LockState::read(found);
        match (&state, self.old.end) {
            _ if found == Some(&self.old.value) => self.renewed(Found::Ours),
            (LockState::Absent, _) => self.renewed(Found::Nothing),
            // By the clocks the lock is ours, which is what Classic relies on. Losers of this library write as many decimals as we do.
            (LockState::Until(Expiry(until)), Some(end)) if end.may_be_a_losers(*until) => {
                self.renewed(Found::Unproven)
            }
            _ => Step::Done(Renewal::Lost { overwrote: state }),
        }
    }

    /// Reading the key after a lost reply: our new bytes prove that the change was carried out.
    fn checked(&self, holds: Option<&[u8]>, found: Found, now: Now) -> Step<Renewal> {
        if holds == Some(self.new.value.as_slice()) && !self.old.has_passed(now) {
            return self.renewed(found);
        }
        Step::GiveUp(GiveUp::Unknown)
    }

    fn renewed(&self, found: Found) -> Step<Renewal> {
        Step::Done(Renewal::Renewed(Renewed { lease: self.new.clone(), found }))
    }
}

impl Rules for Renewing {
    type Outcome = Renewal;

    fn reply(&mut self, reply: &Reply, now: Now) -> Step<Renewal> {
        let progress = match (&mut self.state, reply) {
            (State::Swapping, Reply::Bulk(found)) => return self.swapped(found.as_deref()),
            (State::Swapping, Reply::Refused | Reply::Unsent | Reply::TooLate) => {
                return Step::Done(Renewal::NotRenewed);
            }
            (State::Swapping, _) => {
                self.state = State::Checking;
                return Step::Send(Request::at_any_time(Command::Get));
            }
            (State::Checking, Reply::Bulk(holds)) => {
                return self.checked(holds.as_deref(), Found::Unproven, now);
            }
            (State::Checking, _) => return Step::GiveUp(GiveUp::Unknown),
            (State::Replacing(change), _) if change.is_looking() && self.old.has_passed(now) => {
                return Step::Done(Renewal::NotRenewed);
            }
            (State::Replacing(change), reply) => change.reply(reply, now),
        };
        match progress {
            Progress::Send(request) => Step::Send(request),
            Progress::Changed { found, .. } => self.renewed(found),
            Progress::NotOurs | Progress::Refused | Progress::NotLooked(_) | Progress::Unsent => {
                Step::Done(Renewal::NotRenewed)
            }
            Progress::Checked { found, holds } => self.checked(holds.as_deref(), found, now),
            Progress::Unknown => Step::GiveUp(GiveUp::Unknown),
        }
    }
}
