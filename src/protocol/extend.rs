//! The rules of extending a held lock: our value is replaced by one with another time. Never on a guess: what the key holds decides.

use std::time::Duration;

use super::acquire::GETSET_TIME_LIMIT;
use super::lease::{End, Lease};
use super::ownership::{LossReason, Ownership};
use super::watched_change::{Found, Progress, WatchedChange};
use super::{Change, Command, Entry, GiveUp, Reply, Request, Rules, Step};
use crate::clock::{Now, Uptime};
use crate::options::Protocol;
use crate::value::{LockState, Nonce};

/// The outcome of extending a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Extension {
    /// This lease is ours from now on. The caller checks whether it still lasts (I3).
    Extended {
        lease: Lease,
        /// Whether our own bytes were found, each time since the lock was acquired, so that no other client has had it.
        certified: bool,
    },
    Lost {
        reason: LossReason,
        /// In Classic: the other client's value that was overwritten, as by a loser of the classic takeover.
        overwrote: Option<LockState>,
    },
}

/// Extends one lease. If it gives up, the old lease stands. Until the outcome is known the lease counts that ends first, the old one or
/// [the new one](Self::new_lease): another client may see either in the key.
///
/// | state | reply | next |
/// |---|---|---|
/// | start | Classic, lease passed | lost |
/// | | Classic | GET → `Looking` |
/// | | Watched and Ttl, also after the lease | WATCH, GET, MULTI → `Replacing` |
/// | `Looking` | lease passed | lost |
/// | | our own bytes, or a time close to ours | GETSET, at once or not at all (I4) → `Swapping` |
/// | | anything else | lost |
/// | | no reply | once: GET again, which changes nothing; then give up |
/// | | refused, or not sent | give up |
/// | `Swapping` | our own bytes | extended, certified if all extensions before were |
/// | | absent, lease passed | lost |
/// | | a time close to ours, or absent | extended |
/// | | anything else | lost; another's value is overwritten |
/// | | not sent in time | GET → `Looking`, or lost if the lease has passed |
/// | | refused, or not sent | give up |
/// | | no reply | GET → `Checking`; nothing is sent again (I6) |
/// | `Replacing` | changed | extended, certified if our own bytes were found, and all extensions before were |
/// | | not ours | lost |
/// | | not looked, for want of a reply | once: look again; then give up |
/// | | WATCH or MULTI refused, in Auto | the rules of Classic |
/// | | no lock, unsent, refused | give up |
/// | | checked, unknown | as `Checking`; our new bytes prove that our own were replaced, also after the lease |
/// | `Checking` | our new bytes, old lease not passed | extended |
/// | | our old bytes, or a time close to ours | unknown: the command may still arrive |
/// | | another's value, or absent | lost |
/// | | anything else | unknown |
#[derive(Clone, Debug)]
pub(crate) struct Extending {
    old: Lease,
    new: Lease,
    began: Uptime,
    protocol: Protocol,
    /// Whether the rules of Classic will do where WATCH or MULTI is refused, since Auto chose Watched by the server's version alone.
    or_classic: bool,
    looked_again: bool,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Looking,
    Swapping,
    Replacing(WatchedChange),
    Checking,
}

impl Extending {
    /// Begins to replace `old`, which has an end and was acquired by `protocol` where the options say `asked`, by a lease of `expiration`
    /// that begins now.
    pub(crate) fn start(
        protocol: Protocol,
        asked: Protocol,
        old: &Lease,
        expiration: Duration,
        nonce: Nonce,
        now: Now,
    ) -> (Self, Step<Extension>) {
        let new = Lease::beginning(now, Some(expiration), nonce).ending_earlier(old.early());
        let new = old.replaced_by(&new, now);
        let or_classic = asked == Protocol::Auto;
        let mut extending = Self {
            old: old.clone(),
            new,
            began: now.uptime,
            protocol,
            or_classic,
            looked_again: false,
            state: State::Looking,
        };
        let step = match protocol {
            Protocol::Auto | Protocol::Classic => extending.look(now),
            Protocol::Watched | Protocol::Ttl => {
                let change = Change::Set(Entry::of(&extending.new, protocol, Some(expiration)));
                let (change, request) = WatchedChange::start(old.clone(), change);
                extending.state = State::Replacing(change);
                Step::Send(request)
            }
        };
        (extending, step)
    }

    /// Returns the lease that replaces the old one, if that succeeds.
    pub(crate) fn new_lease(&self) -> &Lease {
        &self.new
    }

    /// Whether the new value in the key proves that no other client has had the lock: a transaction writes it over our own value only.
    pub(crate) fn proves(&self) -> bool {
        matches!(&self.state, State::Replacing(change) if change.found() == Some(Found::Ours))
    }

    /// Returns when the new lease began.
    pub(crate) fn began(&self) -> Uptime {
        self.began
    }

    fn look(&mut self, now: Now) -> Step<Extension> {
        if self.old.has_passed(now) {
            return lost(LossReason::Expired);
        }
        self.state = State::Looking;
        Step::Send(Request::at_any_time(Command::Get))
    }

    fn judge(&self, found: Option<&[u8]>, now: Now) -> Ownership {
        Ownership::judge(&self.old, self.protocol, found, now)
    }

