//! Acquiring one lock, as the gem does it: SETNX; if another client has the key, GET; if its time has passed, GETSET;
//! else sleep and look again. Watched and Ttl take over by a transaction that fails if another client was faster; in
//! Ttl the server also removes the key of a crashed holder.
//!
//! The functions are `async` only so that a [task](super::task) can stop them at each trip and each pause; there is no
//! runtime. Rules 1 to 5 are the steps of "Acquiring" in `docs/internals.md`, in the repository.
//!
//! The first reply that is lost in a row is followed by GET at once, each further one by a pause. The attempt gives up
//! when replies have been lost in a row for `retry_for`, at its deadline, or instead of a pause when it has used its
//! attempts. What the server refuses for now is asked for again, with a new lease, until the deadline. Exceptions: a
//! call with one attempt gives up at once, and a replica is waited for only for `retry_for`.

mod cues;
mod pace;

use alloc::vec::Vec;
use core::convert::Infallible;
use core::ops::ControlFlow::{self, Break, Continue};
use core::time::Duration;

use super::lease::{End, Lease};
use super::task::Io;
use super::unresolved::Unresolved;
use super::{Command, Cue, Expected, GiveUp, Note, Observation, Replies, Reply, Trip, WhyRefused};
use crate::values::{Now, Protocol, State, Tag, Terms, Wall};
pub use pace::{Pace, Params, Round, free_at};

/// How long after the value was read GETSET may still be sent. A GETSET that waits for a connection, while another
/// client takes over and works, would replace that client's time by an older one. Much less than the gem's extra
/// second, of which it uses up a part.
pub(super) const GETSET_TIME_LIMIT: Duration = Duration::from_millis(100);

/// Acquires a lock: asks in rounds, and pauses in between. `cue` says how it begins.
///
/// # Errors
///
/// Why the attempt ended without the lock.
pub async fn acquire(io: &Io, attempt: &mut Attempt, mut cue: Cue) -> Result<Lease, GiveUp> {
    loop {
        let Break(round) = attempt.round(io, cue).await;
        match round {
            Round::Held(lease) => return Ok(lease),
            Round::GiveUp(reason) => return Err(reason),
            Round::Pause(time) => cue = io.sleep(attempt.pace.pause(time)).await,
        }
    }
}

/// One attempt to acquire one lock: what is wanted, and what is known so far.
#[derive(Debug)]
pub struct Attempt {
    /// When it looks again, and what is known so far.
    pub pace: Pace,
    unresolved: Unresolved,
    /// Why the server has refused the last command, if it has.
    refused: Option<WhyRefused>,
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
    Expired(State),
}

/// Rule 1: the command that acquires a free lock, and the lease that
/// it acquires. The tag is in no other command of this client (I2).
#[inline]
pub fn first_command(terms: &Terms, protocol: Protocol, tag: &Tag, now: Now) -> (Lease, Trip) {
    let lease = Lease::of(terms, protocol, tag, now);
    let trip = Trip { before: lease.sent_before(), ..Trip::of(Command::SetNx(lease.new_value())) };
    (lease, trip)
}

/// Returns true if a lock that expires may be taken over (I1).
pub(super) fn may_take_over(state: &State, now: Wall) -> bool {
    matches!(state, State::Until { until, .. } if *until < now)
}

impl Attempt {
    /// Begins an attempt that asks for the lock by these parameters.
    pub fn new(params: Params) -> Self {
        Self { pace: Pace::new(params), unresolved: Unresolved::default(), refused: None }
    }

    /// Returns what commands without a reply may have acquired besides.
    pub fn into_unresolved(self) -> Unresolved {
        self.unresolved
    }

    /// Asks for the lock, and looks who has it, until it is held or there is nothing to do at once.
    async fn round(&mut self, io: &Io, cue: Cue) -> ControlFlow<Round, Infallible> {
        self.pace.may_begin(&cue, io.now())?;
        let mut looked = None;
        match self.first(io, cue)? {
            First::Ask(sent) => self.ask(io, sent).await?,
            First::Look(found) => looked = found,
        }
        loop {
            let found = match looked.take() {
                Some(found) => found,
                None => match self.exchange(io, Trip::of(Command::Get)).await? {
                    Reply::Bulk(found) => found,
                    _ => {
                        self.pace.lost(io.now())?;
                        continue;
                    }
                },
            };
            match (self.judge(io, found.as_deref())?, self.pace.protocol) {
                (Judged::Free, _) => self.ask(io, None).await?,
                (Judged::Expired(from), Protocol::Auto | Protocol::Classic) => {
                    self.take_over(io, from).await?;
                }
                (Judged::Expired(from), _) => looked = self.replace(io, found, from).await?,
            }
        }
    }

