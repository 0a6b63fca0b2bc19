//! The rules of getting a lock. Classic is the gem's protocol with its gaps closed; Watched and Ttl differ in how they take
//! over, by a transaction that fails if anybody else was faster, and Ttl in that the server removes the key of the dead.

mod params;

use std::time::Duration;

use super::lease::{End, Lease};
use super::{Change, Command, Entry, GiveUp, Reply, Request};
use crate::clock::{Now, Uptime, Wall};
use crate::options::{Protocol, Takeover};
use crate::value::{Expiry, LockState};
use crate::version::Version;
pub(crate) use params::{Action, Note, Observation, Params};

/// How often in a row we go on without a sleep because the key changed while we looked at it: one that comes and goes that
/// fast is one that others are busy with.
const RETRIES_AT_ONCE: u32 = 3;

/// How long after the value was read GETSET may still be sent. Much less than the guard, of which it takes its part: a GETSET that
/// waits for a connection while another takes over and works would put our older time over his.
pub(super) const TAKEOVER_STILL_TRUE: Duration = Duration::from_millis(100);

/// One attempt to get one lock.
///
/// | state | reply | next |
/// |---|---|---|
/// | `Trying` (SETNX sent, in Ttl SET NX PX) | 1 | held, if the lease has not passed (I3) |
/// | | 0 | expiring: GET → `Reading`; else wait |
/// | | no answer | expiring: remember the value, GET → `Reading`; else unknown (I6) |
/// | `Reading` (GET sent) | a value of ours that got no answer | held |
/// | | absent | `Trying` at once, three times in a row at most; then wait |
/// | | a time in the past, by more than the margin | Classic: GETSET → `TakingOver`; else WATCH, GET → `Confirming` |
/// | | anything else | wait |
/// | | no answer | wait, then GET or SETNX |
/// | `TakingOver` (GETSET sent) | a time in the past by the clock before sending (I4), absent | held |
/// | | anything else | we lost, and have overwritten the winner's value; wait |
/// | | no answer | GET → `Reading`; our bytes there do not prove that we won |
/// | | not sent in time | wait: what was read may no longer be true |
/// | `Confirming` (WATCH, GET sent) | a time in the past | MULTI, SET, EXEC → `Replacing` |
/// | | anything else, or no answer | as in `Reading` |
/// | `Replacing` (EXEC sent) | carried out | held |
/// | | not carried out | somebody was faster, and nothing was overwritten: GET → `Reading`, three times in a row at most |
/// | | no answer | remember the value, GET → `Reading`: our bytes there prove that we won |
/// | `Sleeping` | woken | expiring: GET → `Reading`, the one command of an idle waiter; else `Trying` |
/// | | news that the lock is free | `Trying`, unless an answer is in doubt: GET → `Reading` |
#[derive(Debug)]
pub(crate) struct Acquiring {
    params: Params,
    state: State,
    /// Leases whose SETNX or EXEC got no answer and that may still be granted. Only what names us can be recognised (I2).
    /// With what an EXEC took over from.
    unanswered: Vec<(Lease, Option<LockState>)>,
    /// The value of the last GETSET that got no answer: found in the key, it may stand where a winner's stood.
    ambiguous: Option<Vec<u8>>,
    /// Whether the last word on the key is an unanswered command of ours.
    in_doubt: bool,
    /// Since when answers were lost in a row.
    trouble_since: Option<Uptime>,
    at_once_in_a_row: u32,
    stuck_noted: bool,
    /// How many pauses in a row in which nothing changed.
    idle: u32,
    /// How often we looked whether the lock is free.
    pub(crate) attempts: u32,
    /// What the key was last seen to hold.
    pub(crate) seen: Option<LockState>,
    /// For the engine to take and report after each step.
    pub(crate) notes: Vec<Note>,
}

#[derive(Debug)]
enum State {
    Trying(Lease),
    Reading,
    TakingOver { lease: Lease, asked: Wall },
    Confirming,
    Replacing { lease: Lease, from: LockState },
    Sleeping,
}

