//! What a call that acquires knows, and how it asks for locks: in one trip, before it waits for any.

use std::sync::Arc;
use std::{mem, slice};

use crate::net::{Failure, KeyTrip, Sent, Stop};
use crate::report::error::Error;
use crate::report::event::Event;
use crate::rules::acquire::first_command;
use crate::rules::lease::Lease;
use crate::rules::{Observation, Reply, Trip};
use crate::run::engine::Engine;
use crate::run::held::Acquired;
use crate::run::readers::ReaderCount;
use crate::run::session::Session;
use crate::values::clock::{self, Now, Uptime};
use crate::values::key::Key;
use crate::values::options::{LockOptions, Protocol};
use crate::wait::{CancelToken, Registered};

/// What a call that acquires has in common for each of its locks.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(in crate::run) engine: &'a Arc<Engine>,
    pub(in crate::run) options: &'a LockOptions,
    pub(in crate::run) cancel_token: Option<&'a CancelToken>,
    /// Where the locks are a reader's or a writer's: the number of readers, which all callers must share.
    pub(in crate::run) readers: Option<&'a ReaderCount>,
    /// If the locks are permits: the queue of their semaphore.
    pub(in crate::run) shared: Option<&'a Key>,
    pub(in crate::run) began: Now,
    pub(in crate::run) deadline: Option<Uptime>,
}

/// A trip that asks for a lock, and what came of it.
#[derive(Clone)]
pub(in crate::run) struct Asked<'a> {
    pub(in crate::run) key: &'a Key,
    /// Which of several it is.
    pub(in crate::run) slot: usize,
    /// What it acquires.
    pub(in crate::run) lease: Lease,
    pub(in crate::run) trip: Trip,
    pub(in crate::run) sent: Sent,
    /// When that was known.
    pub(in crate::run) at: Now,
}

/// What a call wants: a lock, or one of several, whichever is free.
#[derive(Clone, Copy)]
pub(crate) enum Want<'a> {
    Lock(&'a Key),
    /// `name` is no lock, but what they are called; `queue` is that of the threads that want one of them.
    OneOf {
        name: &'a Key,
        slots: &'a Arc<[Key]>,
        queue: &'a Key,
    },
}

impl<'a> Want<'a> {
    /// One of these locks, of which there is one at least.
    pub(crate) fn one_of(name: &'a Key, slots: &'a Arc<[Key]>, queue: &'a Key) -> Self {
        if let [only] = &**slots { Self::Lock(only) } else { Self::OneOf { name, slots, queue } }
    }

    pub(super) fn name(self) -> &'a Key {
        match self {
            Self::Lock(name) | Self::OneOf { name, .. } => name,
        }
    }

    /// The locks of which one will do.
    pub(super) fn slots(&self) -> &'a [Key] {
        match *self {
            Self::Lock(key) => slice::from_ref(key),
            Self::OneOf { slots, .. } => slots,
        }
    }

    pub(super) fn queue(self) -> &'a Key {
        match self {
            Self::Lock(queue) | Self::OneOf { queue, .. } => queue,
        }
    }

    /// The locks, if there are more than one.
    pub(super) fn several(self) -> Option<&'a Arc<[Key]>> {
        if let Self::OneOf { slots, .. } = self { Some(slots) } else { None }
    }
}

impl<'a> Call<'a> {
    /// A call that begins now.
    pub(crate) fn new(
        engine: &'a Arc<Engine>,
        options: &'a LockOptions,
        cancel_token: Option<&'a CancelToken>,
    ) -> Self {
        let began = clock::now();
        let deadline = options.timeout.map(|timeout| began.uptime.after(timeout));
        Self { engine, options, cancel_token, readers: None, shared: None, began, deadline }
    }

    /// Returns the call as one that compares the number of readers first, if there is one.
    pub(crate) fn comparing(self, readers: Option<&'a ReaderCount>) -> Self {
        Self { readers, ..self }
    }

    /// Returns the call as one for permits that have this queue, if there is one.
    pub(crate) fn for_permits_of(self, shared: Option<&'a Key>) -> Self {
        Self { shared, ..self }
    }

