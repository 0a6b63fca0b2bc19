//! Acquiring: asks for locks, waits for those that are not granted, and makes the hold: what guard, signals and keeper
//! share of one. A call knows its limits, and asks for its lock before it waits for it.

mod wait;

use std::sync::Arc;
use std::{mem, slice};

use proto::acquire::first_command;
use proto::lease::Lease;
use proto::values::{Key, Now, Protocol, Uptime};
use proto::{Command, Observation, Reply, Trip};

use super::codec::key_trip;
use super::engine::Engine;
use super::held::Acquired;
use super::readers::ReaderCount;
use super::session::Session;
use super::turns::Turn;
use crate::net::{Failure, Refusal, Sent, Stop};
use crate::report::error::Error;
use crate::report::event::Event;
use crate::run::hold::Hold;
use crate::run::thread_holds::{self, HoldKind};
use crate::system::clock;
use crate::values::options::LockOptions;
use crate::wait::{CancelToken, Registered};
use wait::Wait;
pub(crate) use wait::parking;

impl<'a> Call<'a> {
    /// Waits until the lock is held, or there is an error. With a `kind`, the hold is noted for this thread.
    pub(crate) fn acquire(&self, key: &'a Key, kind: Option<HoldKind>) -> Result<Acquired, Error> {
        let acquired = self.ask_or_wait(key)?;
        self.engine.note_begun(slice::from_ref(&acquired), kind);
        Ok(acquired)
    }

    fn ask_or_wait(&self, key: &'a Key) -> Result<Acquired, Error> {
        let (_acquiring, _registered) = (self.engine.acquiring(), self.register());
        if !self.may_ask(key) {
            return self.wait_for(key, None);
        }
        let mut asked = self.asks(key, self.engine.protocol_of(self.options), self.began);
        self.ask_all(slice::from_mut(&mut asked));
        if !asked.is_granted_at(asked.at) {
            return self.wait_for(key, Some(asked));
        }
        let acquired = self.hold(&mut asked);
        self.report_granted(key, asked.at);
        Ok(acquired)
    }

    /// Returns true if the lock may be asked for before it is waited for: no thread of this
    /// process has it or waits for it, so that this one is in no `with` on it, it is not
    /// left to a process that was just notified, and it is known what the options mean.
    fn may_ask(&self, key: &Key) -> bool {
        let Self { engine, .. } = self;
        engine.identity.is_this_process()
            && self.knows_time()
            && !self.is_cancelled()
            && engine.knows_meaning_of(self.options)
            && engine.queue.is_open_to(key)
            && self.turn(key).left_until(self.began).is_none()
    }

    /// Waits for a lock, after what came of asking for it, if it was asked for.
    #[cold]
    #[inline(never)]
    pub(crate) fn wait_for(&self, key: &'a Key, first: Option<Asked<'a>>) -> Result<Acquired, Error> {
        let (acquired, attempts) = self.try_or_wait_for(key, first);
        let at = acquired.as_ref().map_or_else(|_| clock::uptime(), |it| it.hold.acquired.uptime);
        self.report_ended(key, attempts, at, acquired.as_ref().map(drop));
        acquired
    }

    /// The same without a report. Returns also how often the server was asked for it.
    pub(crate) fn try_or_wait_for(
        &self,
        key: &'a Key,
        first: Option<Asked<'a>>,
    ) -> (Result<Acquired, Error>, u32) {
        Wait::new(self, key, first).acquire()
    }

    /// Reports how a call for a lock, or for one of several that have this name, has ended then.
    pub(crate) fn report_ended(&self, key: &Key, attempts: u32, at: Uptime, outcome: Result<(), &Error>) {
        let waited = at.since(self.began.uptime);
        self.engine.observer.notify(&Event::AcquireFinished { key, waited, attempts, outcome });
    }
}

impl Engine {
    /// Makes the hold of a lock that was acquired then.
    pub(super) fn make_hold(&self, key: Key, options: &LockOptions, lease: Lease, at: Now) -> Arc<Hold> {
        let (observer, changes) = (self.observer.clone(), Arc::clone(&self.changes));
        Arc::new(Hold::new(key, *options, at, lease, observer, changes))
    }

    /// Returns a lock with another hold in place of its own, which began then.
    pub(crate) fn begun_anew(
        &self,
        Acquired { hold, holder }: Acquired,
        options: &LockOptions,
        at: Now,
    ) -> Acquired {
        let lease = mem::take(&mut hold.state().lease);
        let hold = self.make_hold(hold.key.clone(), options, lease, at);
        holder.now_as(Arc::downgrade(&hold) as _);
        Acquired { hold, holder }
    }