impl Acquiring {
    /// Begins by asking for the lock.
    pub(crate) fn start(params: Params, now: Now) -> (Self, Action) {
        let mut attempt = Self::new(params, None);
        let action = attempt.freed(now);
        (attempt, action)
    }

    /// Begins where somebody else has just looked: as if the attempt had looked itself.
    pub(crate) fn behind(params: Params, observation: Observation, now: Now) -> (Self, Action) {
        let mut attempt = Self::new(params, observation.seen);
        // Who takes nothing over does not look at what is there; and what was seen may have expired since.
        let look = match &attempt.seen {
            Some(seen) => attempt.may_take_over(seen, now.wall),
            None => params.expires(),
        };
        let action = if look { attempt.woken(now) } else { attempt.rest_of_a_pause(observation.at, now) };
        (attempt, action)
    }

    /// Begins with a pause that counts from `since`, because there will be news of a release.
    pub(crate) fn waiting(params: Params, since: Uptime, now: Now) -> (Self, Action) {
        let mut attempt = Self::new(params, None);
        let action = attempt.rest_of_a_pause(since, now);
        (attempt, action)
    }

    fn rest_of_a_pause(&mut self, since: Uptime, now: Now) -> Action {
        match self.wait_from(since, now) {
            Action::Sleep(Duration::ZERO) => self.woken(now),
            action => action,
        }
    }

    fn new(params: Params, seen: Option<LockState>) -> Self {
        Self {
            params,
            state: State::Sleeping,
            unanswered: Vec::new(),
            ambiguous: None,
            in_doubt: false,
            trouble_since: None,
            at_once_in_a_row: 0,
            stuck_noted: false,
            idle: 0,
            attempts: 0,
            seen,
            notes: Vec::new(),
        }
    }

    /// Decides what [`Protocol::Auto`] is, when the server has replied. The first command of an attempt is the same in both.
    pub(crate) fn decide_protocol(&mut self, server: Option<Version>) {
        self.params.options.protocol = self.params.protocol().on(server);
    }

    /// Returns the protocol, which is decided once the lock is held.
    pub(crate) fn protocol(&self) -> Protocol {
        self.params.protocol()
    }

    /// Goes on after a sleep. A look is enough where the key is likely still held, and all that a takeover needs to begin.
    pub(crate) fn woken(&mut self, now: Now) -> Action {
        self.begin_a_round();
        if self.params.expires() { self.read() } else { self.ask(now) }
    }

    /// Goes on at the news that the lock was given back.
    pub(crate) fn freed(&mut self, now: Now) -> Action {
        self.idle = 0;
        self.begin_a_round();
        if self.in_doubt { self.read() } else { self.ask(now) }
    }

