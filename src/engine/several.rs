//! Acquiring several locks for one holder: all at once if they are free, else one by one in their order, within one deadline. What was
//! acquired is released if another cannot be.

use std::sync::Arc;
use std::time::Duration;
use std::{io, mem};

use super::call::Call;
use super::holding::Leaving;
use super::release::HeldLock;
use super::wait::{Granted, Wait};
use super::{Acquired, Answer, Engine};
use crate::backend::{Answers, KeyRequest, RefusalKind, StopCheck, TransportError};
use crate::clock::{self, Now, Uptime};
use crate::error::{Contention, Error};
use crate::event::{Event, Observer};
use crate::hold::Hold;
use crate::key::Key;
use crate::options::{LONGEST_EXPIRATION, LockOptions, Protocol};
use crate::protocol::acquire::Observation;
use crate::protocol::acquire_all::{AcquiringAll, Next, Unresolved};
use crate::protocol::lease::Lease;
use crate::protocol::{Command, GiveUp, Reply, Request};
use crate::queue::{CancelToken, HolderTicket, Sleep};
use crate::thread_holds::HoldKind;
use crate::value::LockState;

/// What part of the expiration may have passed of a lease, when the last lock is acquired, before it is extended.
const FRESH: u32 = 10;

/// How often a pause looks whether it is to end.
const STOP_CHECKED_EVERY: Duration = Duration::from_millis(50);

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
    OneByOne(Option<InDoubt>),
}

