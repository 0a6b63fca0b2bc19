//! Acquiring several locks for one holder, within one deadline: does what their rules say.
//! What commands without a reply have acquired is found out by reading their keys.

mod early;

use std::sync::Arc;
use std::time::Duration;
use std::{iter, slice};

use proto::Reply;
use proto::several::{Do, Several};
use proto::unresolved::Unresolved;
use proto::values::Key;

use super::acquire::{Asked, Call, Want};
use super::debts::RELEASED_IF_ACQUIRED;
use super::held::Acquired;
use super::session::unanswered;
use crate::net::Failure;
use crate::report::error::Error;
use crate::report::event::Event;
use crate::run::thread_holds::HoldKind;
use crate::system::clock;

/// A wait for several locks.
struct WaitAll<'a> {
    call: &'a Call<'a>,
    /// At least one, in the order of their bytes, and no two are equal.
    keys: &'a Arc<[Key]>,
    rules: Several,
    /// What came of asking for each, until it is held or given
    /// back. A command without a reply may still acquire its lock.
    asked: Vec<Option<Asked<'a>>>,
    /// Those that are held while others are waited for.
    early: Vec<Option<Acquired>>,
    /// The last that was waited for: its wait reports that its reply was lost.
    waited_for: Option<usize>,
    /// Why the call has failed.
    failed: Option<Error>,
    /// Why locks were not given back.
    not_released: Vec<Error>,
}

impl<'a> Call<'a> {
    /// Waits until all locks are held, or there is an error and none is, as far as is known. The keys are at least one,
    /// in the order of their bytes, and no two are equal.
    pub(crate) fn acquire_all(&self, keys: &'a Arc<[Key]>, kind: HoldKind) -> Result<Vec<Acquired>, Error> {
        let _acquiring = self.engine.acquiring();
        // What is not to be waited for is found before anything is sent.
        let begun = self.may_begin(keys).and_then(|()| {
            let registered = self.register();
            self.agree_on_readers(&keys[0])?;
            Ok(registered)
        });
        let _registered = begun.inspect_err(|error| self.report_of_each(keys, error, 0))?;
        let acquired = self.in_order(keys)?;
        self.engine.note_begun(&acquired, Some(kind));
        Ok(acquired)
    }

    /// Fails where the locks are not to be waited for.
    fn may_begin(&self, keys: &[Key]) -> Result<(), Error> {
        self.engine.refuse_after_fork(&keys[0])?;
        self.refuse_unset_clock(&keys[0])?;
        keys.iter().try_for_each(|key| self.engine.refuse_nested(key))?;
        self.check(&keys[0])
    }

    /// Acquires the locks in their order.
    fn in_order(&self, keys: &'a Arc<[Key]>) -> Result<Vec<Acquired>, Error> {
        loop {
            let mut asked = self.ask_together(keys);
            if asked.len() == keys.len() && asked.iter().all(|asked| asked.is_granted_at(asked.at)) {
                // All are held before the observer learns of one.
                let held = asked.iter_mut().map(|asked| self.hold(self.shared, asked)).collect();
                for asked in &asked {
                    self.report_granted(asked.key, asked.at);
                }
                return Ok(held);
            }
            let mut all = WaitAll::new(self, keys);
            all.add(0, asked);
            let (error, not_released) = match all.acquire() {
                Ok(acquired) => return Ok(acquired),
                Err(failed) => failed,
            };
            // One was lost while another was waited for.
            let has_time = self.deadline.is_none_or(|deadline| clock::uptime() < deadline);
            if !(has_time && error.is_lost() && not_released.is_empty()) {
                return Err(error.and(not_released));
            }
        }
    }

    /// Reports a call that has ended before any of the locks was waited for by itself.
    fn report_of_each(&self, keys: &[Key], error: &Error, attempts: u32) {
        // An error of none of them is that of all.
        let all = !keys.iter().any(|key| names(error, key));
        for key in keys.iter().filter(|key| all || names(error, key)) {
            self.report(key, attempts, Err(error));
        }
    }

    fn report(&self, key: &Key, attempts: u32, outcome: Result<(), &Error>) {
        let waited = clock::uptime().since(self.began.uptime);
        self.engine.observer.notify(&Event::AcquireFinished { key, waited, attempts, outcome });
    }

    fn may_wait(&self) -> bool {
        self.options.timeout != Some(Duration::ZERO)
    }
}

impl<'a> WaitAll<'a> {
    fn new(call: &'a Call<'a>, keys: &'a Arc<[Key]>) -> Self {
        Self {
            call,
            keys,
            rules: Several::new(keys.len(), call.may_wait()),
            asked: keys.iter().map(|_| None).collect(),
            early: keys.iter().map(|_| None).collect(),
            waited_for: None,
            failed: None,
            not_released: Vec::new(),
        }
    }

    /// Does what the rules say until all are held, or the call has
    /// failed and all is given back, except what could not be.
    fn acquire(mut self) -> Result<Vec<Acquired>, (Error, Vec<Error>)> {
        loop {
            match self.rules.next() {
                Do::Ask(locks) => {
                    let asked = self.call.ask_together(&self.keys[locks.clone()]);
                    self.add(locks.start, asked);
                }
                Do::GiveBack(locks) => self.give_back(&locks),
                Do::Take(lock) => self.take(lock),
                Do::End => match self.failed.take() {
                    Some(error) => return Err((error, self.not_released)),
                    None => match self.refresh() {
                        Some(lost) => self.fail(lost),
                        None => return Ok(self.all_held()),
                    },
                },
            }
        }
    }

