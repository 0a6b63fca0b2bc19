//! Waiting, for the thread's turn in the queue or in a pause of the rules, and how the rules go on.
//! With notifications, this process enters the key's waiting list along with its looks at the key.

use std::time::Duration;

use proto::values::{Now, State, Terms, Uptime};
use proto::waiting_list::Waiting;
use proto::{Command, Cue, GiveUp, Pause, Reply, Trip};

use super::Wait;
use crate::report::error::Error;
use crate::run::acquire::{Asked, Call};
use crate::run::engine::Engine;
use crate::run::held::Delivery;
use crate::system::clock;
use crate::system::thread;
use crate::wait::{Called, Hint, Observation};

impl Wait<'_> {
    /// Waits for the thread's turn, or in a `pause` of the rules until
    /// that ends or another thread calls it. Returns how the rules go on.
    pub(super) fn wait(&mut self, pause: Option<Pause>) -> Result<Cue, Error> {
        let begins = pause.is_none();
        debug_assert!(begins || self.asked_before.is_none(), "the rules know it");
        let (until, in_doubt, saw) = match pause {
            None => (self.call.deadline, self.is_lost(), None),
            Some(Pause { time, seen, in_doubt, .. }) => {
                let saw = Observation { seen, at: self.looked };
                (Some(self.now.uptime.after(time)), in_doubt, Some(saw))
            }
        };
        let Some(ticket) = &mut self.ticket else {
            unreachable!("at its deadline an attempt gives up rather than sleep")
        };
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
        self.cue(called, begins, in_doubt)
    }

    fn cue(&mut self, called: Called<Delivery>, begins: bool, in_doubt: bool) -> Result<Cue, Error> {
        // One that is not the head has its last look.
        let heeds_window = !begins || matches!(called, Called::Head { .. });
        let window = if heeds_window && !in_doubt { self.window() } else { None };
        Ok(match (called, window) {
            (Called::Lease(Delivery { lease, in_doubt }), _) => {
                // It has the lock, so what came of asking before is over.
                if self.asked_before.take().is_some() {
                    self.attempts = 1;
                }
                (self.looked, self.handed_over) = (self.now.uptime, true);
                Cue::HandedOver { lease, in_doubt }
            }
            _ if self.asked_before.is_some() => self.beginning(),
            (_, Some(end)) => Cue::Window(end),
            // It was released, and nothing was seen of it since.
            (Called::Head { seen: None, hint: Some(Hint::Freed) }, _) => Cue::Ask,
            // All that follow are of a thread that begins.
            _ if !begins => Cue::Look,
            (Called::Head { seen: None, .. }, _) => self.head_start().map_or(Cue::Ask, Cue::Leave),
            (Called::Head { seen: Some(observation), .. }, _) => {
                self.looked = observation.at;
                Cue::Behind(observation)
            }
            // The threads ahead have seen no holder, or leave the key to pollers. So this one tries itself.
            (Called::Over { seen, .. }, _)
                if !self.shows_holder(seen.as_ref()) || self.window().is_some() =>
            {
                Cue::Ask
            }
            (Called::Over { seen, ahead }, _) => {
                let seen = seen.and_then(|observation| observation.seen);
                return Err(self.timed_out(self.contention(seen, ahead)));
            }
        })
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

    /// Returns the end of the window in which this process leaves the
    /// lock to pollers now; `None` too if a thread of it has the lock.
    fn window(&self) -> Option<Uptime> {
        let queue = &self.call.engine.queue;
        let activity = queue.activity(self.key).filter(|_| !queue.is_held(self.key))?;
        activity.window(self.key, self.now)
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
    /// Until when this thread leaves the lock to a process that was just notified.
    pub(super) fn head_start(&self) -> Option<Uptime> {
        let key = self.key;
        if self.notifies { self.call.engine.notifications.of(key).head_start(key) } else { None }
    }

    /// Returns what enters this process in the key's waiting list, if it is to be entered: a thread of it waits, and
    /// none has the lock, whose release would wake this one.
    fn entering(&self) -> Option<Waiting> {
        if !self.notifies || self.ticket.is_none() {
            return None;
        }
        let (Engine { notifications, queue, observer, .. }, key) = (&**self.call.engine, self.key);
        let notifications = notifications.of(key);
        notifications.want(key, observer);
        if queue.is_held(key) { None } else { notifications.enter(key) }
    }

    /// Looks at the key, as a process that waits for notifications, if something is to be done with the waiting list.
    pub(super) fn look_listed(&mut self, mut now: Now) -> Option<Reply> {
        let (Engine { notifications, observer, .. }, key) = (&**self.call.engine, self.key);
        let mut waiting = self.entering()?;
        loop {
            let behind = Some(Box::new(Command::Get));
            let trip = Trip { behind, ..Trip::of(Command::Waiting(waiting.clone())) };
            let found = self.session.send(&trip, now).behind.unwrap_or(Reply::Unsent);
            let notifications = notifications.of(key);
            if !notifications.entered(key, &waiting, self.session.take_listed(), observer) {
                return Some(found);
            }
            let Some(again) = notifications.enter(key) else { return Some(found) };
            (waiting, now) = (again, clock::now());
        }
    }

    /// Looks at the key before a pause. Returns how the rules go on if they are to know what it holds; if not, takes
    /// the time of the look off the pause.
    pub(super) fn look_before(&mut self, pause: &mut Pause) -> Option<Cue> {
        let ends = self.now.uptime.after(pause.time);
        let reply = self.look_listed(self.now)?;
        self.heard(Some(&reply));
        match reply {
            Reply::Bulk(found) if found.is_some() || !pause.leaves => Some(Cue::Saw(found)),
            _ => {
                pause.time = ends.since(self.now.uptime);
                None
            }
        }
    }
}
