//! Acquiring several locks for one holder, within one deadline. They are asked for in one trip, in their order. If another client has one,
//! what was acquired behind it is given back, it is waited for as any lock is, and then the rest is asked for. So a call waits only while it
//! holds the first of its locks, and no two wait for each other.

mod asked;
mod early;

use std::iter;
use std::sync::Arc;
use std::time::Duration;

use super::acquire::{Asked, Call, Want};
use super::held::Acquired;
use crate::net::{KeyTrip, Sent};
use crate::report::error::Error;
use crate::report::event::Event;
use crate::run::thread_holds::HoldKind;
use crate::values::clock;
use crate::values::key::Key;
use asked::AskedAll;
use early::InOrder;

/// A wait for several locks.
struct WaitAll<'a> {
    call: Call<'a>,
    /// At least one, in the order of their bytes, and no two are equal.
    keys: &'a Arc<[Key]>,
}

impl<'a> Call<'a> {
    /// Waits until all locks are held, or there is an error and none is, as far as is known. The keys are at least one, in the order of their
    /// bytes, and no two are equal.
    pub(crate) fn acquire_all(&self, keys: &'a Arc<[Key]>, kind: HoldKind) -> Result<Vec<Acquired>, Error> {
        let acquired = WaitAll { call: *self, keys }.acquire()?;
        self.engine.note_begun(&acquired, Some(kind));
        Ok(acquired)
    }
}

impl WaitAll<'_> {
    fn acquire(&self) -> Result<Vec<Acquired>, Error> {
        let (call, keys) = (&self.call, self.keys);
        // What is not to be waited for is found before anything is sent.
        let begun = self.may_begin().and_then(|()| {
            let registered = call.register();
            call.agree_on_readers(&keys[0])?;
            Ok(registered)
        });
        let _registered = begun.inspect_err(|error| self.report_of_each(error, 0))?;
        loop {
            let error = match self.in_order()? {
                InOrder::Acquired(acquired) => return Ok(acquired),
                InOrder::Lost(error) => error,
            };
            let has_time = call.deadline.is_none_or(|deadline| clock::uptime() < deadline);
            if !has_time || !error.is_lost() {
                return Err(error);
            }
        }
    }

    /// Fails where the locks are not to be waited for.
    fn may_begin(&self) -> Result<(), Error> {
        let (Call { engine, .. }, keys) = (&self.call, self.keys);
        engine.refuse_after_fork(&keys[0])?;
        keys.iter().try_for_each(|key| engine.refuse_nested(key))?;
        self.call.check(&keys[0])
    }

    /// Acquires the locks in their order.
    fn in_order(&self) -> Result<InOrder, Error> {
        let keys = self.keys;
        let mut asked = self.ask(0, keys.len());
        if asked.len() == keys.len() && asked.iter().all(|asked| asked.is_granted_at(asked.at)) {
            // All are held before the observer learns of one.
            let held = asked.iter_mut().map(|asked| self.call.hold(self.call.shared, asked)).collect();
            for asked in &asked {
                self.call.report_granted(asked.key, asked.at);
            }
            return Ok(InOrder::Acquired(held));
        }
        let (mut asked, mut early) = (AskedAll::new(self, asked)?, Vec::with_capacity(keys.len()));
        for (index, key) in keys.iter().enumerate() {
            match asked.first(index).and_then(|first| self.one(key, first)) {
                Ok(acquired) => early.push(self.keep_early(acquired, index + 1 == keys.len())),
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

    /// Asks for the locks from this one on in one trip, at most so many, unless it is this one alone: up to the first that a thread of this
    /// process has or waits for, or that is left to a process which was just notified of its release.
    fn ask(&self, index: usize, most: usize) -> Vec<Asked<'_>> {
        let Self { call, keys } = self;
        let is_busy = |key| self.may_wait() && (!call.engine.queue.is_open_to(key) || call.is_left(key));
        let keys = &keys[index..index + most];
        let keys = &keys[..keys.iter().take_while(|key| !is_busy(*key)).count()];
        if keys.len() < 2 {
            return Vec::new();
        }
        let connected = call.connect(&keys[0]);
        let (now, protocol) = (clock::now(), call.engine.protocol_of(call.options));
        let mut asked: Vec<Asked<'_>> = keys.iter().map(|key| call.asks(key, protocol, now)).collect();
        match connected {
            Ok(()) => call.send(&mut asked),
            Err(failure) => asked.iter_mut().for_each(|asked| asked.fail(&failure)),
        }
        asked
    }

    /// Waits for a lock, unless it was granted when it was asked for.
    fn one(&self, key: &Key, first: Option<Asked<'_>>) -> Result<Acquired, Error> {
        let call = Call { began: clock::now(), ..self.call };
        match first {
            Some(mut first) if first.is_granted_at(call.began) => {
                first.at = call.began;
                let acquired = call.hold(call.shared, &mut first);
                call.report_granted(key, first.at);
                Ok(acquired)
            }
            // What was lost of it is settled when all is given back.
            first => call.check(key).inspect_err(|error| self.report(key, 0, Err(error))).and_then(|()| {
                let is_lost = first.as_ref().is_some_and(Asked::is_lost);
                let waited = call.wait_for(Want::Lock(key), first).map(|(_, acquired)| acquired);
                waited.map_err(|(error, _)| match call.check(key) {
                    Err(ended) if is_lost && error.may_hold_lock() => ended,
                    _ => error,
                })
            }),
        }
    }

    /// Returns true if the call may wait for a holder.
    fn may_wait(&self) -> bool {
        self.call.options.timeout != Some(Duration::ZERO)
    }

    /// Reports a call that has ended before any of the locks was waited for by itself.
    fn report_of_each(&self, error: &Error, attempts: u32) {
        let keys = self.keys;
        // An error of none of them is that of all.
        let all = !keys.iter().any(|key| names(error, key));
        for key in keys.iter().filter(|key| all || names(error, key)) {
            self.report(key, attempts, Err(error));
        }
    }

    fn report(&self, key: &Key, attempts: u32, outcome: Result<(), &Error>) {
        let waited = clock::uptime().since(self.call.began.uptime);
        self.call.engine.observer.notify(&Event::AcquireFinished { key, waited, attempts, outcome });
    }

    /// Sends a command on each of several keys in one trip.
    fn send_each(&self, trips: &[KeyTrip<'_>]) -> Vec<Sent> {
        let limits = self.call.session(trips[0].key).limits(trips[0].trip, clock::now());
        self.call.engine.backend.send_all(trips, &limits)
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
