//! Acquiring one of several locks, whichever is free: a permit of a semaphore. SETNX of a random one and, behind it,
//! MGET of all; then those that look free are tried, each by the rules of a single lock; else sleep and ask again.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::convert::Infallible;
use core::ops::ControlFlow::{self, Break, Continue};

use super::acquire::{Attempt, Pace, Params, Round, Rounds, first_command, may_take_over};
use super::lease::Lease;
use super::task::Io;
use super::unresolved::Unresolved;
use super::{Command, Cue, GiveUp, Note, Observation, Replies, Reply, Trip, WhyRefused};
use crate::values::{Key, Now, Protocol, State, Tag, Terms, Wall};

/// How many locks that looked free are tried in a row before a
/// pause: if all were taken meanwhile, they are under contention.
const TRIES: u32 = 3;

/// What all locks hold, in their order.
type Values = Vec<Option<Vec<u8>>>;

/// One attempt to acquire one of several locks: what is wanted, and what is known so far.
#[derive(Debug)]
pub struct Choice {
    pub(crate) pace: Pace,
    slots: Arc<[Key]>,
    unresolved: Unresolved,
    /// Keys that hold no lock, and never will.
    no_locks: Vec<usize>,
    pub(super) another_is_free: bool,
}

/// Returns which lock is asked for first, and the lease that this
/// trip acquires: SETNX of a random one and, behind it, MGET of all.
pub fn first_trip(
    terms: &Terms,
    protocol: Protocol,
    slots: &Arc<[Key]>,
    tag: &Tag,
    now: Now,
) -> (usize, Lease, Trip) {
    let slot = usize::try_from(tag.nonce.seed() % slots.len() as u64).unwrap_or(0);
    let (lease, trip) = first_command(terms, protocol, tag, now);
    let behind = Some(Box::new(Command::GetAll(Arc::clone(slots))));
    (slot, lease, Trip { behind, ..trip })
}

impl Choice {
    pub(super) fn new(params: Params, slots: &Arc<[Key]>) -> Self {
        let mut pace = Pace::new(params);
        // Of several locks it would not be known which is meant.
        pace.never_expires_noted = true;
        Self {
            pace,
            slots: Arc::clone(slots),
            unresolved: Unresolved::default(),
            no_locks: Vec::new(),
            another_is_free: false,
        }
    }

    async fn round(&mut self, io: &Io, cue: Cue) -> Round {
        let Break(round) = self.go_on(io, cue).await;
        round
    }

    async fn go_on(&mut self, io: &Io, cue: Cue) -> ControlFlow<Round, Infallible> {
        self.pace.may_begin(&cue, io.now())?;
        self.pace.enter_round(io.now());
        let (mut looks, mut answered) = (self.pace.in_doubt, None);
        match cue {
            Cue::Ask | Cue::Look | Cue::Saw(_) => {}
            Cue::Sent(lease, replies) => answered = Some((lease, replies)),
            Cue::Behind(Observation { seen, at }) => {
                self.pace.seen = seen;
                match self.pace.wait_from(at, io) {
                    Round::Pause(time) if time.is_zero() => {}
                    round => return Break(round),
                }
            }
            Cue::Leave(until) | Cue::Window(until) => self.pace.leave_until(until, io)?,
            Cue::HandedOver { lease, in_doubt } => {
                debug_assert!(!self.pace.in_doubt, "it might have two");
                self.pace.protocol = lease.protocol;
                // In Classic its bytes prove nothing: GETSET may have overwritten another client's.
                looks = in_doubt && matches!(lease.protocol, Protocol::Watched | Protocol::Ttl);
                if !in_doubt {
                    // What is left to other processes is free, and no other waiter knows.
                    let another_is_free = self.pace.not_before.is_some();
                    self.pace.begin_round();
                    return Break(self.granted(io, io.slot(), lease, another_is_free));
                }
                if looks {
                    self.pace.in_doubt = true;
                    self.unresolved.add(io.slot(), lease, None, io.now());
                }
            }
        }
        self.pace.not_before = None;
        let (values, asked) =
            if looks { (self.look(io).await?, None) } else { self.ask(io, answered).await? };
        self.take_ours(io, &values)?;
        self.pace.in_doubt = self.are_in_doubt(&values, io.now());
        self.pace.seen =
            values.iter().map(|value| State::of_value(value.as_deref())).min_by_key(frees_itself);
        self.try_each(io, self.free(&values, asked, io.now())).await
    }

