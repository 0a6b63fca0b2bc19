//! A call that waits for a lock: it waits for its turn in the queue, then does what the rules
//! say, until the lock is held, or there is an error.

mod sleep;

use std::mem;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use proto::acquire::{Attempt, Params, acquire};
use proto::lease::Lease;
use proto::task::Io;
use proto::unresolved::Unresolved;
use proto::values::{Key, Now, State, Uptime};
use proto::{Command, Cue, GiveUp, Note, Replies, Reply, Step, Trip};

use super::{Asked, Call};
use crate::report::error::{Contention, Error};
use crate::report::event::Event;
use crate::report::state::LockState;
use crate::run::debts::RELEASED_IF_ACQUIRED;
use crate::run::engine::Engine;
use crate::run::held::{Acquired, Delivery, HeldLock};
use crate::run::session::Session;
use crate::run::thread_holds;
use crate::system::clock;
use crate::wait::{Hint, Observation, Ticket, WaitMode};
pub(crate) use sleep::parking;

/// One wait.
pub(super) struct Wait<'a> {
    call: &'a Call<'a>,
    key: &'a Key,
    /// What came of asking before the wait, until the rules know it.
    asked_before: Option<Asked<'a>>,
    /// The place in the queue, until a lock is held. A call that tries once has none.
    ticket: Option<Ticket<Delivery>>,
    /// True if this process enters the key's waiting list.
    notifies: bool,
    session: Session<'a>,
    now: Now,
    /// When a lock was last looked at.
    looked: Uptime,
    /// How often the server was asked for a lock.
    attempts: u32,
    /// True if this thread has learned of a release, and the server has not answered since.
    has_unused_release: bool,
    /// True if a holder has handed the lock over since the last command.
    handed_over: bool,
    /// Until when it asks without a pause, since a poller had the lock in a window.
    takes_back_until: Option<Uptime>,
    /// What commands without a reply may have acquired.
    unresolved: Unresolved,
}

impl Engine {
    fn report_note(&self, key: &Key, note: &Note, session: &Session<'_>) {
        match note {
            Note::TakenOver(from) => {
                self.observer.notify(&Event::TakenOver { key, from: &LockState::of(from.clone()) });
            }
            Note::ValueOverwritten(_) | Note::WasOverwritten(_) | Note::WentBack => {
                self.observer.overwritten(key, note);
            }
            Note::LateGrant => self.observer.late_grant(key),
            Note::NeverExpires(state) => {
                self.observer.notify(&Event::NeverExpires { key, state: &LockState::of(state.clone()) });
            }
            Note::RefusedForNow => {
                if let Some(refusal) = session.failures.refusal() {
                    self.observer.notify(&Event::RefusedForNow { key, refusal });
                }
            }
        }
    }
}

impl<'a> Wait<'a> {
    pub(super) fn new(call: &'a Call<'a>, key: &'a Key, asked_before: Option<Asked<'a>>) -> Self {
        let now = asked_before.as_ref().map_or(call.began, |asked| asked.at);
        Self {
            call,
            key,
            asked_before,
            ticket: None,
            notifies: false,
            session: call.session(key),
            now,
            looked: now.uptime,
            attempts: 0,
            has_unused_release: false,
            handed_over: false,
            takes_back_until: None,
            unresolved: Unresolved::default(),
        }
    }

    /// Waits until the lock is held, or there is an error. Contention until the deadline is an [`Error::Contended`].
    /// What commands without a reply may have acquired besides is owed. Returns also how often the server was asked.
    pub(super) fn acquire(mut self) -> (Result<Acquired, Error>, u32) {
        let mut acquired = self.begin().and_then(|()| self.in_queue());
        let Self { call, key, attempts, unresolved, .. } = self;
        let is_owed = call.engine.owe_unresolved(key, call.options, unresolved);
        // What a GETSET has written is not.
        if let Err(Error::InDoubt { advice, command, .. }) = &mut acquired
            && is_owed
            && *command != "GETSET"
        {
            *advice = RELEASED_IF_ACQUIRED;
        }
        (acquired, attempts)
    }

