//! The rules of acquiring a lock. Classic is the gem's protocol with its gaps closed. Watched and Ttl take over by a transaction that
//! fails if another client was faster; in Ttl the server also removes the key of a crashed holder.

mod pauses;

use std::time::Duration;

pub(super) use super::acquire::may_take_over;
use super::acquire::{GETSET_TIME_LIMIT, Unresolved};
pub(crate) use super::acquire::{Note, Observation, Params, first_command};
use super::lease::{End, Lease};
use super::{Change, Command, Entry, GiveUp, Reply, Request, window};
use crate::clock::{Now, Uptime, Wall};
use crate::options::Protocol;
use crate::value::{self, LockState};
use crate::version::Version;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Send(Request),
    Sleep(Duration),
    Held(Lease),
    GiveUp(GiveUp),
}

/// How often in a row the attempt goes on without a sleep after the key changed between two commands. A key that changes
/// more often is under contention.
const IMMEDIATE_RETRIES: u32 = 3;

/// One attempt to acquire one lock.
///
/// | state | reply | next |
/// |---|---|---|
/// | `Setting` (SETNX sent; in Ttl SET NX PX) | 1 | held, if the lease has not passed (I3) |
/// | | 0 | expiring: GET → `Reading`; else wait |
/// | | lost | expiring: keep the lease as unresolved, GET → `Reading`; else unknown (I6) |
/// | | not sent before its lease has passed | SETNX with a new one at once, three times in a row at most; then wait |
/// | `Reading` (GET sent) | the value of an unresolved lease | held |
/// | | absent | `Setting` at once, three times in a row at most; then wait |
/// | | a time in the past | Classic: GETSET → `TakingOver`; else WATCH, GET, MULTI → `Confirming` |
/// | | anything else | wait |
/// | | lost | GET again, or wait |
/// | `TakingOver` (GETSET sent) | a time in the past by the clock before sending (I4), or absent | held |
/// | | anything else | the takeover is lost, and the winner's value is overwritten; wait |
/// | | lost | GET → `Reading`; our bytes there do not prove that the takeover succeeded |
/// | | not sent in time | wait: what was read may no longer be true |
/// | `Confirming` (WATCH, GET, MULTI sent; in Ttl PTTL behind GET) | a time in the past | SET, EXEC → `Replacing` |
/// | | Ttl: the key has a time to live | wait: the server removes it, whatever the clocks say |
/// | | anything else, or lost | as in `Reading` |
/// | `Replacing` (EXEC sent) | carried out | held |
/// | | not carried out | another client was faster, nothing was overwritten: GET → `Reading`, three times in a row at most |
/// | | lost | keep the lease as unresolved, GET → `Reading`: our bytes there prove that the takeover succeeded |
/// | `Sleeping` | the lock is handed over by a thread of the same process | held, unless the lease has passed |
/// | | woken | expiring: GET → `Reading`, the one command of an idle waiter; else `Setting` |
/// | | a hint that the lock is free | `Setting`; if the outcome of a command is in doubt: GET → `Reading` |
///
/// The first reply that is lost in a row is followed by GET at once, each further one by a pause. The attempt gives up when replies have
/// been lost in a row for `retry_for`, at its deadline, or instead of a pause when it has used its attempts.
#[derive(Debug)]
pub(crate) struct Acquiring {
    params: Params,
    /// Whether the options say [`Protocol::Auto`].
    auto: bool,
    state: State,
    unresolved: Unresolved,
    /// Since when replies have been lost in a row.
    losing_since: Option<Uptime>,
    immediate_retries: u32,
    /// How often the key was read without a pause since a reply was lost.
    immediate_reads: u32,
    never_expires_noted: bool,
    /// Until when the lock is left to other processes.
    not_before: Option<Uptime>,
    /// The end of the window in which it looks at the key, if it has not seen since then that a poller has the lock.
    looks_until: Option<Uptime>,
    /// Until when it asks without a pause, since a poller has the lock.
    asks_until: Option<Uptime>,
    /// How often the attempt has looked whether the lock is free.
    pub(crate) attempts: u32,
    /// What the key was last seen to hold.
    pub(crate) seen: Option<LockState>,
    /// When the server removes a key that was left to it.
    pub(super) removed_at: Option<Uptime>,
    /// For the engine to take and report after each step.
    pub(crate) notes: Vec<Note>,
}

