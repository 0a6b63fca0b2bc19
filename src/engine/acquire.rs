//! Acquiring: waits for its turn in the queue, then does what the rules say, until there is a lease or an error.

use std::cell::Cell;
use std::thread;
use std::time::Duration;

use super::call::Call;
use super::{Engine, HeldLock};
use crate::backend::StopCheck;
use crate::clock::{self, Now, Uptime};
use crate::error::{Contention, Error};
use crate::event::Event;
use crate::key::Key;
use crate::options::{LockOptions, Protocol};
use crate::protocol::acquire::{Acquiring, Action, Note, Params};
use crate::protocol::lease::Lease;
use crate::protocol::{GiveUp, Reply};
use crate::queue::{CancelToken, Handoff, Hint, HolderTicket, Observation, Ticket, Turn, WaitMode, Woken};
use crate::thread_holds::{self, HoldKind, HoldMark};
use crate::value::LockState;

/// A lock that was acquired, and what it took.
#[derive(Debug)]
pub(crate) struct Acquired {
    pub(crate) lease: Lease,
    /// The protocol to release it by.
    pub(crate) protocol: Protocol,
    pub(crate) holder: HolderTicket,
    /// How often in a row it has been handed off.
    pub(crate) handoffs: u32,
    pub(crate) at: Now,
    pub(crate) attempts: u32,
    pub(crate) waited: Duration,
}

/// One wait for one lock.
struct Wait<'a> {
    engine: &'a Engine,
    key: &'a Key,
    options: &'a LockOptions,
    cancel_token: Option<&'a CancelToken>,
    began: Now,
    deadline: Option<Uptime>,
    /// How often the server was asked for the lock so far, in all rounds of the wait and in those before the present one.
    attempts: Cell<u32>,
    earlier_attempts: Cell<u32>,
}

impl Engine {
    /// Waits until there is a lease, or an error; contention until the deadline is an [`Error::Timeout`].
    pub(crate) fn acquire(
        &self,
        key: &Key,
        options: &LockOptions,
        cancel_token: Option<&CancelToken>,
        kind: HoldKind,
    ) -> Result<(Acquired, HoldMark), Error> {
        let began = clock::now();
        let deadline = options.timeout.map(|timeout| began.uptime.after(timeout));
        let wait = Wait {
            engine: self,
            key,
            options,
            cancel_token,
            began,
            deadline,
            attempts: Cell::new(0),
            earlier_attempts: Cell::new(0),
        };
        let acquired = wait.acquire();
        let waited = clock::uptime().since(began.uptime);
        let (attempts, outcome) = match &acquired {
            Ok(acquired) => (acquired.attempts, Ok(())),
            Err(error) => (wait.attempts.get(), Err(error)),
        };
        self.observer.notify(&Event::AcquireFinished { key, waited, attempts, outcome });
        Ok((acquired?, thread_holds::note(&self.identity, key, kind)))
    }

    fn report(&self, key: &Key, notes: &mut Vec<Note>) {
        for note in notes.drain(..) {
            self.observer.notify(&match &note {
                Note::TakenOver(from) => Event::TakenOver { key, from },
                Note::ValueOverwritten(winner) => Event::ValueOverwritten { key, winner },
                Note::LateGrant => Event::LateGrant { key },
                Note::NeverExpires(state) => Event::NeverExpires { key, state },
            });
        }
    }
}