    /// Fails where the lock is not to be waited for, or what its options mean cannot be found out.
    fn begin(&mut self) -> Result<(), Error> {
        let (call, key) = (self.call, self.key);
        if self.asked_before.is_some() {
            self.check()?;
            if self.is_lost() || call.engine.knows_meaning_of(call.options) {
                return Ok(());
            }
            // It was not asked for after all.
            self.asked_before = None;
        } else {
            self.may_begin()?;
            call.check(key)?;
        }
        let probed = call.probe(key);
        // No lease begins before.
        self.now = clock::now();
        probed.map_err(|failure| {
            self.attempts = 1;
            let reason = self.session.refuse(failure);
            self.ended(reason)
        })
    }

    fn may_begin(&self) -> Result<(), Error> {
        let Self { call: Call { engine, .. }, key, .. } = self;
        engine.refuse_after_fork(key)?;
        self.call.refuse_unset_clock(key)?;
        engine.refuse_nested(key)
    }

    /// Is queued until a lock is held, or there is an error.
    fn in_queue(&mut self) -> Result<Acquired, Error> {
        let Call { engine, options, .. } = self.call;
        self.notifies = engine.notifies(options, self.key);
        if options.timeout == Some(Duration::ZERO) {
            let cue = self.beginning();
            return self.attempt(cue);
        }
        let (queue, key, mode) = (&engine.queue, self.key, WaitMode::of(options, self.notifies));
        // One that may have the lock is ahead of those that came while it asked.
        let ticket = if self.is_lost() { queue.join_ahead(key, mode) } else { queue.join(key, mode) };
        self.ticket = Some(ticket);
        let acquired = self.wait(None).and_then(|cue| self.attempt(cue));
        if let Some(ticket) = self.ticket.take() {
            let hint = ticket.leave();
            let notified = hint == Some(Hint::Freed) || self.has_unused_release;
            self.turn().gone(notified, self.call.returns_by());
        }
        acquired
    }

    /// Does what the rules say.
    fn attempt(&mut self, cue: Cue) -> Result<Acquired, Error> {
        let (io, mut attempt) = (Io::new(self.now), Attempt::new(self.params()));
        let ended = self.follow(&io, pin!(acquire(&io, &mut attempt, cue)));
        // What was asked before the wait, and did not count for it, was an attempt as well.
        self.attempts += attempt.pace.attempts;
        let acquired = match ended {
            Ok(Ok(lease)) => self.enter(lease),
            Ok(Err(GiveUp::Timeout)) => {
                let pace = &attempt.pace;
                Err(self.contended(pace.seen.clone(), pace.has_used_its_attempts()))
            }
            Ok(Err(reason)) => Err(self.ended(reason)),
            Err(error) => Err(error),
        };
        self.unresolved.append(attempt.into_unresolved());
        acquired
    }

    fn params(&self) -> Params {
        let Call { engine, options, deadline, began, .. } = self.call;
        Params {
            terms: options.terms,
            protocol: engine.protocol_of(options),
            deadline: *deadline,
            retry_for: engine.retry_for(began.uptime),
            tag: engine.tag(),
        }
    }

    /// Follows the rules until they end, or the wait was ended from outside.
    fn follow(
        &mut self,
        io: &Io,
        mut rules: Pin<&mut dyn Future<Output = Result<Lease, GiveUp>>>,
    ) -> Result<Result<Lease, GiveUp>, Error> {
        // Since the last step, and since the last pause.
        let (mut is_answered, mut has_looked) = (false, false);
        loop {
            let step = io.step(rules.as_mut());
            // One that the server refuses has not acted upon a release.
            if mem::take(&mut is_answered) && !matches!(&step, Step::Sleep(pause) if pause.is_refused) {
                self.has_unused_release = false;
            }
            for note in io.take_notes() {
                self.call.engine.report_note(self.key, &note, &self.session);
                // The observer may have taken long.
                self.now = clock::now();
            }
            match step {
                Step::Send(trip) => {
                    let replies = self.carry_out(&trip);
                    let last = replies.reply.as_ref().or(replies.found.as_ref());
                    is_answered = matches!(last, Some(Reply::Integer(_) | Reply::Bulk(_)));
                    has_looked = false;
                    io.answer(replies, self.now);
                }
                Step::Sleep(mut pause) => {
                    let ends = self.now.uptime.after(pause.time);
                    let looks = !has_looked && !pause.is_refused;
                    let looked = if looks { self.look_before_sleep() } else { None };
                    let cue = if let Some(Reply::Bulk(found)) = looked {
                        Cue::Look(Some(found))
                    } else {
                        pause.time = ends.since(self.now.uptime);
                        self.wait(Some(pause))?
                    };
                    is_answered = matches!(cue, Cue::Look(Some(_)));
                    has_looked = is_answered;
                    io.wake(cue, self.now);
                }
                Step::Done(lease) => return Ok(Ok(lease)),
                Step::GiveUp(reason) => return Ok(Err(reason)),
            }
        }
    }

