//! What a call for a permit sends: it asks for a random permit and looks at all, and tries those that look free. A reader
//! leaves them to the writer that was next when it came.

use std::collections::VecDeque;

use proto::permits::{self, TRIES, Values};
use proto::values::Uptime;
use proto::{Observation, Reply};

use super::{Acquired, PermitWait, is_refused};
use crate::extend::Failure;
use crate::system::clock;
use crate::{Error, RefusalKind};

impl PermitWait<'_> {
    /// Looks at the permits before the thread sleeps, if something is to be done with the waiting list. Tries those that
    /// look free.
    pub(super) fn look_before_sleep(&mut self) -> Result<Option<Acquired>, Error> {
        let at = clock::uptime();
        self.look_listed().map_or(Ok(None), |looked| self.try_looked(looked?, at))
    }

    /// Looks at all keys, as a process that waits to be notified, if something is to be done with the waiting list.
    fn look_listed(&self) -> Option<Result<Vec<Option<Vec<u8>>>, Error>> {
        let looked = self.line.look_listed(self.call, self.looks)?;
        Some(looked.map_err(|error| error.about(self.name)))
    }

    /// Notes what all keys held at that time. Returns what the permits held.
    fn saw(&mut self, values: Vec<Option<Vec<u8>>>, at: Uptime) -> Vec<Option<Vec<u8>>> {
        let values = self.saw_writer(values);
        self.saw_permits(&values, at);
        values
    }

    /// Notes whether a writer is next. Returns what the permits held.
    fn saw_writer(&mut self, mut values: Vec<Option<Vec<u8>>>) -> Vec<Option<Vec<u8>>> {
        if self.looks.len() > self.slots.len() {
            let next = values.pop().flatten();
            self.writer.saw(next.as_deref(), clock::now().wall);
        }
        values
    }

    fn saw_permits(&mut self, values: &Values, at: Uptime) {
        // Those behind it are not to take them for held.
        let seen = if self.holds_back() { None } else { permits::first_to_end(values) };
        self.seen = Observation { seen, at };
        self.turn.met_at(self.slots, values, at);
    }

    /// Returns true if this thread leaves the permits to a writer that came before.
    pub(super) fn holds_back(&self) -> bool {
        if self.looks.len() == self.slots.len() {
            return false;
        }
        let now = clock::now();
        self.writer.is_next(now.wall) && !self.turn.is_of_pollers(now)
    }

    fn random(&self) -> usize {
        permits::first(self.call.random(), self.slots.len())
    }

    /// Asks once: for a random permit, and for those that look free.
    /// With a place in the queue the next thread is to know whether another is free.
    pub(super) fn attempt(&mut self, is_queued: bool) -> Result<Option<Acquired>, Error> {
        if self.holds_back() {
            let at = clock::uptime();
            let looked = self.look_listed();
            let values = looked.unwrap_or_else(|| self.call.look_at(self.name, self.looks))?;
            return self.try_looked(values, at);
        }
        self.count(|this| this.ask(is_queued))
    }

    /// Counts an attempt.
    fn count(
        &mut self,
        ask: impl FnOnce(&mut Self) -> Result<Option<Acquired>, Error>,
    ) -> Result<Option<Acquired>, Error> {
        let acquired = ask(self);
        // One that the server has refused for now has not found the permits held.
        let is_last = self.call.options.terms.max_attempts == Some(1);
        let is_waited_out = |error: &Error| is_refused(error) && error.is_transient() && !is_last;
        self.attempts += u32::from(!acquired.as_ref().is_err_and(is_waited_out));
        acquired
    }

    fn ask(&mut self, is_queued: bool) -> Result<Option<Acquired>, Error> {
        let (call, slot) = (self.call, self.random());
        let mut asked = call.ask_and_look(&self.slots[slot], self.looks);
        let at = asked.at.uptime;
        self.seen.at = at;
        let looked = match asked.sent.behind.take() {
            Some(Ok(Reply::Bulks(values))) => Ok(self.saw_writer(values)),
            other => Err(other),
        };
        if asked.is_granted() {
            if self.holds_back() {
                let not_released = call.give_back(Vec::new(), VecDeque::from([asked]));
                self.in_doubt.extend(not_released.into_iter().map(|error| (at, error)));
                return Ok(None);
            }
            let guard = call.hold_one(asked);
            let another = is_queued && !looked.is_ok_and(|values| self.free(&values, slot).is_empty());
            return Ok(Some((slot, guard, another)));
        }
        if !asked.found_another()
            && let Some(guard) = call.try_one(&self.slots[slot], Some(asked))?
        {
            return Ok(Some((slot, guard, true)));
        }
        let values = match looked {
            Ok(values) => {
                self.saw_permits(&values, at);
                values
            }
            Err(Some(Err(failure @ Failure::Refused(_)))) => {
                return Err(Error::of_failure(self.name.clone(), "MGET", failure));
            }
            Err(_) => self.saw(call.look_at(self.name, self.looks)?, at),
        };
        (self.failing_since, self.failed, self.pause) = (None, None, call.options.terms.poll_interval);
        if self.holds_back() { Ok(None) } else { self.try_free(&values, slot) }
    }

    /// Asks for permits that looked free then, unless this thread leaves them to others.
    fn try_looked(&mut self, values: Vec<Option<Vec<u8>>>, at: Uptime) -> Result<Option<Acquired>, Error> {
        let values = self.saw(values, at);
        let is_left = self.left_until.is_some() || self.turn.leave(false, clock::now()).is_some();
        let asked = self.random();
        if is_left || self.holds_back() || self.free(&values, asked).is_empty() {
            return Ok(None);
        }
        self.count(|this| this.try_free(&values, asked))
    }

    /// Asks for permits that look free, the one that was asked for last.
    fn try_free(&mut self, values: &Values, asked: usize) -> Result<Option<Acquired>, Error> {
        let (call, slots) = (self.call, self.slots);
        let (free, mut tries) = (self.free(values, asked), 0);
        for (position, slot) in free.iter().enumerate() {
            match call.try_one(&slots[*slot], None) {
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
        let mut free = permits::free(values, asked, self.call.expires(), clock::now().wall);
        let is_left = |slot: &usize| {
            self.looks.len() > self.slots.len() && self.call.turn(&self.slots[*slot]).head_start().is_some()
        };
        free.retain(|slot| !self.no_locks.contains(slot) && !is_left(slot));
        free
    }
}

/// Returns true if the key of a lock holds something else.
fn is_no_lock(error: &Error) -> bool {
    matches!(error, Error::Refused { refusal, .. } if refusal.kind() == RefusalKind::WrongType)
}
