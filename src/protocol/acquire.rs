//! Acquiring one lock, as the gem does it: SETNX; if another client has the key, GET; if its time has passed, GETSET; else sleep and look
//! again. Watched and Ttl take over by a transaction that fails if another client was faster; in Ttl the server also removes the key of a
//! crashed holder.
//!
//! The first reply that is lost in a row is followed by GET at once, each further one by a pause. The attempt gives up when replies have
//! been lost in a row for `retry_for`, at its deadline, or instead of a pause when it has used its attempts.

mod cues;
mod params;
mod pauses;
mod unresolved;

use std::convert::Infallible;
use std::ops::ControlFlow::{self, Break, Continue};
use std::time::Duration;

use super::lease::{End, Lease};
use super::task::Io;
use super::{Change, Command, Entry, GiveUp, Reply, Request};
#[cfg(test)]
use super::{Step, task::Task};
use crate::clock::{Now, Uptime, Wall};
use crate::options::{LockOptions, Protocol, Takeover};
use crate::value::{Expiry, LockState, Nonce};
pub(crate) use params::{Cue, Note, Observation, Params, Pause};
pub(super) use unresolved::Unresolved;

/// How often in a row the attempt goes on without a sleep after the key changed between two commands. A key that changes
/// more often is under contention.
const IMMEDIATE_RETRIES: u32 = 3;

/// How long after the value was read GETSET may still be sent. A GETSET that waits for a connection, while another client takes over
/// and works, would replace that client's time by an older one. Much less than the guard, which it uses up a part of.
pub(super) const GETSET_TIME_LIMIT: Duration = Duration::from_millis(100);

/// One attempt to acquire one lock: what is wanted, and what is known so far.
#[derive(Debug)]
pub(crate) struct Attempt {
    params: Params,
    /// Whether the options say [`Protocol::Auto`].
    auto: bool,
    unresolved: Unresolved,
    /// Since when replies have been lost in a row.
    losing_since: Option<Uptime>,
    /// How often in this round it went on after the key had changed, and read again after a lost reply.
    immediate: (u32, u32),
    never_expires_noted: bool,
    /// Until when the lock is left to other processes.
    not_before: Option<Uptime>,
    /// The end of the window in which it looks at the key, if it has not seen since then that a poller has the lock.
    looks_until: Option<Uptime>,
    /// Until when it asks without a pause, since a poller has the lock.
    asks_until: Option<Uptime>,
    /// How often it has looked whether the lock is free.
    pub(crate) attempts: u32,
    /// What the key was last seen to hold.
    pub(crate) seen: Option<LockState>,
    /// When the server removes a key that was left to it.
    pub(super) removed_at: Option<Uptime>,
}

/// A lock that was acquired, and the protocol to release it by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) lease: Lease,
    pub(crate) protocol: Protocol,
}

/// How a round ends: what is done without a pause.
#[derive(Debug)]
pub(super) enum Round {
    Held(Lease),
    Pause(Duration),
    GiveUp(GiveUp),
}

/// What the key holds.
type Found = Option<Vec<u8>>;

/// How a round begins.
enum First {
    /// By asking, unless SETNX was sent for the attempt: then with its lease and reply.
    Ask(Option<(Lease, Reply)>),
    /// By looking, unless the key was just read.
    Look(Option<Found>),
}

/// Why the lock can be acquired, as far as was seen.
enum Judged {
    Free,
    Expired(LockState),
}

/// Acquires the lock. `cue` says how it begins.
pub(crate) async fn acquire(io: &Io, attempt: &mut Attempt, mut cue: Cue) -> Result<Held, GiveUp> {
    loop {
        match attempt.round(io, cue).await {
            Round::Held(lease) => return Ok(Held { lease, protocol: attempt.protocol() }),
            Round::GiveUp(reason) => return Err(reason),
            Round::Pause(time) => cue = io.sleep(attempt.pause(time)).await,
        }
    }
}

/// Begins an attempt that a test steps.
#[cfg(test)]
pub(super) fn begin(params: Params, cue: Cue, now: Now) -> (Task<Held>, Step<Held>) {
    Task::begin(now, |io| async move { acquire(&io, &mut Attempt::new(params), cue).await })
}

/// Rule 1: the command that acquires a free lock, and the lease that it acquires. `nonce` is in no other command of this client (I2).
pub(crate) fn first_command(options: &LockOptions, nonce: Nonce, now: Now) -> (Lease, Request) {
    let lease = Lease::of(options, nonce, now);
    let command = Command::SetNx(Entry::of(&lease, options.protocol, options.expiration));
    let before = lease.end;
    (lease, Request { command, before })
}

/// Whether a lock that expires may be taken over: I1, and the one option that departs from it.
pub(super) fn may_take_over(options: &LockOptions, state: &LockState, now: Wall) -> bool {
    match state {
        LockState::Until(Expiry(until)) => *until < now,
        LockState::Unexpiring | LockState::Empty | LockState::Unreadable(_) => {
            options.takeover == Takeover::AsTheGem
        }
        LockState::Absent => false,
    }
}

