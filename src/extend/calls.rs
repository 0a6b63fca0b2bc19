//! Calls for many locks: they are asked for, and given back, in one trip.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;
use std::{iter, slice};

use proto::ownership::Loss;
use proto::unresolved::Unresolved;
use proto::values::{Key, State, Terms, Token};
use proto::{Command, Reply};

use super::guards::{begin_anew, give_back};
use super::line::Line;
use crate::api::guard::LockGuard;
use crate::net::Failure;
use crate::report::error::Error;
use crate::report::event::Event;
use crate::run::hold::Hold;
use crate::run::thread_holds::HoldKind;
use crate::run::{Acquired, Acquiring, Asked, Call, Engine, RELEASED_IF_ACQUIRED, ReaderCount};
use crate::system::clock;
use crate::values::options::LockOptions;
use crate::wait::Registered;

/// What part of the expiration may have passed of a lease, when the last of several locks is held, before it is
/// extended.
const FRESH: u32 = 10;

/// The lease of what announces a call that waits for all of several locks. The key shows a second more: if the process is
/// killed, others wait for 2 s.
const ANNOUNCED_FOR: Duration = Duration::from_secs(1);

/// A call that asks for several locks of one locker, or for one of several.
pub(crate) struct SeveralCall<'a> {
    pub(super) call: Call<'a>,
    /// The queue by the name of the locks, if they have one: each has a place in it.
    line: Option<&'a Line>,
}

impl Call<'_> {
    /// Goes on with the lock of a token: see [`Lock::resume`](crate::Lock::resume).
    pub(crate) fn go_on_with(&self, token: &Token) -> Result<LockGuard, Error> {
        self.resume(token).map(|acquired| LockGuard::new(Arc::clone(self.engine), acquired))
    }
}

impl<'a> Deref for SeveralCall<'a> {
    type Target = Call<'a>;

    fn deref(&self) -> &Call<'a> {
        &self.call
    }
}

impl<'a> SeveralCall<'a> {
    pub(crate) fn new(call: Call<'a>, line: Option<&'a Line>) -> Self {
        Self { call: Call { name: line.map(Line::name), ..call }, line }
    }