    /// Classic: judges what GET has found.
    fn looked(&mut self, found: Option<&[u8]>, now: Now) -> Step<Extension> {
        let Some(end) = self.old.end.filter(|end| !end.has_passed(now)) else {
            return lost(LossReason::Expired);
        };
        if let Ownership::Lost(reason) = self.judge(found, now) {
            return lost(reason);
        }
        self.state = State::Swapping;
        // Neither after our lease (I5) nor after the time limit of a GETSET (I4): by then another client may hold the lock.
        let time = end.remaining(now).min(GETSET_TIME_LIMIT);
        Step::Send(Request::before(End::of(now, time), Command::GetSet(self.new.value.clone())))
    }

    /// Classic: judges what GETSET has replaced.
    fn swapped(&self, found: Option<&[u8]>, now: Now) -> Step<Extension> {
        match self.judge(found, now) {
            Ownership::Ours => self.extended(true),
            // Another client may have had the lock since, and released it.
            Ownership::Lost(LossReason::Gone) if self.old.has_passed(now) => lost(LossReason::Expired),
            // Cleared in between, and not acquired by another client since: it is ours anew (I1).
            Ownership::Unproven | Ownership::Lost(LossReason::Gone) => self.extended(false),
            Ownership::Lost(reason) => {
                Step::Done(Extension::Lost { reason, overwrote: Some(LockState::of_value(found)) })
            }
        }
    }

    /// Judges what the key holds after the reply to the command that changes it was lost.
    fn checked(&self, holds: Option<&[u8]>, proven: bool, now: Now) -> Step<Extension> {
        if holds == Some(self.new.value.as_slice()) && (proven || !self.old.has_passed(now)) {
            return self.extended(proven);
        }
        match self.judge(holds, now) {
            Ownership::Lost(reason) if holds != Some(self.new.value.as_slice()) => lost(reason),
            _ => Step::GiveUp(GiveUp::Unknown),
        }
    }

    /// Whether our own bytes were `replaced` decides whether anything is proven from now on.
    fn extended(&self, replaced: bool) -> Step<Extension> {
        let certified = replaced && self.old.proven;
        let mut lease = self.new.clone();
        lease.proven = certified;
        Step::Done(Extension::Extended { lease, certified })
    }

    /// Classic: looks again where the last look got no reply, which is often that of a connection that the server has closed.
    fn look_again(&mut self, now: Now) -> Option<Step<Extension>> {
        let first = !std::mem::replace(&mut self.looked_again, true);
        first.then(|| match &mut self.state {
            State::Replacing(change) => Step::Send(change.look()),
            State::Looking | State::Swapping | State::Checking => self.look(now),
        })
    }

    fn reply_to_classic(&mut self, reply: &Reply, now: Now) -> Step<Extension> {
        match (&self.state, reply) {
            (State::Looking, Reply::Bulk(found)) => self.looked(found.as_deref(), now),
            (State::Swapping, Reply::Bulk(found)) => self.swapped(found.as_deref(), now),
            (State::Checking, Reply::Bulk(holds)) => self.checked(holds.as_deref(), false, now),
            (State::Swapping, Reply::TooLate) => self.look(now),
            (State::Looking | State::Swapping, Reply::Refused | Reply::NoLock) => {
                Step::GiveUp(GiveUp::Refused)
            }
            (State::Looking | State::Swapping, Reply::Unsent | Reply::TooLate) => {
                Step::GiveUp(GiveUp::Unsent)
            }
            (State::Looking, _) => self.look_again(now).unwrap_or(Step::GiveUp(GiveUp::Io)),
            (State::Swapping, _) => {
                self.state = State::Checking;
                Step::Send(Request::at_any_time(Command::Get))
            }
            (State::Checking | State::Replacing(_), _) => Step::GiveUp(GiveUp::Unknown),
        }
    }
}

fn lost(reason: LossReason) -> Step<Extension> {
    Step::Done(Extension::Lost { reason, overwrote: None })
}

impl Rules for Extending {
    type Outcome = Extension;

    fn reply(&mut self, reply: &Reply, now: Now) -> Step<Extension> {
        let State::Replacing(change) = &mut self.state else { return self.reply_to_classic(reply, now) };
        match change.reply(reply, now) {
            Progress::Send(request) => Step::Send(request),
            // The server's time to live may have ended, and no client has acquired the lock since.
            Progress::Changed { found, .. } => self.extended(found == Found::Ours),
            Progress::NotOurs(_) if self.old.has_passed(now) => lost(LossReason::Expired),
            Progress::NotOurs(reason) => lost(reason),
            Progress::NotLooked(GiveUp::Refused) if self.or_classic => self.look(now),
            Progress::NotLooked(GiveUp::Io) => self.look_again(now).unwrap_or(Step::GiveUp(GiveUp::Io)),
            Progress::NotLooked(reason) => Step::GiveUp(reason),
            Progress::Unsent => Step::GiveUp(GiveUp::Unsent),
            Progress::NoLock | Progress::Refused => Step::GiveUp(GiveUp::Refused),
            Progress::Checked { found, holds } => self.checked(holds.as_deref(), found == Found::Ours, now),
            Progress::Unknown => Step::GiveUp(GiveUp::Unknown),
        }
    }

    fn intended(&self) -> Option<(&[u8], &Change)> {
        match &self.state {
            State::Replacing(change) => change.intended(),
            State::Looking | State::Swapping | State::Checking => None,
        }
    }
}
