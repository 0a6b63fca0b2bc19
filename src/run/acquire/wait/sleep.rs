//! A thread sleeps: for its turn in the queue, in a pause of the rules, and while it leaves the lock to others. With
//! notifications, this process enters the key's waiting list along with its looks at the key.

use std::time::Duration;

use proto::acquire::free_at;
use proto::values::{Now, State, Terms, Uptime, Wall};
use proto::{Command, Cue, GiveUp, Pause, Reply, Trip};

use super::Wait;
use crate::report::error::Error;
use crate::run::acquire::{Asked, Call, look_listed};
use crate::run::held::Delivery;
use crate::run::turns::{Leave, Turn};
use crate::system::clock;
use crate::system::thread;
use crate::wait::{Called, Hint, Observation};

/// What a thread has done before it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    /// Nothing yet.
    Beginning,
    /// It has asked for the lock before it was queued, and the answer counts.
    Asking,
    /// It was in a pause of the rules.
    Pausing,
    /// It has left the lock to others.
    Leaving,
}

/// Returns how the rules go on with a thread that was called, unless an answer from before counts. `is_held`: others
/// have seen a holder.
///
/// # Errors
///
/// What others have seen, and how many threads were ahead, of a thread that had no turn before its time was over.
fn cue(called: Called<Delivery>, before: Before, is_held: bool) -> Result<Cue, (Option<Observation>, usize)> {
    Ok(match (called, before) {
        (Called::Lease(Delivery { lease, in_doubt }), _) => Cue::HandedOver { lease, in_doubt },
        // It was released, and nothing was seen of it since.
        (Called::Head { seen: None, hint: Some(Hint::Freed) }, _) | (_, Before::Leaving) => Cue::Ask,
        (_, Before::Pausing) => Cue::Look(None),
        (Called::Head { seen: Some(observation), .. }, _) => Cue::Behind(observation),
        (Called::Over { seen, ahead }, _) if is_held => return Err((seen, ahead)),
        (Called::Head { .. } | Called::Over { .. }, _) => Cue::Ask,
    })
}