    /// Has a lock held, by waiting for it unless it is granted.
    fn take(&mut self, lock: usize) {
        self.waited_for = Some(lock);
        let first = self.asked[lock].take();
        match self.one(&self.keys[lock], first) {
            Ok(acquired) => {
                let is_last = lock + 1 == self.keys.len();
                self.early[lock] = Some(self.hold_early(acquired, is_last));
                self.not_released.retain(|error| error.key() != Some(&self.keys[lock]));
                self.rules.held(lock);
            }
            Err(error) => {
                // It says what is in doubt, and that is owed.
                self.rules.forget(lock);
                if error.may_hold_lock() {
                    self.not_released.retain(|other| other.key() != error.key());
                }
                self.fail(self.with_whole_wait(error));
            }
        }
    }

    fn one(&self, key: &'a Key, first: Option<Asked<'a>>) -> Result<Acquired, Error> {
        let call = Call { began: clock::now(), ..*self.call };
        match first {
            Some(mut first) if first.is_granted_at(call.began) => {
                first.at = call.began;
                let acquired = call.hold(call.shared, &mut first);
                call.report_granted(key, first.at);
                Ok(acquired)
            }
            first => {
                // Where a reply was lost, the wait says so.
                if !first.as_ref().is_some_and(Asked::is_lost) {
                    call.check(key).inspect_err(|error| self.call.report(key, 0, Err(error)))?;
                }
                call.wait_for(Want::Lock(key), first).map(|(_, acquired)| acquired)
            }
        }
    }

    fn fail(&mut self, error: Error) {
        self.failed = Some(error);
        self.rules.fail();
    }

    /// Returns the error of a wait for one lock as that of the wait for all.
    fn with_whole_wait(&self, mut error: Error) -> Error {
        let whole = clock::uptime().since(self.call.began.uptime);
        match &mut error {
            Error::Contended { details, .. } => details.waited = whole,
            Error::Cancelled { waited, .. } | Error::ShutDown { waited, .. } => *waited = whole,
            _ => {}
        }
        error
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

impl Call<'_> {
    /// Asks for locks in one trip, if there are two at least: up to the first that a thread of this process has or
    /// waits for, or that is left to a process which was just notified of its release.
    fn ask_together<'k>(&self, keys: &'k [Key]) -> Vec<Asked<'k>> {
        let is_busy = |key| self.may_wait() && (!self.engine.queue.is_open_to(key) || self.is_left(key));
        let keys = &keys[..keys.iter().take_while(|key| !is_busy(*key)).count()];
        if keys.len() < 2 {
            return Vec::new();
        }
        let probed = self.probe(&keys[0]);
        let (now, protocol) = (clock::now(), self.engine.protocol_of(self.options));
        let mut asked: Vec<Asked<'_>> = keys.iter().map(|key| self.asks(key, protocol, now)).collect();
        match probed {
            Ok(()) => self.ask_all(&mut asked),
            Err(failure) => asked.iter_mut().for_each(|asked| asked.fail(&failure)),
        }
        asked
    }
}

impl<'a> WaitAll<'a> {
    /// Adds what came of asking for locks from this one on.
    fn add(&mut self, from: usize, asked: Vec<Asked<'a>>) {
        if asked.is_empty() {
            return self.rules.takes_one();
        }
        for (lock, asked) in (from..).zip(asked) {
            self.report_lost(lock);
            let reply = self.reply(asked.sent.reply.as_ref());
            self.rules.asked(lock, &reply);
            self.asked[lock] = Some(asked);
        }
        if self.call.options.terms.expiration.is_none() {
            self.fail_in_doubt();
        }
    }

    /// Ends the call if a reply was lost: without an expiration the key names no holder.
    fn fail_in_doubt(&mut self) {
        let mut errors: Vec<Error> = (0..self.keys.len()).filter_map(|lock| self.in_doubt(lock)).collect();
        if !errors.is_empty() {
            let first = errors.remove(0);
            let error = first.and(errors);
            self.call.report_of_each(self.keys, &error, 1);
            self.fail(error);
        }
    }

    /// Leaves a lock whose command had no reply. It is owed, and in doubt until it is held after all.
    pub(super) fn in_doubt(&mut self, lock: usize) -> Option<Error> {
        self.report_lost(lock);
        let asked = self.asked[lock].take_if(|asked| asked.is_lost())?;
        self.rules.forget(lock);
        let advice = if self.owe(&asked) { RELEASED_IF_ACQUIRED } else { self.call.advice() };
        let Some(Err(Failure::Lost(cause))) = asked.sent.reply else { return None };
        let (key, command) = (asked.key.clone(), asked.trip.name());
        Some(Error::InDoubt { key, command, advice, cause })
    }

    /// Has a lock released if its command has acquired it, or does so yet.
    fn owe(&self, asked: &Asked<'_>) -> bool {
        let Call { engine, shared, options, .. } = self.call;
        let mut unresolved = Unresolved::default();
        unresolved.add(0, asked.lease.clone(), None, asked.at);
        engine.owe_unresolved(slice::from_ref(asked.key), *shared, options, unresolved)
    }

    fn report_lost(&self, lock: usize) {
        if let Some(Asked { key, trip, sent, .. }) = &self.asked[lock]
            && let Some(Err(Failure::Lost(cause))) = &sent.reply
            && self.waited_for != Some(lock)
        {
            self.call.engine.observer.reply_lost(key, trip.name(), cause);
        }
    }

    /// Returns the rules' reply.
    fn reply(&self, outcome: Option<&Result<Reply, Failure>>) -> Reply {
        match outcome {
            Some(Ok(reply)) => reply.clone(),
            Some(Err(failure)) => unanswered(failure, self.call.options.protocol),
            None => Reply::TooLate,
        }
    }
}
