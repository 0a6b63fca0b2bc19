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
use crate::rules::unresolved::Unresolved;
use crate::run::hold::Hold;
use crate::run::thread_holds::{self, HoldKind};
use crate::values::clock::Now;
use crate::values::key::Key;
use crate::values::options::LockOptions;
use crate::wait::HolderTicket;
pub(super) use call::Asked;
pub(crate) use call::{Call, Want};
use wait::Wait;

impl<'a> Call<'a> {
    /// Waits until a lock is held, or there is an error. Returns which of several it is.
    pub(crate) fn acquire(&self, want: Want<'a>, kind: HoldKind) -> Result<(usize, Acquired), Error> {
        let (slot, acquired) = self.ask_or_wait(want).map_err(|(error, _)| error)?;
        self.engine.note_begun(slice::from_ref(&acquired), Some(kind));
        Ok((slot, acquired))
    }

    /// The same for a hold that is noted for no thread. With an error, returns what commands without a reply may have acquired of a lock.
    pub(in crate::run) fn ask_or_wait(
        &self,
        want: Want<'a>,
    ) -> Result<(usize, Acquired), (Error, Unresolved)> {
        let _registered = self.register();
        if !self.may_ask(want) {
            return self.wait_for(want, None);
        }
        let protocol = self.engine.protocol_of(self.options);
        let (mut asked, shared) = match want {
            Want::Lock(key) => (self.asks(key, protocol, self.began), self.shared),
            Want::OneOf { slots, queue, .. } => {
                let nonce = self.engine.identity.next_nonce();
                let (slot, lease, trip) = first_trip(self.options, protocol, slots, nonce, self.began);
                (Asked { slot, ..Asked::of(&slots[slot], lease, trip, self.began) }, Some(queue))
            }
        };
        self.send(slice::from_mut(&mut asked));
        if !asked.is_granted_at(asked.at) {
            return self.wait_for(want, Some(asked));
        }
        let acquired = self.hold(shared, &mut asked);
        self.report_granted(want.name(), asked.at);
        Ok((asked.slot, acquired))
    }

    /// Returns true if a lock may be asked for before it is waited for: no thread of this process has it or waits for it, so that this one is in
    /// no `with` on it, it is not left to a process that was just notified, and it is known what the options mean.
    fn may_ask(&self, want: Want<'_>) -> bool {
        let Self { engine, .. } = self;
        engine.identity.is_this_process()
            && !self.is_cancelled()
            && engine.knows_meaning_of(self.options)
            && self.readers.is_none_or(|count| engine.has_compared(count))
            && engine.queue.is_open_to(want.queue())
            && !self.is_left(want.name())
    }

    /// Waits for a lock, after what came of asking for it, if it was asked for. Returns which of several it is.
    #[cold]
    #[inline(never)]
    pub(in crate::run) fn wait_for(
        &self,
        want: Want<'a>,
        first: Option<Asked<'a>>,
    ) -> Result<(usize, Acquired), (Error, Unresolved)> {
        Wait::new(self, want, first).acquire()
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