    /// Asks for one lock, unless that was `answered`, and looks at all. Goes on with what they hold, if that one is
    /// held; and with which that is.
    async fn ask(
        &mut self,
        io: &Io,
        mut answered: Option<(Lease, Replies)>,
    ) -> ControlFlow<Round, (Values, Option<usize>)> {
        match &answered {
            Some((lease, _)) => self.pace.was_sent(lease),
            None => self.pace.begin_round(),
        }
        let (lease, Replies { reply, behind, .. }) = loop {
            let (lease, replies) = match answered.take() {
                Some(answered) => answered,
                None => {
                    self.pace.take_nonce();
                    let Pace { terms, protocol, tag, .. } = &self.pace;
                    let (slot, lease, trip) = first_trip(terms, *protocol, &self.slots, tag, io.now());
                    io.on(slot);
                    (lease, io.send(trip).await)
                }
            };
            match replies.reply {
                Some(Reply::Refused(WhyRefused::TooOld(has))) => self.pace.protocol = has,
                _ => break (lease, replies),
            }
        };
        let (set, found) = (reply.unwrap_or(Reply::TooLate), behind.unwrap_or(Reply::Unsent));
        let slot = io.slot();
        if let Reply::Integer(_) = set {
            self.pace.answered();
            self.pace.not_refused();
        }
        match set {
            Reply::Integer(0) => match self.values(io, found)? {
                Some(values) => return Continue((values, Some(slot))),
                None => self.pace.lost(io.now())?,
            },
            Reply::Integer(_) => {
                let another_is_free = match &found {
                    Reply::Bulks(values) => !self.free(values, Some(slot), io.now()).is_empty(),
                    // Perhaps, and no other waiter may know.
                    _ => true,
                };
                return Break(self.granted(io, slot, lease, another_is_free));
            }
            Reply::TooLate => return Break(self.pace.wait(io)),
            Reply::Refused(why) => return Break(self.pace.refused(why, io)),
            Reply::Unsent => return Break(self.pace.give_up(GiveUp::Unsent)),
            // The value names no holder.
            _ if !self.pace.expires() => return Break(Round::GiveUp(GiveUp::Unknown)),
            _ => {
                self.pace.in_doubt = true;
                self.unresolved.add(slot, lease, None, io.now());
                self.pace.lost(io.now())?;
            }
        }
        Continue((self.look(io).await?, None))
    }

    /// Sends MGET, until there is a reply.
    async fn look(&mut self, io: &Io) -> ControlFlow<Round, Values> {
        loop {
            let look = Trip::of(Command::GetAll(Arc::clone(&self.slots)));
            let found = io.send(look).await.plain();
            if let Some(values) = self.values(io, found)? {
                self.pace.answered();
                return Continue(values);
            }
            self.pace.lost(io.now())?;
        }
    }

    /// Returns what all locks hold; `None` if the reply is lost.
    fn values(&mut self, io: &Io, found: Reply) -> ControlFlow<Round, Option<Values>> {
        match found {
            Reply::Bulks(values) => Continue(Some(values)),
            Reply::Refused(why) => Break(self.pace.refused(why, io)),
            Reply::Unsent | Reply::TooLate => Break(self.pace.give_up(GiveUp::Unsent)),
            _ => Continue(None),
        }
    }

    /// Takes the lock that a command without a reply has acquired, if one has; of several the one that lasts longest.
    fn take_ours(&mut self, io: &Io, values: &Values) -> ControlFlow<Round> {
        let ends = |(slot, found): (usize, &Option<Vec<u8>>)| {
            Some((self.unresolved.proven(slot, found.as_deref())?.end.map(|end| end.uptime), slot))
        };
        let Some((_, slot)) = values.iter().enumerate().filter_map(ends).max() else { return Continue(()) };
        let Some((lease, _)) = self.unresolved.take(slot, values[slot].as_deref()) else {
            return Continue(());
        };
        let free = !self.free(values, Some(slot), io.now()).is_empty();
        Break(self.granted(io, slot, lease, free))
    }

    /// Returns true if these values leave a lock in doubt.
    fn are_in_doubt(&mut self, values: &Values, now: Now) -> bool {
        let unresolved = &mut self.unresolved;
        values.iter().enumerate().any(|(slot, found)| unresolved.leaves_in_doubt(slot, found.as_deref(), now))
    }

    /// Returns the locks that may be acquired: first those that are absent, beginning with the one behind `asked`. That
    /// one itself is last: SETNX does not acquire what has expired.
    fn free(&self, values: &Values, asked: Option<usize>, now: Now) -> Vec<(usize, State)> {
        let count = self.slots.len();
        let first = asked.map_or(0, |asked| (asked + 1) % count);
        let states = (first..count).chain(0..first).filter_map(|slot| {
            let state = State::of_value(values.get(slot)?.as_deref());
            // What is not a string reads as absent.
            let is_free = state == State::Absent && !self.no_locks.contains(&slot)
                || self.pace.expires() && may_take_over(&state, now.wall);
            is_free.then_some((slot, state))
        });
        let (mut absent, expired): (Vec<_>, Vec<_>) = states.partition(|(_, state)| *state == State::Absent);
        absent.extend(expired);
        absent
    }

