//! The rules of acquiring one of several locks, whichever is free: a permit of a semaphore. Each lock is acquired by the rules of a single
//! lock; these choose which.

mod pauses;

use std::time::Duration;

use super::acquiring::{
    Acquiring, Action as LockAction, Note, Observation, Params, first_command, may_take_over,
};
use super::lease::Lease;
use super::{GiveUp, Reply, Request};
use crate::clock::{Now, Uptime, Wall};
use crate::options::{LockOptions, Protocol};
use crate::value::{Expiry, LockState};
use crate::version::Version;

/// How many locks that looked free are tried in a row before a pause: if all were taken meanwhile, they are under contention.
const TRIES: u32 = 3;

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Send SETNX for this lock, and MGET of all behind it.
    Ask {
        slot: usize,
        request: Request,
    },
    /// Send MGET of all.
    Look,
    /// Send a command for this lock.
    Send {
        slot: usize,
        request: Request,
    },
    /// Sleep, then call [`AcquiringPermit::woken`]. No connection is held meanwhile (I9).
    Sleep(Duration),
    Held {
        slot: usize,
        lease: Lease,
        /// Whether another was seen that may be acquired.
        another_is_free: bool,
    },
    GiveUp(GiveUp),
}

/// One attempt to acquire one of several locks.
///
/// | state | reply | next |
/// |---|---|---|
/// | `Asking` (SETNX of a random lock and MGET of all sent) | 1 | held, if the lease has not passed (I3) |
/// | | 0 | a lock that MGET shows absent → `Trying` with SETNX; else one with a time in the past → `Trying` with GET; else wait |
/// | | lost | expiring: keep the lease as unresolved, MGET → `Looking`; else unknown (I6) |
/// | `Looking` (MGET sent) | anything but lost | as after 0 |
/// | either | MGET shows the value of an unresolved lease | held |
/// | `Looking` | lost | MGET again, or wait |
/// | `Trying` | held | held |
/// | | another client was faster | the next lock that looked free, three in a row at most; then wait |
/// | | the key is no lock | the next lock that looked free; not this one again. If none is a lock: refused |
/// | | lost twice in a row | expiring: keep the lease of a SETNX or EXEC as unresolved, wait; else unknown, as after GETSET |
/// | `Sleeping` | a permit is handed over by a thread of the same process | held, unless the lease has passed |
/// | | woken | SETNX, MGET → `Asking`; if the outcome of a command is in doubt: MGET → `Looking` |
/// | | the locks are left to other processes | sleep until that is over |
#[derive(Debug)]
pub(crate) struct AcquiringPermit {
    params: Params,
    /// As the options say: a single lock decides by itself what [`Protocol::Auto`] is.
    asked_protocol: Protocol,
    /// How many locks there are.
    slots: usize,
    state: State,
    /// What a SETNX without a reply may have written, and into which lock.
    unresolved: Vec<(usize, Lease)>,
    /// Locks that were acquired by commands without a reply besides the one that is held, for the engine to release.
    pub(crate) surplus: Vec<(usize, Lease)>,
    /// Keys that hold no lock, and never will.
    no_locks: Vec<usize>,
    in_doubt: bool,
    /// Since when replies have been lost in a row.
    losing_since: Option<Uptime>,
    /// Until when the locks are left to other processes.
    not_before: Option<Uptime>,
    /// How often the attempt has looked whether a lock is free.
    pub(crate) attempts: u32,
    /// What the lock holds that is free first, as far as was seen.
    pub(crate) seen: Option<LockState>,
    /// When the server removes the first of the keys that were left to it, as far as was seen.
    removed_at: Option<Uptime>,
    /// For the engine to take and report after each step, with the lock that each is about.
    pub(crate) notes: Vec<(usize, Note)>,
}

#[derive(Debug)]
enum State {
    Asking {
        slot: usize,
        lease: Lease,
    },
    Looking,
    Trying {
        slot: usize,
        attempt: Box<Acquiring>,
        /// The locks that looked free behind it.
        others: Vec<(usize, LockState)>,
        tries: u32,
    },
    Sleeping,
}