impl Wait<'_> {
    fn acquire(&self) -> Result<Acquired, Error> {
        if thread_holds::by_this_thread(&self.engine.identity, self.key) == Some(HoldKind::Scoped) {
            return Err(Error::Nested { key: self.key.clone() });
        }
        self.engine.refuse_after_fork(self.key)?;
        let _registered = self.cancel_token.map(CancelToken::register);
        self.check()?;
        loop {
            let acquired = self.once()?;
            // I3: a thread that slept through the lease that was handed off to it is queued again, as the last.
            if acquired.lease.has_passed(acquired.at) {
                self.engine.report(self.key, &mut vec![Note::LateGrant]);
                self.earlier_attempts.set(self.attempts.get());
                continue;
            }
            return Ok(acquired);
        }
    }

    /// Is queued until it is the head, then tries. A call that tries once is not queued.
    fn once(&self) -> Result<Acquired, Error> {
        if self.options.timeout == Some(Duration::ZERO) {
            let (attempt, action) = Acquiring::start(self.params(), self.began);
            return self.attempt(attempt, action, self.began, self.began.uptime, &mut None);
        }
        let mut ticket = Some(self.engine.queue.join(self.key, WaitMode::of(self.options)));
        let acquired = self.queued(&mut ticket);
        // A notification that came as this thread gave up is for another process, if no other thread is queued here.
        if self.options.notifies && ticket.and_then(Ticket::leave) == Some(Hint::Freed) {
            let now = clock::uptime();
            self.engine.send_notification(self.key, self.deadline.map_or(now, |deadline| deadline.min(now)));
        }
        acquired
    }

    fn queued(&self, ticket: &mut Option<Ticket>) -> Result<Acquired, Error> {
        let Some(waiting) = ticket else { unreachable!("it has just been queued") };
        let turn = waiting.turn(self.parking(self.deadline));
        let now = clock::now();
        match &turn {
            Turn::HandedOff(..) => {}
            Turn::Over { .. } => self.check()?,
            Turn::Head(_) if self.is_cancelled() => {
                self.pass_on(Hint::Changed);
                self.check()?;
            }
            Turn::Head(_) => {}
        }
        let looked = match &turn {
            Turn::Head(Some(observation)) => observation.at,
            _ => now.uptime,
        };
        let (attempt, action) = match turn {
            Turn::Head(None) => match self.notification_under_way() {
                None => Acquiring::start(self.params(), now),
                Some(since) => Acquiring::waiting(self.params(), since, now),
            },
            Turn::Head(Some(observation)) => Acquiring::behind(self.params(), observation, now),
            Turn::HandedOff(handoff, holder) => return self.accepted(handoff, holder),
            // The threads ahead have not got as far as seeing the key. So this one tries itself, to know why.
            Turn::Over { seen: None, .. } => Acquiring::start(self.params(), now),
            Turn::Over { seen: Some(Observation { seen, .. }), ahead } => {
                return Err(self.timed_out(seen, ahead, now));
            }
        };
        self.attempt(attempt, action, now, looked, ticket)
    }

    /// Talks to the server, as the head of the queue.
    fn attempt(
        &self,
        mut attempt: Acquiring,
        mut action: Action,
        mut now: Now,
        mut looked: Uptime,
        ticket: &mut Option<Ticket>,
    ) -> Result<Acquired, Error> {
        let stop = || self.is_over();
        let call = Call::new(self.engine, self.key, self.options.protocol, self.deadline);
        let mut call = call.stopped_by(StopCheck(&stop), self.engine.unreachable_timeout(self.began.uptime));
        loop {
            self.attempts.set(self.earlier_attempts.get() + attempt.attempts);
            match action {
                Action::Send(_) => {}
                // Unwatching takes a round trip, and the lease runs; so this connection is dropped (I3).
                Action::Held(_) => call.abandon_watch(),
                Action::Sleep(_) | Action::GiveUp(_) => call.unwatch(),
            }
            // An observer may want a connection for itself.
            self.engine.report(self.key, &mut attempt.notes);
            action = match action {
                Action::Send(request) => {
                    let reply = call.send(&request, now);
                    let replied = matches!(reply, Reply::Integer(_) | Reply::Bulk(_));
                    if replied && attempt.protocol() == Protocol::Auto {
                        attempt.decide_protocol(self.engine.backend.server_version());
                    }
                    now = clock::now();
                    looked = now.uptime;
                    attempt.reply(reply, now)
                }
                Action::Sleep(time) => {
                    let Some(ticket) = ticket else {
                        unreachable!("at its deadline an attempt gives up rather than sleep")
                    };
                    if self.options.notifies {
                        self.engine.notifications.want(self.key, &self.engine.observer);
                    }
                    let observation = Observation { seen: attempt.seen.clone(), at: looked };
                    let woken = ticket.sleep(observation, self.parking(Some(now.uptime.after(time))));
                    now = clock::now();
                    if self.is_over() && !matches!(woken, Woken::HandedOff(..)) {
                        if let Woken::Hint(hint) = woken {
                            self.pass_on(hint);
                        }
                        if attempt.is_in_doubt() {
                            return Err(self.given_up(call, GiveUp::Unknown));
                        }
                        self.check()?;
                    }
                    match woken {
                        Woken::Hint(Hint::Freed) => attempt.freed(now),
                        Woken::HandedOff(handoff, holder) => {
                            return self.accepted(handoff, holder);
                        }
                        Woken::Hint(Hint::Changed) | Woken::Over => attempt.woken(now),
                    }
                }
                Action::Held(lease) => {
                    let observation = Observation::of(&lease, now);
                    let holder = match ticket.take() {
                        Some(ticket) => ticket.enter(observation),
                        None => self.engine.queue.hold(self.key, observation),
                    };
                    let (protocol, attempts) = (attempt.protocol(), self.attempts.get());
                    let waited = now.uptime.since(self.began.uptime);
                    return Ok(Acquired { lease, protocol, holder, handoffs: 0, at: now, attempts, waited });
                }
                Action::GiveUp(GiveUp::Timeout) => {
                    return Err(self.timed_out(attempt.seen.take(), 0, now));
                }
                Action::GiveUp(reason) => {
                    // Unless the outcome is unknown, the end of the wait from outside is the reason.
                    if reason != GiveUp::Unknown {
                        self.check()?;
                    }
                    return Err(self.given_up(call, reason));
                }
            };
        }
    }

    fn given_up(&self, call: Call<'_>, reason: GiveUp) -> Error {
        // A thread that gives up at its own deadline has found out nothing for those behind it.
        let before_deadline = self.deadline.is_none_or(|deadline| clock::uptime() < deadline);
        let unreachable = match reason {
            // That all connections are in use says nothing about the server.
            GiveUp::Unsent => !call.found_pool_exhausted(),
            reason => reason == GiveUp::Io,
        };
        if before_deadline && unreachable {
            self.engine.note_unreachable();
        }
        let advice = match self.options.expiration {
            Some(_) => "if the lock was acquired, it frees itself when its lease has passed; try again then",
            None => {
                "it has no expiration, so its value names no holder; look at the key, and clear it if its holder has crashed"
            }
        };
        call.error(reason, advice)
    }

    /// Returns a hint that this thread does not act upon: when it leaves the queue, the next gets it.
    fn pass_on(&self, hint: Hint) {
        self.engine.queue.notify(self.key, hint);
    }

    fn notification_under_way(&self) -> Option<Uptime> {
        self.options.notifies.then(|| self.engine.notifications.sent(self.key)).flatten()
    }

    /// A lock that another thread has handed off. One that comes after the wait was ended is released at once.
    fn accepted(&self, handoff: Handoff, holder: HolderTicket) -> Result<Acquired, Error> {
        let at = clock::now();
        let (key, options) = (self.key, self.options);
        let Handoff { lease, protocol, handoffs, .. } = handoff;
        if let Err(ended) = self.check() {
            let lock = HeldLock { key, options, protocol, lease: &lease, handoffs, holder };
            if let Err(error) = self.engine.release(lock, at) {
                self.engine.observer.notify(&Event::ReleaseFailed { key, error: &error });
            }
            return Err(ended);
        }
        let waited = at.uptime.since(self.began.uptime);
        Ok(Acquired { lease, protocol, holder, handoffs, at, attempts: self.attempts.get(), waited })
    }

    fn params(&self) -> Params {
        Params {
            options: *self.options,
            deadline: self.deadline,
            unreachable_timeout: self.engine.unreachable_timeout(self.began.uptime),
            nonce: self.engine.identity.next_nonce(),
        }
    }

    /// Returns how this thread sleeps until then, or until another wakes it: a function that returns whether to sleep on.
    fn parking(&self, until: Option<Uptime>) -> impl FnMut() -> bool {
        move || {
            let left = until.map(|until| until.since(clock::uptime()));
            if left == Some(Duration::ZERO) || self.is_cancelled() {
                return false;
            }
            match left {
                Some(left) => thread::park_timeout(left),
                None => thread::park(),
            }
            true
        }
    }

    fn is_over(&self) -> bool {
        self.is_cancelled() || self.engine.queue.is_closed()
    }

    fn is_cancelled(&self) -> bool {
        self.cancel_token.is_some_and(CancelToken::is_cancelled)
    }

    /// Fails where the wait was ended from outside.
    fn check(&self) -> Result<(), Error> {
        let key = || self.key.clone();
        if self.engine.queue.is_closed() {
            return Err(Error::ShutDown { key: key() });
        }
        if self.is_cancelled() {
            let waited = clock::uptime().since(self.began.uptime);
            return Err(Error::Cancelled { key: key(), waited });
        }
        Ok(())
    }

    fn timed_out(&self, seen: Option<LockState>, ahead: usize, now: Now) -> Error {
        let details = Contention {
            attempts: self.attempts.get(),
            waited: now.uptime.since(self.began.uptime),
            seen,
            expiring: self.options.expiration.is_some(),
            takeover_margin: self.options.takeover_margin,
            ahead,
            taken_by_this_thread: thread_holds::by_this_thread(&self.engine.identity, self.key).is_some(),
        };
        let timeout = self.options.timeout.unwrap_or(Duration::MAX);
        Error::Timeout { key: self.key.clone(), timeout, details: Box::new(details) }
    }
}