    /// Sends a command. Returns its reply; one that is lost or does
    /// not fit, and that the server is too old, is for the caller.
    async fn exchange(&mut self, io: &Io, trip: Trip) -> ControlFlow<Round, Reply> {
        let reply = io.send(trip).await.plain();
        self.heard(io, reply)
    }

    fn heard(&mut self, io: &Io, reply: Reply) -> ControlFlow<Round, Reply> {
        match reply {
            Reply::Integer(_) | Reply::Bulk(_) | Reply::Expiring(..) | Reply::Executed(_) => {
                self.pace.answered();
                Continue(reply)
            }
            // What was sent before is settled by a look, as a lost reply is.
            Reply::Refused(WhyRefused::TooOld(has)) => {
                self.pace.protocol = has;
                Continue(reply)
            }
            Reply::Refused(why) => {
                self.refused = Some(why);
                Break(self.pace.refused(why, io))
            }
            Reply::Unsent => Break(self.pace.give_up(GiveUp::Unsent)),
            Reply::TooLate | Reply::Lost | Reply::Bulks(_) => Continue(reply),
        }
    }

    /// Sends SETNX, unless it was `sent`. Goes on if another client has the key, or it is unknown.
    async fn ask(&mut self, io: &Io, mut sent: Option<(Lease, Reply)>) -> ControlFlow<Round> {
        loop {
            let (lease, reply) = match sent.take() {
                Some(sent) => sent,
                None => {
                    self.pace.take_nonce();
                    let Pace { terms, protocol, tag, .. } = &self.pace;
                    let (lease, trip) = first_command(terms, *protocol, tag, io.now());
                    (lease, io.send(trip).await.plain())
                }
            };
            match self.heard(io, reply)? {
                Reply::Integer(0) if self.pace.expires() => {
                    self.pace.not_refused();
                    return Continue(());
                }
                Reply::Integer(0) => return Break(self.pace.wait(io)),
                Reply::Integer(_) => return Break(self.granted(io, lease, None)),
                Reply::TooLate => self.pace.retry(io)?,
                Reply::Refused(_) => {}
                // The value names no holder.
                _ if !self.pace.expires() => return Break(Round::GiveUp(GiveUp::Unknown)),
                _ => {
                    self.note_lost(io, lease, None);
                    return self.pace.lost(io.now());
                }
            }
        }
    }

    /// Rule 2: judges what the key holds. Goes on if it can be acquired.
    fn judge(&mut self, io: &Io, found: Option<&[u8]>) -> ControlFlow<Round, Judged> {
        self.resolve(io, found)?;
        let state = State::of_value(found);
        self.pace.seen = Some(state.clone());
        if state == State::Absent {
            self.pace.retry(io)?;
            return Continue(Judged::Free);
        }
        if self.may_take_over(&state, io.now().wall) {
            Continue(Judged::Expired(state))
        } else {
            self.pace.not_refused();
            Break(self.pace.wait(io))
        }
    }

    /// Rule 3, Classic: GETSET, whose reply is judged by the clock
    /// before sending (I4). Goes on if it is to be looked at.
    async fn take_over(&mut self, io: &Io, from: State) -> ControlFlow<Round> {
        let judged_at = io.now();
        let lease = self.new_lease(judged_at);
        let before = Some(End::of(judged_at, GETSET_TIME_LIMIT));
        let swap = Trip { before, ..Trip::of(Command::GetSet(lease.value.clone())) };
        let found = match self.exchange(io, swap).await? {
            Reply::Bulk(found) => found,
            // What was read may no longer be true.
            Reply::TooLate => return Break(self.pace.wait(io)),
            _ => {
                self.note_lost_getset(io, lease, Some(from));
                return self.pace.lost(io.now());
            }
        };
        self.pace.in_doubt = false;
        let state = State::of_value(found.as_deref());
        // A SETNX of our own may have arrived late in between: then our own value was replaced.
        let was_ours = self.unresolved.proven(found.as_deref()).is_some();
        if was_ours || state == State::Absent || self.may_take_over(&state, judged_at.wall) {
            return Break(self.granted(io, lease, Some(state)));
        }
        if self.unresolved.shows_getset(found.as_deref()) {
            // One of our own came late, perhaps over a winner's value: this one proves as little.
            self.note_lost_getset(io, lease, Some(state.clone()));
        } else {
            io.note(Note::ValueOverwritten(state.clone()));
        }
        self.pace.seen = Some(state);
        Break(self.pace.wait(io))
    }

