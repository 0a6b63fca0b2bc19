//! Acquiring several locks for one holder: all at once if they are free, else one by one in their order, within one deadline. What was
//! acquired is released if another cannot be.

use std::sync::Arc;
use std::time::Duration;

use super::call::Call;
use super::release::HeldLock;
use super::wait::{Granted, Wait};
use super::{Acquired, Answer, Engine};
use crate::backend::{Answers, KeyRequest, StopCheck};
use crate::clock::{self, Now, Uptime};
use crate::error::{Contention, Error};
use crate::event::{Event, Observer};
use crate::hold::Hold;
use crate::key::Key;
use crate::options::{LONGEST_EXPIRATION, LockOptions, Protocol};
use crate::protocol::acquire::Observation;
use crate::protocol::acquire_all::{AcquiringAll, Next, Unresolved};
use crate::protocol::lease::Lease;
use crate::protocol::{GiveUp, Reply, Request};
use crate::queue::{CancelToken, HolderTicket, Sleep};
use crate::thread_holds::HoldKind;
use crate::value::LockState;

/// What part of the expiration may have passed of a lease, when the last lock is acquired, before it is extended.
const FRESH: u32 = 10;

/// The locks that are wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Several<'a> {
    /// At least one, in the order of their bytes, and no two are equal.
    pub(crate) keys: &'a Arc<[Key]>,
    pub(crate) options: &'a LockOptions,
    /// The queue of the threads for which each of these locks is one of several that will do.
    pub(crate) shared: Option<&'a Key>,
    pub(crate) cancel_token: Option<&'a CancelToken>,
}

/// A wait for several locks.
struct WaitAll<'a> {
    engine: &'a Arc<Engine>,
    wanted: Several<'a>,
    began: Now,
    deadline: Option<Uptime>,
}

/// A lock that was acquired while others are waited for.
struct Early {
    hold: Arc<Hold>,
    holder: HolderTicket<Answer>,
    attempts: u32,
}

/// How the attempt to acquire all at once has ended.
enum AtOnce {
    Granted(Vec<(Key, Granted)>),
    OneByOne(Option<Unresolved>),
}

/// How acquiring one after the other has ended.
enum InTurn {
    Granted(Vec<(Key, Granted)>),
    /// One was lost while others were waited for; all are given back.
    Lost(Error),
}

impl Engine {
    /// Waits until all locks are held, or there is an error and none is, as far as is known.
    pub(crate) fn acquire_all(
        self: &Arc<Self>,
        wanted: Several<'_>,
        kind: HoldKind,
    ) -> Result<Vec<Acquired>, Error> {
        let began = clock::now();
        let deadline = wanted.options.timeout.map(|timeout| began.uptime.after(timeout));
        let granted = WaitAll { engine: self, wanted, began, deadline }.acquire()?;
        let acquired = self.begin_holds(granted, wanted.options, kind);
        if wanted.options.fenced {
            // One that is not there yet is taken when it is asked for.
            let holds: Vec<&Arc<Hold>> = acquired.iter().map(|acquired| &acquired.hold).collect();
            drop(self.fencing_tokens(&holds));
        }
        Ok(acquired)
    }

    /// Releases locks that are not wanted any more. Returns why some were not released.
    fn give_back(&self, early: Vec<Early>) -> Vec<Error> {
        let ended: Vec<(Arc<Hold>, Lease, HolderTicket<Answer>)> = early
            .into_iter()
            .map(|Early { hold, holder, .. }| {
                let lease = self.end_early(&hold);
                (hold, lease, holder)
            })
            .collect();
        let held = |(hold, lease, holder)| {
            let Hold { key, options, protocol, .. }: &Hold = hold;
            HeldLock { key, options, protocol: *protocol, lease, holder }
        };
        let (parts, holders): (Vec<_>, Vec<_>) =
            ended.into_iter().map(|(hold, lease, holder)| ((hold, lease), holder)).unzip();
        let locks = parts.iter().zip(holders).map(|((hold, lease), holder)| held((&**hold, lease, holder)));
        let released = self.release_all(locks.collect(), clock::now());
        let failed = |((hold, _), released): (&(Arc<Hold>, Lease), Result<_, Error>)| {
            let error = released.err()?;
            self.observer.notify(&Event::ReleaseFailed { key: &hold.key, error: &error });
            Some(error)
        };
        parts.iter().zip(released).filter_map(failed).collect()
    }