    /// Has the keeper work on locks that were acquired. With a `kind`, they are noted as locks of this thread.
    pub(super) fn note_begun(self: &Arc<Self>, acquired: &[Acquired], kind: Option<HoldKind>) {
        for Acquired { hold, .. } in acquired {
            self.keep_by_options(hold);
            if let Some(kind) = kind {
                thread_holds::note(&self.identity, hold, kind);
            }
        }
    }
}

/// What a call that acquires has in common for each of its locks.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) engine: &'a Arc<Engine>,
    pub(crate) options: &'a LockOptions,
    pub(crate) cancel_token: Option<&'a CancelToken>,
    pub(crate) began: Now,
    pub(crate) deadline: Option<Uptime>,
    /// The name of several locks, if those of the call are among them.
    pub(crate) name: Option<&'a Key>,
}

/// A trip that asks for a lock, and what came of it.
#[derive(Clone)]
pub(crate) struct Asked<'a> {
    pub(crate) key: &'a Key,
    /// What it acquires.
    pub(crate) lease: Lease,
    pub(crate) trip: Trip,
    pub(crate) sent: Sent,
    /// When that was known.
    pub(crate) at: Now,
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
        Self { engine, options, cancel_token, began, deadline, name: None }
    }

    /// Has this thread woken when the call is cancelled. A forked child may find the token's mutex locked for ever.
    pub(crate) fn register(&self) -> Option<Registered<'a>> {
        let token = self.cancel_token.filter(|_| self.engine.identity.is_this_process());
        token.map(CancelToken::register)
    }

    /// Returns the turns at the key of one of its locks.
    #[inline]
    pub(crate) fn turn<'b>(&'b self, key: &'b Key) -> Turn<'b> {
        let Self { engine, options, .. } = self;
        engine.turn(engine.notifies(options, key), options, key).of(self.name)
    }

    /// Looks at several locks that have this name, as a process that waits for notifications of them, if something is to
    /// be done with their waiting list.
    pub(crate) fn look_listed(
        &self,
        turn: &Turn<'_>,
        name: &Key,
        all: &Arc<[Key]>,
    ) -> Option<Result<Vec<Option<Vec<u8>>>, Error>> {
        let mut session = self.session(name);
        Some(match look_listed(turn, &mut session, &Command::GetAll(Arc::clone(all)), clock::now())? {
            Reply::Bulks(found) => Ok(found),
            failed => Err(session.error(failed.gives_up(), "")),
        })
    }

    /// Probes what the options mean on the server, where that depends on it and is not known.
    pub(crate) fn probe(&self, key: &Key) -> Result<(), Failure> {
        if self.engine.knows_meaning_of(self.options) { Ok(()) } else { self.session(key).probe(self.began) }
    }

    /// Returns what asks for a lock first, by this protocol.
    #[inline]
    pub(crate) fn asks<'k>(&self, key: &'k Key, protocol: Protocol, now: Now) -> Asked<'k> {
        let (lease, trip) = first_command(&self.options.terms, protocol, &self.engine.tag(), now);
        Asked::of(key, lease, trip, now)
    }

    /// Asks for locks in one trip.
    pub(crate) fn ask_all(&self, asked: &mut [Asked<'_>]) {
        let backend = &self.engine.backend;
        let [first, ..] = asked else { return };
        let limits = self.session(first.key).limits.of(&first.trip, first.at);
        match &mut *asked {
            [one] => one.sent = backend.send(&key_trip(one.key, &one.trip), &limits),
            many => {
                let trips: Vec<_> = many.iter().map(|asked| key_trip(asked.key, &asked.trip)).collect();
                let sent = backend.send_all(&trips, &limits);
                many.iter_mut().zip(sent).for_each(|(asked, sent)| asked.sent = sent);
            }
        }
        let now = asked[0].sent.at.unwrap_or_else(clock::now);
        for asked in asked {
            asked.at = now;
        }
    }

    /// Returns when the call is to return.
    pub(crate) fn returns_by(&self) -> Uptime {
        let ends = |deadline: Uptime| deadline.after(self.engine.backend.command_timeout());
        self.deadline.map_or(Uptime::MAX, ends)
    }

    /// Reports by this key that the lock was granted when it was first asked for.
    pub(crate) fn report_granted(&self, key: &Key, at: Now) {
        let waited = at.uptime.since(self.began.uptime);
        self.engine.observer.notify(&Event::AcquireFinished { key, waited, attempts: 1, outcome: Ok(()) });
    }

    /// Makes the hold of a lock that was granted when it was first asked for.
    pub(crate) fn hold(&self, asked: &mut Asked<'_>) -> Acquired {
        self.hold_lease(asked.key, mem::take(&mut asked.lease), asked.at)
    }

    /// Makes the hold of a lock that a thread has got then without a place in its queue.
    #[inline]
    pub(super) fn hold_lease(&self, key: &Key, lease: Lease, at: Now) -> Acquired {
        let Self { engine, options, .. } = self;
        self.turn(key).acquired();
        let observation = Observation::of(&lease, at);
        let hold = engine.make_hold(key.clone(), options, lease, at);
        let holder = engine.queue.hold(key, &observation, Arc::downgrade(&hold) as _);
        Acquired { hold, holder }
    }

    /// Returns the commands for a lock. Made when it is this thread's
    /// turn: those ahead may have found the server unreachable.
    pub(super) fn session<'b>(&'b self, key: &'b Key) -> Session<'b> {
        let session = Session::new(self.engine, key, self.options.protocol, self.deadline);
        session.stopped_by(self, self.engine.retry_for(self.began.uptime))
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel_token.is_some_and(CancelToken::is_cancelled)
    }

    /// Returns true if the lock has no expiration, or this machine's clock may be right.
    fn knows_time(&self) -> bool {
        self.options.terms.expiration.is_none() || self.began.is_plausible()
    }

    /// Fails where this machine's clock shows a time that the lock's value cannot.
    pub(crate) fn refuse_unset_clock(&self, key: &Key) -> Result<(), Error> {
        if self.knows_time() { Ok(()) } else { Err(Error::clock_unset(key.clone(), self.began.wall)) }
    }

    /// Fails where the call was ended from outside.
    pub(crate) fn check(&self, key: &Key) -> Result<(), Error> {
        let shut_down = self.engine.queue.is_closed();
        if shut_down || self.is_cancelled() {
            let waited = clock::uptime().since(self.began.uptime);
            return Err(Error::ended(key.clone(), waited, shut_down));
        }
        Ok(())
    }

    /// Compares the number of readers with that of other callers, where the locks are a reader's or a writer's. Waits
    /// as for a lock; `key` is the first.
    pub(crate) fn agree_on_readers(&self, count: &ReaderCount, key: &Key) -> Result<(), Error> {
        let session = Session::new(self.engine, &count.key, Protocol::Classic, self.deadline);
        let session = session.stopped_by(self, self.engine.retry_for(self.began.uptime));
        // Where the wait was ended from outside, that is the reason.
        self.engine.agree_on_readers(count, session).or_else(|error| self.check(key).and(Err(error)))
    }

    /// What to do if it is unknown whether the lock was acquired.
    pub(crate) fn advice(&self) -> &'static str {
        match self.options.terms.expiration {
            Some(_) => "if the lock was acquired, it frees itself when its lease has passed; try again then",
            None => {
                "it has no expiration, so its value names no holder; look at the key, and clear it if its holder has crashed"
            }
        }
    }
}

