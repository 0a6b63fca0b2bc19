//! Talking to the server, as the rules say, until there is a lease or an error.

use std::mem;
use std::pin::{Pin, pin};

use super::Wait;
use crate::report::error::Error;
use crate::rules::acquire::{Attempt, Pace, acquire};
use crate::rules::choose::{Choice, acquire_one_of};
use crate::rules::lease::Lease;
use crate::rules::task::Io;
use crate::rules::{Command, Cue, GiveUp, Pause, Replies, Reply, Step, Trip};
use crate::run::acquire::OneOf;
use crate::run::held::{Acquired, Delivery, HeldLock};
use crate::run::session::Session;
use crate::values::clock::{self, Now, Uptime};
use crate::wait::{Hint, Observation, Ticket, Woken};

/// How an attempt begins.
pub(super) struct Beginning<'a> {
    /// The commands for that lock.
    pub(super) session: Session<'a>,
    /// The lock that was handed over or asked for, of several.
    pub(super) slot: usize,
    pub(super) cue: Cue,
    /// When the key was last looked at.
    pub(super) looked: Uptime,
    pub(super) now: Now,
}

/// The commands for one of the locks.
struct Commands<'a> {
    session: Session<'a>,
    slot: usize,
    stop: &'a (dyn Fn() -> bool + Sync),
}

/// What the thread knows beside its rules.
struct Known {
    now: Now,
    /// When the key was last looked at.
    looked: Uptime,
    /// True if a holder has handed the lock over since the last command.
    handed_over: bool,
    /// True if the key was looked at before the sleep that is next.
    has_looked: bool,
    /// True if the server has answered since the last step.
    is_answered: bool,
}

impl Known {
    /// Notes that a command has been answered, or could not be.
    fn hear(&mut self, last: Option<&Reply>) {
        self.now = clock::now();
        self.handed_over = false;
        self.is_answered = matches!(last, Some(Reply::Integer(_) | Reply::Bulk(_)));
        if !matches!(last, Some(Reply::Lost | Reply::Unsent | Reply::TooLate) | None) {
            self.looked = self.now.uptime;
        }
    }
}