#[derive(Debug)]
enum State {
    Setting(Lease),
    Reading,
    /// `judged_at` is the wall clock before sending.
    TakingOver {
        lease: Lease,
        judged_at: Wall,
    },
    Confirming,
    Replacing {
        lease: Lease,
        from: LockState,
    },
    Sleeping,
}

impl Acquiring {
    /// Begins with SETNX.
    pub(crate) fn start(params: Params, now: Now) -> (Self, Action) {
        let mut attempt = Self::new(params, None);
        let action = attempt.freed(now);
        (attempt, action)
    }

    /// Begins with what another thread has just seen, as if the attempt had looked itself.
    pub(crate) fn behind(params: Params, observation: Observation, now: Now) -> (Self, Action) {
        let mut attempt = Self::new(params, observation.seen);
        // An unexpiring attempt takes nothing over, so it does not look. What was seen may have expired since.
        let look = match &attempt.seen {
            Some(seen) => attempt.may_take_over(seen, now.wall),
            None => params.expires(),
        };
        let action = if look { attempt.woken(now) } else { attempt.rest_of_pause(observation.at, now) };
        (attempt, action)
    }

    /// Begins while the lock is left to other processes.
    pub(crate) fn not_before(params: Params, until: Uptime, now: Now) -> (Self, Action) {
        let mut attempt = Self::new(params, None);
        let action = attempt.leave_until(until, now);
        (attempt, action)
    }

    /// Begins in a window.
    pub(crate) fn begin_in_window(params: Params, end: Uptime, now: Now) -> (Self, Action) {
        let mut attempt = Self::new(params, None);
        let action = attempt.in_window(end, now);
        (attempt, action)
    }

    fn rest_of_pause(&mut self, since: Uptime, now: Now) -> Action {
        match self.wait_from(since, now) {
            Action::Sleep(Duration::ZERO) => self.woken(now),
            action => action,
        }
    }

    /// Begins with the reply to a SETNX that was sent for the attempt.
    pub(crate) fn answered_first(
        params: Params,
        lease: Lease,
        reply: Reply,
        server: Option<Version>,
        now: Now,
    ) -> (Self, Action) {
        let mut attempt = Self::new(params, None);
        attempt.begin_round();
        if matches!(reply, Reply::Integer(_)) {
            attempt.decide_protocol(server);
        }
        attempt.state = State::Setting(lease);
        let action = attempt.reply(reply, now);
        (attempt, action)
    }

    /// Begins with a lease that a holder of the same process has written for this attempt.
    pub(crate) fn handed_over_first(
        params: Params,
        lease: Lease,
        protocol: Protocol,
        in_doubt: bool,
        now: Now,
    ) -> (Self, Action) {
        let mut attempt = Self::new(params, None);
        let action = attempt.handed_over(lease, protocol, in_doubt, now);
        (attempt, action)
    }

    fn new(params: Params, seen: Option<LockState>) -> Self {
        Self {
            auto: params.protocol() == Protocol::Auto,
            params,
            state: State::Sleeping,
            unresolved: Unresolved::default(),
            losing_since: None,
            immediate_retries: 0,
            immediate_reads: 0,
            never_expires_noted: false,
            not_before: None,
            looks_until: None,
            asks_until: None,
            attempts: 0,
            seen,
            removed_at: None,
            notes: Vec::new(),
        }
    }

    /// Decides what [`Protocol::Auto`] is, at the first reply; later calls change nothing. The first command is the same either way.
    pub(crate) fn decide_protocol(&mut self, server: Option<Version>) {
        self.params.options.protocol = self.params.protocol().on(server);
    }

    /// Returns the protocol, which is decided once the lock is held.
    pub(crate) fn protocol(&self) -> Protocol {
        self.params.protocol()
    }

    /// Goes on after a sleep. The key is probably still held, so GET is enough; a takeover begins with it as well.
    pub(crate) fn woken(&mut self, now: Now) -> Action {
        self.begin_round();
        let was_left = self.not_before.take().is_some();
        if !self.is_in_doubt() && (was_left || !self.params.expires()) { self.set(now) } else { self.read() }
    }