    /// Has this thread woken when the call is cancelled. A forked child may find the token's mutex locked for ever.
    pub(in crate::run) fn register(&self) -> Option<Registered<'a>> {
        let token = self.cancel_token.filter(|_| self.engine.identity.is_this_process());
        token.map(CancelToken::register)
    }

    /// Returns true if this process leaves the lock to one that was just notified.
    pub(in crate::run) fn is_left(&self, key: &Key) -> bool {
        let Self { engine, options, .. } = self;
        engine.notifies(options) && engine.notifications.of(key).head_start(key).is_some()
    }

    /// Probes what the options mean on the server, where that depends on it and is not known.
    pub(in crate::run) fn probe(&self, key: &Key) -> Result<(), Failure> {
        if self.engine.knows_meaning_of(self.options) { Ok(()) } else { self.session(key).probe(self.began) }
    }

    /// Returns what asks for a lock first, by this protocol.
    #[inline]
    pub(in crate::run) fn asks<'k>(&self, key: &'k Key, protocol: Protocol, now: Now) -> Asked<'k> {
        let nonce = self.engine.identity.next_nonce();
        let (lease, trip) = first_command(self.options, protocol, nonce, now);
        Asked::of(key, lease, trip, now)
    }

    /// Asks for locks in one trip.
    pub(in crate::run) fn send(&self, asked: &mut [Asked<'_>]) {
        let backend = &self.engine.backend;
        let [first, ..] = asked else { return };
        let limits = self.session(first.key).limits(&first.trip, first.at);
        match &mut *asked {
            [one] => one.sent = backend.send(&KeyTrip::new(one.key, &one.trip), &limits),
            many => {
                let trips: Vec<_> = many.iter().map(|asked| KeyTrip::new(asked.key, &asked.trip)).collect();
                let sent = backend.send_all(&trips, &limits);
                many.iter_mut().zip(sent).for_each(|(asked, sent)| asked.sent = sent);
            }
        }
        let now = asked[0].sent.at.unwrap_or_else(clock::now);
        for asked in asked {
            asked.at = now;
        }
    }

    /// Reports by this key that the lock was granted when it was first asked for.
    pub(in crate::run) fn report_granted(&self, key: &Key, at: Now) {
        let waited = at.uptime.since(self.began.uptime);
        self.engine.observer.notify(&Event::AcquireFinished { key, waited, attempts: 1, outcome: Ok(()) });
    }

    /// Makes the hold of a lock that a thread has got without a place in its queue. `shared`: if it is a permit, the queue of its semaphore.
    pub(in crate::run) fn hold(&self, shared: Option<&Key>, asked: &mut Asked<'_>) -> Acquired {
        let Self { engine, options, .. } = self;
        let (key, lease, at) = (asked.key, mem::take(&mut asked.lease), asked.at);
        if engine.notifies(options) {
            engine.notifications.of(key).acquired(key);
        }
        let holder = engine.queue.hold(key, shared, &Observation::of(&lease, at));
        engine.make_hold(key.clone(), options, lease, holder, at)
    }

    /// Returns the commands for a lock. Made when it is this thread's turn: those ahead may have found the server unreachable.
    pub(in crate::run) fn session<'b>(&'b self, key: &'b Key) -> Session<'b> {
        let session = Session::new(self.engine, key, self.options.protocol, self.deadline);
        session.stopped_by(self, self.engine.retry_for(self.began.uptime))
    }

    pub(in crate::run) fn is_cancelled(&self) -> bool {
        self.cancel_token.is_some_and(CancelToken::is_cancelled)
    }

    /// Fails where the call was ended from outside.
    pub(in crate::run) fn check(&self, key: &Key) -> Result<(), Error> {
        let shut_down = self.engine.queue.is_closed();
        if shut_down || self.is_cancelled() {
            let waited = clock::uptime().since(self.began.uptime);
            return Err(Error::Cancelled { key: key.clone(), waited, shut_down });
        }
        Ok(())
    }

    /// Compares the number of readers with that of other callers, where the locks are a reader's or a writer's. Waits as for a lock; `key` is the
    /// first.
    pub(in crate::run) fn agree_on_readers(&self, key: &Key) -> Result<(), Error> {
        let Some(count) = self.readers else { return Ok(()) };
        let session = Session::new(self.engine, &count.key, Protocol::Classic, self.deadline);
        let session = session.stopped_by(self, self.engine.retry_for(self.began.uptime));
        // Where the wait was ended from outside, that is the reason.
        self.engine.agree_on_readers(count, session).or_else(|error| self.check(key).and(Err(error)))
    }

    /// What to do if it is unknown whether the lock was acquired.
    pub(in crate::run) fn advice(&self) -> &'static str {
        match self.options.expiration {
            Some(_) => "if the lock was acquired, it frees itself when its lease has passed; try again then",
            None => {
                "it has no expiration, so its value names no holder; look at the key, and clear it if its holder has crashed"
            }
        }
    }
}

impl Stop for Call<'_> {
    fn is_over(&self) -> bool {
        self.is_cancelled() || self.engine.queue.is_closed()
    }
}

impl<'a> Asked<'a> {
    #[inline]
    pub(super) fn of(key: &'a Key, lease: Lease, trip: Trip, at: Now) -> Self {
        Self { key, slot: 0, lease, trip, sent: Sent::default(), at }
    }

    /// Notes that it was not sent.
    pub(in crate::run) fn fail(&mut self, failure: &Failure) {
        self.sent = Sent::failed(&KeyTrip::new(self.key, &self.trip), failure.clone());
    }

    /// Rule 4: returns true if the lock was acquired, and its lease lasts then (I3).
    pub(in crate::run) fn is_granted_at(&self, now: Now) -> bool {
        self.is_carried_out() && !self.lease.has_passed(now)
    }

    /// Returns true if the key holds the value.
    pub(in crate::run) fn is_carried_out(&self) -> bool {
        matches!(self.sent.reply, Some(Ok(Reply::Integer(1..))))
    }

    /// Returns true if another client has the lock.
    pub(super) fn found_another(&self) -> bool {
        matches!(self.sent.reply, Some(Ok(Reply::Integer(0))))
    }

    /// Returns true if it may have been carried out, or may be still.
    pub(in crate::run) fn is_lost(&self) -> bool {
        matches!(self.sent.reply, Some(Err(Failure::Lost(_))))
    }
}