/// Looks at locks, as a process that waits for notifications, if something is to be done with their waiting list.
fn look_listed(turn: &Turn<'_>, session: &mut Session<'_>, look: &Command, mut now: Now) -> Option<Reply> {
    let mut waiting = turn.enter()?;
    loop {
        let behind = Some(Box::new(look.clone()));
        let trip = Trip { behind, ..Trip::of(Command::Waiting(waiting.clone())) };
        let found = session.send(&trip, now).behind.unwrap_or(Reply::Unsent);
        let listed = session.take_listed();
        let Some(again) = turn.entered(&waiting, listed) else { return Some(found) };
        (waiting, now) = (again, clock::now());
    }
}

impl Stop for Call<'_> {
    fn is_over(&self) -> bool {
        self.is_cancelled() || self.engine.queue.is_closed()
    }

    fn waits(&self, key: &Key, refusal: &Refusal) {
        self.engine.observer.notify(&Event::RefusedForNow { key, refusal });
    }
}

impl<'a> Asked<'a> {
    #[inline]
    fn of(key: &'a Key, lease: Lease, trip: Trip, at: Now) -> Self {
        Self { key, lease, trip, sent: Sent::default(), at }
    }

    /// Notes that it was not sent.
    pub(crate) fn fail(&mut self, failure: &Failure) {
        self.sent = Sent::failed(&key_trip(self.key, &self.trip), failure.clone());
    }

    /// Returns true if the lock was acquired when that was known.
    pub(crate) fn is_granted(&self) -> bool {
        self.is_granted_at(self.at)
    }

    /// Rule 4: returns true if the lock was acquired, and its lease lasts then (I3).
    pub(crate) fn is_granted_at(&self, now: Now) -> bool {
        self.is_carried_out() && !self.lease.has_passed(now)
    }

    /// Returns true if the key holds the value.
    pub(crate) fn is_carried_out(&self) -> bool {
        matches!(self.sent.reply, Some(Ok(Reply::Integer(1..))))
    }

    /// Returns true if another client has the lock.
    pub(crate) fn found_another(&self) -> bool {
        matches!(self.sent.reply, Some(Ok(Reply::Integer(0))))
    }

    /// Returns true if it may have been carried out, or may be still.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self.sent.reply, Some(Err(Failure::Lost(_))))
    }
}