impl AcquiringPermit {
    /// Begins by asking.
    pub(crate) fn start(params: Params, slots: usize, now: Now) -> (Self, Action) {
        let mut attempt = Self::new(params, slots);
        let action = attempt.woken(now);
        (attempt, action)
    }

    /// Begins with a pause, since another thread has just seen all of them held.
    pub(crate) fn behind(params: Params, slots: usize, observation: Observation, now: Now) -> (Self, Action) {
        let mut attempt = Self::new(params, slots);
        attempt.seen = observation.seen;
        let action = match attempt.wait_from(observation.at, now) {
            Action::Sleep(Duration::ZERO) => attempt.woken(now),
            action => action,
        };
        (attempt, action)
    }

    /// Begins with the lease of a permit that a holder of the same process has written for this attempt.
    pub(crate) fn handed_over_first(
        params: Params,
        slots: usize,
        (slot, lease): (usize, Lease),
        protocol: Protocol,
        in_doubt: bool,
        now: Now,
    ) -> (Self, Action) {
        let mut attempt = Self::new(params, slots);
        let action = attempt.handed_over((slot, lease), protocol, in_doubt, now);
        (attempt, action)
    }

    fn new(params: Params, slots: usize) -> Self {
        Self {
            asked_protocol: params.options.protocol,
            params,
            slots,
            state: State::Sleeping,
            unresolved: Vec::new(),
            surplus: Vec::new(),
            no_locks: Vec::new(),
            in_doubt: false,
            losing_since: None,
            not_before: None,
            attempts: 0,
            seen: None,
            removed_at: None,
            notes: Vec::new(),
        }
    }

    /// Decides what [`Protocol::Auto`] is, at the first reply.
    pub(crate) fn decide_protocol(&mut self, server: Option<Version>) {
        self.params.options.protocol = self.params.options.protocol.on(server);
    }

    /// Returns the protocol, which is decided once a lock is held.
    pub(crate) fn protocol(&self) -> Protocol {
        match &self.state {
            State::Trying { attempt, .. } => attempt.protocol(),
            _ => self.params.options.protocol,
        }
    }

    /// Whether a command whose reply was lost may have acquired a lock.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// Whether the options allow no further attempt.
    pub(crate) fn has_used_its_attempts(&self) -> bool {
        self.params.options.max_attempts.is_some_and(|most| self.attempts >= most)
    }

    /// Goes on after a sleep, or at the hint that a lock was released.
    pub(crate) fn woken(&mut self, now: Now) -> Action {
        if self.in_doubt {
            return self.look();
        }
        self.not_before = None;
        self.attempts = self.attempts.saturating_add(1);
        self.params.nonce = self.params.nonce.next();
        let seed = self.params.nonce.seed();
        let slot = usize::try_from(seed % self.slots as u64).unwrap_or(0);
        let (lease, request) = first_command(&self.params.options, self.params.nonce, now);
        self.state = State::Asking { slot, lease };
        Action::Ask { slot, request }
    }

    /// Sleeps until then, since the locks are left to other processes, and asks. At the deadline they are asked for in any case.
    pub(crate) fn leave_until(&mut self, until: Uptime, now: Now) -> Action {
        let is_last = self.params.deadline.is_some_and(|deadline| now.uptime >= deadline);
        if is_last || now.uptime >= until {
            return self.woken(now);
        }
        self.not_before = Some(until);
        self.wait_from(now.uptime, now)
    }

    /// Goes on with the lease of a permit that a holder of the same process has written for this attempt.
    /// If that is `in_doubt`, the key decides where its bytes prove something: in Classic GETSET may have overwritten another client's.
    pub(crate) fn handed_over(
        &mut self,
        (slot, lease): (usize, Lease),
        protocol: Protocol,
        in_doubt: bool,
        now: Now,
    ) -> Action {
        debug_assert!(!self.in_doubt, "it might have two");
        self.params.options.protocol = protocol;
        match protocol {
            _ if !in_doubt => {}
            Protocol::Watched | Protocol::Ttl => {
                self.in_doubt = true;
                self.unresolved.push((slot, lease));
                return self.look();
            }
            Protocol::Auto | Protocol::Classic => return self.woken(now),
        }
        self.attempts = self.attempts.saturating_add(1);
        // What is left to other processes is free, and no other waiter knows.
        let another_is_free = self.not_before.take().is_some();
        self.granted(slot, lease, another_is_free, now)
    }