    /// Begins a call for several locks, which lasts until what is returned is dropped.
    ///
    /// # Errors
    ///
    /// Nothing is sent then: one of the locks is not to be waited for, or the call was ended from outside.
    pub(crate) fn begin_all(
        &self,
        keys: &[Key],
        readers: Option<&ReaderCount>,
    ) -> Result<impl Sized + use<'a>, Error> {
        let nested = keys.iter().try_for_each(|key| self.engine.refuse_nested(key));
        let begun = self.begin(&keys[0], nested, readers);
        begun.inspect_err(|error| self.report_failed(keys, error, 0))
    }

    /// Begins a call, unless it is `nested`.
    pub(super) fn begin(
        &self,
        key: &Key,
        nested: Result<(), Error>,
        readers: Option<&ReaderCount>,
    ) -> Result<(Acquiring<'a>, Option<Registered<'a>>), Error> {
        let acquiring = self.engine.acquiring();
        self.engine.refuse_after_fork(key)?;
        self.refuse_unset_clock(key)?;
        nested?;
        self.check(key)?;
        let registered = self.register();
        readers.map_or(Ok(()), |count| self.agree_on_readers(count, key))?;
        Ok((acquiring, registered))
    }

    /// Reports a call that has failed before one of the locks was waited for by itself.
    pub(crate) fn report_failed(&self, keys: &[Key], error: &Error, attempts: u32) {
        // An error of none of them is that of all.
        let all = !keys.iter().any(|key| names(error, key));
        let waited = self.waited();
        for key in keys.iter().filter(|key| all || names(error, key)) {
            let outcome = Err(error);
            self.engine.observer.notify(&Event::AcquireFinished { key, waited, attempts, outcome });
        }
    }

    /// Asks for locks in one trip, if there are two at least: up to the first that a thread of this process has or
    /// waits for, or that is left to a process which was just notified of its release. It may be none. Returns also whether
    /// another call was seen to be `next` to get all locks.
    pub(crate) fn ask_together<'k>(
        &self,
        keys: &'k [Key],
        next: Option<&Key>,
    ) -> (VecDeque<Asked<'k>>, bool) {
        let is_busy = |key| {
            self.may_wait()
                && (!self.engine.queue.is_open_to(key) || self.turn(key).left_until(self.began).is_some())
        };
        let keys = &keys[..keys.iter().take_while(|key| !is_busy(*key)).count()];
        if keys.len() < 2 {
            return (VecDeque::new(), false);
        }
        let probed = self.probe(&keys[0]);
        let (now, protocol) = (clock::now(), self.engine.protocol_of(self.options));
        let mut asked: Vec<Asked<'_>> = keys.iter().map(|key| self.asks(key, protocol, now)).collect();
        asked[0].trip.behind = next.map(|next| Box::new(Command::GetAll(Arc::from([next.clone()]))));
        self.ask(&mut asked, probed);
        let found = match asked[0].sent.behind.take() {
            Some(Ok(Reply::Bulks(mut found))) => found.pop().flatten(),
            _ => None,
        };
        let found = State::of_value(found.as_deref());
        (asked.into(), matches!(found, State::Until { until, .. } if until >= clock::now().wall))
    }

    /// Asks in one trip, if it is known what the options mean.
    pub(super) fn ask(&self, asked: &mut [Asked<'_>], probed: Result<(), Failure>) {
        match probed {
            Ok(()) => self.ask_all(asked),
            Err(failure) => asked.iter_mut().for_each(|asked| asked.fail(&failure)),
        }
    }

    /// Holds locks that were all granted in one trip. All are held before the observer learns of one.
    pub(crate) fn hold_all(&self, mut asked: VecDeque<Asked<'_>>) -> Vec<LockGuard> {
        let guards = asked.iter_mut().map(|asked| self.guard(self.hold(asked))).collect();
        for asked in &asked {
            self.report_granted(asked.key, asked.at);
        }
        guards
    }

    /// Holds a lock if it was granted, else waits for it; without what came of asking for it, from the beginning. The
    /// keeper extends the lease while others are waited for, unless this is the last.
    pub(crate) fn hold_or_wait(
        &self,
        key: &'a Key,
        asked: Option<Asked<'a>>,
        is_last: bool,
    ) -> Result<LockGuard, Error> {
        let call = Call { began: clock::now(), ..self.call };
        let acquired = match asked {
            Some(mut asked) if asked.is_granted_at(call.began) => {
                asked.at = call.began;
                let acquired = call.hold(&mut asked);
                call.report_granted(key, asked.at);
                acquired
            }
            asked => {
                // Where a reply was lost, the wait says so.
                if !asked.as_ref().is_some_and(Asked::is_lost) {
                    call.check(key)
                        .map_err(|error| with_whole_wait(error, self.waited()))
                        .inspect_err(|error| self.report_failed(slice::from_ref(key), error, 0))?;
                }
                let acquired = call.wait_for(key, asked);
                acquired.map_err(|error| with_whole_wait(error, self.waited()))?
            }
        };
        Ok(self.hold_early(acquired, is_last))
    }

    /// Begins a hold that is kept while other locks are waited for.
    fn hold_early(&self, acquired: Acquired, is_last: bool) -> LockGuard {
        let options = self.options.while_waiting(LockOptions::MAX_EXPIRATION);
        let at = acquired.hold.acquired;
        let early = self.engine.begun_anew(acquired, &options, at);
        let rest = self.deadline.map_or(Duration::MAX, |deadline| deadline.since(at.uptime));
        if !is_last && options.terms.expiration.is_some_and(|expiration| rest > expiration / 2) {
            self.engine.keep_from_now_on(&early.hold);
        } else if !is_last {
            self.engine.look_once(&early.hold);
        }
        self.guard(early)
    }

    /// Begins holds that were kept for one another as those of all locks, which begin now. Leases that have lasted for
    /// a while are extended before.
    ///
    /// # Errors
    ///
    /// Why one of the locks was lost. Then they are to be given back.
    pub(crate) fn hold_together(&self, early: &mut Vec<LockGuard>) -> Result<Vec<LockGuard>, Error> {
        if let Some(expiration) = self.options.terms.expiration {
            let fresh = expiration.saturating_sub(expiration / FRESH);
            let is_stale = |guard: &&LockGuard| guard.remaining().is_none_or(|left| left < fresh);
            let stale: Vec<&Arc<Hold>> = early.iter().filter(is_stale).map(LockGuard::hold).collect();
            let extended: Result<(), Error> = self.engine.extend(&stale, None).into_iter().collect();
            extended.map_err(|error| match error {
                // Its caller has no guard that could be extended again.
                Error::InDoubt { key, command, cause, .. } => {
                    let advice = "the locks that were acquired so far are released; try again";
                    Error::InDoubt { key, command, advice, cause }
                }
                error => error,
            })?;
        }
        // The keeper may have found out what the extensions did not see.
        for guard in &*early {
            let hold = guard.hold();
            let (mut state, _) = hold.give_up_and_wait();
            self.engine.forget(&mut state);
        }
        let now = clock::now();
        for guard in &*early {
            guard.ensure_held()?;
            // That was when it was given up; waiting for the keeper may have taken long.
            if guard.hold().remaining(now).is_some_and(|left| left.is_zero()) {
                return Err(Engine::lost(guard.hold(), Loss::Expired, now));
            }
        }
        Ok(early.drain(..).map(|guard| begin_anew(guard, self.options, now)).collect())
    }

    /// Releases, in one trip, locks that are held early or granted, and not wanted now. One whose command had no reply
    /// is owed. Returns what may still be held, and why.
    pub(crate) fn give_back(&self, mut early: Vec<LockGuard>, asked: VecDeque<Asked<'_>>) -> Vec<Error> {
        let (now, is_last) = (clock::now(), true);
        let mut not_released = Vec::new();
        for mut asked in asked {
            if asked.is_carried_out() {
                asked.at = now;
                early.push(self.hold_early(self.hold(&mut asked), is_last));
            }
            not_released.extend(self.owe(asked).err());
        }
        not_released.extend(give_back(early));
        not_released
    }

    /// Leaves a lock whose command had no reply. It is owed, and in doubt until it is held after all.
    ///
    /// # Errors
    ///
    /// That it is in doubt.
    pub(crate) fn owe(&self, asked: Asked<'_>) -> Result<(), Error> {
        let Some(Err(Failure::Lost(cause))) = asked.sent.reply else { return Ok(()) };
        let (key, command) = (asked.key.clone(), asked.trip.name());
        self.engine.observer.reply_lost(&key, command, &cause);
        let mut unresolved = Unresolved::default();
        unresolved.add(asked.lease, None, asked.at);
        let is_owed = self.engine.owe_unresolved(&key, self.options, unresolved);
        let advice = if is_owed { RELEASED_IF_ACQUIRED } else { self.advice() };
        Err(Error::InDoubt { key, command, advice, cause })
    }

    /// Announces this call as the next to get all locks: acquires a lock at which others look, and which the keeper
    /// extends. If another call is next, this one waits, or returns `None`.
    ///
    /// # Errors
    ///
    /// The call was ended from outside, or the server cannot be reached.
    pub(crate) fn announce(&self, next: &Key, waits: bool) -> Result<Option<LockGuard>, Error> {
        let mut engine = Engine::clone(self.engine);
        engine.holder_name = Some(format!("next:{:x}", self.random()).into());
        let engine = Arc::new(engine);
        let Terms { poll_interval, max_attempts, allowance, .. } = self.options.terms;
        let expiration = Some(ANNOUNCED_FOR);
        let terms =
            Terms { expiration, poll_interval, max_attempts, allowance, ..Terms::without_expiration() };
        let options = LockOptions { terms, ..*self.options }.while_waiting(LockOptions::MAX_EXPIRATION);
        let (options, began) = (if waits { options } else { options.timeout(Duration::ZERO) }, clock::now());
        let deadline = if waits { self.deadline } else { Some(began.uptime) };
        let call = Call { engine: &engine, options: &options, began, deadline, name: None, ..self.call };
        match call.try_or_wait_for(next, None).0 {
            Ok(acquired) => {
                engine.keep_from_now_on(&acquired.hold);
                Ok(Some(LockGuard::new(engine, acquired)))
            }
            Err(error @ (Error::Cancelled { .. } | Error::ShutDown { .. } | Error::Unavailable { .. })) => {
                Err(with_whole_wait(error, self.waited()))
            }
            // It is only fairness, without which the call goes on.
            Err(_) => Ok(None),
        }
    }

    /// Retracts what [`announce`](Self::announce) has returned. If the call `gives_up`, others may get the locks that it
    /// had not got yet.
    pub(crate) fn retract(&self, announced: Option<LockGuard>, gives_up: bool) {
        let Some(announced) = announced else { return };
        // A failure is reported, and it ends by itself.
        drop(give_back(vec![announced]));
        if let Some(line) = self.line.filter(|_| gives_up) {
            line.wake_next(self);
        }
    }

    /// Has the keeper work on locks that were acquired, and notes them for this thread.
    pub(crate) fn begun(&self, guards: &[LockGuard], kind: HoldKind) {
        for guard in guards {
            self.engine.keep_by_options(guard.hold());
            guard.note(kind);
        }
    }

    pub(crate) fn may_wait(&self) -> bool {
        self.options.timeout != Some(Duration::ZERO)
    }

    pub(crate) fn has_time(&self) -> bool {
        self.deadline.is_none_or(|deadline| clock::uptime() < deadline)
    }

    pub(crate) fn expires(&self) -> bool {
        self.options.terms.expiration.is_some()
    }

    pub(super) fn waited(&self) -> Duration {
        clock::uptime().since(self.began.uptime)
    }

    fn guard(&self, acquired: Acquired) -> LockGuard {
        let at = acquired.hold.acquired.uptime;
        let mut guard = LockGuard::new(Arc::clone(self.engine), acquired);
        if let Some(line) = self.line {
            line.place(&mut guard, at);
        }
        guard
    }
}

/// Returns true if an error is about this key, among others perhaps.
fn names(error: &Error, key: &Key) -> bool {
    match error {
        Error::Several { cause, others } => {
            iter::once(&**cause).chain(others).any(|error| error.key() == Some(key))
        }
        error => error.key() == Some(key),
    }
}

/// Returns the error of a wait for one lock as that of the wait for all.
fn with_whole_wait(mut error: Error, whole: Duration) -> Error {
    match &mut error {
        Error::Contended { details, .. } => details.waited = whole,
        Error::Cancelled { waited, .. } | Error::ShutDown { waited, .. } => *waited = whole,
        _ => {}
    }
    error
}
