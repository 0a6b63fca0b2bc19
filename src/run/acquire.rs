//! Acquiring: asks for locks, waits for those that are not granted, and makes the hold: what guard, signals and keeper share of one.

mod call;
mod wait;

use std::sync::Arc;
use std::{mem, slice};

use super::engine::Engine;
use super::held::{Acquired, Delivery};
use crate::report::error::Error;
use crate::rules::choose::first_trip;
use crate::rules::lease::Lease;
use crate::run::hold::Hold;
use crate::run::thread_holds::{self, HoldKind};
use crate::values::clock::Now;
use crate::values::key::Key;
use crate::values::options::LockOptions;
use crate::wait::HolderTicket;
pub(super) use call::Asked;
pub(crate) use call::{Call, OneOf};
use wait::Wait;

impl<'a> Call<'a> {
    /// Waits until the lock is held, or there is an error.
    pub(crate) fn acquire(&self, key: &'a Key, kind: HoldKind) -> Result<Acquired, Error> {
        self.acquire_any(key, None, kind).map(|(_, acquired)| acquired)
    }

    /// Waits until one of several locks is held, or there is an error. Returns which.
    pub(crate) fn acquire_one_of(
        &self,
        name: &'a Key,
        one_of: OneOf<'a>,
        kind: HoldKind,
    ) -> Result<(usize, Acquired), Error> {
        self.acquire_any(name, Some(one_of), kind)
    }

    fn acquire_any(
        &self,
        key: &'a Key,
        one_of: Option<OneOf<'a>>,
        kind: HoldKind,
    ) -> Result<(usize, Acquired), Error> {
        let (slot, acquired) = self.ask_or_wait(key, one_of).map_err(|(error, _)| error)?;
        self.engine.note_begun(slice::from_ref(&acquired), Some(kind));
        Ok((slot, acquired))
    }

    /// The same for a hold that is noted for no thread. With an error, returns the leases that commands without a reply may have begun.
    pub(in crate::run) fn ask_or_wait(
        &self,
        key: &'a Key,
        one_of: Option<OneOf<'a>>,
    ) -> Result<(usize, Acquired), (Error, Vec<Lease>)> {
        let _registered = self.register();
        let queue = one_of.map(|one_of| one_of.queue);
        if !self.may_ask(key, queue.unwrap_or(key)) {
            return self.wait_for(key, one_of, None);
        }
        let protocol = self.engine.protocol_of(self.options);
        let mut asked = match one_of {
            None => self.asks(key, protocol, self.began),
            Some(OneOf { slots, .. }) => {
                let nonce = self.engine.identity.next_nonce();
                let (slot, lease, trip) = first_trip(self.options, protocol, slots, nonce, self.began);
                Asked { slot, ..Asked::of(&slots[slot], lease, trip, self.began) }
            }
        };
        self.send(slice::from_mut(&mut asked));
        if !asked.is_granted_at(asked.at) {
            return self.wait_for(key, one_of, Some(asked));
        }
        let acquired = self.hold(queue.or(self.shared), &mut asked);
        self.report_granted(key, asked.at);
        Ok((asked.slot, acquired))
    }

    /// Returns true if a lock may be asked for before it is waited for: no thread of this process has it or waits for it, so that this one is in
    /// no `with` on it, it is not left to a process that was just notified, and it is known what the options mean.
    fn may_ask(&self, key: &Key, queue: &Key) -> bool {
        let Self { engine, .. } = self;
        engine.identity.is_this_process()
            && !self.is_cancelled()
            && engine.knows_meaning_of(self.options)
            && self.readers.is_none_or(|count| engine.has_compared(count))
            && engine.queue.is_open_to(queue)
            && !self.is_left(key)
    }

    /// Waits for a lock, or for one of several, after what came of asking for it, if it was asked for. Returns which.
    #[cold]
    #[inline(never)]
    pub(in crate::run) fn wait_for(
        &self,
        key: &'a Key,
        one_of: Option<OneOf<'a>>,
        first: Option<Asked<'_>>,
    ) -> Result<(usize, Acquired), (Error, Vec<Lease>)> {
        let wait = Wait::new(self, key, one_of);
        wait.acquire(first).map_err(|error| (error, wait.into_unresolved()))
    }
}

impl Engine {
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