impl Attempt {
    pub(crate) fn new(params: Params) -> Self {
        Self {
            auto: params.options.protocol == Protocol::Auto,
            params,
            unresolved: Unresolved::default(),
            losing_since: None,
            immediate: (0, 0),
            never_expires_noted: false,
            not_before: None,
            looks_until: None,
            asks_until: None,
            attempts: 0,
            seen: None,
            removed_at: None,
        }
    }

    /// The protocol; [`Protocol::Auto`] until the first reply.
    pub(crate) fn protocol(&self) -> Protocol {
        self.params.options.protocol
    }

    /// Whether the options allow no further attempt.
    pub(crate) fn has_used_its_attempts(&self) -> bool {
        self.params.options.max_attempts.is_some_and(|most| self.attempts >= most)
    }

    /// Returns the leases that commands without a reply may have begun, and whose values prove it; `None` if a GETSET is among these
    /// commands, whose value proves nothing.
    pub(crate) fn into_unresolved(self) -> Option<impl Iterator<Item = Lease>> {
        self.unresolved.into_leases()
    }

    /// Asks for the lock, and looks who has it, until it is held or there is nothing to do at once.
    pub(super) async fn round(&mut self, io: &Io, cue: Cue) -> Round {
        match self.go_on(io, cue).await {
            Break(round) => round,
            Continue(never) => match never {},
        }
    }

    async fn go_on(&mut self, io: &Io, cue: Cue) -> ControlFlow<Round, Infallible> {
        // What the key holds, and whether it is watched.
        let mut looked = None;
        match self.begin(io, cue)? {
            First::Ask(sent) => self.ask(io, sent).await?,
            First::Look(found) => looked = found.map(|found| (found, false)),
        }
        loop {
            let (found, is_watched) = match looked.take() {
                Some(looked) => looked,
                None => match self.send(io, Request::at_any_time(Command::Get)).await? {
                    Reply::Bulk(found) => (found, false),
                    _ => {
                        self.lost(io.now())?;
                        continue;
                    }
                },
            };
            match (self.judge(io, found.as_deref())?, self.protocol()) {
                (Judged::Free, _) => self.ask(io, None).await?,
                (Judged::Expired(_), Protocol::Auto | Protocol::Classic) => self.take_over(io).await?,
                (Judged::Expired(from), _) if is_watched => self.replace(io, from).await?,
                (Judged::Expired(_), _) => looked = self.watch(io).await?.map(|found| (found, true)),
            }
        }
    }

    /// Sends a command. Returns its reply; one that is lost or does not fit is for the caller.
    async fn send(&mut self, io: &Io, request: Request) -> ControlFlow<Round, Reply> {
        let reply = io.send(request).await;
        self.heard(io, reply)
    }

    fn heard(&mut self, io: &Io, reply: Reply) -> ControlFlow<Round, Reply> {
        match reply {
            Reply::Integer(_) | Reply::Bulk(_) | Reply::Expiring(..) | Reply::Executed(_) => {
                self.losing_since = None;
                // The first command is the same for each protocol.
                self.params.options.protocol = self.protocol().on(io.server());
                Continue(reply)
            }
            Reply::Refused | Reply::NoLock => Break(self.give_up(GiveUp::Refused)),
            Reply::Unsent => Break(self.give_up(GiveUp::Unsent)),
            Reply::TooLate | Reply::Lost | Reply::Bulks(_) => Continue(reply),
        }
    }

    /// Sends SETNX, unless it was `sent`. Goes on if another client has the key, or it is unknown.
    async fn ask(&mut self, io: &Io, mut sent: Option<(Lease, Reply)>) -> ControlFlow<Round> {
        loop {
            let (lease, reply) = match sent.take() {
                Some(sent) => sent,
                None => {
                    let nonce = self.next_nonce();
                    let (lease, request) = first_command(&self.params.options, nonce, io.now());
                    (lease, io.send(request).await)
                }
            };
            match self.heard(io, reply)? {
                Reply::Integer(0) if self.params.expires() => return Continue(()),
                Reply::Integer(0) => return Break(self.wait(io)),
                Reply::Integer(_) => return Break(self.granted(io, lease, None)),
                Reply::TooLate => self.retry(io)?,
                // The value names no holder.
                _ if !self.params.expires() => return Break(Round::GiveUp(GiveUp::Unknown)),
                _ => {
                    self.unresolved.keep(lease, None, io.now());
                    return self.lost(io.now());
                }
            }
        }
    }

    /// Rule 2: judges what the key holds. Goes on if it can be acquired.
    fn judge(&mut self, io: &Io, found: Option<&[u8]>) -> ControlFlow<Round, Judged> {
        if let Some((lease, from)) = self.unresolved.resolve(found) {
            return Break(self.granted(io, lease, from));
        }
        let state = LockState::of_value(found);
        self.seen = Some(state.clone());
        self.look_for_poller(io, &state, found)?;
        if state == LockState::Absent {
            self.retry(io)?;
            return Continue(Judged::Free);
        }
        if self.may_take_over(&state, io.now().wall) {
            Continue(Judged::Expired(state))
        } else {
            Break(self.wait(io))
        }
    }

