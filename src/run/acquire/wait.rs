//! One wait for one lock: waits for its turn in the queue, then does what the rules say, until there is a lease or an error.

mod attempt;
mod failed;
mod listed;

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::net::StopCheck;
use crate::report::error::Error;
use crate::report::event::Event;
use crate::rules::acquire::Params;
use crate::rules::lease::Lease;
use crate::rules::{Cue, Note};
use crate::run::engine::Engine;
use crate::run::held::{Acquired, Delivery};
use crate::run::readers::ReaderCount;
use crate::run::session::Session;
use crate::run::thread_holds::{self, HoldKind};
use crate::values::clock::{self, Now, Uptime};
use crate::values::key::Key;
use crate::values::options::{LockOptions, Protocol};
use crate::values::value::LockState;
use crate::wait::{CancelToken, Hint, Observation, Ticket, Turn, WaitMode};
pub(in crate::run) use attempt::Answer;
use attempt::Beginning;

/// One wait for one lock, or for one of several.
pub(in crate::run) struct Wait<'a> {
    engine: &'a Arc<Engine>,
    key: &'a Key,
    /// The locks of which one is wanted, and their queue. The key is a name then, and no lock.
    slots: Option<(&'a Arc<[Key]>, &'a Key)>,
    options: &'a LockOptions,
    cancel_token: Option<&'a CancelToken>,
    began: Now,
    deadline: Option<Uptime>,
    /// If the lock is a permit: the queue of its semaphore.
    shared: Option<&'a Key>,
    /// Where it is a reader's or a writer's: the number of readers, which all callers must share.
    readers: Option<&'a ReaderCount>,
    /// The answer to a command that was sent before the wait.
    first: Cell<Option<Answer>>,
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
    pub(in crate::run) fn new(
        engine: &'a Arc<Engine>,
        key: &'a Key,
        options: &'a LockOptions,
        cancel_token: Option<&'a CancelToken>,
        began: Now,
    ) -> Self {
        let deadline = options.timeout.map(|timeout| began.uptime.after(timeout));
        Self {
            engine,
            key,
            slots: None,
            options,
            cancel_token,
            began,
            deadline,
            shared: None,
            readers: None,
            first: Cell::new(None),
            attempts: Cell::new(0),
            has_unused_release: Cell::new(false),
            unresolved: RefCell::default(),
            names_holder: engine.holder_name.is_some() && options.timeout != Some(Duration::ZERO),
        }
    }

    /// Returns the wait as a part of a longer one, which ends at `deadline` and has sent the first command, if there is an answer.
    pub(in crate::run) fn within(
        self,
        deadline: Option<Uptime>,
        shared: Option<&'a Key>,
        first: Option<Answer>,
    ) -> Self {
        Self { deadline, shared, first: Cell::new(first), ..self }
    }

    /// Returns the wait as one for one of several locks, which have a queue of their own.
    pub(in crate::run) fn for_one_of(self, slots: &'a Arc<[Key]>, queue: &'a Key) -> Self {
        Self { slots: Some((slots, queue)), names_holder: false, ..self }
    }

    /// Returns the wait as one that compares the number of readers first, if it is a reader's or a writer's.
    pub(in crate::run) fn comparing(self, readers: Option<&'a ReaderCount>) -> Self {
        Self { readers, ..self }
    }

    pub(in crate::run) fn began(&self) -> Now {
        self.began
    }

    /// Returns how often the server was asked for the lock so far.
    pub(in crate::run) fn attempts(&self) -> u32 {
        self.attempts.get()
    }

    /// Takes the leases that commands without a reply may have begun.
    pub(in crate::run) fn take_unresolved(&self) -> Vec<Lease> {
        self.unresolved.take()
    }

    pub(in crate::run) fn key(&self) -> &'a Key {
        self.key
    }

    /// Waits until the lock is held, or there is an error. Returns which of several it is. Contention until the deadline is an [`Error::Contended`].
    pub(in crate::run) fn acquire(&self) -> Result<(usize, Acquired), Error> {
        let first = self.first.take();
        let is_granted =
            first.as_ref().is_some_and(|first| first.is_granted() && !first.lease.has_passed(self.began));
        let is_new = first.is_none();
        self.first.set(first);
        if is_granted {
            return self.unqueued(self.began);
        }
        self.may_begin()?;
        let _registered = self.cancel_token.map(CancelToken::register);
        self.check()?;
        // What was sent before has connected, or has failed to.
        let now = if is_new { self.connect()? } else { self.began };
        self.agree_on_readers()?;
        self.in_queue(now)
    }

    /// Compares the number of readers with that of other callers, where the lock is a reader's or a writer's. Waits as for the lock.
    pub(in crate::run) fn agree_on_readers(&self) -> Result<(), Error> {
        let Some(count) = self.readers else { return Ok(()) };
        let stop = self.stop();
        let session = Session::new(self.engine, &count.key, Protocol::Classic, self.deadline);
        let session = session.stopped_by(StopCheck(&stop), self.engine.retry_for(self.began.uptime));
        // Where the wait was ended from outside, that is the reason.
        self.engine.agree_on_readers(count, session).or_else(|error| self.check().and(Err(error)))
    }

    /// Fails where the lock is not to be waited for.
    fn may_begin(&self) -> Result<(), Error> {
        self.engine.refuse_after_fork(self.key)?;
        let Some((slots, _)) = self.slots else { return self.engine.refuse_nested(self.key) };
        let is_ours =
            |slot| thread_holds::by_this_thread(&self.engine.identity, slot) == Some(HoldKind::Scoped);
        if slots.iter().all(is_ours) {
            return Err(Error::Nested { key: self.key.clone() });
        }
        Ok(())
    }

    fn queue_key(&self) -> &'a Key {
        self.slots.map_or(self.key, |(_, queue)| queue)
    }

    fn slot(&self, key: &Key) -> usize {
        let Some((slots, _)) = self.slots else { return 0 };
        let slot = slots.iter().position(|slot| slot == key);
        slot.unwrap_or_else(|| unreachable!("only these locks share the queue"))
    }

    /// Returns the key of one of the locks.
    fn lock_key(&self, slot: usize) -> &'a Key {
        self.slots.map_or(self.key, |(slots, _)| &slots[slot])
    }

    /// Returns true if this process enters the key's waiting list. Permits have none.
    fn notifies(&self) -> bool {
        self.slots.is_none() && self.engine.notifies(self.options)
    }

    /// Connects, where what the options mean depends on the server. Returns the time after it: a lease does not begin before.
    fn connect(&self) -> Result<Now, Error> {
        if self.engine.knows_meaning_of(self.options) {
            return Ok(self.began);
        }
        let stop = self.stop();
        let mut session = self.session(0, &stop);
        session.connect(self.began).map_err(|failure| {
            self.attempts.set(1);
            let reason = session.reply(Err(failure), "SET", true).gives_up();
            self.ended(&mut session, reason)
        })?;
        Ok(clock::now())
    }

    /// Is queued until it is the head, then tries. A call that tries once is not queued.
    fn in_queue(&self, now: Now) -> Result<(usize, Acquired), Error> {
        if self.options.timeout == Some(Duration::ZERO) {
            return self.unqueued(now);
        }
        let stop = self.stop();
        let notifies = self.notifies();
        let mode = WaitMode::of(self.options, notifies);
        let mut ticket = Some(self.engine.queue.join(self.queue_key(), mode));
        let acquired = self.queued(&mut ticket, &stop, now);
        if let Some(ticket) = ticket {
            let hint = ticket.leave();
            if notifies {
                self.engine
                    .notifications
                    .of(self.key)
                    .left(self.key, hint == Some(Hint::Freed) || self.has_unused_release.get());
            }
        }
        acquired
    }

    /// Tries without being queued.
    fn unqueued(&self, now: Now) -> Result<(usize, Acquired), Error> {
        let stop = self.stop();
        let mut session = self.session(0, &stop);
        let cue = Self::start(&mut session, self.first.take());
        self.attempt(Beginning { session, slot: 0, cue, looked: now.uptime }, now, &stop, &mut None)
    }

    fn queued(
        &self,
        ticket: &mut Option<Ticket<Delivery>>,
        stop: &(dyn Fn() -> bool + Sync),
        now: Now,
    ) -> Result<(usize, Acquired), Error> {
        let Some(waiting) = ticket else { unreachable!("it has just been queued") };
        let (mut park, mut has_waited) = (self.parking(self.deadline), self.readers.is_some());
        let turn = waiting.turn(|| {
            has_waited = true;
            park()
        });
        let now = if has_waited { clock::now() } else { now };
        match &turn {
            // As after a command of its own.
            Turn::Delivered(_) => {}
            Turn::Over { .. } => self.check()?,
            Turn::Head(_, hint) if self.is_cancelled() => {
                self.pass_on(hint.unwrap_or(Hint::Changed));
                self.check()?;
            }
            Turn::Head(..) => {}
        }
        let mut session = self.session(0, stop);
        let (mut slot, mut looked) = (0, now.uptime);
        // The reply to a SETNX from before the wait counts, unless the queue knows something newer.
        let nothing_newer = matches!(turn, Turn::Head(None, None));
        let first = self.first.take().filter(|first| nothing_newer || first.is_lost());
        self.has_unused_release.set(matches!(turn, Turn::Head(_, Some(Hint::Freed))));
        let is_head = matches!(turn, Turn::Head(..));
        // Of several locks, others may be free.
        let window = if is_head && self.slots.is_none() { self.window(now) } else { None };
        let cue = match (turn, window) {
            // A holder of this process has handed the lock over.
            (Turn::Delivered(delivery), _) => {
                slot = self.slot(&delivery.key);
                delivery.cue()
            }
            (Turn::Head(..) | Turn::Over { .. }, _) if first.is_some() => Self::start(&mut session, first),
            // This process leaves the key to pollers now.
            (Turn::Head(..), Some(end)) => Cue::Window(end),
            // Nothing was seen of the key since it was released.
            (Turn::Head(None, Some(Hint::Freed)), _) => Cue::Ask,
            (Turn::Head(None, _), _) => self.head_start().map_or(Cue::Ask, Cue::Leave),
            // A permit was released, and another thread has seen all others held.
            (Turn::Head(Some(_), Some(_)), _) if self.slots.is_some() => Cue::Ask,
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
        self.attempt(Beginning { session, slot, cue, looked }, now, stop, ticket)
    }

    /// Returns true if a holder was seen. Threads without an expiration do not read the key; they sleep since another client has it.
    fn has_seen_holder(&self, observation: Option<&Observation>) -> bool {
        match observation.map(|observation| &observation.seen) {
            Some(Some(state)) => *state != LockState::Absent,
            Some(None) => self.options.expiration.is_none(),
            None => false,
        }
    }

    /// Returns the end of the window in which this process leaves the lock to pollers now; `None` too if a thread of it has the lock.
    fn window(&self, now: Now) -> Option<Uptime> {
        let (queue, key) = (&self.engine.queue, self.queue_key());
        let activity = queue.activity(key).filter(|_| self.slots.is_some() || !queue.is_held(key))?;
        activity.window(key, now)
    }

    /// Begins by asking for the lock, or with the answer to a command that has asked for it.
    fn start(session: &mut Session<'_>, first: Option<Answer>) -> Cue {
        let Some(first) = first else { return Cue::Ask };
        let Answer { lease, command, reply, .. } = first;
        Cue::Sent(lease, session.reply(reply, command, false))
    }

    /// Returns the commands of the wait for one of the locks, which `stop` ends. Made when it is this thread's turn: those ahead may have found the server
    /// unreachable.
    fn session<'b>(&'b self, slot: usize, stop: &'b (dyn Fn() -> bool + Sync)) -> Session<'b> {
        let session = Session::new(self.engine, self.lock_key(slot), self.options.protocol, self.deadline);
        session.stopped_by(StopCheck(stop), self.engine.retry_for(self.began.uptime))
    }

    /// Returns a hint that this thread does not act upon: when it leaves the queue, the next gets it.
    fn pass_on(&self, hint: Hint) {
        self.engine.queue.notify(self.queue_key(), hint);
    }

    fn params(&self) -> Params {
        Params {
            options: *self.options,
            protocol: self.engine.protocol_of(self.options),
            deadline: self.deadline,
            retry_for: self.engine.retry_for(self.began.uptime),
            nonce: self.engine.identity.next_nonce(),
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
        self.stop()()
    }

    /// What ends its waits for a connection.
    fn stop(&self) -> impl Fn() -> bool + Sync + use<'a> {
        let (token, queue) = (self.cancel_token, &self.engine.queue);
        move || token.is_some_and(CancelToken::is_cancelled) || queue.is_closed()
    }

    fn is_cancelled(&self) -> bool {
        self.cancel_token.is_some_and(CancelToken::is_cancelled)
    }
}