    fn carry_out(&mut self, trip: &Trip) -> Replies {
        let listed = if trip.command == Command::Get { self.look_listed(self.now) } else { None };
        let replies = listed.map_or_else(|| self.session.send(trip, self.now), Replies::from);
        self.heard(replies.reply.as_ref().or(replies.found.as_ref()));
        replies
    }

    /// Notes that a command has been answered, or could not be.
    fn heard(&mut self, last: Option<&Reply>) {
        self.now = clock::now();
        if let Some(Reply::Bulk(Some(found))) = last {
            self.turn().met(found, self.now.uptime);
        }
        self.handed_over = false;
        if !matches!(last, Some(Reply::Lost | Reply::Unsent | Reply::TooLate) | None) {
            self.looked = self.now.uptime;
        }
    }

    /// Leaves the queue with the lock.
    fn enter(&mut self, lease: Lease) -> Result<Acquired, Error> {
        let (call, key, now) = (self.call, self.key, self.now);
        self.turn().acquired();
        let observation = Observation::of(&lease, now);
        let hold = call.engine.make_hold(key.clone(), call.options, lease, now);
        let known = Arc::downgrade(&hold) as _;
        let holder = match self.ticket.take() {
            Some(ticket) => ticket.enter(&observation, known),
            None => call.engine.queue.hold(key, &observation, known),
        };
        // A command of its own would not have been sent.
        if let (true, Err(ended)) = (self.handed_over, call.check(key)) {
            let lease = mem::take(&mut hold.state().lease);
            call.engine.release_unwanted(HeldLock::new(key, call.options, lease, holder));
            return Err(ended);
        }
        Ok(Acquired { hold, holder })
    }
}

impl Wait<'_> {
    /// The error of an attempt that has given up.
    fn ended(&mut self, reason: GiveUp) -> Error {
        // Unless the outcome is unknown, the end of the wait from outside is the reason.
        let from_outside = if reason == GiveUp::Unknown { None } else { self.call.check(self.key).err() };
        from_outside.unwrap_or_else(|| self.given_up(reason))
    }

    fn given_up(&mut self, reason: GiveUp) -> Error {
        let session = &mut self.session;
        // A thread that gives up at its own deadline has found out nothing for those behind it.
        let now = clock::uptime();
        let before_deadline = self.call.deadline.is_none_or(|deadline| now < deadline);
        let unreachable = match reason {
            // That all connections are in use says nothing about the server.
            GiveUp::Unsent => !session.failures.found_all_in_use(),
            reason => reason == GiveUp::Io,
        };
        if before_deadline && unreachable {
            self.call.engine.note_unreachable();
        }
        session.failures.has_waited(now.since(self.call.began.uptime));
        session.take_error(reason, self.call.advice())
    }

    /// The error of an attempt that has found the lock held until the end.
    fn contended(&self, seen: Option<State>, exhausted: bool) -> Error {
        let (details, now) = (self.contention(seen, 0), self.now);
        let is_at_deadline = self.call.deadline.is_some_and(|deadline| now.uptime >= deadline);
        if exhausted && !is_at_deadline {
            return Error::Contended { key: self.key.clone(), timeout: None, details: Box::new(details) };
        }
        self.timed_out(details)
    }

    fn timed_out(&self, details: Contention) -> Error {
        let timeout = Some(self.call.options.timeout.unwrap_or(Duration::MAX));
        Error::Contended { key: self.key.clone(), timeout, details: Box::new(details) }
    }

    fn contention(&self, seen: Option<State>, ahead: usize) -> Contention {
        let Call { engine, options, .. } = self.call;
        Contention {
            attempts: self.attempts,
            waited: self.now.uptime.since(self.call.began.uptime),
            seen: seen.map(LockState::of),
            expiring: options.terms.expiration.is_some(),
            ahead,
            permits: None,
            left_to_writer: false,
            taken_by_this_thread: thread_holds::by_this_thread(&engine.identity, self.key).is_some(),
        }
    }
}