    /// Goes on after SETNX and MGET.
    pub(crate) fn asked(&mut self, set: &Reply, found: &Reply, now: Now) -> Action {
        let State::Asking { slot, lease } = std::mem::replace(&mut self.state, State::Sleeping) else {
            unreachable!("the rules have asked")
        };
        self.set(slot, lease, set, found, now)
    }

    fn set(&mut self, slot: usize, lease: Lease, set: &Reply, found: &Reply, now: Now) -> Action {
        if matches!(set, Reply::Integer(_)) {
            self.losing_since = None;
        }
        match set {
            Reply::Integer(0) => self.found(found, slot, now),
            Reply::Integer(_) => {
                let another_is_free = match found {
                    Reply::Bulks(found) => {
                        self.surplus = self.take_ours(found);
                        !self.free(found, slot, now).is_empty()
                    }
                    // Perhaps, and no other waiter may know.
                    _ => true,
                };
                self.granted(slot, lease, another_is_free, now)
            }
            Reply::TooLate => self.wait_from(now.uptime, now),
            Reply::Refused | Reply::NoLock => Action::GiveUp(GiveUp::Refused),
            Reply::Unsent => Action::GiveUp(GiveUp::Unsent),
            // A reply that does not fit the command counts as lost.
            _ if !self.params.expires() => Action::GiveUp(GiveUp::Unknown),
            _ => {
                self.in_doubt = true;
                self.unresolved.retain(|(_, lease)| !lease.has_passed(now));
                self.unresolved.push((slot, lease));
                self.lost(now)
            }
        }
    }

    /// Goes on after MGET.
    pub(crate) fn looked(&mut self, found: &Reply, now: Now) -> Action {
        if let Reply::Bulks(_) = found {
            self.losing_since = None;
            self.in_doubt = false;
        }
        self.found(found, usize::MAX, now)
    }

    /// Judges what all locks hold. `asked` has just been asked for.
    fn found(&mut self, found: &Reply, asked: usize, now: Now) -> Action {
        match found {
            Reply::Bulks(values) => {
                let mut ours = self.take_ours(values);
                let ends_last = (0..ours.len()).max_by_key(|at| ours[*at].1.end.map(|end| end.uptime));
                if let Some(at) = ends_last {
                    let (slot, lease) = ours.swap_remove(at);
                    self.surplus = ours;
                    let others = self.free(values, slot, now).len();
                    return self.granted(slot, lease, others > 0, now);
                }
                let free = self.free(values, asked, now);
                let first = values.iter().map(|value| LockState::of_value(value.as_deref()));
                self.seen = first.min_by_key(frees_itself);
                self.try_one(free, 0, now)
            }
            Reply::Refused | Reply::NoLock => self.give_up(GiveUp::Refused),
            Reply::Unsent | Reply::TooLate => self.give_up(GiveUp::Unsent),
            _ => self.lost(now),
        }
    }

    /// Takes out the unresolved leases whose values the locks hold.
    fn take_ours(&mut self, values: &[Option<Vec<u8>>]) -> Vec<(usize, Lease)> {
        let is_ours = |(slot, lease): &mut (usize, Lease)| {
            values.get(*slot).and_then(Option::as_ref).is_some_and(|value| *value == lease.value)
        };
        self.unresolved.extract_if(.., is_ours).collect()
    }

    /// Returns the locks that may be acquired: first those that are absent, beginning with the one behind `asked`. That one itself is last:
    /// SETNX does not acquire what has expired.
    fn free(&self, values: &[Option<Vec<u8>>], asked: usize, now: Now) -> Vec<(usize, LockState)> {
        let first = asked.wrapping_add(1) % self.slots;
        let states = (first..self.slots).chain(0..first).filter_map(|slot| {
            let state = LockState::of_value(values.get(slot)?.as_deref());
            let expires = self.params.expires();
            // What is not a string reads as absent.
            let is_free = state == LockState::Absent && !self.no_locks.contains(&slot)
                || expires && may_take_over(&self.params.options, &state, now.wall);
            is_free.then_some((slot, state))
        });
        let (mut absent, expired): (Vec<_>, Vec<_>) =
            states.partition(|(_, state)| *state == LockState::Absent);
        absent.extend(expired);
        absent
    }

