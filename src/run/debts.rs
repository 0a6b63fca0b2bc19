//! Debts: what may be in a key and is not wanted. A release has failed, or a command that acquires had no reply and may
//! still arrive, whatever the key showed since. One worker pays them: it releases the lock when the key shows that it is
//! held, with one trip for all keys of a node, and tries again until the lease ends. In between it pauses, longer each
//! time. Threads that wait in this process learn of the release, or get the lock.
//!
//! A debt never deletes another client's value (I5, I6): by a transaction only its own bytes go. In Classic, GET shows
//! them and DEL follows within the lease; so it takes the reply to a DEL as the last word, and what a GETSET without a
//! reply has written is no debt.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use proto::hold::Release;
use proto::lease::Lease;
use proto::unresolved::Unresolved;
use proto::values::{Key, Now, Protocol, Uptime};
use proto::{Command, GiveUp, Reply, Trip};

use super::engine::{Debt, Engine, for_each_engine};
use super::held::{Delivery, HeldLock};
use super::session::Session;
use crate::net::KeyTrip;
use crate::report::event::Event;
use crate::system::clock;
use crate::values::options::LockOptions;
use crate::wait::{HolderTicket, Observation, no_hold};

/// The shortest and the longest pause before the next attempt. It is as long as the debt is old.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];

/// How much earlier an attempt may be made, together with others.
const SLACK: Duration = Duration::from_millis(20);

impl Debt {
    /// Returns true if it is known that the lock was held.
    pub(crate) fn is_held(&self) -> bool {
        self.holder.is_some()
    }

    /// Returns the lock to release, if it is known to be held.
    fn take_lock(&mut self) -> Option<HeldLock<'_>> {
        let Self { key, options, lease, holder, since, .. } = self;
        let (lease, holder) = (mem::take(lease), holder.take()?);
        Some(HeldLock { key, options, lease, holder, since: Some(*since) })
    }
}

/// Pays what is due.
pub(super) fn work(due: Vec<Debt>) {
    for_each_engine(due, |debt| &debt.engine, Engine::pay);
}

impl Engine {
    /// Owes locks that commands without a reply may have acquired: `slots` are those that the call was about. Returns
    /// true if there are some.
    pub(super) fn owe_unresolved(
        self: &Arc<Self>,
        slots: &[Key],
        shared: Option<&Key>,
        options: &LockOptions,
        unresolved: Unresolved,
    ) -> bool {
        let since = clock::uptime();
        let debts = unresolved.into_owed().map(|(slot, lease)| {
            let (engine, key, shared) = (Arc::clone(self), slots[slot].clone(), shared.cloned());
            Debt { engine, key, options: *options, shared, lease, holder: None, since }
        });
        // Without a thread for them they expire.
        debts.filter_map(|debt| self.owe(debt).ok()).count() > 0
    }

    /// Owes a release that gave up for this reason, if it may be tried again. `next`: the lease that the key may hold
    /// instead of its own.
    ///
    /// # Errors
    ///
    /// The holder, if the release is not tried again.
    pub(super) fn owe_release(
        self: &Arc<Self>,
        failed: HeldLock<'_>,
        gave_up: GiveUp,
        next: Option<&Lease>,
        now: Now,
    ) -> Result<(), HolderTicket<Delivery>> {
        let HeldLock { key, options, lease, holder, since } = failed;
        let Some(lease) = lease.again(gave_up, next, now) else { return Err(holder) };
        let since = since.unwrap_or(now.uptime);
        let left = match lease.end {
            Some(end) => end.remaining(now),
            None => since.after(self.backend.retry_for()).since(now.uptime),
        };
        if left < pause(since, now.uptime) {
            return Err(holder);
        }
        // What threads wait for is known by the holder.
        let (engine, key, shared) = (Arc::clone(self), key.clone(), None);
        let debt = Debt { engine, key, options: *options, shared, lease, holder: Some(holder), since };
        self.owe(debt).map_err(|holder| holder.unwrap_or_else(|| unreachable!("it has one")))
    }

    /// Has a debt paid after a pause.
    ///
    /// # Errors
    ///
    /// Its holder, if there is no thread for it, or the locker was dropped or shut down since.
    fn owe(&self, debt: Debt) -> Result<(), Option<HolderTicket<Delivery>>> {
        if self.debts.is_closed() {
            return Err(debt.holder);
        }
        let now = clock::uptime();
        let (node, at) = (self.backend.node_of(&debt.key), now.after(pause(debt.since, now)));
        self.debts.add(node, at, SLACK, debt).map(drop).map_err(|(_, debt)| debt.holder)
    }

    /// Releases the locks that are held, in two trips at most for each node.
    fn pay(self: &Arc<Self>, due: Vec<Debt>) {
        let mut held = self.find_held(due);
        // A failure is owed anew.
        let released = self.release_all(held.iter_mut().filter_map(Debt::take_lock).collect(), clock::now());
        for (debt, released) in held.iter().zip(released) {
            if let Ok(Release::Released { .. }) = released {
                let after = clock::uptime().since(debt.since);
                self.observer.notify(&Event::ReleasedLate { key: &debt.key, after });
            }
        }
    }

    /// Returns the debts whose locks are held, as their keys show it. The others are looked at again, until their
    /// leases end.
    fn find_held(self: &Arc<Self>, due: Vec<Debt>) -> Vec<Debt> {
        let (mut held, in_doubt): (Vec<_>, Vec<_>) = due.into_iter().partition(Debt::is_held);
        // While a thread of this process has the lock, its value is in the key.
        let (later, in_doubt) = in_doubt.into_iter().partition(|debt| self.queue.is_held(&debt.key));
        self.owe_again(later, clock::now());
        let (now, get) = (clock::now(), Trip::of(Command::Get));
        let trips: Vec<_> = in_doubt.iter().map(|debt| KeyTrip::new(&debt.key, &get)).collect();
        let Some(first) = trips.first() else { return held };
        let mut session = Session::new(self, first.key, Protocol::Classic, Some(now.uptime));
        session.try_itself();
        let found = self.backend.send_all(&trips, &session.limits(&get, now));
        let now = clock::now();
        let mut later = Vec::new();
        for (mut debt, found) in in_doubt.into_iter().zip(found) {
            let Debt { key, shared, lease, .. } = &debt;
            if matches!(&found.reply, Some(Ok(Reply::Bulk(Some(found)))) if lease.value == *found) {
                let observation = Observation::of(lease, now);
                debt.holder = Some(self.queue.hold(key, shared.as_ref(), &observation, no_hold()));
                held.push(debt);
            } else {
                later.push(debt);
            }
        }
        self.owe_again(later, now);
        held
    }

    /// Has debts looked at again whose leases have not passed.
    fn owe_again(&self, debts: Vec<Debt>, now: Now) {
        for debt in debts.into_iter().filter(|debt| !debt.lease.has_passed(now)) {
            // Without a thread for it, it expires.
            let _ = self.owe(debt);
        }
    }
}

/// How long the pause is before the next attempt.
fn pause(since: Uptime, now: Uptime) -> Duration {
    now.since(since).clamp(PAUSES[0], PAUSES[1])
}