    /// Tries each once, by the rules of a single lock, until one is held.
    async fn try_each(&mut self, io: &Io, free: Vec<(usize, State)>) -> ControlFlow<Round, Infallible> {
        let (count, mut tries) = (free.len(), 0);
        for (position, (slot, state)) in free.into_iter().enumerate() {
            if tries == TRIES {
                break;
            }
            io.on(slot);
            let now = io.now();
            let cue = match state {
                State::Absent => Cue::Ask,
                state => Cue::Behind(Observation { seen: Some(state), at: now.uptime }),
            };
            let mut attempt = Attempt::new(self.once(now));
            let round = attempt.round(io, cue).await;
            self.pace.protocol = attempt.pace.protocol;
            self.pace.removed_at = self.pace.removed_at.into_iter().chain(attempt.pace.removed_at).min();
            tries += 1;
            let refused = attempt.refused;
            // A command without a reply may still arrive.
            self.unresolved.append(attempt.into_unresolved());
            match round {
                Round::Held(lease) => {
                    self.another_is_free = position + 1 < count;
                    return Break(Round::Held(lease));
                }
                Round::Pause(_) | Round::GiveUp(GiveUp::Timeout) => {}
                Round::GiveUp(_) if refused == Some(WhyRefused::NoLock) => {
                    tries -= 1;
                    self.no_locks.push(slot);
                    if self.no_locks.len() == self.slots.len() {
                        return Break(Round::GiveUp(GiveUp::Refused));
                    }
                }
                Round::GiveUp(GiveUp::Refused) => {
                    let Some(why) = refused else { unreachable!("a refusal has a reason") };
                    return Break(self.pace.refused(why, io));
                }
                // Others may do, after a pause.
                Round::GiveUp(GiveUp::Io) => return Break(self.pause_or(GiveUp::Io, io)),
                Round::GiveUp(GiveUp::Unknown) if self.pace.expires() => {
                    self.pace.in_doubt = true;
                    return Break(self.pause_or(GiveUp::Unknown, io));
                }
                Round::GiveUp(reason) => return Break(self.pace.give_up(reason)),
            }
        }
        Break(self.pace.wait(io))
    }

    /// Returns what is wanted of a lock that is tried: it is not waited for.
    fn once(&mut self, now: Now) -> Params {
        let terms = Terms { max_attempts: None, ..self.pace.terms };
        self.pace.take_nonce();
        let tag = self.pace.tag.clone();
        self.pace.tag.nonce = tag.nonce.behind_an_attempt();
        let Pace { protocol, retry_for, .. } = self.pace;
        Params { terms, protocol, deadline: Some(now.uptime), retry_for, tag }
    }

    fn pause_or(&self, reason: GiveUp, io: &Io) -> Round {
        let now = io.now();
        self.pace.time_left(now.uptime, now).map_or_else(|| self.pace.give_up(reason), Round::Pause)
    }

    /// A grant counts only while its lease lasts (I3).
    fn granted(&mut self, io: &Io, slot: usize, lease: Lease, another_is_free: bool) -> Round {
        io.on(slot);
        self.pace.in_doubt = false;
        if lease.has_passed(io.now()) {
            io.note(Note::LateGrant);
            return self.pace.wait(io);
        }
        self.another_is_free = another_is_free;
        Round::Held(lease)
    }
}

/// Orders states by when the lock is free: those that never are come last.
fn frees_itself(state: &State) -> (bool, Option<Wall>) {
    match state {
        State::Until { until, .. } => (false, Some(*until)),
        _ => (true, None),
    }
}

/// The attempts of a call for one lock, or for one of several.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "it is made where it stays")]
pub enum Attempts {
    /// For one lock.
    OfOne(Attempt),
    /// For one of several.
    OfSeveral(Choice),
}

impl Attempts {
    /// Attempts to acquire one of several locks, or the one that there is.
    pub fn new(params: Params, several: Option<&Arc<[Key]>>) -> Self {
        match several {
            None => Self::OfOne(Attempt::new(params)),
            Some(slots) => Self::OfSeveral(Choice::new(params, slots)),
        }
    }

    /// Returns what commands without a reply may have acquired besides.
    pub fn into_unresolved(self) -> Unresolved {
        match self {
            Self::OfOne(attempt) => attempt.into_unresolved(),
            Self::OfSeveral(choice) => choice.unresolved,
        }
    }

    /// Returns true if another lock than the one that is held was seen that may be acquired.
    pub fn another_is_free(&self) -> bool {
        matches!(self, Self::OfSeveral(Choice { another_is_free: true, .. }))
    }
}

impl Rounds for Attempts {
    async fn round(&mut self, io: &Io, cue: Cue) -> Round {
        match self {
            Self::OfOne(attempt) => attempt.round(io, cue).await,
            Self::OfSeveral(choice) => choice.round(io, cue).await,
        }
    }

    fn pace(&self) -> &Pace {
        match self {
            Self::OfOne(Attempt { pace, .. }) | Self::OfSeveral(Choice { pace, .. }) => pace,
        }
    }
}