/// A command on all keys that may have acquired locks, or may still.
struct InDoubt {
    unresolved: Unresolved,
    protocol: Protocol,
    /// The command, and why it has no reply; a transaction that was carried out in part has one.
    unanswered: Option<(&'static str, TransportError)>,
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
        let parts = early.into_iter().map(|Early { hold, holder, .. }| (hold, holder));
        let (holds, holders): (Vec<Arc<Hold>>, Vec<_>) = parts.unzip();
        let ending = holds.iter().map(|hold| &**hold).zip(holders).collect();
        let ended = self.end(ending, Leaving::Release);
        let failed = |(hold, released): (&Arc<Hold>, Result<_, Error>)| {
            let error = released.err()?;
            self.observer.notify(&Event::ReleaseFailed { key: &hold.key, error: &error });
            Some(error)
        };
        holds.iter().zip(ended).filter_map(failed).collect()
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
        let mut in_doubt = None;
        if keys.len() > 1 && self.may_succeed_at_once() {
            match self.at_once() {
                Ok(AtOnce::Granted(granted)) => {
                    self.report(Ok(()), 1);
                    return Ok(granted);
                }
                Ok(AtOnce::OneByOne(earlier)) => in_doubt = earlier,
                Err(error) => {
                    self.report(Err(&error), 1);
                    return Err(error);
                }
            }
        }
        loop {
            let error = match self.one_by_one(in_doubt.take().as_ref())? {
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
                    if matches!(reply, Reply::Integer(_) | Reply::Bulks(_)) {
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
                    let until = now.uptime.after(time);
                    while !stop() && clock::uptime() < until {
                        // Nothing wakes a thread that is in no queue when the locker is shut down.
                        let slice = until.min(clock::uptime().after(STOP_CHECKED_EVERY));
                        whole.parking(Some(slice))(Sleep::Waiting);
                    }
                    if stop() {
                        return Err(self.all_unknown(call));
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
                Next::OneByOne(None) => return Ok(AtOnce::OneByOne(None)),
                Next::OneByOne(Some(unresolved)) => {
                    let (protocol, unanswered) = (rules.protocol(), call.take_unanswered());
                    return Ok(AtOnce::OneByOne(Some(InDoubt { unresolved, protocol, unanswered })));
                }
                Next::GiveUp(GiveUp::Unknown) => return Err(self.all_unknown(call)),
                Next::GiveUp(reason) => {
                    // The end of the wait from outside is the reason.
                    self.wait(first, now, None).check()?;
                    return Err(call.error(reason, Wait::advice(options)));
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
    fn one_by_one(&self, in_doubt: Option<&InDoubt>) -> Result<InTurn, Error> {
        let keys = self.wanted.keys;
        let mut early: Vec<Early> = Vec::with_capacity(keys.len());
        for (index, key) in keys.iter().enumerate() {
            let earlier = in_doubt.map(|InDoubt { unresolved: Unresolved { lease, from }, .. }| {
                let from = from.get(index).filter(|from| **from != LockState::Absent);
                (lease.clone(), from.cloned())
            });
            let wait = self.wait(key, clock::now(), earlier);
            match self.engine.grant(&wait) {
                Ok(granted) => early.push(self.keep_early(key, granted, index + 1 == keys.len())),
                Err(error) => {
                    let mut others = self.engine.give_back(early);
                    if let Some(in_doubt) = in_doubt {
                        let is_reported = error.may_hold_lock();
                        others.extend(self.undo(in_doubt, &keys[index + usize::from(is_reported)..]));
                    }
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
            hold.finish();
            let mut own = hold.own();
            let (lease, token) = (mem::replace(&mut own.lease, Lease::none()), own.token);
            drop(own);
            let protocol = hold.protocol;
            (hold.key.clone(), Granted { lease, protocol, holder, at: now, attempts, waited, token })
        };
        Ok(InTurn::Granted(early.into_iter().map(granted).collect()))
    }

    /// Releases what a command on all keys has acquired of these, which were not waited for to the end. Returns what is not known to be
    /// released.
    fn undo(&self, in_doubt: &InDoubt, keys: &[Key]) -> Vec<Error> {
        let (engine, Several { options, shared, .. }) = (self.engine, self.wanted);
        let InDoubt { unresolved: Unresolved { lease, .. }, protocol, unanswered } = in_doubt;
        let began = clock::now();
        if keys.is_empty() || lease.has_passed(began) {
            return Vec::new();
        }
        let (ours, unread) = self.find_ours(&lease.value, keys);
        let held = |key| {
            let holder = engine.queue.hold(key, shared, &Observation::of(lease, began));
            HeldLock { key, options, protocol: *protocol, lease, holder }
        };
        let mut failed = engine.release_all_unwanted(ours.into_iter().map(held).collect(), clock::now());
        failed.extend(self.unknown(unread.into_iter(), unanswered.clone()));
        failed
    }

    /// Returns those of these keys that hold this value, and those that could not be read.
    fn find_ours<'k>(&self, value: &[u8], keys: &'k [Key]) -> (Vec<&'k Key>, Vec<&'k Key>) {
        let engine = self.engine;
        let is_ours = |found: &Option<Vec<u8>>| found.as_deref() == Some(value);
        if let Ok(found) = engine.states(&keys[0], &keys.into()) {
            let ours = keys.iter().zip(&found).filter(|(_, found)| is_ours(found));
            return (ours.map(|(key, _)| key).collect(), Vec::new());
        }
        // Some servers refuse commands on several keys.
        let (mut ours, mut unread) = (Vec::new(), Vec::new());
        let until = clock::uptime().after(engine.backend.command_timeout());
        for key in keys {
            if clock::uptime() >= until {
                unread.push(key);
                continue;
            }
            match engine.once(key, Command::Get) {
                Ok(Reply::Bulk(found)) if is_ours(&found) => ours.push(key),
                Err(error) if !is_no_lock(&error) => unread.push(key),
                _ => {}
            }
        }
        (ours, unread)
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

    /// Extends the leases that have lasted for a while, and has the keeper do no more. Returns why a lock was lost.
    fn refresh(&self, early: &[Early]) -> Option<Error> {
        let holds = || early.iter().map(|early| &early.hold);
        if let Some(expiration) = self.wanted.options.expiration {
            let now = clock::now();
            let is_fresh = |hold: &Hold| {
                let left = hold.remaining(now);
                left.is_some_and(|left| left >= expiration.saturating_sub(expiration / FRESH))
            };
            let stale: Vec<&Arc<Hold>> = holds().filter(|hold| !is_fresh(hold)).collect();
            let extended = self.engine.extend_all(&stale, None);
            if let Some(error) = extended.into_iter().find_map(Result::err) {
                return Some(error);
            }
        }
        // The keeper may have found out what the extensions did not see.
        for hold in holds() {
            hold.own().over = true;
            self.engine.forget(hold);
        }
        let now = clock::now();
        holds().find_map(|hold| hold.lost(now).map(|reason| Engine::lost(hold, reason, now)))
    }

    /// Of a timeout for one lock, what the wait for all was.
    fn with_whole_wait(&self, mut error: Error) -> Error {
        if let Error::Timeout { details, .. } | Error::AttemptsExhausted { details, .. } = &mut error {
            details.waited = clock::uptime().since(self.began.uptime);
        }
        error
    }

    /// Returns an error for each of these locks, of a command that may have acquired them; a transaction that was carried out in part has no
    /// reason.
    fn unknown<'k>(
        &self,
        keys: impl Iterator<Item = &'k Key>,
        unanswered: Option<(&'static str, TransportError)>,
    ) -> Vec<Error> {
        let (command, cause) = unanswered.unwrap_or_else(|| ("EXEC", carried_out_in_part()));
        let advice = Wait::advice(self.wanted.options);
        let unknown = |key: &Key| Error::Unknown { key: key.clone(), command, advice, cause: cause.clone() };
        keys.map(unknown).collect()
    }

    /// Returns the error of a command that may have acquired all.
    fn all_unknown(&self, mut call: Call<'_>) -> Error {
        let mut errors = self.unknown(self.wanted.keys.iter(), call.take_unanswered());
        errors.remove(0).and(errors)
    }
}

/// Whether the key was not read because what it holds is not a string, and so no lock.
fn is_no_lock(error: &Error) -> bool {
    matches!(error, Error::Refused { refusal, .. } if refusal.kind() == RefusalKind::WrongType)
}

fn carried_out_in_part() -> TransportError {
    TransportError::new(
        io::ErrorKind::Other,
        "the transaction was carried out in part, and the key could not be read",
    )
}