    /// Ends the hold of a lock that was acquired while others were waited for, and returns its lease.
    fn end_early(&self, hold: &Hold) -> Lease {
        let mut own = hold.own();
        own.over = true;
        self.forget(hold);
        let lease = std::mem::replace(&mut own.lease, Lease::none());
        drop(own);
        hold.finish();
        lease
    }
}

impl WaitAll<'_> {
    fn acquire(&self) -> Result<Vec<(Key, Granted)>, Error> {
        let Several { keys, cancel_token, .. } = self.wanted;
        // What is not to be waited for is found before anything is sent.
        if let Err(error) = self.may_begin() {
            self.report(Err(&error), 0);
            return Err(error);
        }
        let _registered = cancel_token.map(CancelToken::register);
        let mut unresolved = None;
        if keys.len() > 1 && self.may_succeed_at_once() {
            match self.at_once() {
                Ok(AtOnce::Granted(granted)) => {
                    self.report(Ok(()), 1);
                    return Ok(granted);
                }
                Ok(AtOnce::OneByOne(earlier)) => unresolved = earlier,
                Err(error) => {
                    self.report(Err(&error), 1);
                    return Err(error);
                }
            }
        }
        loop {
            let error = match self.one_by_one(unresolved.take().as_ref())? {
                InTurn::Granted(granted) => return Ok(granted),
                InTurn::Lost(error) => error,
            };
            let has_time = self.deadline.is_none_or(|deadline| clock::uptime() < deadline);
            if !has_time || !error.is_loss() {
                return Err(error);
            }
        }
    }

    /// Fails where the locks are not to be waited for.
    fn may_begin(&self) -> Result<(), Error> {
        let keys = self.wanted.keys;
        self.engine.refuse_after_fork(&keys[0])?;
        keys.iter().try_for_each(|key| self.engine.refuse_nested(key))?;
        self.wait(&keys[0], self.began, None).check()
    }

    /// Reports how the call has ended before any of the locks was waited for by itself.
    fn report(&self, outcome: Result<(), &Error>, attempts: u32) {
        let waited = clock::uptime().since(self.began.uptime);
        for key in self.wanted.keys.iter() {
            if outcome.as_ref().err().is_none_or(|error| error.key() == Some(key)) {
                self.engine.observer.notify(&Event::AcquireFinished { key, waited, attempts, outcome });
            }
        }
    }

    /// Whether it makes sense to ask for all locks at once: no thread of this process has or waits for one, nor has a process just been
    /// notified of its release, and the server takes commands on several keys.
    fn may_succeed_at_once(&self) -> bool {
        let Several { keys, options, .. } = self.wanted;
        let engine = self.engine;
        let left = |key: &Key| options.notifies && engine.notifications.head_start(key).is_some();
        let may_wait = options.timeout != Some(Duration::ZERO);
        let is_free = !may_wait || (engine.queue.is_idle(keys) && !keys.iter().any(left));
        is_free && engine.sends_together() && !engine.refuses_many(self.began.uptime)
    }

    fn at_once(&self) -> Result<AtOnce, Error> {
        let Several { keys, options, cancel_token, .. } = self.wanted;
        let engine = self.engine;
        let stop = || engine.queue.is_closed() || cancel_token.is_some_and(CancelToken::is_cancelled);
        let first = &keys[0];
        let call = Call::new(engine, first, options.protocol, self.deadline);
        let mut call = call.stopped_by(StopCheck(&stop), engine.unreachable_timeout(self.began.uptime));
        let once = options.timeout == Some(Duration::ZERO);
        let whole = self.wait(first, self.began, None);
        let (mut rules, mut next) = AcquiringAll::start(Arc::clone(keys), whole.params(), once, self.began);
        let mut now = self.began;
        loop {
            next = match next {
                Next::Send(request) => {
                    let reply = call.send_on_many(&request, now);
                    if matches!(reply, Reply::Integer(_)) {
                        rules.decide_protocol(engine.backend.server_version());
                    }
                    now = clock::now();
                    rules.reply(&reply, now)
                }
                Next::Watch => self.watch(&mut call, &mut rules, &mut now),
                Next::Replace(_) => unreachable!("it goes over the connection that watches"),
                Next::Held { lease, from } => {
                    return Ok(AtOnce::Granted(self.granted(&rules, &lease, &from, now)));
                }
                Next::Pause(time) => {
                    let mut park = whole.parking(Some(now.uptime.after(time)));
                    while park(Sleep::Waiting) {}
                    if stop() {
                        return Err(self.for_each_key(call.error(GiveUp::Unknown, Wait::advice(options))));
                    }
                    now = clock::now();
                    rules.look()
                }
                Next::Late => {
                    for key in keys.iter() {
                        engine.observer.notify(&Event::LateGrant { key });
                    }
                    return Ok(AtOnce::OneByOne(None));
                }
                Next::Contended { index, seen } if once => {
                    return Err(self.contended(&keys[index], seen, now));
                }
                Next::Contended { .. } => return Ok(AtOnce::OneByOne(None)),
                Next::OneByOne(unresolved) => return Ok(AtOnce::OneByOne(unresolved)),
                Next::GiveUp(reason) => {
                    // Unless the outcome is unknown, the end of the wait from outside is the reason.
                    if reason != GiveUp::Unknown {
                        self.wait(first, now, None).check()?;
                    }
                    return Err(self.for_each_key(call.error(reason, Wait::advice(options))));
                }
            };
        }
    }

    /// Watches and reads all keys, and replaces them by one transaction if the rules say so.
    fn watch(&self, call: &mut Call<'_>, rules: &mut AcquiringAll, now: &mut Now) -> Next {
        let (keys, engine) = (self.wanted.keys, self.engine);
        let limits = call.limits_on_many(Protocol::Watched, *now);
        let (replies, watched) = match engine.backend.watch_all(keys, &limits) {
            Ok((replies, watched)) => (replies, Some(watched)),
            Err(failure) => (vec![Err(failure)], None),
        };
        let replies: Vec<Reply> =
            replies.into_iter().map(|reply| call.reply_on_many(reply, "WATCH", true)).collect();
        *now = clock::now();
        let next = rules.watched(&replies, *now);
        let Some(watched) = watched else { return next };
        let Next::Replace(command) = next else {
            watched.unwatch(&limits);
            return next;
        };
        let change = |key: &Key| {
            let request = Request::at_any_time(command.clone());
            KeyRequest { key: key.clone(), request, next: None }
        };
        let changes: Vec<KeyRequest> = keys.iter().map(change).collect();
        let reply = |Answers { own, .. }| call.reply_on_many(own, "EXEC", false);
        let replies: Vec<Reply> = watched.exec_all(&changes, &limits).into_iter().map(reply).collect();
        *now = clock::now();
        rules.replaced(&replies, *now)
    }

    fn granted(
        &self,
        rules: &AcquiringAll,
        lease: &Lease,
        from: &[LockState],
        now: Now,
    ) -> Vec<(Key, Granted)> {
        let Several { keys, options, shared, .. } = self.wanted;
        let engine = self.engine;
        for (key, from) in keys.iter().zip(from).filter(|(_, from)| **from != LockState::Absent) {
            engine.observer.notify(&Event::TakenOver { key, from });
        }
        let waited = now.uptime.since(self.began.uptime);
        let granted = |key: &Key| {
            if options.notifies {
                engine.notifications.acquired(key);
            }
            let holder = engine.queue.hold(key, shared, &Observation::of(lease, now));
            let (lease, protocol) = (lease.clone(), rules.protocol());
            (key.clone(), Granted { lease, protocol, holder, at: now, attempts: 1, waited, token: None })
        };
        keys.iter().map(granted).collect()
    }

    fn contended(&self, key: &Key, seen: LockState, now: Now) -> Error {
        let options = self.wanted.options;
        let wait = self.wait(key, now, None);
        let details = Contention { attempts: 1, ..wait.contention(Some(seen), 0, now) };
        let timeout = options.timeout.unwrap_or_default();
        Error::Timeout { key: key.clone(), timeout, details: Box::new(details) }
    }

    fn wait<'b>(&'b self, key: &'b Key, now: Now, earlier: Option<(Lease, Option<LockState>)>) -> Wait<'b> {
        let Several { options, shared, cancel_token, .. } = self.wanted;
        Wait::new(self.engine, key, options, cancel_token, now).within(self.deadline, shared, earlier)
    }

    /// Acquires the locks in their order. Returns also why one of them was lost meanwhile.
    fn one_by_one(&self, unresolved: Option<&Unresolved>) -> Result<InTurn, Error> {
        let keys = self.wanted.keys;
        let mut early: Vec<Early> = Vec::with_capacity(keys.len());
        for (index, key) in keys.iter().enumerate() {
            let earlier = unresolved.map(|unresolved| {
                let from = unresolved.from.get(index).filter(|from| **from != LockState::Absent);
                (unresolved.lease.clone(), from.cloned())
            });
            let wait = self.wait(key, clock::now(), earlier);
            match self.engine.grant(&wait) {
                Ok(granted) => early.push(self.keep_early(key, granted, index + 1 == keys.len())),
                Err(error) => {
                    let others = self.engine.give_back(early);
                    return Err(self.with_whole_wait(error).and(others));
                }
            }
        }
        if let Some(lost) = self.refresh(&early) {
            let others = self.engine.give_back(early);
            let is_known = others.is_empty();
            let lost = lost.and(others);
            return if is_known { Ok(InTurn::Lost(lost)) } else { Err(lost) };
        }
        let now = clock::now();
        let waited = now.uptime.since(self.began.uptime);
        let granted = |Early { hold, holder, attempts, .. }: Early| {
            let token = hold.own().token;
            let lease = self.engine.end_early(&hold);
            let protocol = hold.protocol;
            (hold.key.clone(), Granted { lease, protocol, holder, at: now, attempts, waited, token })
        };
        Ok(InTurn::Granted(early.into_iter().map(granted).collect()))
    }

    /// Begins a hold, and has the keeper extend its lease if the others may take long.
    fn keep_early(&self, key: &Key, granted: Granted, is_last: bool) -> Early {
        let Granted { lease, protocol, holder, at, attempts, token, .. } = granted;
        let options = self.wanted.options.while_waiting(LONGEST_EXPIRATION);
        let hold = Hold::new(key.clone(), options, protocol, at, lease, token, self.observer());
        let hold = Arc::new(hold);
        let rest = self.deadline.map_or(Duration::MAX, |deadline| deadline.since(at.uptime));
        if !is_last && options.expiration.is_some_and(|expiration| rest > expiration / 2) {
            self.engine.keep_from_now_on(&hold);
        }
        Early { hold, holder, attempts }
    }

    fn observer(&self) -> Observer {
        self.engine.observer.clone()
    }

    /// Extends the leases that have lasted for a while. Returns why one was lost.
    fn refresh(&self, early: &[Early]) -> Option<Error> {
        let expiration = self.wanted.options.expiration?;
        let now = clock::now();
        let is_fresh = |hold: &Hold| {
            let left = hold.remaining(now);
            left.is_some_and(|left| left >= expiration.saturating_sub(expiration / FRESH))
        };
        let stale: Vec<&Arc<Hold>> =
            early.iter().map(|early| &early.hold).filter(|hold| !is_fresh(hold)).collect();
        let extended = self.engine.extend_all(&stale, expiration);
        extended.into_iter().find_map(Result::err)
    }

    /// Of a timeout for one lock, what the wait for all was.
    fn with_whole_wait(&self, mut error: Error) -> Error {
        if let Error::Timeout { details, .. } | Error::AttemptsExhausted { details, .. } = &mut error {
            details.waited = clock::uptime().since(self.began.uptime);
        }
        error
    }

    /// Says of each other key that its outcome is as unknown as that of the first.
    fn for_each_key(&self, error: Error) -> Error {
        let Error::Unknown { command, advice, cause, .. } = &error else { return error };
        let unknown = |key: &Key| {
            let (key, cause) = (key.clone(), cause.clone());
            Error::Unknown { key, command, advice, cause }
        };
        let others = self.wanted.keys.iter().skip(1).map(unknown).collect();
        error.and(others)
    }
}
