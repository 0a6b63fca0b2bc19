//! The rules of renewing a held lease: our value is replaced by one with a later time. Used where the lock passes to the next
//! thread of the process without being given back. It begins only while the old lease lasts, and never on a guess: what was
//! found in the key's place decides.

use std::time::Duration;

use super::acquire::TAKEOVER_STILL_TRUE;
use super::lease::{End, Lease};
use super::release::Release;
use super::{Change, Command, Entry, GiveUp, Reply, Request};
use crate::clock::Now;
use crate::options::Protocol;
use crate::value::{self, Content, Expiry, Nonce};

/// How often in a row the key is looked at again because it was written after we had looked.
const LOOKS: u32 = 3;

/// What to do next to renew a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Send(Request),
    /// The new lease is ours. Whoever gets it looks whether it still lasts (I3).
    Renewed(Renewed),
    /// The old one stands as it was, and may be given back by the rules of releasing.
    NotRenewed,
    /// The lock was another's; in Classic his value has been overwritten.
    Lost {
        overwrote: Content,
    },
    GiveUp(GiveUp),
}

/// A lease that takes another's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Renewed {
    pub(crate) lease: Lease,
    pub(crate) found: Found,
}

/// What stood in the key's place when the new value came there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Our own bytes: nobody had the lock meanwhile.
    Ours,
    /// What a loser of the classic takeover had written over ours, or nobody knows, since the answer was lost.
    Unproven,
    /// Nothing: somebody had cleared the key. It is ours anew (I1), but was not all the time.
    Nothing,
}

impl Found {
    /// What is told of a lock that was given back after it was renewed. Since then the key has held the new value: only the
    /// renewal has seen what became of the old one.
    pub(crate) fn confirms(self, outcome: Release) -> Release {
        match (self, outcome) {
            (Found::Nothing, Release::Released { .. } | Release::HandedOver { .. }) => Release::Lost,
            (Found::Unproven, Release::Released { .. }) => Release::Released { certified: false },
            (Found::Unproven, Release::HandedOver { .. }) => Release::HandedOver { certified: false },
            (_, outcome) => outcome,
        }
    }
}

/// Renews one lease.
///
/// | state | reply | next |
/// |---|---|---|
/// | start | no expiration, old and new | renewed: there is nothing that could pass |
/// | | only one of them has an expiration | not renewed |
/// | | lease passed | not renewed |
/// | | Classic | GETSET → `Swapping`; Watched and Ttl: WATCH, GET → `Looking` |
/// | `Swapping` | our own bytes, a time close to ours, or absent | renewed |
/// | | anything else | lost; we have overwritten another's value, as a loser of the classic takeover does |
/// | | refused, or not sent in time | not renewed |
/// | | no answer | GET → `Checking`; nothing is sent again (I6) |
/// | `Looking` | our own bytes, or a classic loser's | MULTI, SET, EXEC → `Replacing` |
/// | | anything else, or no answer | not renewed: releasing looks again and says what it means |
/// | `Replacing` | carried out | renewed |
/// | | not carried out, since the key was written | WATCH, GET → `Looking`, three times in a row at most |
/// | | refused | not renewed |
/// | | no answer | GET → `Checking` |
/// | `Checking` | our new bytes, old lease not passed | renewed |
/// | | anything else | unknown |
#[derive(Clone, Debug)]
pub(crate) struct Renewing {
    old: Lease,
    new: Lease,
    /// The new value as it is written.
    entry: Entry,
    looks: u32,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Swapping,
    Looking,
    Replacing(Found),
    Checking(Found),
}

