//! A call for a permit: it asks for a random one and looks at all, tries those that look free, and waits in the queue of
//! the semaphore. A permit that another thread has released is handed on to the first that sleeps.

mod asking;

use std::sync::Arc;
use std::time::Duration;

use proto::Observation;
use proto::permits::{self, WriterAhead};
use proto::values::{Key, Uptime};

use crate::extend::{Called, Hint, Line, LockState, SeveralCall, Ticket, Turn, give_back, parking};
use crate::system::clock;
use crate::{Error, LockGuard, RefusalKind};

/// How long a pause is at most after the server has refused for now.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A call for one of several permits.
pub(super) struct PermitWait<'a> {
    call: &'a SeveralCall<'a>,
    name: &'a Key,
    slots: &'a Arc<[Key]>,
    /// Those, and what shows that a writer is next.
    looks: &'a Arc<[Key]>,
    writer: WriterAhead,
    line: &'a Line,
    turn: Turn<'a>,
    /// How often it has asked.
    attempts: u32,
    /// The permits whose keys hold no lock, and never will.
    no_locks: Vec<usize>,
    /// What the permit holds that frees itself first, and when that was seen.
    seen: Observation,
    /// Since when the server gives no answer.
    failing_since: Option<Uptime>,
    /// Why the last attempt has failed, if another may not.
    failed: Option<Error>,
    /// How long the pause is before the next attempt: longer after refusals.
    pause: Duration,
    /// A hint that this thread has not acted upon.
    unused: Option<Hint>,
    /// Until when it leaves the permits to a process that was just notified.
    left_until: Option<Uptime>,
    /// Permits that commands without a reply may have acquired, and since when that is known.
    in_doubt: Vec<(Uptime, Error)>,
}

/// A permit that was acquired: its number, and whether another looks free.
type Acquired = (usize, LockGuard, bool);

/// What a thread that was queued has got.
enum FromQueue {
    Acquired(Acquired),
    /// From another thread: a permit's number, and the permit.
    HandedOn(usize, LockGuard),
}

impl<'a> PermitWait<'a> {
    pub(super) fn new(
        call: &'a SeveralCall<'a>,
        name: &'a Key,
        slots: &'a Arc<[Key]>,
        looks: &'a Arc<[Key]>,
        line: &'a Line,
    ) -> Self {
        let at = call.began.uptime;
        let seen = Observation { seen: None, at };
        Self {
            call,
            name,
            slots,
            looks,
            writer: WriterAhead::default(),
            line,
            turn: line.turn(call),
            attempts: 0,
            no_locks: Vec::new(),
            seen,
            failing_since: None,
            failed: None,
            pause: call.options.terms.poll_interval,
            unused: None,
            left_until: None,
            in_doubt: Vec::new(),
        }
    }

    /// Waits for a permit. Returns its number with it.
    pub(super) fn acquire(mut self) -> Result<(usize, LockGuard), Error> {
        let acquired = self.ask_or_wait().map_err(|error| self.or_in_doubt(error));
        self.call.report_one_of(self.name, self.attempts, acquired.as_ref().map(|(_, guard)| guard));
        acquired
    }

    fn ask_or_wait(&mut self) -> Result<(usize, LockGuard), Error> {
        let may_wait = self.call.may_wait();
        if may_wait && (!self.line.is_empty() || self.turn.left_until(self.call.began).is_some()) {
            return self.in_line();
        }
        match self.attempt(false) {
            Ok(Some((slot, mut guard, _))) => {
                self.line.place(&mut guard, self.seen.at);
                return Ok((slot, guard));
            }
            Ok(None) => {}
            Err(error) => drop(self.judge(error)?),
        }
        if !may_wait || self.has_used_its_attempts() {
            return Err(self.failed.take().unwrap_or_else(|| self.contended(0)));
        }
        self.in_line()
    }

    /// Waits in the queue.
    fn in_line(&mut self) -> Result<(usize, LockGuard), Error> {
        let mut ticket = self.line.join(self.call);
        let (acquired, unused) = match self.wait(&mut ticket) {
            Ok(FromQueue::Acquired((slot, mut guard, another_is_free))) => {
                let unused = self.line.enter(ticket, &mut guard, &self.seen, another_is_free);
                (Ok((slot, guard)), unused)
            }
            // It has a place.
            Ok(FromQueue::HandedOn(slot, guard)) => (Ok((slot, guard)), ticket.leave()),
            Err(error) => (Err(error), ticket.leave()),
        };
        if acquired.is_ok() {
            self.turn.acquired();
        }
        // The next thread, or process, acts upon what this one has not.
        let unused = self.unused.max(unused).filter(|hint| !self.line.notify(*hint));
        self.turn.gone(unused == Some(Hint::Freed), self.call.returns_by());
        acquired
    }

    fn wait(&mut self, ticket: &mut Ticket<LockGuard>) -> Result<FromQueue, Error> {
        let call = self.call;
        // One that has asked before asks again as it is the first: a permit may have been released in between.
        let mut called = ticket.wait(None, false, parking(call, call.deadline));
        let mut begins = true;
        loop {
            let ahead = match &called {
                Called::Over { ahead, .. } => *ahead,
                Called::Lease(_) | Called::Head { .. } => 0,
            };
            let is_to_ask = match called {
                Called::Lease(handed) => match self.take(handed)? {
                    Some((slot, guard)) => return Ok(FromQueue::HandedOn(slot, guard)),
                    None => true,
                },
                called => {
                    if let Called::Head { hint, .. } = &called {
                        self.unused = self.unused.max(*hint);
                    }
                    self.is_to_ask(&called, begins)
                }
            };
            call.check(self.name)?;
            if is_to_ask {
                self.unused = None;
                if let Some(acquired) = self.attempt(true).or_else(|error| self.judge(error))? {
                    return Ok(FromQueue::Acquired(acquired));
                }
            }
            if !call.has_time() || self.has_used_its_attempts() {
                return Err(self.failed.take().unwrap_or_else(|| self.contended(ahead)));
            }
            if let Some(acquired) = self.look_before_sleep().or_else(|error| self.judge(error))? {
                return Ok(FromQueue::Acquired(acquired));
            }
            begins = false;
            let holds_back = self.holds_back();
            ticket.hold_back(holds_back);
            called = ticket.wait(Some(self.seen.clone()), holds_back, parking(call, Some(self.until())));
        }
    }

