//! A call for a permit: it asks for a random one and looks at all, tries those that look free, and waits in the queue of
//! the semaphore. A permit that another thread has released is handed on to the first that sleeps.

use std::sync::Arc;
use std::time::Duration;

use proto::permits::{self, TRIES, Values};
use proto::values::{Key, Uptime};
use proto::{Observation, Reply};

use crate::extend::{Called, Failure, Line, LockState, SeveralCall, Ticket, give_back, parking};
use crate::system::clock;
use crate::{Error, LockGuard, RefusalKind};

/// A call for one of several permits.
pub(super) struct PermitWait<'a> {
    asking: &'a SeveralCall<'a>,
    name: &'a Key,
    slots: &'a Arc<[Key]>,
    line: &'a Line,
    /// How often it has asked.
    attempts: u32,
    /// The permits whose keys hold no lock, and never will.
    no_locks: Vec<usize>,
    /// What the permit holds that frees itself first, and when that was seen.
    seen: Observation,
    /// When the server last answered.
    reached: Uptime,
    /// Why the last attempt has failed, if another may not.
    failed: Option<Error>,
    /// Permits that commands without a reply may have acquired, and since when that is known.
    in_doubt: Vec<(Uptime, Error)>,
}

/// A permit that was acquired: its number, and whether another looks free.
type Acquired = (usize, LockGuard, bool);

impl<'a> PermitWait<'a> {
    pub(super) fn new(
        asking: &'a SeveralCall<'a>,
        name: &'a Key,
        slots: &'a Arc<[Key]>,
        line: &'a Line,
    ) -> Self {
        let at = asking.began.uptime;
        let seen = Observation { seen: None, at };
        Self {
            asking,
            name,
            slots,
            line,
            attempts: 0,
            no_locks: Vec::new(),
            seen,
            reached: at,
            failed: None,
            in_doubt: Vec::new(),
        }
    }

    /// Waits for a permit. Returns its number with it.
    pub(super) fn acquire(mut self) -> Result<(usize, LockGuard), Error> {
        let acquired = self.at_once().map_err(|error| self.or_in_doubt(error));
        self.asking.report_one_of(self.name, self.attempts, acquired.as_ref().map(|(_, guard)| guard));
        acquired
    }

    fn at_once(&mut self) -> Result<(usize, LockGuard), Error> {
        let may_wait = self.asking.may_wait();
        if may_wait && !self.line.is_empty() {
            return self.in_line();
        }
        match self.attempt(false) {
            Ok(Some(acquired)) => Ok(self.enter(None, acquired)),
            Ok(None) if !may_wait || self.has_used_its_attempts() => Err(self.contended(0)),
            Ok(None) => self.in_line(),
            Err(error) if !may_wait => Err(error),
            Err(error) => self.judge(error).and_then(|()| self.in_line()),
        }
    }

    /// Waits in the queue.
    fn in_line(&mut self) -> Result<(usize, LockGuard), Error> {
        let asking = self.asking;
        let mut ticket = self.line.join(asking.options);
        // One that has asked already waits first.
        let saw = (self.attempts > 0).then(|| self.seen.clone());
        let mut begins = saw.is_none();
        let mut called = ticket.wait(saw, false, parking(asking, self.until(begins)));
        loop {
            let ahead = match called {
                Called::Lease(handed) => return self.take(ticket, handed),
                Called::Over { ahead, .. } => ahead,
                Called::Head { .. } => 0,
            };
            if let Err(ended) = asking.check(self.name) {
                self.pass_on(&called);
                return Err(ended);
            }
            let is_over = !asking.has_time();
            if self.is_to_ask(&called, begins, is_over) {
                match self.attempt(true) {
                    Ok(Some(acquired)) => return Ok(self.enter(Some(ticket), acquired)),
                    Ok(None) => self.failed = None,
                    Err(error) => self.judge(error)?,
                }
            }
            if is_over || self.has_used_its_attempts() {
                return Err(self.failed.take().unwrap_or_else(|| self.contended(ahead)));
            }
            begins = false;
            called = ticket.wait(Some(self.seen.clone()), false, parking(asking, self.until(false)));
        }
    }

    /// Returns true if this thread asks now, and takes over what others have seen.
    fn is_to_ask(&mut self, called: &Called<LockGuard>, begins: bool, is_over: bool) -> bool {
        match called {
            // Another has just seen them held.
            Called::Head { seen: Some(seen), hint: None } if begins && !is_over => {
                self.seen = seen.clone();
                false
            }
            // The threads ahead have seen a holder.
            Called::Over { seen: Some(seen), ahead: 1.. } if seen.seen.is_some() => {
                self.seen = seen.clone();
                false
            }
            _ => begins || is_over || self.line.window(clock::now()).is_none(),
        }
    }

    /// Until when the thread sleeps unless it is called: to its deadline where another asks for it.
    fn until(&self, behind_others: bool) -> Option<Uptime> {
        let asking = self.asking;
        if behind_others {
            return asking.deadline;
        }
        let now = clock::now();
        let pause = asking.options.terms.poll_interval;
        let until_free = if asking.expires() {
            permits::until_free(self.seen.seen.as_ref(), asking.protocol(), now.wall)
        } else {
            Duration::MAX
        };
        let looks = self.seen.at.after(pause).min(now.uptime.after(until_free));
        // What was released in a window is asked for at its end.
        let until = self.line.window(now).unwrap_or(looks);
        Some(asking.deadline.map_or(until, |deadline| until.min(deadline)))
    }

