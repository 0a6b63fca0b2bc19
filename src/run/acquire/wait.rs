//! One wait for one lock: waits for its turn in the queue, then does what the rules say, until there is a lease or an error.

mod attempt;
mod failed;
mod listed;

use std::cell::{Cell, RefCell};
use std::thread;
use std::time::Duration;

use super::call::{Asked, Call, OneOf};
use crate::report::error::Error;
use crate::report::event::Event;
use crate::rules::acquire::Params;
use crate::rules::lease::Lease;
use crate::rules::{Cue, GiveUp, Note};
use crate::run::engine::Engine;
use crate::run::held::{Acquired, Delivery};
use crate::run::session::Session;
use crate::run::thread_holds::{self, HoldKind};
use crate::values::clock::{self, Now, Uptime};
use crate::values::key::Key;
use crate::values::options::LockOptions;
use crate::values::value::LockState;
use crate::wait::{Hint, Observation, Ticket, Turn, WaitMode};
use attempt::Beginning;

/// One wait for one lock, or for one of several.
pub(super) struct Wait<'a> {
    call: &'a Call<'a>,
    key: &'a Key,
    /// The locks of which one is wanted. The key is a name then, and no lock.
    one_of: Option<OneOf<'a>>,
    /// How often the server was asked for the lock so far.
    attempts: Cell<u32>,
    /// True if this thread has learned of a release, and the server has not answered since.
    has_unused_release: Cell<bool>,
    /// The leases that commands without a reply may have begun.
    unresolved: RefCell<Vec<Lease>>,
    /// True if an error is to name the holder. A call that tries once has none to show.
    names_holder: bool,
}

impl Engine {
    fn report_note(&self, key: &Key, note: &Note, session: &Session<'_>) {
        match note {
            Note::TakenOver(from) => self.observer.notify(&Event::TakenOver { key, from }),
            Note::ValueOverwritten(_) | Note::WasOverwritten(_) => self.observer.overwritten(key, note),
            Note::LateGrant => self.observer.late_grant(key),
            Note::NeverExpires(state) => self.observer.notify(&Event::NeverExpires { key, state }),
            Note::RefusedForNow => {
                if let Some(refusal) = session.refusal() {
                    self.observer.notify(&Event::RefusedForNow { key, refusal: &refusal });
                }
            }
            Note::PollerMet => self.queue.met_poller(key, clock::uptime()),
        }
    }
}

impl<'a> Wait<'a> {
    pub(super) fn new(call: &'a Call<'a>, key: &'a Key, one_of: Option<OneOf<'a>>) -> Self {
        let tries_once = call.options.timeout == Some(Duration::ZERO);
        Self {
            call,
            key,
            one_of,
            attempts: Cell::new(0),
            has_unused_release: Cell::new(false),
            unresolved: RefCell::default(),
            names_holder: call.engine.holder_name.is_some() && !tries_once && one_of.is_none(),
        }
    }

    /// Returns the leases that commands without a reply may have begun.
    pub(super) fn into_unresolved(self) -> Vec<Lease> {
        self.unresolved.into_inner()
    }

    /// Waits until the lock is held, or there is an error, and reports how that has ended. Returns which of several it is. `first`: what came of
    /// asking for one before. Contention until the deadline is an [`Error::Contended`].
    pub(super) fn acquire(&self, first: Option<Asked<'_>>) -> Result<(usize, Acquired), Error> {
        let acquired = self.begin(first);
        let (attempts, outcome) = (self.attempts.get(), acquired.as_ref().map(|_| ()));
        let ended = acquired.as_ref().map_or_else(|_| clock::uptime(), |(_, it)| it.hold.acquired.uptime);
        let waited = ended.since(self.call.began.uptime);
        self.call.engine.observer.notify(&Event::AcquireFinished {
            key: self.key,
            waited,
            attempts,
            outcome,
        });
        acquired
    }

    fn begin(&self, mut first: Option<Asked<'_>>) -> Result<(usize, Acquired), Error> {
        if let Some(Asked { at, .. }) = first {
            self.check_after(&mut first)?;
            return self.in_queue(at, first);
        }
        self.may_begin()?;
        self.check()?;
        self.call.agree_on_readers(self.key)?;
        let (connected, now) = self.call.connect(self.key);
        let now = if self.call.readers.is_some() { clock::now() } else { now };
        match connected {
            Ok(()) => self.in_queue(now, None),
            Err(failure) => {
                self.attempts.set(1);
                let stop = self.call.stop();
                let mut session = self.session(0, &stop);
                let reason = session.reply(Err(failure), "SET", true).gives_up();
                Err(self.ended(&mut session, reason))
            }
        }
    }

    /// Fails where the call was ended from outside; if the reply was lost to what was sent before, by that.
    fn check_after(&self, first: &mut Option<Asked<'_>>) -> Result<(), Error> {
        let Err(ended) = self.check() else { return Ok(()) };
        let lost = first.take_if(|first| first.is_lost());
        Err(lost.map_or(ended, |lost| self.in_doubt(lost)))
    }