impl Wait<'_> {
    /// Waits for the thread's turn, or in a `pause` of the rules until that ends or another thread calls it; then until
    /// it leaves the lock to others no more. Returns how the rules go on.
    pub(super) fn wait(&mut self, pause: Option<Pause>) -> Result<Cue, Error> {
        let begins = pause.is_none();
        debug_assert!(begins || self.asked_before.is_none(), "the rules know it");
        let mut free_at = None;
        let (until, in_doubt, saw) = match pause {
            None => (self.call.deadline, self.is_lost(), None),
            Some(Pause { time, seen, in_doubt, is_refused }) => {
                free_at = self.free_at(seen.as_ref());
                let saw = Observation { seen, at: self.looked };
                if is_refused {
                    self.takes_back_until = None;
                }
                let time = if self.takes_back() { Duration::ZERO } else { time };
                (Some(self.now.uptime.after(time)), in_doubt, Some(saw))
            }
        };
        let mut called = self.sleep(until, in_doubt, saw)?;
        let mut before = match (begins, &self.asked_before) {
            (false, _) if self.takes_back() => Before::Leaving,
            (false, _) => Before::Pausing,
            (true, None) => Before::Beginning,
            (true, Some(_)) => Before::Asking,
        };
        while !in_doubt
            && let Some(leave) =
                self.leaves(&called, before).or_else(|| self.leaves_expired(&called, free_at))
        {
            if before != Before::Leaving
                && let Some(Reply::Bulk(Some(found))) = self.look_before_sleep()
            {
                return Ok(Cue::Look(Some(Some(found))));
            }
            before = Before::Leaving;
            called = self.sleep_leaving(leave)?;
            if !matches!(called, Called::Lease(_))
                && let Some(cue) = self.look_in_window(leave)?
            {
                return Ok(cue);
            }
        }
        self.goes_on(called, before)
    }

    /// Sleeps until then, or until another thread calls this one.
    fn sleep(
        &mut self,
        until: Option<Uptime>,
        in_doubt: bool,
        saw: Option<Observation>,
    ) -> Result<Called<Delivery>, Error> {
        let Some(ticket) = &mut self.ticket else {
            unreachable!("at its deadline an attempt gives up rather than sleep")
        };
        let begins = saw.is_none();
        let called = ticket.wait(saw, in_doubt, parking(self.call, until));
        self.now = clock::now();
        if begins {
            // Those ahead may have found the server unreachable.
            self.session = self.call.session(self.key);
            self.looked = self.now.uptime;
            self.judge_asked_before(&called);
        }
        let hint = if let Called::Head { hint, .. } = &called { *hint } else { None };
        if !matches!(called, Called::Lease(_)) {
            let ended = if in_doubt { self.check_in_doubt() } else { self.check() };
            ended.inspect_err(|_| self.pass_on(hint))?;
        }
        self.has_unused_release |= hint == Some(Hint::Freed);
        Ok(called)
    }

    /// Returns until when this thread leaves the lock to others. At its deadline it asks in any case.
    fn leaves(&self, called: &Called<Delivery>, before: Before) -> Option<Leave> {
        let begins = match (called, before) {
            // It has the lock, or an answer that counts.
            (Called::Lease(_), _) | (_, Before::Asking) => return None,
            // The threads ahead leave it.
            (Called::Over { .. }, Before::Beginning) => return None,
            (Called::Head { seen: None, hint }, Before::Beginning) => *hint != Some(Hint::Freed),
            _ => false,
        };
        let is_last = self.call.deadline.is_some_and(|deadline| self.now.uptime >= deadline);
        let leave = self.turn().leave(begins, self.now);
        leave.filter(|leave| {
            !is_last && self.now.uptime < leave.until && !(leave.in_window && self.takes_back())
        })
    }

    /// Returns when a lock that was seen so may be taken over, by the wall clock.
    fn free_at(&self, seen: Option<&State>) -> Option<Wall> {
        let State::Until { until, .. } = seen? else { return None };
        let protocol = self.call.engine.protocol_of(self.call.options);
        Some(free_at(*until, protocol, self.now.wall))
    }

    /// Returns until when this thread leaves a lock that has expired to pollers: each polls once.
    fn leaves_expired(&self, called: &Called<Delivery>, free_at: Option<Wall>) -> Option<Leave> {
        let since = free_at.filter(|at| *at <= self.now.wall).map(|at| self.now.wall.since(at))?;
        let is_last = self.call.deadline.is_some_and(|deadline| self.now.uptime >= deadline);
        let is_called = !matches!(called, Called::Over { .. });
        if is_last || is_called || self.takes_back() {
            return None;
        }
        self.turn().leave_expired(since, self.now)
    }

    /// Sleeps until the lock is left no more, or is looked at.
    fn sleep_leaving(&mut self, leave: Leave) -> Result<Called<Delivery>, Error> {
        let Call { engine, deadline, .. } = self.call;
        let until = if self.looks_in_window(leave) {
            leave.next_look(engine.identity.next_nonce().seed(), self.now)
        } else {
            leave.until
        };
        let until = deadline.map_or(until, |deadline| deadline.min(until));
        // What was seen before says nothing about it afterwards.
        self.sleep(Some(until), false, Some(Observation { seen: None, at: self.looked }))
    }

    /// Returns true if the lock is looked at meanwhile. A thread whose attempts are counted would use them up.
    fn looks_in_window(&self, leave: Leave) -> bool {
        leave.in_window && self.call.options.terms.max_attempts.is_none()
    }

    /// Looks at a lock that is left to pollers. Returns how the rules go on if a poller has it, or the look has failed.
    fn look_in_window(&mut self, leave: Leave) -> Result<Option<Cue>, Error> {
        let is_over = |end: Option<Uptime>| end.is_some_and(|end| self.now.uptime >= end);
        if !self.looks_in_window(leave) || is_over(Some(leave.until)) || is_over(self.call.deadline) {
            return Ok(None);
        }
        let found = match self.carry_out(&Trip::of(Command::Get)).reply {
            Some(Reply::Bulk(found)) => found,
            // The rules would wait for a connection once more.
            Some(Reply::Unsent) => return Err(self.ended(GiveUp::Unsent)),
            _ => return Ok(Some(Cue::Look(None))),
        };
        self.takes_back_until = self.turn().takes_back(found.as_deref(), self.now);
        Ok(self.takes_back_until.map(|_| Cue::Look(Some(found))))
    }

    /// Returns true while the thread asks without a pause, since a poller had the lock in a window.
    fn takes_back(&self) -> bool {
        self.takes_back_until.is_some_and(|until| self.now.uptime < until)
    }

    fn goes_on(&mut self, called: Called<Delivery>, before: Before) -> Result<Cue, Error> {
        let is_lease = matches!(called, Called::Lease(_));
        if before == Before::Asking && !is_lease {
            return Ok(self.beginning());
        }
        let is_held = match &called {
            // In a window the threads ahead leave the lock to pollers, so this one tries itself.
            Called::Over { seen, .. } => {
                self.shows_holder(seen.as_ref()) && self.turn().leave(false, self.now).is_none()
            }
            _ => false,
        };
        let cue = cue(called, before, is_held).map_err(|(seen, ahead)| {
            let seen = seen.and_then(|observation| observation.seen);
            self.timed_out(self.contention(seen, ahead))
        })?;
        if is_lease {
            // It has the lock, so what came of asking before is over.
            if self.asked_before.take().is_some() {
                self.attempts = 1;
            }
            (self.looked, self.handed_over) = (self.now.uptime, true);
        }
        if let Cue::Behind(observation) = &cue {
            self.looked = observation.at;
        }
        Ok(cue)
    }

    /// Returns how the rules begin: with what came of asking for a lock before, or by asking for one.
    pub(super) fn beginning(&mut self) -> Cue {
        let Some(Asked { lease, trip, sent, at, .. }) = self.asked_before.take() else {
            return Cue::Ask;
        };
        if let Some(Ok(_)) = &sent.reply {
            self.looked = at.uptime;
        }
        let replies = self.session.heard(&trip, sent);
        // It may have been reported, to an observer that takes long.
        self.now = clock::now();
        Cue::Sent(lease, replies)
    }

    /// Forgets the answer from before the wait, if it does not count. That another
    /// has the lock may be over, which nothing shows if a thread of this process
    /// has released it since: where a look does not follow, it is asked for again.
    fn judge_asked_before(&mut self, called: &Called<Delivery>) {
        let Some(asked) = &self.asked_before else { return };
        let Terms { expiration, max_attempts, .. } = self.call.options.terms;
        let is_followed_by_a_look = expiration.is_some();
        let nothing_newer = matches!(called, Called::Head { seen: None, hint: None });
        let is_known = !asked.found_another() || max_attempts.is_some() || is_followed_by_a_look;
        if !(asked.is_lost() || asked.is_carried_out() || nothing_newer && is_known) {
            self.asked_before = None;
            // One that may ask once asks when it is its turn.
            self.attempts = u32::from(max_attempts.is_none());
        }
    }

    /// Returns true if an observation shows a holder. Threads without an expiration do not read the key; they sleep
    /// since another client has it.
    fn shows_holder(&self, observation: Option<&Observation>) -> bool {
        match observation.map(|observation| &observation.seen) {
            Some(Some(state)) => *state != State::Absent,
            Some(None) => self.call.options.terms.expiration.is_none(),
            None => false,
        }
    }

    /// Returns true if a command from before the wait may have acquired a lock.
    pub(super) fn is_lost(&self) -> bool {
        self.asked_before.as_ref().is_some_and(Asked::is_lost)
    }

    /// Fails where the wait was ended from outside, by [`Error::InDoubt`]
    /// if a command from before it may have acquired a lock.
    pub(super) fn check(&mut self) -> Result<(), Error> {
        if self.is_lost() { self.check_in_doubt() } else { self.call.check(self.key) }
    }

    /// Fails where the wait was ended from outside, by [`Error::InDoubt`]: a command from before it, or of the rules,
    /// may have acquired a lock.
    fn check_in_doubt(&mut self) -> Result<(), Error> {
        if self.call.check(self.key).is_ok() {
            return Ok(());
        }
        // That of the rules is theirs to return.
        if let Some(asked) = &self.asked_before {
            self.unresolved.add(asked.lease.clone(), None, self.now);
            self.attempts = 1;
            self.beginning();
        }
        Err(self.given_up(GiveUp::Unknown))
    }

    /// Leaves a hint that this thread does not act upon: when it leaves the queue, the next gets it.
    fn pass_on(&self, hint: Option<Hint>) {
        if let Some(hint) = hint {
            self.call.engine.queue.notify(self.key, hint);
        }
    }
}