    /// Rule 3, Watched and Ttl: SET if the key is as it was seen, by a transaction. Goes on if it is to be looked at;
    /// with what it was found to hold.
    async fn replace(&mut self, io: &Io, seen: Found, from: State) -> ControlFlow<Round, Option<Found>> {
        let (lease, asks_ttl) = (self.new_lease(io.now()), self.pace.protocol == Protocol::Ttl);
        let if_holds = Expected { bytes: seen.clone().unwrap_or_default(), without_ttl: asks_ttl };
        // It changes what was seen, or nothing. But a lease that has passed is of no use.
        let (command, before) = (Command::Set(lease.new_value()), lease.sent_before());
        let trip = Trip { command, before, if_holds: Some(if_holds), behind: None };
        let Replies { found, reply, .. } = io.send(trip).await;
        let Some(reply) = reply else {
            return match self.heard(io, found.unwrap_or(Reply::Unsent))? {
                // Its time has passed, or the thread that was to send it for this one has not.
                Reply::Bulk(found) if found == seen => self.pace.retry(io).map_continue(|()| None),
                Reply::Bulk(found) => {
                    self.resolve(io, found.as_deref())?;
                    self.pace.retry(io)?;
                    Continue(Some(found))
                }
                Reply::Refused(_) => Continue(None),
                Reply::Expiring(found) => match self.leave_to_server(io, &found.0, found.1)? {},
                _ => self.pace.lost(io.now()).map_continue(|()| None),
            };
        };
        self.pace.answered();
        match self.heard(io, reply)? {
            Reply::Executed(Some(_)) => return Break(self.granted(io, lease, Some(from))),
            // Another client was faster, and nothing was overwritten; or nothing was sent.
            Reply::Executed(None) | Reply::TooLate => self.pace.retry(io)?,
            Reply::Refused(_) => {}
            _ => {
                self.note_lost(io, lease, Some(from));
                self.pace.lost(io.now())?;
            }
        }
        Continue(None)
    }

    /// Ttl: a key with a time to live is removed by the server alone, so that no clock of a client decides over it.
    fn leave_to_server(&mut self, io: &Io, found: &[u8], left: Duration) -> ControlFlow<Round, Infallible> {
        self.resolve(io, Some(found))?;
        // PTTL rounds; a millisecond later the key is gone.
        let (now, left) = (io.now(), left + Duration::from_millis(1));
        self.pace.seen = Some(State::of_value(Some(found)).removed_at(now.wall.after(left)));
        self.pace.removed_at = Some(now.uptime.after(left));
        Break(self.pace.wait(io))
    }

    /// Ends if the key shows that a command without a reply has
    /// acquired the lock. One that may yet come leaves it in doubt.
    fn resolve(&mut self, io: &Io, found: Option<&[u8]>) -> ControlFlow<Round> {
        if let Some((lease, from)) = self.unresolved.take(found) {
            return Break(self.granted(io, lease, from));
        }
        self.pace.in_doubt = self.unresolved.leaves_in_doubt(found, io.now());
        Continue(())
    }

    /// Rule 4: a grant counts only while its lease lasts (I3). After a
    /// late one the key holds our value, and is free when that expires.
    fn granted(&mut self, io: &Io, lease: Lease, from: Option<State>) -> Round {
        self.pace.in_doubt = false;
        if lease.has_passed(io.now()) {
            io.note(Note::LateGrant);
            self.pace.seen = Observation::of(&lease, io.now()).seen;
            return self.pace.wait(io);
        }
        if let Some(state) = from {
            io.note(Note::TakenOver(state));
        }
        Round::Held(lease)
    }

    /// Keeps the lease of a SETNX or an EXEC without a reply, with what EXEC takes over from.
    fn note_lost(&mut self, io: &Io, lease: Lease, from: Option<State>) {
        self.pace.in_doubt = true;
        self.unresolved.add(lease, from, io.now());
    }

    /// Keeps the lease of a GETSET without a reply, with what it takes over from.
    fn note_lost_getset(&mut self, io: &Io, lease: Lease, from: Option<State>) {
        self.pace.in_doubt = true;
        self.unresolved.add_getset(lease, from, io.now());
    }

    fn may_take_over(&self, state: &State, now: Wall) -> bool {
        self.pace.expires() && may_take_over(state, now)
    }

    /// A lease that begins now, with a value that no other command of this client has carried (I2).
    fn new_lease(&mut self, now: Now) -> Lease {
        self.pace.take_nonce();
        let Pace { terms, protocol, tag, .. } = &self.pace;
        Lease::of(terms, *protocol, tag, now)
    }
}
