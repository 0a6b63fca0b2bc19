//! Acquiring several locks for one holder: all at once if they are free, else one by one in their order, within one deadline. What was
//! acquired is released if another cannot be.

mod at_once;
mod in_doubt;
mod one_by_one;

use std::iter;
use std::sync::Arc;

use super::wait::{Granted, Wait};
use super::{Acquired, Engine, ReaderCount};
use crate::clock::{self, Now, Uptime};
use crate::error::Error;
use crate::event::Event;
use crate::key::Key;
use crate::options::LockOptions;
use crate::protocol::lease::Lease;
use crate::queue::CancelToken;
use crate::thread_holds::HoldKind;
use crate::value::LockState;
use at_once::AtOnce;
use one_by_one::InTurn;

/// The locks that are wanted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Several<'a> {
    /// At least one, in the order of their bytes, and no two are equal.
    pub(crate) keys: &'a Arc<[Key]>,
    pub(crate) options: &'a LockOptions,
    /// The queue of the threads for which each of these locks is one of several that will do.
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
        let granted = WaitAll { engine: self, wanted, began, deadline }.acquire()?;
        Ok(self.begin_holds(granted, wanted.options, Some(kind)))
    }
}

impl WaitAll<'_> {
    fn acquire(&self) -> Result<Vec<(Key, Granted)>, Error> {
        let Several { keys, cancel_token, .. } = self.wanted;
        // What is not to be waited for is found before anything is sent.
        let begun = self.may_begin().and_then(|()| {
            let registered = cancel_token.map(CancelToken::register);
            self.wait(&keys[0], self.began, None).agree()?;
            Ok(registered)
        });
        let _registered = begun.inspect_err(|error| self.report(Err(error), 0))?;
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
        self.wait(&keys[0], self.began, None).check()
    }

    /// Reports how the call has ended before any of the locks was waited for by itself.
    fn report(&self, outcome: Result<(), &Error>, attempts: u32) {
        let waited = clock::uptime().since(self.began.uptime);
        let keys = self.wanted.keys;
        let is_meant = |key: &&Key| outcome.is_err_and(|error| names(error, key));
        // An error of none of them is that of all.
        let all = !keys.iter().any(|key| is_meant(&key));
        for key in keys.iter().filter(|key| all || is_meant(key)) {
            self.engine.observer.notify(&Event::AcquireFinished { key, waited, attempts, outcome });
        }
    }

    fn wait<'b>(&'b self, key: &'b Key, now: Now, earlier: Option<(Lease, Option<LockState>)>) -> Wait<'b> {
        let Several { options, shared, cancel_token, readers, .. } = self.wanted;
        let wait = Wait::new(self.engine, key, options, cancel_token, now).comparing(readers);
        wait.within(self.deadline, shared, earlier)
    }
}

/// Whether an error is about this key, among others perhaps.
fn names(error: &Error, key: &Key) -> bool {
    match error {
        Error::Several { cause, others } => {
            iter::once(&**cause).chain(others).any(|error| error.key() == Some(key))
        }
        error => error.key() == Some(key),
    }
}