    /// Asks once: for a random permit, and for those that look free. Permits of other callers are not waited for.
    /// With a place in the queue the next thread is to know whether another is free.
    fn attempt(&mut self, is_queued: bool) -> Result<Option<Acquired>, Error> {
        let (asking, slots) = (self.asking, self.slots);
        self.attempts += 1;
        let slot = permits::first(asking.random(), slots.len());
        let mut asked = asking.ask_and_look(&slots[slot], slots);
        self.seen.at = asked.at.uptime;
        let looked = asked.sent.behind.take();
        if asked.is_granted() {
            let is_seen_held = |values: &Values| self.free(values, slot).is_empty();
            let another =
                is_queued && !matches!(&looked, Some(Ok(Reply::Bulks(values))) if is_seen_held(values));
            return Ok(Some((slot, asking.hold_one(asked), another)));
        }
        if !asked.found_another() {
            let acquired = asking.try_one(&slots[slot], Some(asked))?;
            return Ok(acquired.map(|guard| (slot, guard, true)));
        }
        let values = match looked {
            Some(Ok(Reply::Bulks(values))) => values,
            Some(Err(failure)) => return Err(Error::of_failure(self.name.clone(), "MGET", failure)),
            _ => return Err(Error::of_failure(self.name.clone(), "MGET", Failure::TooLate)),
        };
        self.reached = clock::uptime();
        self.seen.seen = permits::first_to_end(&values);
        let (free, mut tries) = (self.free(&values, slot), 0);
        for (position, slot) in free.iter().enumerate() {
            match asking.try_one(&slots[*slot], None) {
                Ok(Some(guard)) => return Ok(Some((*slot, guard, position + 1 < free.len()))),
                Ok(None) => tries += 1,
                Err(error) if is_no_lock(&error) => {
                    self.no_locks.push(*slot);
                    if self.no_locks.len() == slots.len() {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
            if tries == TRIES {
                break;
            }
        }
        Ok(None)
    }

    fn free(&self, values: &Values, asked: usize) -> Vec<usize> {
        let mut free = permits::free(values, asked, self.asking.expires(), clock::now().wall);
        free.retain(|slot| !self.no_locks.contains(slot));
        free
    }

    /// Keeps the failure of an attempt if another may not fail.
    fn judge(&mut self, error: Error) -> Result<(), Error> {
        let now = clock::uptime();
        let is_refused = matches!(error, Error::Refused { .. });
        if is_refused {
            self.reached = now;
        }
        let is_unreachable = now.since(self.reached) >= self.asking.retry_for();
        if !error.is_transient() || is_unreachable || error.may_hold_lock() && !self.asking.expires() {
            if is_unreachable {
                self.asking.note_unreachable();
            }
            return Err(error);
        }
        self.asking.report_refusal(&error);
        if error.may_hold_lock() {
            self.in_doubt.push((now, error));
        } else {
            self.failed = Some(error);
        }
        Ok(())
    }

    /// Returns the error of the call: that a permit is in doubt, as long as it may be held.
    fn or_in_doubt(&mut self, error: Error) -> Error {
        let may_be = |(since, in_doubt): &(Uptime, Error)| self.asking.may_be_held(in_doubt, *since);
        match self.in_doubt.iter().position(may_be) {
            Some(at) if !error.may_hold_lock() => self.in_doubt.swap_remove(at).1,
            _ => error,
        }
    }

    /// Goes on with a permit that another thread has handed on.
    fn take(&mut self, ticket: Ticket<LockGuard>, handed: LockGuard) -> Result<(usize, LockGuard), Error> {
        ticket.leave();
        let guard = self.asking.go_on(handed);
        if let Err(ended) = self.asking.check(self.name) {
            // A failure is reported.
            drop(give_back(vec![guard]));
            return Err(ended);
        }
        let slot = self.slots.iter().position(|slot| slot == guard.key());
        Ok((slot.unwrap_or_else(|| unreachable!("only these permits have this queue")), guard))
    }

    fn enter(
        &self,
        ticket: Option<Ticket<LockGuard>>,
        (slot, mut guard, another): Acquired,
    ) -> (usize, LockGuard) {
        self.line.enter(ticket, &mut guard, &self.seen, another);
        (slot, guard)
    }

    /// Leaves a hint that this thread does not act upon to the next.
    fn pass_on(&self, called: &Called<LockGuard>) {
        if let Called::Head { hint: Some(hint), .. } = called {
            self.line.notify(*hint);
        }
    }

    fn has_used_its_attempts(&self) -> bool {
        self.asking.options.terms.max_attempts.is_some_and(|most| self.attempts >= most)
    }

    /// The error of a call that has found all permits held, with so many threads ahead.
    fn contended(&self, ahead: usize) -> Error {
        let seen = self.seen.seen.clone().map(LockState::of);
        self.asking.contended(self.name, self.slots, self.attempts, seen, ahead)
    }
}

/// Returns true if the key of a lock holds something else.
fn is_no_lock(error: &Error) -> bool {
    matches!(error, Error::Refused { refusal, .. } if refusal.kind() == RefusalKind::WrongType)
}
