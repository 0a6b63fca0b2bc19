//! Acquiring a permit: one of several locks, whichever is free. Threads of the process wait for all of them in one queue.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use super::call::Call;
use super::release::HeldLock;
use super::wait::{Granted, Wait};
use super::{Acquired, Delivery, Engine, ReaderCount};
use crate::backend::StopCheck;
use crate::clock::{self, Now, Uptime};
use crate::error::Error;
use crate::event::Event;
use crate::key::Key;
use crate::options::{LockOptions, Protocol};
use crate::protocol::acquire::Observation;
use crate::protocol::lease::Lease;
use crate::protocol::permits::{AcquiringPermit, Action};
use crate::protocol::{Command, GiveUp, Reply, Request};
use crate::queue::{CancelToken, Hint, Ticket, Turn, WaitMode, Woken};
use crate::thread_holds::{self, HoldKind};

/// The locks of which one is wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Permits<'a> {
    /// The name of all.
    pub(crate) name: &'a Key,
    /// The name of their queue.
    pub(crate) queue: &'a Key,
    /// At least one.
    pub(crate) slots: &'a Arc<[Key]>,
    pub(crate) options: &'a LockOptions,
    pub(crate) cancel_token: Option<&'a CancelToken>,
    /// Where each is a reader's: the number of readers, which all callers must share.
    pub(crate) readers: Option<&'a ReaderCount>,
}

/// A wait for one of several locks.
struct WaitForOne<'a> {
    wanted: Permits<'a>,
    /// The same wait, as one for the name.
    wait: Wait<'a>,
    engine: &'a Arc<Engine>,
    began: Now,
}

/// An attempt that begins, and its first action.
struct Beginning<'a> {
    rules: AcquiringPermit,
    action: Action,
    /// Whether a holder has handed a permit over.
    handed_over: bool,
    /// The lock that commands are sent for, or were last, and these commands.
    asked: usize,
    call: Call<'a>,
}

impl Engine {
    /// Waits until one of the locks is held, or there is an error. Returns which.
    pub(crate) fn acquire_permit(
        self: &Arc<Self>,
        wanted: Permits<'_>,
        kind: HoldKind,
    ) -> Result<(usize, Acquired), Error> {
        let Permits { name, options, cancel_token, readers, .. } = wanted;
        let began = clock::now();
        let wait = Wait::new(self, name, options, cancel_token, began).of_permit().comparing(readers);
        let wait = WaitForOne { wanted, wait, engine: self, began };
        let granted = wait.acquire();
        let took = clock::uptime().since(began.uptime);
        let (attempts, outcome) = (wait.wait.attempts(), granted.as_ref().map(|_| ()));
        self.observer.notify(&Event::AcquireFinished { key: name, waited: took, attempts, outcome });
        let (slot, granted) = granted?;
        Ok((slot, self.begin_hold(wanted.slots[slot].clone(), granted, options, Some(kind))))
    }

    /// Reads what several keys hold, with one MGET.
    pub(crate) fn states(&self, name: &Key, keys: &Arc<[Key]>) -> Result<Vec<Option<Vec<u8>>>, Error> {
        match self.once(name, Command::GetAll(Arc::clone(keys)))? {
            Reply::Bulks(found) => Ok(found),
            _ => unreachable!("a backend answers MGET with bulks"),
        }
    }
}