/// Returns how a thread sleeps until then, or until another wakes it: a function that returns whether to sleep on.
pub(crate) fn parking(call: &Call<'_>, until: Option<Uptime>) -> impl FnMut() -> bool {
    move || {
        let left = until.map(|until| until.since(clock::uptime()));
        if call.is_cancelled() || left == Some(Duration::ZERO) {
            return false;
        }
        match left {
            Some(left) => thread::park_timeout(left),
            None => thread::park(),
        }
        true
    }
}

impl Wait<'_> {
    pub(super) fn turn(&self) -> Turn<'_> {
        let Call { engine, options, name, .. } = *self.call;
        engine.turn(self.notifies, options, self.key).of(name)
    }

    /// Looks at the key, as a process that waits for notifications, if something is to be done with the waiting list.
    pub(super) fn look_listed(&mut self, now: Now) -> Option<Reply> {
        self.ticket.as_ref()?;
        let Call { engine, options, .. } = *self.call;
        let turn = engine.turn(self.notifies, options, self.key);
        look_listed(&turn, &mut self.session, &Command::Get, now)
    }

    /// Looks at the key before the thread sleeps, if something is to be done with the waiting list.
    pub(super) fn look_before_sleep(&mut self) -> Option<Reply> {
        let reply = self.look_listed(self.now)?;
        self.heard(Some(&reply));
        Some(reply)
    }
}