    /// Tries the first of these once, by the rules of a single lock.
    fn try_one(&mut self, mut free: Vec<(usize, LockState)>, tries: u32, now: Now) -> Action {
        if free.is_empty() || tries >= TRIES {
            return self.wait_from(now.uptime, now);
        }
        let (slot, state) = free.remove(0);
        self.params.nonce = self.params.nonce.next();
        let options =
            LockOptions { max_attempts: None, protocol: self.asked_protocol, ..self.params.options };
        let params = Params { options, deadline: Some(now.uptime), ..self.params };
        let (attempt, action) = match state {
            LockState::Absent => Acquiring::start(params, now),
            state => Acquiring::behind(params, Observation { seen: Some(state), at: now.uptime }, now),
        };
        self.params.nonce = self.params.nonce.behind_an_attempt();
        self.tried(slot, Box::new(attempt), action, free, tries + 1, now)
    }

    /// Goes on after a command for a lock that is tried.
    pub(crate) fn reply(&mut self, reply: Reply, server: Option<Version>, now: Now) -> Action {
        match std::mem::replace(&mut self.state, State::Sleeping) {
            State::Trying { slot, others, tries, .. } if reply == Reply::NoLock => {
                self.no_locks.push(slot);
                if self.no_locks.len() == self.slots {
                    return Action::GiveUp(GiveUp::Refused);
                }
                self.try_one(others, tries - 1, now)
            }
            State::Trying { slot, mut attempt, others, tries } => {
                if matches!(reply, Reply::Integer(_) | Reply::Bulk(_)) {
                    attempt.decide_protocol(server);
                }
                let action = attempt.reply(reply, now);
                self.tried(slot, attempt, action, others, tries, now)
            }
            _ => unreachable!("the rules have tried a lock"),
        }
    }

    fn tried(
        &mut self,
        slot: usize,
        mut attempt: Box<Acquiring>,
        action: LockAction,
        others: Vec<(usize, LockState)>,
        tries: u32,
        now: Now,
    ) -> Action {
        self.notes.extend(attempt.notes.drain(..).map(|note| (slot, note)));
        self.removed_at = self.removed_at.into_iter().chain(attempt.removed_at).min();
        match action {
            LockAction::Send(request) => {
                self.state = State::Trying { slot, attempt, others, tries };
                Action::Send { slot, request }
            }
            LockAction::Held(lease) => {
                let another_is_free = !others.is_empty();
                self.state = State::Trying { slot, attempt, others, tries };
                Action::Held { slot, lease, another_is_free }
            }
            LockAction::Sleep(_) | LockAction::GiveUp(GiveUp::Timeout) => self.try_one(others, tries, now),
            LockAction::GiveUp(GiveUp::Io) => self.pause_or(GiveUp::Io, now),
            LockAction::GiveUp(GiveUp::Unknown) => match attempt.into_unresolved() {
                Some(leases) if self.params.expires() => {
                    self.in_doubt = true;
                    self.unresolved.extend(leases.map(|lease| (slot, lease)));
                    self.pause_or(GiveUp::Unknown, now)
                }
                _ => Action::GiveUp(GiveUp::Unknown),
            },
            LockAction::GiveUp(reason) => Action::GiveUp(reason),
        }
    }

    /// A grant counts only while its lease lasts (I3).
    pub(crate) fn granted(&mut self, slot: usize, lease: Lease, another_is_free: bool, now: Now) -> Action {
        self.in_doubt = false;
        if lease.has_passed(now) {
            self.notes.push((slot, Note::LateGrant));
            return self.wait_from(now.uptime, now);
        }
        Action::Held { slot, lease, another_is_free }
    }

    fn look(&mut self) -> Action {
        self.state = State::Looking;
        Action::Look
    }
}

/// Orders states by when the lock is free: those that never are come last.
fn frees_itself(state: &LockState) -> (bool, Option<Wall>) {
    match state {
        LockState::Until(Expiry(until)) => (false, Some(*until)),
        _ => (true, None),
    }
}

#[cfg(test)]
mod tests;