    /// Returns true if this thread asks now. Takes over what others have seen.
    fn is_to_ask(&mut self, called: &Called<LockGuard>, begins: bool) -> bool {
        let is_over = !self.call.has_time();
        let window = self.turn.leave(false, clock::now());
        self.left_until = None;
        match called {
            // Another has just seen them held: the thread ahead, or one that was.
            Called::Head { seen: Some(seen), hint: None } | Called::Over { seen: Some(seen), ahead: 1.. }
                if begins && seen.seen.is_some() =>
            {
                self.seen = seen.clone();
                is_over && window.is_some()
            }
            _ if is_over => true,
            Called::Head { hint: Some(Hint::Freed), .. } if begins => true,
            _ if begins => {
                self.left_until = self.turn.left_until(clock::now());
                self.left_until.is_none()
            }
            _ if window.is_none() => true,
            _ => {
                // Others are not to rely on what was seen before.
                self.seen.seen = None;
                false
            }
        }
    }

    /// Until when the thread sleeps unless it is called.
    fn until(&self) -> Uptime {
        let (call, now) = (self.call, clock::now());
        let until_free = if call.expires() {
            permits::until_free(self.seen.seen.as_ref(), call.protocol(), now.wall)
        } else {
            Duration::MAX
        };
        let until_gone = self.writer.until_gone(call.protocol(), now.wall);
        let looks = self.seen.at.after(self.pause).min(now.uptime.after(until_free.min(until_gone)));
        // What was released meanwhile is asked for at its end.
        let left = self.left_until.or_else(|| Some(self.turn.leave(false, now)?.until));
        let until = left.unwrap_or(looks);
        call.deadline.map_or(until, |deadline| until.min(deadline))
    }

    /// Keeps the failure of an attempt if another may not fail.
    fn judge(&mut self, error: Error) -> Result<Option<Acquired>, Error> {
        let call = self.call;
        if !error.may_hold_lock() {
            // Where the call was ended from outside, that is the reason.
            call.check(self.name)?;
        }
        let (now, terms) = (clock::uptime(), &call.options.terms);
        let is_refused = is_refused(&error);
        let since = if is_refused { now } else { self.failing_since.unwrap_or(now) };
        self.failing_since = (!is_refused).then_some(since);
        let is_unreachable = !is_refused && now.since(since) >= call.retry_for();
        if is_unreachable {
            call.note_unreachable();
        }
        let is_final = !error.is_transient() || error.may_hold_lock() && !call.expires();
        if is_final || is_unreachable || terms.max_attempts == Some(1) {
            return Err(error);
        }
        if is_refused {
            if call.may_wait() {
                call.report_refusal(&error);
            }
            self.pause = (2 * self.pause).min(LONGEST_PAUSE.max(terms.poll_interval));
        }
        if error.may_hold_lock() {
            self.in_doubt.push((now, error));
        } else {
            self.failed = Some(error);
        }
        Ok(None)
    }

    /// Returns the error of the call: that a permit is in doubt, as long as it may be held.
    fn or_in_doubt(&mut self, error: Error) -> Error {
        let may_be = |(since, in_doubt): &(Uptime, Error)| self.call.may_be_held(in_doubt, *since);
        match self.in_doubt.iter().position(may_be) {
            Some(at) if !error.may_hold_lock() => self.in_doubt.swap_remove(at).1,
            _ => error,
        }
    }

    /// Goes on with a permit that another thread has handed on, unless its lease has passed meanwhile.
    fn take(&mut self, handed: LockGuard) -> Result<Option<(usize, LockGuard)>, Error> {
        let ended = self.call.check(self.name);
        if ended.is_err() || handed.remaining() == Some(Duration::ZERO) {
            // A failure is reported.
            drop(give_back(vec![handed]));
            return ended.map(|()| None);
        }
        let guard = self.call.go_on(handed);
        let slot = self.slots.iter().position(|slot| slot == guard.key());
        Ok(Some((slot.unwrap_or_else(|| unreachable!("only these permits have this queue")), guard)))
    }

    fn has_used_its_attempts(&self) -> bool {
        self.call.options.terms.max_attempts.is_some_and(|most| self.attempts >= most)
    }

    /// The error of a call that has found all permits held, with so many threads ahead.
    fn contended(&self, ahead: usize) -> Error {
        let seen = self.seen.seen.clone().map(LockState::of);
        let mut error = self.call.contended(self.name, self.slots, self.attempts, seen, ahead);
        if let Error::Contended { details, .. } = &mut error {
            details.left_to_writer = self.holds_back();
        }
        error
    }
}

/// Returns true if the server is there, and has refused a command. A replica is waited for as a server that is not.
fn is_refused(error: &Error) -> bool {
    matches!(error, Error::Refused { refusal, .. } if refusal.kind() != RefusalKind::ReadOnly)
}