#[cfg(test)]
mod tests {
    use proto::lease::Lease;

    use super::*;

    type Row = (&'static str, fn() -> Called<Delivery>, bool);

    fn seen() -> Option<Observation> {
        Some(Observation { seen: None, at: Uptime::default() })
    }

    #[test]
    fn the_table_of_how_a_thread_goes_on() {
        const ROWS: [Row; 7] = [
            ("lease", || Called::Lease(Delivery { lease: Lease::default(), in_doubt: false }), false),
            ("head, freed", || Called::Head { seen: None, hint: Some(Hint::Freed) }, false),
            ("head, changed", || Called::Head { seen: None, hint: Some(Hint::Changed) }, false),
            ("head", || Called::Head { seen: None, hint: None }, false),
            ("head, seen", || Called::Head { seen: seen(), hint: None }, false),
            ("over, free", || Called::Over { seen: None, ahead: 1 }, false),
            ("over, held", || Called::Over { seen: seen(), ahead: 1 }, true),
        ];
        let mut table = "\n               Beginning  Pausing    Leaving\n".to_owned();
        for (name, called, is_held) in ROWS {
            let shown = [Before::Beginning, Before::Pausing, Before::Leaving].map(|before| {
                let shown =
                    cue(called(), before, is_held).map_or("contended".into(), |cue| format!("{cue:?}"));
                format!("{:11}", shown.split([' ', '(']).next().unwrap_or_default())
            });
            table = table + format!("{name:15}{}", shown.concat()).trim_end() + "\n";
        }
        let expected = "
               Beginning  Pausing    Leaving
lease          HandedOver HandedOver HandedOver
head, freed    Ask        Ask        Ask
head, changed  Ask        Look       Ask
head           Ask        Look       Ask
head, seen     Behind     Look       Ask
over, free     Ask        Look       Ask
over, held     contended  Look       Ask
";
        assert_eq!(table, expected, "{table}");
    }
}