impl Renewing {
    /// Begins to replace `old` by a lease of `expiration` that begins now.
    pub(crate) fn start(
        protocol: Protocol,
        old: &Lease,
        expiration: Option<Duration>,
        nonce: Nonce,
        now: Now,
    ) -> (Self, Step) {
        let new = Lease::beginning(now, expiration, nonce);
        let entry = Entry::of(&new, protocol, expiration);
        let mut renewing = Self { old: old.clone(), new, entry, looks: 0, state: State::Looking };
        let step = match (old.end, protocol) {
            // What has no end names nobody, and what names somebody has one.
            _ if old.end.is_some() != expiration.is_some() => Step::NotRenewed,
            (None, _) => renewing.renewed(Found::Unproven),
            (Some(end), _) if end.has_passed(now) => Step::NotRenewed,
            (Some(end), Protocol::Classic) => {
                renewing.state = State::Swapping;
                // Not later than our lease lasts, nor than a GETSET may be sent for (I4): another may come to have the lock.
                let time = end.remaining(now).min(TAKEOVER_STILL_TRUE);
                let swap = Command::GetSet(renewing.new.value.clone());
                Step::Send(Request::before(End::of(now, time), swap))
            }
            (Some(_), Protocol::Watched | Protocol::Ttl) => renewing.look(),
        };
        (renewing, step)
    }

    pub(crate) fn reply(&mut self, reply: &Reply, now: Now) -> Step {
        match (&self.state, reply) {
            (State::Swapping, Reply::Bulk(found)) => self.swapped(found.as_deref()),
            (State::Looking, Reply::Bulk(found)) => self.judge(found.as_deref(), now),
            (State::Replacing(found), Reply::Executed(Some(_))) => self.renewed(*found),
            (State::Replacing(_), Reply::Executed(None)) if self.looks < LOOKS => self.look(),
            (State::Replacing(_), Reply::Executed(None)) => Step::NotRenewed,
            // A look that got no answer changed nothing.
            (State::Looking, _) => Step::NotRenewed,
            (State::Swapping | State::Replacing(_), Reply::Refused | Reply::Unsent | Reply::TooLate) => {
                Step::NotRenewed
            }
            (State::Swapping, _) => self.check(Found::Unproven),
            (State::Replacing(found), _) => self.check(*found),
            (State::Checking(found), Reply::Bulk(Some(bytes)))
                if *bytes == self.new.value && !self.old.has_passed(now) =>
            {
                self.renewed(*found)
            }
            (State::Checking(_), _) => Step::GiveUp(GiveUp::Unknown),
        }
    }

    fn look(&mut self) -> Step {
        self.looks += 1;
        self.state = State::Looking;
        Step::Send(Request::at_any_time(Command::WatchGet))
    }

    fn check(&mut self, found: Found) -> Step {
        self.state = State::Checking(found);
        Step::Send(Request::at_any_time(Command::Get))
    }

    /// GETSET has put our new value into the key, and says what stood there.
    fn swapped(&self, found: Option<&[u8]>) -> Step {
        let content = Content::read(found);
        match (&content, self.old.end) {
            _ if found == Some(&self.old.value) => self.renewed(Found::Ours),
            (Content::Absent, _) => self.renewed(Found::Nothing),
            // By the clocks the lock is ours, and that is what Classic goes by. Losers of our own kind write as many decimals as we.
            (Content::Until(Expiry(until)), Some(end)) if end.may_be_a_loser_s(*until) => {
                self.renewed(Found::Unproven)
            }
            _ => Step::Lost { overwrote: content },
        }
    }

    fn judge(&mut self, found: Option<&[u8]>, now: Now) -> Step {
        let of_a_loser = |bytes| {
            let time = value::classic_time(bytes);
            time.zip(self.old.end).is_some_and(|(until, end)| end.may_be_a_loser_s(until))
        };
        let found = match found {
            _ if self.old.has_passed(now) => return Step::NotRenewed,
            Some(found) if found == self.old.value => Found::Ours,
            Some(found) if of_a_loser(found) => Found::Unproven,
            _ => return Step::NotRenewed,
        };
        self.state = State::Replacing(found);
        // It changes what was watched, or nothing.
        Step::Send(Request::at_any_time(Command::Exec(Change::Set(self.entry.clone()))))
    }

    fn renewed(&self, found: Found) -> Step {
        Step::Renewed(Renewed { lease: self.new.clone(), found })
    }
}