impl Wait<'_> {
    /// Talks to the server, as the head of the queue.
    pub(super) fn attempt<'b>(
        &'b self,
        beginning: Beginning<'b>,
        stop: &'b (dyn Fn() -> bool + Sync),
        ticket: &mut Option<Ticket<Delivery>>,
    ) -> Result<(usize, Acquired), Error> {
        let Beginning { session, slot, cue, looked, now } = beginning;
        let handed_over = matches!(cue, Cue::HandedOver { .. });
        let mut known = Known { now, looked, handed_over, has_looked: false, is_answered: false };
        let mut commands = Commands { session, slot, stop };
        let (io, params) = (Io::new(now), self.params());
        io.on(slot);
        match self.one_of {
            None => {
                let mut attempt = Attempt::new(params);
                let ended = self.follow(
                    &io,
                    pin!(acquire(&io, &mut attempt, cue)),
                    &mut commands,
                    &mut known,
                    ticket.as_mut(),
                );
                let acquired = self.end(&io, ended, (&mut attempt.pace, false), commands, &known, ticket);
                if acquired.is_err() {
                    self.unresolved.replace(attempt.into_unresolved().into_iter().flatten().collect());
                }
                acquired
            }
            Some(OneOf { slots, .. }) => {
                let mut choice = Choice::new(params, slots);
                let rules = acquire_one_of(&io, &mut choice, cue);
                let ended = self.follow(&io, pin!(rules), &mut commands, &mut known, ticket.as_mut());
                let Choice { pace, surplus, another_is_free, .. } = &mut choice;
                let acquired = self.end(&io, ended, (pace, *another_is_free), commands, &known, ticket);
                self.release_surplus(mem::take(surplus));
                acquired
            }
        }
    }

    /// Does what the rules say until they end.
    fn follow<'b>(
        &'b self,
        io: &Io,
        mut rules: Pin<&mut dyn Future<Output = Result<Lease, GiveUp>>>,
        commands: &mut Commands<'b>,
        known: &mut Known,
        mut ticket: Option<&mut Ticket<Delivery>>,
    ) -> Result<Result<Lease, GiveUp>, Error> {
        loop {
            let step = io.step(rules.as_mut());
            // One that leaves the lock has not acted upon its release.
            if mem::take(&mut known.is_answered) && !matches!(&step, Step::Sleep(pause) if pause.leaves) {
                self.has_unused_release.set(false);
            }
            for (slot, note) in io.take_notes() {
                self.call.engine.report_note(self.lock_key(slot), &note, &commands.session);
                // The observer may have taken long.
                known.now = clock::now();
            }
            match step {
                Step::Send(trip) => {
                    let replies = self.send(io, &trip, commands, known, ticket.as_deref());
                    known.hear(replies.reply.as_ref().or(replies.found.as_ref()));
                    io.answer(replies, known.now);
                }
                Step::Sleep(pause) => {
                    let Some(ticket) = ticket.as_deref_mut() else {
                        unreachable!("at its deadline an attempt gives up rather than sleep")
                    };
                    let cue = self.pause(io, &mut commands.session, pause, known, ticket)?;
                    io.wake(cue, known.now);
                }
                Step::Done(lease) => return Ok(Ok(lease)),
                Step::GiveUp(reason) => return Ok(Err(reason)),
            }
        }
    }

    /// Makes a trip for the lock that the rules are at.
    fn send<'b>(
        &'b self,
        io: &Io,
        trip: &Trip,
        commands: &mut Commands<'b>,
        known: &mut Known,
        ticket: Option<&Ticket<Delivery>>,
    ) -> Replies {
        known.has_looked = false;
        if commands.slot != io.slot() {
            commands.slot = io.slot();
            commands.session = self.session(commands.slot, commands.stop);
        }
        let session = &mut commands.session;
        if trip.command == Command::Get
            && let Some(found) = self.look_listed(session, ticket, known.now)
        {
            return found.into();
        }
        session.send(trip, known.now)
    }

    fn end(
        &self,
        io: &Io,
        ended: Result<Result<Lease, GiveUp>, Error>,
        (pace, another_is_free): (&mut Pace, bool),
        mut commands: Commands<'_>,
        known: &Known,
        ticket: &mut Option<Ticket<Delivery>>,
    ) -> Result<(usize, Acquired), Error> {
        // What was asked before the wait, and did not count for it, was an attempt as well.
        self.attempts.set(self.attempts.get() + pace.attempts);
        match ended? {
            Ok(lease) => self.enter(lease, io.slot(), another_is_free, known, ticket.take()),
            Err(GiveUp::Timeout) => {
                Err(self.contended(pace.seen.take(), pace.has_used_its_attempts(), known.now))
            }
            Err(reason) => Err(self.ended(&mut commands.session, reason)),
        }
    }

    pub(super) fn ended(&self, session: &mut Session<'_>, reason: GiveUp) -> Error {
        // Unless the outcome is unknown, the end of the wait from outside is the reason.
        let from_outside = if reason == GiveUp::Unknown { None } else { self.check().err() };
        from_outside.unwrap_or_else(|| self.given_up(session, reason))
    }

    /// Sleeps, and looks at the key before, if that is due and was not done. Returns how the rules go on.
    fn pause(
        &self,
        io: &Io,
        session: &mut Session<'_>,
        pause: Pause,
        known: &mut Known,
        ticket: &mut Ticket<Delivery>,
    ) -> Result<Cue, Error> {
        let Pause { time, seen, in_doubt, leaves } = pause;
        let ends = known.now.uptime.after(time);
        if !mem::take(&mut known.has_looked)
            && let Some(reply) = self.look_listed(session, Some(ticket), known.now)
        {
            known.hear(Some(&reply));
            match reply {
                Reply::Bulk(None) if leaves => {}
                Reply::Bulk(found) => {
                    known.has_looked = true;
                    return Ok(Cue::Saw(found));
                }
                _ => {}
            }
            known.is_answered = false;
        }
        let observation = Observation { seen, at: known.looked };
        let woken = ticket.sleep(observation, in_doubt, self.parking(Some(ends)));
        known.now = clock::now();
        if self.is_over() && !matches!(woken, Woken::Delivered(_)) {
            if let Woken::Hint(hint) = woken {
                self.pass_on(hint);
            }
            if in_doubt {
                return Err(self.given_up(session, GiveUp::Unknown));
            }
            self.check()?;
        }
        self.has_unused_release
            .set(self.has_unused_release.get() || matches!(woken, Woken::Hint(Hint::Freed)));
        let window = if in_doubt { None } else { self.window(known.now) };
        Ok(match (woken, window) {
            (Woken::Delivered(delivery), _) => {
                (known.looked, known.handed_over) = (known.now.uptime, true);
                io.on(self.slot(&delivery.key));
                delivery.cue()
            }
            (Woken::Hint(_) | Woken::Over, Some(end)) => Cue::Window(end),
            (Woken::Hint(Hint::Freed), None) => Cue::Ask,
            (Woken::Hint(Hint::Changed) | Woken::Over, None) => Cue::Look,
        })
    }

    /// Releases further permits that commands without a reply have acquired.
    fn release_surplus(&self, surplus: Vec<(usize, Lease)>) {
        let Some(OneOf { queue, .. }) = self.one_of.filter(|_| !surplus.is_empty()) else { return };
        let now = clock::now();
        let locks = surplus.into_iter().map(|(slot, lease)| {
            let (key, options) = (self.lock_key(slot), self.call.options);
            let holder = self.call.engine.queue.hold(key, Some(queue), &Observation::of(&lease, now));
            HeldLock::new(key, options, lease, holder)
        });
        self.call.engine.release_all_unwanted(locks.collect(), now);
    }

    /// Leaves the queue with the lock.
    fn enter(
        &self,
        lease: Lease,
        slot: usize,
        another_is_free: bool,
        known: &Known,
        ticket: Option<Ticket<Delivery>>,
    ) -> Result<(usize, Acquired), Error> {
        let (key, options, now) = (self.lock_key(slot), self.call.options, known.now);
        if self.notifies() {
            self.call.engine.notifications.of(key).acquired(key);
        }
        let observation = Observation::of(&lease, now);
        let shared = self.one_of.map_or(self.call.shared, |one_of| Some(one_of.queue));
        let holder = match ticket {
            Some(ticket) if self.one_of.is_some() => ticket.enter_one(key, &observation, another_is_free),
            Some(ticket) => ticket.enter(shared, &observation),
            None => self.call.engine.queue.hold(key, shared, &observation),
        };
        // A command of its own would not have been sent.
        if let (true, Err(ended)) = (known.handed_over, self.check()) {
            self.call.engine.release_all_unwanted(vec![HeldLock::new(key, options, lease, holder)], now);
            return Err(ended);
        }
        Ok((slot, self.call.engine.make_hold(key.clone(), options, lease, holder, now)))
    }
}
