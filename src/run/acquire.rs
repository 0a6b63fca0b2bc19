//! Acquiring: waits for the lock, and makes the hold: what guard, signals and keeper share of it.

mod wait;

use std::slice;
use std::sync::Arc;

use super::{Delivery, Engine};
use crate::report::error::Error;
use crate::report::event::Event;
use crate::rules::Observation;
use crate::rules::lease::Lease;
use crate::run::hold::Hold;
use crate::run::thread_holds::{self, HoldKind};
use crate::values::clock::{self, Now};
use crate::values::key::Key;
use crate::values::options::LockOptions;
use crate::wait::{CancelToken, HolderTicket};
pub(crate) use wait::ReaderCount;
pub(super) use wait::{Answer, ComparedReaders, Granted, Wait};

/// A lock that was acquired.
pub(crate) struct Acquired {
    pub(crate) hold: Arc<Hold>,
    pub(crate) holder: HolderTicket<Delivery>,
}

impl Engine {
    /// Waits until the lock is held, or there is an error. With `readers` it is that of a reader.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        key: &Key,
        options: &LockOptions,
        cancel_token: Option<&CancelToken>,
        readers: Option<&ReaderCount>,
        kind: HoldKind,
    ) -> Result<Acquired, Error> {
        let wait = Wait::new(self, key, options, cancel_token, clock::now()).comparing(readers);
        self.acquire_by(&wait, options, Some(kind))
    }

    pub(super) fn acquire_by(
        self: &Arc<Self>,
        wait: &Wait<'_>,
        options: &LockOptions,
        kind: Option<HoldKind>,
    ) -> Result<Acquired, Error> {
        let granted = self.grant(wait)?;
        Ok(self.begin_hold(wait.key().clone(), granted, options, kind))
    }

    /// Waits for a lock, and reports how that has ended.
    pub(super) fn grant(&self, wait: &Wait<'_>) -> Result<Granted, Error> {
        let granted = wait.acquire();
        let (attempts, outcome) = (wait.attempts(), granted.as_ref().map(|_| ()));
        let ended = granted.as_ref().map_or_else(|_| clock::uptime(), |granted| granted.at.uptime);
        let waited = ended.since(wait.began().uptime);
        self.observer.notify(&Event::AcquireFinished { key: wait.key(), waited, attempts, outcome });
        granted
    }

    /// Notes a lock that was granted to a thread without a place in its queue.
    pub(super) fn granted(
        &self,
        key: &Key,
        options: &LockOptions,
        shared: Option<&Key>,
        lease: Lease,
        now: Now,
    ) -> Granted {
        if self.notifies(options) {
            self.notifications.of(key).acquired(key);
        }
        let holder = self.queue.hold(key, shared, &Observation::of(&lease, now));
        Granted { slot: 0, lease, holder, at: now }
    }

    /// Makes the hold of a lock that was granted, writes the holder's name and has the keeper work on it. With a `kind`, it is noted as one
    /// of this thread.
    pub(super) fn begin_hold(
        self: &Arc<Self>,
        key: Key,
        granted: Granted,
        options: &LockOptions,
        kind: Option<HoldKind>,
    ) -> Acquired {
        let acquired = self.make_hold(key, granted, options);
        self.note_begun(slice::from_ref(&acquired), kind);
        acquired
    }

    /// The same for several.
    pub(super) fn begin_holds(
        self: &Arc<Self>,
        granted: Vec<(Key, Granted)>,
        options: &LockOptions,
        kind: Option<HoldKind>,
    ) -> Vec<Acquired> {
        let begin = |(key, granted)| self.make_hold(key, granted, options);
        let acquired: Vec<Acquired> = granted.into_iter().map(begin).collect();
        self.note_begun(&acquired, kind);
        acquired
    }

    fn make_hold(&self, key: Key, granted: Granted, options: &LockOptions) -> Acquired {
        let Granted { lease, holder, at, .. } = granted;
        let (observer, changes) = (self.observer.clone(), Arc::clone(&self.changes));
        let hold = Hold::new(key, *options, at, lease, observer, changes);
        Acquired { hold: Arc::new(hold), holder }
    }

    fn note_begun(self: &Arc<Self>, acquired: &[Acquired], kind: Option<HoldKind>) {
        if self.holder_name.is_some() {
            self.name(acquired);
        }
        for Acquired { hold, .. } in acquired {
            self.keep_by_options(hold);
            if let Some(kind) = kind {
                thread_holds::note(&self.identity, hold, kind);
            }
        }
    }

    /// Writes the holder's name beside each key.
    fn name(&self, acquired: &[Acquired]) {
        let value = |Acquired { hold, .. }: &'_ Acquired| hold.own().lease.value;
        self.write_names(acquired.iter().map(|one| (&one.hold, value(one), one.hold.options.expiration)));
    }
}