    /// Whether a command of ours that got no answer may have got the lock.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    fn begin_a_round(&mut self) {
        self.attempts = self.attempts.saturating_add(1);
        self.at_once_in_a_row = 0;
    }

    /// Goes on after a command.
    pub(crate) fn reply(&mut self, reply: Reply, now: Now) -> Action {
        if matches!(reply, Reply::Integer(_) | Reply::Bulk(_) | Reply::Executed(_)) {
            self.trouble_since = None;
        }
        match (std::mem::replace(&mut self.state, State::Sleeping), reply) {
            (State::Trying(_), Reply::Integer(0)) => {
                if self.params.expires() {
                    self.read()
                } else {
                    self.wait(now)
                }
            }
            (State::Trying(lease), Reply::Integer(_)) => self.enter(lease, None, now),
            (State::Reading, Reply::Bulk(found)) => self.judge(found.as_deref(), false, now),
            (State::Confirming, Reply::Bulk(found)) => self.judge(found.as_deref(), true, now),
            (State::TakingOver { lease, asked }, Reply::Bulk(found)) => {
                self.taken(lease, asked, found.as_deref(), now)
            }
            (State::TakingOver { .. }, Reply::TooLate) => self.wait(now),
            (State::Replacing { lease, from }, Reply::Executed(Some(_))) => {
                self.enter(lease, Some(from), now)
            }
            (State::Replacing { .. }, Reply::Executed(None)) => {
                if self.at_once_again() {
                    self.read()
                } else {
                    self.wait(now)
                }
            }
            (_, Reply::Refused) => self.give_up(GiveUp::Refused),
            (_, Reply::Unsent | Reply::TooLate) => self.give_up(GiveUp::Unsent),
            // What is no answer to the command is as good as none.
            (state, Reply::Lost | Reply::Integer(_) | Reply::Bulk(_) | Reply::Executed(_)) => {
                self.lost(state, now)
            }
        }
    }

    /// Rule 1: asks for a free lock.
    fn ask(&mut self, now: Now) -> Action {
        let lease = self.new_lease(now);
        let command = Command::SetNx(self.entry(&lease));
        self.state = State::Trying(lease);
        Action::Send(Request::at_any_time(command))
    }

    /// A lease that begins now, with a value that no other command of ours has carried (I2).
    fn new_lease(&mut self, now: Now) -> Lease {
        self.params.nonce = self.params.nonce.next();
        Lease::beginning(now, self.params.options.expiration, self.params.nonce)
    }

    fn entry(&self, lease: &Lease) -> Entry {
        Entry::of(lease, self.params.protocol(), self.params.options.expiration)
    }

    fn read(&mut self) -> Action {
        self.state = State::Reading;
        Action::Send(Request::at_any_time(Command::Get))
    }

    /// Rule 2: what to make of the value in the key, which is `watched` or not.
    fn judge(&mut self, found: Option<&[u8]>, watched: bool, now: Now) -> Action {
        self.in_doubt = found.is_some() && self.ambiguous.as_deref() == found;
        if let Some(n) = self.unanswered.iter().position(|(lease, _)| Some(lease.value.as_slice()) == found) {
            let (lease, from) = self.unanswered.swap_remove(n);
            return self.enter(lease, from, now);
        }
        let content = LockState::read(found);
        let free = matches!(content, LockState::Absent);
        let ours_to_take = self.may_take_over(&content, now.wall);
        self.saw(content.clone());
        if free {
            return if self.at_once_again() { self.ask(now) } else { self.wait(now) };
        }
        if !ours_to_take {
            return self.wait(now);
        }
        match self.params.protocol() {
            Protocol::Auto | Protocol::Classic => {
                let lease = self.new_lease(now);
                let command = Command::GetSet(lease.value.clone());
                self.state = State::TakingOver { lease, asked: now.wall };
                Action::Send(Request::before(End::of(now, TAKEOVER_STILL_TRUE), command))
            }
            Protocol::Watched | Protocol::Ttl if watched => {
                let lease = self.new_lease(now);
                let command = Command::Exec(Change::Set(self.entry(&lease)));
                self.state = State::Replacing { lease, from: content };
                // However late it comes, it changes only what was watched.
                Action::Send(Request::at_any_time(command))
            }
            Protocol::Watched | Protocol::Ttl => {
                self.state = State::Confirming;
                Action::Send(Request::at_any_time(Command::WatchGet))
            }
        }
    }

    /// Whether to go on without a sleep, since the key changed while we looked at it.
    fn at_once_again(&mut self) -> bool {
        self.at_once_in_a_row += 1;
        self.at_once_in_a_row <= RETRIES_AT_ONCE
    }

    /// I1, and the one option that departs from it.
    fn may_take_over(&self, content: &LockState, now: Wall) -> bool {
        match content {
            LockState::Until(Expiry(until)) => until.after(self.params.options.takeover_margin) < now,
            LockState::Unexpiring | LockState::Empty | LockState::Unreadable(_) => {
                self.params.options.takeover == Takeover::AsTheGem
            }
            LockState::Absent => false,
        }
    }

    /// Rule 3: whether the takeover succeeded, judged by the clock as it was before sending (I4).
    fn taken(&mut self, lease: Lease, asked: Wall, found: Option<&[u8]>, now: Now) -> Action {
        self.in_doubt = false;
        let content = LockState::read(found);
        // A late SETNX of our own can have come in between: what we overwrote was ours as well.
        let ours = self.unanswered.iter().any(|(lease, _)| Some(lease.value.as_slice()) == found);
        if ours || content == LockState::Absent || self.may_take_over(&content, asked) {
            return self.enter(lease, Some(content), now);
        }
        self.notes.push(Note::ValueOverwritten(content.clone()));
        self.saw(content);
        self.wait(now)
    }

    fn saw(&mut self, content: LockState) {
        if self.seen.as_ref() != Some(&content) {
            self.idle = 0;
        }
        self.seen = Some(content);
    }

    /// Rule 4: a grant counts only while its lease lasts (I3). A late one frees itself when its time has passed.
    fn enter(&mut self, lease: Lease, from: Option<LockState>, now: Now) -> Action {
        self.in_doubt = false;
        if lease.has_passed(now) {
            self.notes.push(Note::LateGrant);
            return self.wait(now);
        }
        if let Some(content) = from {
            self.notes.push(Note::TakenOver(content));
        }
        Action::Held(lease)
    }

    /// Rule 5: sleeps the poll interval, but not past the deadline, where there is one last try, nor past the expiry
    /// that was seen.
    fn wait(&mut self, now: Now) -> Action {
        self.wait_from(now.uptime, now)
    }

    fn wait_from(&mut self, looked: Uptime, now: Now) -> Action {
        self.note_what_never_expires();
        let Some(time) = self.time_left(looked, now) else { return self.give_up(GiveUp::Timeout) };
        let time = match &self.seen {
            Some(LockState::Until(Expiry(until))) if self.params.expires() => {
                let until = until.after(self.params.options.takeover_margin);
                // Taken over is what is in the past, so a microsecond more.
                let free = until.since(now.wall) + Duration::from_micros(1);
                if until >= now.wall { time.min(free) } else { time }
            }
            _ => time,
        };
        self.sleep(time)
    }

    /// No answer: whether the command was carried out is found out by reading, on a new connection, and never by sending
    /// it again (I6).
    fn lost(&mut self, state: State, now: Now) -> Action {
        match state {
            State::Trying(_) if !self.params.expires() => return Action::GiveUp(GiveUp::Unknown),
            State::Trying(lease) => self.remember(lease, None, now),
            State::Replacing { lease, from } => self.remember(lease, Some(from), now),
            State::TakingOver { lease, .. } => {
                self.in_doubt = true;
                self.ambiguous = Some(lease.value);
            }
            State::Reading | State::Confirming | State::Sleeping => {}
        }
        let Some(since) = self.trouble_since else {
            // The first in a row, often no more than a connection that the server had closed.
            self.trouble_since = Some(now.uptime);
            return self.read();
        };
        match self.time_left(now.uptime, now) {
            Some(_) if now.uptime.since(since) >= self.params.unreachable_timeout => self.give_up(GiveUp::Io),
            Some(time) => self.sleep(time),
            None => self.give_up(GiveUp::Io),
        }
    }

    fn remember(&mut self, lease: Lease, from: Option<LockState>, now: Now) {
        self.in_doubt = true;
        self.unanswered.retain(|(lease, _)| !lease.has_passed(now));
        self.unanswered.push((lease, from));
    }

    fn sleep(&mut self, time: Duration) -> Action {
        self.state = State::Sleeping;
        self.idle = self.idle.saturating_add(1);
        Action::Sleep(time)
    }

    /// The pause between two looks, or what is left of it until the deadline; `None` at the deadline.
    fn time_left(&self, looked: Uptime, now: Now) -> Option<Duration> {
        let pause = self.params.options.polling.pause(self.idle, self.params.nonce.seed());
        let pause = pause.saturating_sub(now.uptime.since(looked));
        match self.params.deadline {
            Some(deadline) if now.uptime >= deadline => None,
            Some(deadline) => Some(pause.min(deadline.since(now.uptime))),
            None => Some(pause),
        }
    }

    fn give_up(&self, reason: GiveUp) -> Action {
        Action::GiveUp(if self.in_doubt { GiveUp::Unknown } else { reason })
    }

    fn note_what_never_expires(&mut self) {
        if let Some(content) = &self.seen
            && content.advice().is_some()
            && !self.stuck_noted
        {
            self.stuck_noted = true;
            self.notes.push(Note::NeverExpires(content.clone()));
        }
    }
}