    /// Goes on at the hint that the lock was released.
    pub(crate) fn freed(&mut self, now: Now) -> Action {
        self.not_before = None;
        self.begin_round();
        if self.is_in_doubt() { self.read() } else { self.set(now) }
    }

    /// Goes on instead of a sleep, after a look that was due before it. If the lock is free and left to other processes, or nothing was found
    /// out, returns `None`: it sleeps all the same.
    pub(crate) fn looked(&mut self, reply: Reply, now: Now) -> Option<Action> {
        match &reply {
            Reply::Bulk(None) if self.leaves() => return None,
            Reply::Bulk(_) => {}
            _ => return None,
        }
        self.not_before = None;
        self.state = State::Reading;
        Some(self.reply(reply, now))
    }

    /// Goes on with a lease that a holder of the same process has written for this attempt.
    /// If that is `in_doubt`, the key decides (I6).
    pub(crate) fn handed_over(
        &mut self,
        lease: Lease,
        protocol: Protocol,
        in_doubt: bool,
        now: Now,
    ) -> Action {
        debug_assert!(!self.is_in_doubt(), "it might have the lock twice");
        self.params.options.protocol = protocol;
        self.not_before = None;
        self.begin_round();
        match protocol {
            _ if !in_doubt => return self.granted(lease, None, now),
            Protocol::Watched | Protocol::Ttl => self.unresolved.keep(lease, None, now),
            Protocol::Auto | Protocol::Classic => self.unresolved.keep_takeover(lease),
        }
        self.read()
    }

    /// Sleeps until then, since the lock is left to other processes, and asks for it. At the deadline it is asked for in any case.
    pub(crate) fn leave_until(&mut self, until: Uptime, now: Now) -> Action {
        if self.is_last(now.uptime) || now.uptime >= until {
            return self.freed(now);
        }
        self.not_before = Some(until);
        self.seen = None;
        self.wait(now)
    }

    /// Goes on in a window, in which the lock is left to pollers until `end`: looks at it now and then, and asks for it for a moment if
    /// another client has it. At the deadline it is asked for in any case.
    pub(crate) fn in_window(&mut self, end: Uptime, now: Now) -> Action {
        if self.is_last(now.uptime) || self.asks(now.uptime) {
            return self.freed(now);
        }
        // Looks would use its attempts up.
        if self.params.options.max_attempts.is_some() {
            return self.leave_until(end, now);
        }
        if self.not_before.is_none() || self.seen.is_some() {
            return self.look_later(end, now);
        }
        self.begin_round();
        self.read()
    }

    fn look_later(&mut self, end: Uptime, now: Now) -> Action {
        let look = now.uptime.after(window::until_look(self.params.nonce.seed()));
        self.params.nonce = self.params.nonce.next();
        self.looks_until = Some(end);
        self.leave_until(look.min(end), now)
    }

    /// Whether the deadline has come, at which the lock is asked for in any case.
    fn is_last(&self, now: Uptime) -> bool {
        self.params.deadline.is_some_and(|deadline| now >= deadline)
    }

    /// Whether it asks for the lock without a pause, since it has seen in a window that another client has it.
    pub(crate) fn asks(&self, now: Uptime) -> bool {
        self.asks_until.is_some_and(|until| now < until)
    }

    /// Whether the lock is left to other processes.
    pub(crate) fn leaves(&self) -> bool {
        self.not_before.is_some()
    }

    /// Whether the options allow no further attempt.
    pub(crate) fn has_used_its_attempts(&self) -> bool {
        self.params.options.max_attempts.is_some_and(|most| self.attempts >= most)
    }

