//! Acquiring several locks for one holder, within one deadline. They are asked for in one trip, in their order. If another client has one,
//! what was acquired behind it is given back, it is waited for as any lock is, and then the rest is asked for. So a call waits only while it
//! holds the first of its locks, and no two wait for each other.

mod asked;
mod early;

use std::iter;
use std::sync::Arc;
use std::time::Duration;

use super::acquire::{Answer, Wait};
use super::engine::Engine;
use super::held::Acquired;
use super::readers::ReaderCount;
use super::session::Session;
use crate::net::{KeyTrip, Sent, StopCheck};
use crate::report::error::Error;
use crate::report::event::Event;
use crate::run::thread_holds::HoldKind;
use crate::values::clock::{self, Now, Uptime};
use crate::values::key::Key;
use crate::values::options::LockOptions;
use crate::wait::CancelToken;
use asked::Asked;
use early::InOrder;

/// The locks that are wanted.
#[derive(Clone, Copy)]
pub(crate) struct Several<'a> {
    /// At least one, in the order of their bytes, and no two are equal.
    pub(crate) keys: &'a Arc<[Key]>,
    pub(crate) options: &'a LockOptions,
    /// If the locks are permits: the queue of their semaphore.
    pub(crate) shared: Option<&'a Key>,
    pub(crate) cancel_token: Option<&'a CancelToken>,
    /// Where they are a writer's: the number of readers, which all callers must share.
    pub(crate) readers: Option<&'a ReaderCount>,
}

/// A wait for several locks.
struct WaitAll<'a> {
    engine: &'a Arc<Engine>,
    wanted: Several<'a>,
    began: Now,
    deadline: Option<Uptime>,
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
        let acquired = WaitAll { engine: self, wanted, began, deadline }.acquire()?;
        self.note_begun(&acquired, Some(kind));
        Ok(acquired)
    }
}

impl WaitAll<'_> {
    fn acquire(&self) -> Result<Vec<Acquired>, Error> {
        let Several { keys, cancel_token, .. } = self.wanted;
        // What is not to be waited for is found before anything is sent.
        let begun = self.may_begin().and_then(|()| {
            let registered = cancel_token.map(CancelToken::register);
            self.wait(&keys[0], None).agree_on_readers()?;
            Ok(registered)
        });
        let _registered = begun.inspect_err(|error| self.report_of_each(error, 0))?;
        loop {
            let error = match self.in_order()? {
                InOrder::Acquired(acquired) => return Ok(acquired),
                InOrder::Lost(error) => error,
            };
            let has_time = self.deadline.is_none_or(|deadline| clock::uptime() < deadline);
            if !has_time || !error.is_lost() {
                return Err(error);
            }
        }
    }

    /// Fails where the locks are not to be waited for.
    fn may_begin(&self) -> Result<(), Error> {
        let keys = self.wanted.keys;
        self.engine.refuse_after_fork(&keys[0])?;
        keys.iter().try_for_each(|key| self.engine.refuse_nested(key))?;
        self.wait(&keys[0], None).check()
    }

    /// Acquires the locks in their order.
    fn in_order(&self) -> Result<InOrder, Error> {
        let keys = self.wanted.keys;
        let mut early: Vec<Acquired> = Vec::with_capacity(keys.len());
        let mut asked = Asked::new(self);
        match asked.all_at_once() {
            Ok(Some(acquired)) => return Ok(InOrder::Acquired(acquired)),
            Ok(None) => {}
            Err(error) => return Err(error.and(asked.give_back(early))),
        }
        for (index, key) in keys.iter().enumerate() {
            let granted = asked.first(index).and_then(|first| self.engine.grant(&self.wait(key, first)));
            match granted {
                Ok((_, acquired)) => early.push(self.keep_early(acquired, index + 1 == keys.len())),
                Err(error) => {
                    // It says what is in doubt.
                    if error.may_hold_lock() {
                        let named = (0..keys.len()).filter(|index| names(&error, &keys[*index]));
                        named.for_each(|index| asked.forget(index));
                    }
                    return Err(self.with_whole_wait(error).and(asked.give_back(early)));
                }
            }
            asked.forget(index);
        }
        self.all_acquired(early)
    }

    /// Returns true if the call may wait for a holder.
    fn may_wait(&self) -> bool {
        self.wanted.options.timeout != Some(Duration::ZERO)
    }

    /// Reports a call that has ended before any of the locks was waited for by itself.
    fn report_of_each(&self, error: &Error, attempts: u32) {
        let keys = self.wanted.keys;
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

    fn wait<'b>(&'b self, key: &'b Key, first: Option<Answer>) -> Wait<'b> {
        let Several { options, shared, cancel_token, readers, .. } = self.wanted;
        let wait = Wait::new(self.engine, key, options, cancel_token, clock::now()).comparing(readers);
        wait.within(self.deadline, shared, first)
    }

    /// Sends a command on each of several keys in one trip.
    fn send_each(&self, trips: &[KeyTrip<'_>]) -> Vec<Sent> {
        self.talk(trips[0].key, |session| {
            self.engine.backend.send_all(trips, &session.limits(trips[0].trip, clock::now()))
        })
    }

    /// Talks to the server for several keys, of which this is the first.
    fn talk<T>(&self, key: &Key, talk: impl FnOnce(&mut Session<'_>) -> T) -> T {
        let Several { options, cancel_token, .. } = self.wanted;
        let engine = self.engine;
        let stop = || engine.queue.is_closed() || cancel_token.is_some_and(CancelToken::is_cancelled);
        let session = Session::new(engine, key, options.protocol, self.deadline);
        talk(&mut session.stopped_by(StopCheck(&stop), engine.retry_for(self.began.uptime)))
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