impl WaitForOne<'_> {
    fn acquire(&self) -> Result<(usize, Granted), Error> {
        let Permits { name, queue, slots, cancel_token, options, .. } = self.wanted;
        self.engine.refuse_after_fork(name)?;
        let is_ours =
            |slot| thread_holds::by_this_thread(&self.engine.identity, slot) == Some(HoldKind::Scoped);
        if slots.iter().all(is_ours) {
            return Err(Error::Nested { key: name.clone() });
        }
        let _registered = cancel_token.map(CancelToken::register);
        self.wait.check()?;
        self.wait.agree()?;
        let stop = || self.wait.is_over();
        if options.timeout == Some(Duration::ZERO) {
            let (rules, action) = AcquiringPermit::start(self.wait.params(), slots.len(), self.began);
            let call = self.call(0, &stop);
            let beginning = Beginning { rules, action, handed_over: false, asked: 0, call };
            return self.attempt(beginning, self.began, &mut None, &stop);
        }
        let mut ticket = Some(self.engine.queue.join(queue, WaitMode::of(options)));
        // If it is not taken out with a lock, the queue is left.
        self.queued(&mut ticket, &stop)
    }

    fn queued(
        &self,
        ticket: &mut Option<Ticket<Delivery>>,
        stop: &dyn Fn() -> bool,
    ) -> Result<(usize, Granted), Error> {
        let Some(waiting) = ticket else { unreachable!("it has just been queued") };
        let turn = waiting.turn(self.wait.parking(self.wait.deadline()));
        let now = clock::now();
        if let (Turn::Head(_, Some(hint)), true) = (&turn, self.wait.is_over()) {
            self.pass_on(*hint);
        }
        // As after a command of its own.
        if !matches!(turn, Turn::Delivered(_)) {
            self.wait.check()?;
        }
        let (params, slots) = (self.wait.params(), self.wanted.slots.len());
        let handed_over = matches!(turn, Turn::Delivered(_));
        let (asked, call) = (0, self.call(0, stop));
        let (rules, action) = match turn {
            Turn::Head(Some(observation), None) => AcquiringPermit::behind(params, slots, observation, now),
            Turn::Delivered(Delivery { key, lease, protocol, in_doubt }) => {
                let own = (self.slot(&key), lease);
                AcquiringPermit::handed_over_first(params, slots, own, protocol, in_doubt, now)
            }
            Turn::Over { seen, ahead }
                if self.wait.has_seen_holder(seen.as_ref()) && self.window(now).is_none() =>
            {
                let seen = seen.and_then(|observation| observation.seen);
                return Err(self.of_all(self.wait.timed_out(self.wait.contention(seen, ahead, now))));
            }
            Turn::Head(..) | Turn::Over { .. } => AcquiringPermit::start(params, slots, now),
        };
        self.attempt(Beginning { rules, action, handed_over, asked, call }, now, ticket, stop)
    }

    fn attempt<'b>(
        &'b self,
        beginning: Beginning<'b>,
        mut now: Now,
        ticket: &mut Option<Ticket<Delivery>>,
        stop: &'b dyn Fn() -> bool,
    ) -> Result<(usize, Granted), Error> {
        let Beginning { mut rules, mut action, mut handed_over, mut asked, mut call } = beginning;
        let (slots, engine) = (self.wanted.slots, self.engine);
        let mut looked = now.uptime;
        loop {
            self.wait.count(rules.attempts);
            match &action {
                Action::Ask { slot, .. } | Action::Send { slot, .. } if *slot != asked => {
                    call.unwatch();
                    (asked, call) = (*slot, self.call(*slot, stop));
                }
                Action::Held { .. } => call.abandon_watch(),
                Action::Sleep(_) | Action::GiveUp(_) => call.unwatch(),
                _ => {}
            }
            for (slot, note) in rules.notes.drain(..) {
                engine.report_note(&slots[slot], &note);
            }
            let server = || engine.backend.server_version();
            action = match action {
                Action::Ask { request, .. } => {
                    let (set, found) = call.ask_and_look(&request, slots, now);
                    if matches!(set, Reply::Integer(_)) {
                        rules.decide_protocol(server());
                    }
                    now = clock::now();
                    (looked, handed_over) = (now.uptime, false);
                    rules.asked(&set, &found, now)
                }
                Action::Look => {
                    let found = self.look(&mut call, &mut rules, now);
                    now = clock::now();
                    (looked, handed_over) = (now.uptime, false);
                    rules.looked(&found, now)
                }
                Action::Send { request, .. } => {
                    let reply = call.send(&request, now);
                    now = clock::now();
                    (looked, handed_over) = (now.uptime, false);
                    rules.reply(reply, server(), now)
                }
                Action::Sleep(time) => {
                    let Some(ticket) = ticket else {
                        unreachable!("at its deadline an attempt gives up rather than sleep")
                    };
                    let observation = Observation { seen: rules.seen.clone(), at: looked };
                    let parking = self.wait.parking(Some(now.uptime.after(time)));
                    let woken = ticket.sleep(observation, rules.is_in_doubt(), parking);
                    now = clock::now();
                    if self.wait.is_over() && !matches!(woken, Woken::Delivered(_)) {
                        if let Woken::Hint(hint) = woken {
                            self.pass_on(hint);
                        }
                        if rules.is_in_doubt() {
                            return Err(self.wait.given_up(&mut call, GiveUp::Unknown));
                        }
                        self.wait.check()?;
                    }
                    let window = self.window(now).filter(|_| !rules.is_in_doubt());
                    match (woken, window) {
                        (Woken::Hint(_) | Woken::Over, Some(end)) => rules.leave_until(end, now),
                        (Woken::Delivered(Delivery { key, lease, protocol, in_doubt }), _) => {
                            (looked, handed_over) = (now.uptime, true);
                            rules.handed_over((self.slot(&key), lease), protocol, in_doubt, now)
                        }
                        (Woken::Hint(_) | Woken::Over, None) => rules.woken(now),
                    }
                }
                Action::Held { slot, lease, .. } if !rules.surplus.is_empty() => {
                    self.release_surplus(mem::take(&mut rules.surplus), rules.protocol(), now);
                    now = clock::now();
                    // They are free, and it took its time.
                    rules.granted(slot, lease, true, now)
                }
                Action::Held { slot, lease, another_is_free } => {
                    let observation = Observation::of(&lease, now);
                    let key = &slots[slot];
                    let holder = match ticket.take() {
                        Some(ticket) => ticket.enter_one(key, &observation, another_is_free),
                        None => engine.queue.hold(key, Some(self.wanted.queue), &observation),
                    };
                    let protocol = rules.protocol();
                    // A command of its own would not have been sent.
                    if let (true, Err(ended)) = (handed_over, self.wait.check()) {
                        let options = self.wanted.options;
                        engine.release_unwanted(HeldLock { key, options, protocol, lease, holder }, now);
                        return Err(ended);
                    }
                    return Ok((slot, Granted { lease, protocol, holder, at: now }));
                }
                Action::GiveUp(reason) => return Err(self.given_up(&mut rules, call, reason, now)),
            };
        }
    }

    /// Returns the end of the window in which this process leaves the locks to pollers now.
    fn window(&self, now: Now) -> Option<Uptime> {
        let queue = self.wanted.queue;
        self.engine.queue.activity(queue)?.window(queue, now)
    }

    /// Reads what all locks hold.
    fn look(&self, call: &mut Call<'_>, rules: &mut AcquiringPermit, now: Now) -> Reply {
        let look = Request::at_any_time(Command::GetAll(Arc::clone(self.wanted.slots)));
        let found = call.send(&look, now);
        if matches!(found, Reply::Bulks(_)) {
            rules.decide_protocol(self.engine.backend.server_version());
        }
        found
    }

    /// Releases what was acquired without a reply besides what is wanted.
    fn release_surplus(&self, surplus: Vec<(usize, Lease)>, protocol: Protocol, now: Now) {
        let Permits { slots, queue, options, .. } = self.wanted;
        let locks = surplus.into_iter().map(|(slot, lease)| {
            let key = &slots[slot];
            let holder = self.engine.queue.hold(key, Some(queue), &Observation::of(&lease, now));
            HeldLock { key, options, protocol, lease, holder }
        });
        self.engine.release_all_unwanted(locks.collect(), now);
    }

    /// Says of contention that it was for all permits.
    fn of_all(&self, mut error: Error) -> Error {
        let slots = self.wanted.slots;
        let is_ours = |slot| thread_holds::by_this_thread(&self.engine.identity, slot).is_some();
        if let Error::Contended { details, .. } = &mut error {
            details.permits = Some(slots.len());
            details.taken_by_this_thread = slots.iter().all(is_ours);
        }
        error
    }

    fn given_up(&self, rules: &mut AcquiringPermit, mut call: Call<'_>, reason: GiveUp, now: Now) -> Error {
        let ended = match reason {
            GiveUp::Timeout => {
                let exhausted = rules.has_used_its_attempts();
                return self.of_all(self.wait.contended(rules.seen.take(), exhausted, now));
            }
            GiveUp::Unknown => Ok(()),
            // Unless the outcome is unknown, the end of the wait from outside is the reason.
            _ => self.wait.check(),
        };
        ended.err().unwrap_or_else(|| self.wait.given_up(&mut call, reason))
    }

    /// Returns a hint that this thread does not act upon: when it leaves the queue, the next gets it.
    fn pass_on(&self, hint: Hint) {
        self.engine.queue.notify(self.wanted.queue, hint);
    }

    fn slot(&self, key: &Key) -> usize {
        let slot = self.wanted.slots.iter().position(|slot| slot == key);
        slot.unwrap_or_else(|| unreachable!("only these locks share the queue"))
    }

    /// Returns the commands for one of the locks.
    fn call<'b>(&'b self, slot: usize, stop: &'b dyn Fn() -> bool) -> Call<'b> {
        let options = self.wanted.options;
        let key = &self.wanted.slots[slot];
        let call = Call::new(self.engine, key, options.protocol, self.wait.deadline());
        call.stopped_by(StopCheck(stop), self.engine.retry_for(self.began.uptime))
    }
}
