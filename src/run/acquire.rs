//! Acquiring: waits for the lock, and makes the hold: what guard, signals and keeper share of it.

mod wait;

use std::sync::Arc;
use std::{mem, slice};

use super::engine::Engine;
use super::held::{Acquired, Delivery};
use super::readers::ReaderCount;
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
pub(super) use wait::{Answer, Wait};

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
        self.acquire_by(&wait, Some(kind))
    }

    pub(super) fn acquire_by(
        self: &Arc<Self>,
        wait: &Wait<'_>,
        kind: Option<HoldKind>,
    ) -> Result<Acquired, Error> {
        let (_, acquired) = self.grant(wait)?;
        self.note_begun(slice::from_ref(&acquired), kind);
        Ok(acquired)
    }

    /// Waits for a lock, and reports how that has ended. Returns which of several it is.
    pub(super) fn grant(&self, wait: &Wait<'_>) -> Result<(usize, Acquired), Error> {
        let acquired = wait.acquire();
        let (attempts, outcome) = (wait.attempts(), acquired.as_ref().map(|_| ()));
        let ended = acquired.as_ref().map_or_else(|_| clock::uptime(), |(_, it)| it.hold.acquired.uptime);
        let waited = ended.since(wait.began().uptime);
        self.observer.notify(&Event::AcquireFinished { key: wait.key(), waited, attempts, outcome });
        acquired
    }

    /// Notes a lock that was granted to a thread without a place in its queue.
    pub(super) fn granted(
        &self,
        key: &Key,
        options: &LockOptions,
        shared: Option<&Key>,
        lease: Lease,
        now: Now,
    ) -> Acquired {
        if self.notifies(options) {
            self.notifications.of(key).acquired(key);
        }
        let holder = self.queue.hold(key, shared, &Observation::of(&lease, now));
        self.make_hold(key.clone(), options, lease, holder, now)
    }

    /// Makes the hold of a lock that was acquired then.
    pub(super) fn make_hold(
        &self,
        key: Key,
        options: &LockOptions,
        lease: Lease,
        holder: HolderTicket<Delivery>,
        at: Now,
    ) -> Acquired {
        let (observer, changes) = (self.observer.clone(), Arc::clone(&self.changes));
        Acquired { hold: Arc::new(Hold::new(key, *options, at, lease, observer, changes)), holder }
    }

    /// Returns a lock with another hold in place of its own, which began then.
    pub(super) fn begun_anew(
        &self,
        Acquired { hold, holder }: Acquired,
        options: &LockOptions,
        at: Now,
    ) -> Acquired {
        let lease = mem::take(&mut hold.own().lease);
        self.make_hold(hold.key.clone(), options, lease, holder, at)
    }

    /// Writes the holder's names, and has the keeper work on locks that were acquired. With a `kind`, they are noted as locks of this thread.
    pub(super) fn note_begun(self: &Arc<Self>, acquired: &[Acquired], kind: Option<HoldKind>) {
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