    /// Whether a command whose reply was lost may have acquired the lock.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.unresolved.in_doubt
    }

    /// Returns the leases that commands without a reply may have begun, and whose values prove it; `None` if a GETSET is among these
    /// commands, whose value proves nothing.
    pub(crate) fn into_unresolved(self) -> Option<impl Iterator<Item = Lease>> {
        self.unresolved.into_leases()
    }

    fn begin_round(&mut self) {
        self.attempts = self.attempts.saturating_add(1);
        (self.immediate_retries, self.immediate_reads) = (0, 0);
    }

    /// Goes on after a command.
    pub(crate) fn reply(&mut self, reply: Reply, now: Now) -> Action {
        if matches!(reply, Reply::Integer(_) | Reply::Bulk(_) | Reply::Expiring(..) | Reply::Executed(_)) {
            self.losing_since = None;
        }
        match (std::mem::replace(&mut self.state, State::Sleeping), reply) {
            (State::Setting(_), Reply::Integer(0)) => {
                if self.params.expires() {
                    self.read()
                } else {
                    self.wait(now)
                }
            }
            (State::Setting(lease), Reply::Integer(_)) => self.granted(lease, None, now),
            (State::Reading, Reply::Bulk(found)) => self.judge(found.as_deref(), false, now),
            (State::Confirming, Reply::Bulk(found)) => self.judge(found.as_deref(), true, now),
            (State::Confirming, Reply::Expiring(found, left)) => self.leave_to_server(&found, left, now),
            (State::TakingOver { lease, judged_at }, Reply::Bulk(found)) => {
                self.replaced(lease, judged_at, found.as_deref(), now)
            }
            (State::Setting(_), Reply::TooLate) if self.may_retry_immediately() => self.set(now),
            (State::Setting(_) | State::TakingOver { .. }, Reply::TooLate) => self.wait(now),
            (State::Replacing { lease, from }, Reply::Executed(Some(_))) => {
                self.granted(lease, Some(from), now)
            }
            (State::Replacing { .. }, Reply::Executed(None)) => {
                if self.may_retry_immediately() {
                    self.read()
                } else {
                    self.wait(now)
                }
            }
            // Auto chose Watched by the server's version alone, and this server has no WATCH for this user.
            (State::Confirming, Reply::Refused) if self.auto => {
                self.params.options.protocol = Protocol::Classic;
                self.read()
            }
            (_, Reply::Refused | Reply::NoLock) => self.give_up(GiveUp::Refused),
            (_, Reply::Unsent | Reply::TooLate) => self.give_up(GiveUp::Unsent),
            // A reply that does not fit the command counts as lost.
            (
                state,
                Reply::Lost
                | Reply::Integer(_)
                | Reply::Bulk(_)
                | Reply::Expiring(..)
                | Reply::Bulks(_)
                | Reply::Executed(_),
            ) => self.lost(state, now),
        }
    }

    /// Rule 1: acquires a free lock.
    fn set(&mut self, now: Now) -> Action {
        self.params.nonce = self.params.nonce.next();
        let (lease, request) = first_command(&self.params.options, self.params.nonce, now);
        self.state = State::Setting(lease);
        Action::Send(request)
    }

    /// A lease that begins now, with a value that no other command of this client has carried (I2).
    fn new_lease(&mut self, now: Now) -> Lease {
        self.params.nonce = self.params.nonce.next();
        Lease::of(&self.params.options, self.params.nonce, now)
    }

    fn entry(&self, lease: &Lease) -> Entry {
        Entry::of(lease, self.params.protocol(), self.params.options.expiration)
    }

    fn read(&mut self) -> Action {
        self.state = State::Reading;
        Action::Send(Request::at_any_time(Command::Get))
    }

    /// Rule 2: judges the value in the key, which is `watched` or not.
    fn judge(&mut self, found: Option<&[u8]>, watched: bool, now: Now) -> Action {
        if let Some((lease, from)) = self.unresolved.resolve(found) {
            return self.granted(lease, from, now);
        }
        let state = LockState::of_value(found);
        let is_free = matches!(state, LockState::Absent);
        let may_take_over = self.may_take_over(&state, now.wall);
        self.seen = Some(state.clone());
        if let Some(end) = self.looks_until.take() {
            // What another process of this library has, it leaves by itself.
            let is_pollers = state == LockState::Empty || found.and_then(value::classic_time).is_some();
            if is_pollers {
                self.asks_until = Some(now.uptime.after(window::ASKS));
            } else if now.uptime < end {
                return self.look_later(end, now);
            }
        }
        if is_free {
            return if self.may_retry_immediately() { self.set(now) } else { self.wait(now) };
        }
        if !may_take_over {
            return self.wait(now);
        }
        match self.params.protocol() {
            Protocol::Auto | Protocol::Classic => {
                let lease = self.new_lease(now);
                let command = Command::GetSet(lease.value.clone());
                self.state = State::TakingOver { lease, judged_at: now.wall };
                Action::Send(Request::before(End::of(now, GETSET_TIME_LIMIT), command))
            }
            Protocol::Watched | Protocol::Ttl if watched => {
                let lease = self.new_lease(now);
                let command = Command::Exec(Change::Set(self.entry(&lease)));
                self.state = State::Replacing { lease, from: state };
                // At any time: it changes what was watched, or nothing.
                Action::Send(Request::at_any_time(command))
            }
            protocol @ (Protocol::Watched | Protocol::Ttl) => {
                self.state = State::Confirming;
                Action::Send(Request::at_any_time(match protocol {
                    Protocol::Ttl => Command::WatchGetTtl,
                    _ => Command::WatchGet,
                }))
            }
        }
    }

    /// Ttl: a key with a time to live is removed by the server alone, so that no clock of a client decides over it.
    fn leave_to_server(&mut self, found: &[u8], left: Duration, now: Now) -> Action {
        if let Some((lease, from)) = self.unresolved.resolve(Some(found)) {
            return self.granted(lease, from, now);
        }
        self.seen = Some(LockState::of_value(Some(found)));
        // PTTL rounds; a millisecond later the key is gone.
        let left = left + Duration::from_millis(1);
        self.removed_at = Some(now.uptime.after(left));
        match self.wait(now) {
            Action::Sleep(time) => Action::Sleep(time.min(left)),
            action => action,
        }
    }

    /// Whether to go on without a sleep after the key changed between two commands.
    fn may_retry_immediately(&mut self) -> bool {
        self.immediate_retries += 1;
        self.immediate_retries <= IMMEDIATE_RETRIES
    }

    fn may_take_over(&self, state: &LockState, now: Wall) -> bool {
        self.params.expires() && may_take_over(&self.params.options, state, now)
    }

    /// Rule 3: judges what GETSET has replaced, by the clock before sending (I4).
    fn replaced(&mut self, lease: Lease, judged_at: Wall, found: Option<&[u8]>, now: Now) -> Action {
        self.unresolved.in_doubt = false;
        let state = LockState::of_value(found);
        // A SETNX of our own may have arrived late in between: then our own value was replaced.
        let was_ours = self.unresolved.wrote(found);
        if was_ours || state == LockState::Absent || self.may_take_over(&state, judged_at) {
            return self.granted(lease, Some(state), now);
        }
        self.notes.push(Note::ValueOverwritten(state.clone()));
        self.seen = Some(state);
        self.wait(now)
    }

    /// Rule 4: a grant counts only while its lease lasts (I3). After a late one the key holds our value, and is free when that expires.
    fn granted(&mut self, lease: Lease, from: Option<LockState>, now: Now) -> Action {
        self.unresolved.in_doubt = false;
        if lease.has_passed(now) {
            self.notes.push(Note::LateGrant);
            self.seen = Observation::of(&lease, now).seen;
            return self.wait(now);
        }
        if let Some(state) = from {
            self.notes.push(Note::TakenOver(state));
        }
        Action::Held(lease)
    }

    /// The reply was lost. Whether the command was carried out is found out by reading, on a new connection; it is never sent
    /// again (I6).
    fn lost(&mut self, state: State, now: Now) -> Action {
        match state {
            State::Setting(_) if !self.params.expires() => return Action::GiveUp(GiveUp::Unknown),
            State::Setting(lease) => self.unresolved.keep(lease, None, now),
            State::Replacing { lease, from } => self.unresolved.keep(lease, Some(from), now),
            State::TakingOver { lease, .. } => self.unresolved.keep_takeover(lease),
            State::Reading | State::Confirming | State::Sleeping => {}
        }
        let since = match self.losing_since {
            Some(since) => since,
            None => {
                self.losing_since = Some(now.uptime);
                // Often the server has only closed an idle connection: no pause. But some hang up on one command alone.
                self.immediate_reads += 1;
                if self.immediate_reads <= IMMEDIATE_RETRIES {
                    return self.read();
                }
                now.uptime
            }
        };
        match self.time_left(now.uptime, now) {
            Some(_) if now.uptime.since(since) >= self.params.retry_for => self.give_up(GiveUp::Io),
            Some(time) => self.sleep(time),
            None => self.give_up(GiveUp::Io),
        }
    }

    fn give_up(&self, reason: GiveUp) -> Action {
        Action::GiveUp(if self.is_in_doubt() { GiveUp::Unknown } else { reason })
    }
}