    /// Fails where the lock is not to be waited for.
    fn may_begin(&self) -> Result<(), Error> {
        self.call.engine.refuse_after_fork(self.key)?;
        let Some(OneOf { slots, .. }) = self.one_of else { return self.call.engine.refuse_nested(self.key) };
        let is_ours =
            |slot| thread_holds::by_this_thread(&self.call.engine.identity, slot) == Some(HoldKind::Scoped);
        if slots.iter().all(is_ours) {
            return Err(Error::Nested { key: self.key.clone() });
        }
        Ok(())
    }

    fn queue_key(&self) -> &'a Key {
        self.one_of.map_or(self.key, |one_of| one_of.queue)
    }

    fn slot(&self, key: &Key) -> usize {
        let Some(OneOf { slots, .. }) = self.one_of else { return 0 };
        let slot = slots.iter().position(|slot| slot == key);
        slot.unwrap_or_else(|| unreachable!("only these locks share the queue"))
    }

    /// Returns the key of one of the locks.
    fn lock_key(&self, slot: usize) -> &'a Key {
        self.one_of.map_or(self.key, |one_of| &one_of.slots[slot])
    }

    /// Returns true if this process enters the key's waiting list. Permits have none.
    fn notifies(&self) -> bool {
        self.one_of.is_none() && self.call.engine.notifies(self.call.options)
    }

    /// Is queued until it is the head, then tries. A call that tries once is not queued.
    fn in_queue(&self, now: Now, first: Option<Asked<'_>>) -> Result<(usize, Acquired), Error> {
        if self.call.options.timeout == Some(Duration::ZERO) {
            return self.unqueued(now, first);
        }
        let stop = self.call.stop();
        let notifies = self.notifies();
        let mode = WaitMode::of(self.call.options, notifies);
        // One that may have the lock is ahead of those that came while it asked.
        let is_lost = first.as_ref().is_some_and(Asked::is_lost);
        let (queue, key) = (&self.call.engine.queue, self.queue_key());
        let mut ticket = Some(if is_lost { queue.join_ahead(key, mode) } else { queue.join(key, mode) });
        let acquired = self.queued(&mut ticket, &stop, now, first);
        if let Some(ticket) = ticket {
            let hint = ticket.leave();
            if notifies {
                self.call
                    .engine
                    .notifications
                    .of(self.key)
                    .left(self.key, hint == Some(Hint::Freed) || self.has_unused_release.get());
            }
        }
        acquired
    }

    /// Tries without being queued.
    fn unqueued(&self, now: Now, first: Option<Asked<'_>>) -> Result<(usize, Acquired), Error> {
        let stop = self.call.stop();
        self.attempt(self.start(first, &stop, now), &stop, &mut None)
    }

    fn queued(
        &self,
        ticket: &mut Option<Ticket<Delivery>>,
        stop: &(dyn Fn() -> bool + Sync),
        now: Now,
        first: Option<Asked<'_>>,
    ) -> Result<(usize, Acquired), Error> {
        let Some(waiting) = ticket else { unreachable!("it has just been queued") };
        let (mut park, mut has_waited) = (self.parking(self.call.deadline), false);
        let turn = waiting.turn(|| {
            has_waited = true;
            park()
        });
        let (mut first, mut now) = (first, if has_waited { clock::now() } else { now });
        if first.as_ref().is_some_and(|asked| !self.counts(asked, &turn)) {
            // One that may ask once asks when it is its turn.
            self.attempts.set(u32::from(self.call.options.max_attempts.is_none()));
            (first, now) = (None, clock::now());
        }
        match &turn {
            // As after a command of its own.
            Turn::Delivered(_) => {}
            Turn::Over { .. } => self.check_after(&mut first)?,
            Turn::Head(_, hint) if self.is_cancelled() => {
                self.pass_on(hint.unwrap_or(Hint::Changed));
                self.check_after(&mut first)?;
            }
            Turn::Head(..) => {}
        }
        let (mut slot, mut looked) = (0, now.uptime);
        self.has_unused_release.set(matches!(turn, Turn::Head(_, Some(Hint::Freed))));
        let is_head = matches!(turn, Turn::Head(..));
        // Of several locks, others may be free.
        let window = if is_head && self.one_of.is_none() { self.window(now) } else { None };
        let cue = match (turn, window) {
            // A holder of this process has handed the lock over.
            (Turn::Delivered(delivery), _) => {
                slot = self.slot(&delivery.key);
                delivery.cue()
            }
            (Turn::Head(..) | Turn::Over { .. }, _) if first.is_some() => {
                return self.attempt(self.start(first, stop, now), stop, ticket);
            }
            // This process leaves the key to pollers now.
            (Turn::Head(..), Some(end)) => Cue::Window(end),
            // Nothing was seen of the key since it was released.
            (Turn::Head(None, Some(Hint::Freed)), _) => Cue::Ask,
            (Turn::Head(None, _), _) => self.head_start().map_or(Cue::Ask, Cue::Leave),
            // A permit was released, and another thread has seen all others held.
            (Turn::Head(Some(_), Some(_)), _) if self.one_of.is_some() => Cue::Ask,
            (Turn::Head(Some(observation), _), _) => {
                looked = observation.at;
                Cue::Behind(observation)
            }
            // The threads ahead have seen no holder, or leave the key to pollers. So this one tries itself.
            (Turn::Over { seen, .. }, _)
                if !self.has_seen_holder(seen.as_ref()) || self.window(now).is_some() =>
            {
                Cue::Ask
            }
            (Turn::Over { seen, ahead }, _) => {
                let seen = seen.and_then(|observation| observation.seen);
                return Err(self.timed_out(self.contention(seen, ahead, now)));
            }
        };
        let session = self.session(slot, stop);
        self.attempt(Beginning { session, slot, cue, looked, now }, stop, ticket)
    }

    /// Returns true if the answer from before the wait counts. That another has the lock may be over, which nothing shows if a thread of this
    /// process has released it since: where a look does not follow, it is asked for again.
    fn counts(&self, asked: &Asked<'_>, turn: &Turn<Delivery>) -> bool {
        let LockOptions { expiration, max_attempts, .. } = self.call.options;
        let is_followed_by_a_look = self.one_of.is_none() && expiration.is_some();
        let nothing_newer = matches!(turn, Turn::Head(None, None));
        let is_known = !asked.found_another() || max_attempts.is_some() || is_followed_by_a_look;
        asked.is_lost() || asked.is_carried_out() || nothing_newer && is_known
    }

    /// Returns true if a holder was seen. Threads without an expiration do not read the key; they sleep since another client has it.
    fn has_seen_holder(&self, observation: Option<&Observation>) -> bool {
        match observation.map(|observation| &observation.seen) {
            Some(Some(state)) => *state != LockState::Absent,
            Some(None) => self.call.options.expiration.is_none(),
            None => false,
        }
    }

    /// Returns the end of the window in which this process leaves the lock to pollers now; `None` too if a thread of it has the lock.
    fn window(&self, now: Now) -> Option<Uptime> {
        let (queue, key) = (&self.call.engine.queue, self.queue_key());
        let activity = queue.activity(key).filter(|_| self.one_of.is_some() || !queue.is_held(key))?;
        activity.window(key, now)
    }

    /// Begins by asking for the lock, or with what came of it.
    fn start<'b>(
        &'b self,
        first: Option<Asked<'_>>,
        stop: &'b (dyn Fn() -> bool + Sync),
        now: Now,
    ) -> Beginning<'b> {
        let looked = now.uptime;
        let Some(Asked { slot, lease, trip, sent, .. }) = first else {
            return Beginning { session: self.session(0, stop), slot: 0, cue: Cue::Ask, looked, now };
        };
        let mut session = self.session(slot, stop);
        let cue = Cue::Sent(lease, session.heard(&trip, sent));
        // It may have been reported, to an observer that takes long.
        Beginning { session, slot, cue, looked, now: clock::now() }
    }

    /// The error of a call that was ended from outside after a command whose reply was lost.
    fn in_doubt(&self, lost: Asked<'_>) -> Error {
        self.attempts.set(1);
        self.unresolved.borrow_mut().push(lost.lease.clone());
        let (stop, at) = (self.call.stop(), lost.at);
        let mut beginning = self.start(Some(lost), &stop, at);
        self.given_up(&mut beginning.session, GiveUp::Unknown)
    }

    fn session<'b>(&'b self, slot: usize, stop: &'b (dyn Fn() -> bool + Sync)) -> Session<'b> {
        self.call.session(self.lock_key(slot), stop)
    }

    /// Fails where the wait was ended from outside.
    fn check(&self) -> Result<(), Error> {
        self.call.check(self.key)
    }

    /// Returns a hint that this thread does not act upon: when it leaves the queue, the next gets it.
    fn pass_on(&self, hint: Hint) {
        self.call.engine.queue.notify(self.queue_key(), hint);
    }

    fn params(&self) -> Params {
        let Call { engine, options, deadline, began, .. } = self.call;
        Params {
            options: **options,
            protocol: engine.protocol_of(options),
            deadline: *deadline,
            retry_for: engine.retry_for(began.uptime),
            nonce: engine.identity.next_nonce(),
        }
    }

    /// Returns how this thread sleeps until then, or until another wakes it: a function that returns whether to sleep on.
    fn parking(&self, until: Option<Uptime>) -> impl FnMut() -> bool {
        move || {
            let left = until.map(|until| until.since(clock::uptime()));
            if self.is_cancelled() || left == Some(Duration::ZERO) {
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
        self.call.stop()()
    }

    fn is_cancelled(&self) -> bool {
        self.call.is_cancelled()
    }
}