    /// Rule 3, Classic: GETSET, whose reply is judged by the clock before sending (I4). Goes on if it is to be looked at.
    async fn take_over(&mut self, io: &Io) -> ControlFlow<Round> {
        let judged_at = io.now();
        let lease = self.new_lease(judged_at);
        let command = Command::GetSet(lease.value.clone());
        let found =
            match self.send(io, Request::before(End::of(judged_at, GETSET_TIME_LIMIT), command)).await? {
                Reply::Bulk(found) => found,
                // What was read may no longer be true.
                Reply::TooLate => return Break(self.wait(io)),
                _ => {
                    self.unresolved.keep_takeover(lease);
                    return self.lost(io.now());
                }
            };
        self.unresolved.in_doubt = false;
        let state = LockState::of_value(found.as_deref());
        // A SETNX of our own may have arrived late in between: then our own value was replaced.
        let was_ours = self.unresolved.wrote(found.as_deref());
        if was_ours || state == LockState::Absent || self.may_take_over(&state, judged_at.wall) {
            return Break(self.granted(io, lease, Some(state)));
        }
        io.note(Note::ValueOverwritten(state.clone()));
        self.seen = Some(state);
        Break(self.wait(io))
    }

    /// WATCH, GET, MULTI. Returns what the key holds, which is watched; `None` if it is to be looked at again.
    async fn watch(&mut self, io: &Io) -> ControlFlow<Round, Option<Found>> {
        let command = if self.protocol() == Protocol::Ttl { Command::WatchGetTtl } else { Command::WatchGet };
        let reply = io.send(Request::at_any_time(command)).await;
        if self.auto && reply == Reply::Refused {
            // It chose Watched by the server's version alone, and this server has no WATCH for this user.
            self.params.options.protocol = Protocol::Classic;
            return Continue(None);
        }
        match self.heard(io, reply)? {
            Reply::Bulk(found) => Continue(Some(found)),
            Reply::Expiring(found, left) => Break(self.leave_to_server(io, &found, left)),
            _ => self.lost(io.now()).map_continue(|()| None),
        }
    }

    /// Rule 3, Watched and Ttl: SET and EXEC, carried out only if the key is as it was seen. Goes on if it is to be looked at.
    async fn replace(&mut self, io: &Io, from: LockState) -> ControlFlow<Round> {
        let lease = self.new_lease(io.now());
        let entry = Entry::of(&lease, self.protocol(), self.params.options.expiration);
        // At any time: it changes what was watched, or nothing.
        let request = Request::at_any_time(Command::Exec(Change::Set(entry)));
        match self.send(io, request).await? {
            Reply::Executed(Some(_)) => Break(self.granted(io, lease, Some(from))),
            // Another client was faster, and nothing was overwritten.
            Reply::Executed(None) => self.retry(io),
            _ => {
                self.unresolved.keep(lease, Some(from), io.now());
                self.lost(io.now())
            }
        }
    }

    /// Ttl: a key with a time to live is removed by the server alone, so that no clock of a client decides over it.
    fn leave_to_server(&mut self, io: &Io, found: &[u8], left: Duration) -> Round {
        if let Some((lease, from)) = self.unresolved.resolve(Some(found)) {
            return self.granted(io, lease, from);
        }
        self.seen = Some(LockState::of_value(Some(found)));
        // PTTL rounds; a millisecond later the key is gone.
        let left = left + Duration::from_millis(1);
        self.removed_at = Some(io.now().uptime.after(left));
        match self.wait(io) {
            Round::Pause(time) => Round::Pause(time.min(left)),
            round => round,
        }
    }

    /// Rule 4: a grant counts only while its lease lasts (I3). After a late one the key holds our value, and is free when that expires.
    fn granted(&mut self, io: &Io, lease: Lease, from: Option<LockState>) -> Round {
        self.unresolved.in_doubt = false;
        if lease.has_passed(io.now()) {
            io.note(Note::LateGrant);
            self.seen = Observation::of(&lease, io.now()).seen;
            return self.wait(io);
        }
        if let Some(state) = from {
            io.note(Note::TakenOver(state));
        }
        Round::Held(lease)
    }

    fn may_take_over(&self, state: &LockState, now: Wall) -> bool {
        self.params.expires() && may_take_over(&self.params.options, state, now)
    }

    /// A lease that begins now, with a value that no other command of this client has carried (I2).
    fn new_lease(&mut self, now: Now) -> Lease {
        let nonce = self.next_nonce();
        Lease::of(&self.params.options, nonce, now)
    }

    fn next_nonce(&mut self) -> Nonce {
        self.params.nonce = self.params.nonce.next();
        self.params.nonce
    }
}
