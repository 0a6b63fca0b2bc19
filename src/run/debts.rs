//! Debts: what may be in a key and is not wanted. A release has failed, or a command that acquires had no reply and may
//! still arrive, whatever the key showed since. One worker pays them: it releases the lock when the key shows that it is
//! held, with one trip for all keys of a node, and tries again until the lease ends. In between it pauses, longer each
//! time. Threads that wait in this process learn of the release, or get the lock.
//!
//! A debt never deletes another client's value (I5, I6): by a transaction only its own bytes go. In Classic, GET shows
//! them and DEL follows within the lease; so it takes the reply to a DEL as the last word, and what a GETSET without a
//! reply has written is no debt.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use proto::hold::Release;
use proto::lease::Lease;
use proto::ownership::Loss;
use proto::unresolved::Unresolved;
use proto::values::{Key, Now, Protocol, Uptime};
use proto::{Command, GiveUp, Reply, Trip};

use super::codec::key_trip;
use super::ending::Leaving;
use super::engine::{Debt, Engine, for_each_engine};
use super::held::{HeldLock, Holder};
use super::hold::Hold;
use super::open_debts::{DebtId, OpenDebt};
use super::session::Session;
use super::thread_holds;
use crate::net::Sent;
use crate::report::error::Error;
use crate::report::event::{Event, Settlement};
use crate::system::clock;
use crate::values::options::LockOptions;
use crate::wait::{Observation, no_hold};

/// The shortest and the longest pause before the next attempt. It is as long as the debt is old; and at least a tenth of
/// that where the key does not show the lock.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];

/// How much earlier an attempt may be made, together with others.
const SLACK: Duration = Duration::from_millis(20);

/// The advice of an error in doubt if a debt was made.
pub(crate) const RELEASED_IF_ACQUIRED: &str = "if the lock was acquired, a background thread releases it, or it frees itself when its lease has passed; try again then";

impl Debt {
    /// Returns true if it is known that the lock was held.
    fn is_held(&self) -> bool {
        self.holder.is_some()
    }

    /// Returns true if it is worth a wait: unless the key has just not shown the lock, so that it only may come late.
    pub(crate) fn is_waited_for(&self) -> bool {
        !self.is_absent
    }

    /// Returns the lock to release, if it is known to be held.
    fn take_lock(&mut self) -> Option<HeldLock<'_>> {
        let owed = if self.is_first { None } else { Some(self.owed) };
        let Self { key, options, lease, holder, .. } = self;
        let (lease, holder) = (mem::take(lease), holder.take()?);
        Some(HeldLock { key, options, lease, holder, owed })
    }
}

/// Pays what is due.
pub(super) fn work(due: Vec<Debt>) {
    for_each_engine(due, |debt| &debt.engine, Engine::pay);
}

impl Engine {
    /// Owes what commands without a reply may have acquired of this lock. Returns true if there is something.
    pub(crate) fn owe_unresolved(
        self: &Arc<Self>,
        key: &Key,
        options: &LockOptions,
        unresolved: Unresolved,
    ) -> bool {
        let owe = |lease: Lease| {
            let owed = self.open_debts.enter(key.clone(), lease.end, clock::now());
            let debt = Debt { lease, is_first: false, ..self.debt(key, options, owed) };
            // Without a thread for it, it expires.
            self.owe(debt).map_err(|_| self.open_debts.leave(owed)).ok()
        };
        unresolved.into_owed().filter_map(owe).count() > 0
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
        owed: DebtId,
        gave_up: GiveUp,
        next: Option<&Lease>,
        now: Now,
    ) -> Result<(), Holder> {
        let HeldLock { key, options, lease, holder, .. } = failed;
        let Some(lease) = lease.again(gave_up, next, now) else { return Err(holder) };
        let left = match lease.end {
            Some(end) => end.remaining(now),
            None => owed.since.after(self.backend.retry_for()).since(now.uptime),
        };
        if left < PAUSES[0] {
            return Err(holder);
        }
        let holder = Some(holder);
        let debt = Debt { lease, holder, is_first: false, ..self.debt(key, options, owed) };
        self.owe(debt).map_err(|debt| debt.holder.unwrap_or_else(|| unreachable!("it has one")))
    }

    /// Has the worker release a lock that was given up, at once; without a thread for it this thread does it.
    pub(super) fn release_unwanted(self: &Arc<Self>, lock: HeldLock<'_>) {
        let HeldLock { key, options, lease, holder, .. } = lock;
        let owed = self.open_debts.enter(key.clone(), lease.end, clock::now());
        self.owe_at_once(Debt { lease, holder: Some(holder), ..self.debt(key, options, owed) });
    }

    /// Has the worker end a hold that its program has given up, at once; without a thread for it this thread does it.
    pub(crate) fn release_later(self: &Arc<Self>, hold: &Arc<Hold>, holder: Holder) {
        let now = clock::now();
        // It is listed by these two. Its thread may ask for the lock again before it is released.
        hold.give_up(now);
        thread_holds::forget(hold);
        let owed = DebtId::unlisted(now);
        let (debt, hold) = (self.debt(&hold.key, &hold.options, owed), Some(Arc::clone(hold)));
        self.owe_at_once(Debt { holder: Some(holder), hold, ..debt });
    }

    fn owe_at_once(self: &Arc<Self>, debt: Debt) {
        if let Err(debt) = self.owe(debt) {
            self.pay(vec![*debt]);
        }
    }

    fn debt(self: &Arc<Self>, key: &Key, options: &LockOptions, owed: DebtId) -> Debt {
        Debt {
            engine: Arc::clone(self),
            key: key.clone(),
            options: *options,
            lease: Lease::default(),
            holder: None,
            hold: None,
            owed,
            is_first: true,
            is_absent: false,
        }
    }

    /// Returns what is owed now: also what is being released.
    pub(crate) fn open_debts(&self) -> BTreeMap<Key, OpenDebt> {
        let is_given_up =
            |hold: &Arc<Hold>| hold.is_dropped.load(Ordering::Relaxed) && hold.given_up().is_some();
        let given_up = self.holds().filter(is_given_up);
        let given_up = given_up.map(|hold| (hold.key.clone(), OpenDebt { end: hold.end(), why: None }));
        // Before those that have an entry: one whose release fails meanwhile gets it first.
        let given_up: Vec<_> = given_up.collect();
        let held: BTreeSet<Key> = self.held().iter().map(|hold| hold.key.clone()).collect();
        self.open_debts.list(given_up, |key| held.contains(key), clock::now())
    }

    /// Notes that a debt is settled. One that is left to expire stays for those who ask.
    pub(super) fn settle(&self, key: &Key, owed: DebtId, outcome: Settlement) {
        if outcome == Settlement::LeftToExpire {
            self.open_debts.leave(owed);
        } else {
            self.open_debts.remove(owed);
        }
        let after = clock::uptime().since(owed.since);
        self.observer.notify(&Event::Settled { key, after, outcome });
    }

    /// Has a debt paid: one that was not paid before after a pause.
    ///
    /// # Errors
    ///
    /// The debt, if there is no thread for it, or the locker was dropped or shut down since.
    fn owe(&self, debt: Debt) -> Result<(), Box<Debt>> {
        if !debt.is_first && self.debts.is_closed() {
            return Err(Box::new(debt));
        }
        let now = clock::uptime();
        let left = debt.lease.end.map_or(Duration::MAX, |end| end.uptime.since(now));
        let pause = match debt {
            Debt { is_first: true, .. } => Duration::ZERO,
            // It only may come late.
            Debt { is_absent: true, .. } => {
                pause(debt.owed.since, now).max(now.since(debt.owed.since) / 10).min(left)
            }
            // The last attempts come closer together, while the lock is still held.
            _ => pause(debt.owed.since, now).min(left / 2),
        };
        let node = self.backend.node_of(&debt.key);
        let added = self.debts.add(node, now.after(pause), SLACK, debt);
        added.map(drop).map_err(|(_, debt)| Box::new(debt))
    }

    /// Ends the holds, and releases the locks that are held, in two trips at most for each node.
    fn pay(self: &Arc<Self>, due: Vec<Debt>) {
        let (ended, due) = due.into_iter().partition(|debt: &Debt| debt.hold.is_some());
        self.end_owed(ended);
        let mut held = self.find_held(due);
        // A failure is owed anew.
        let released = self.release_all(held.iter_mut().filter_map(Debt::take_lock).collect(), clock::now());
        for (Debt { key, owed, is_first, .. }, released) in held.iter().zip(released) {
            match released {
                Ok(_) if *is_first => self.open_debts.remove(*owed),
                Ok(Release::Released { .. }) => self.settle(key, *owed, Settlement::Released),
                Ok(Release::Lost(Loss::Expired)) => self.settle(key, *owed, Settlement::LeftToExpire),
                Ok(Release::Lost(_)) => self.settle(key, *owed, Settlement::NotHeld),
                Err(error) if *is_first => {
                    self.open_debts.remove(*owed);
                    self.observer.notify(&Event::ReleaseFailed { key, error: &error });
                }
                Err(_) => {}
            }
        }
    }

    fn end_owed(self: &Arc<Self>, owed: Vec<Debt>) {
        // In the order of their keys, those of several: the last was added first.
        let ended: Vec<_> = owed.into_iter().rev().filter_map(|debt| debt.hold.zip(debt.holder)).collect();
        let (holds, holders): (Vec<Arc<Hold>>, Vec<_>) = ended.into_iter().unzip();
        let ending = holds.iter().zip(holders).collect();
        for (hold, ended) in self.end_holds(ending, Leaving::Release) {
            self.report_end(hold, Leaving::Release, &ended);
        }
    }

    /// Returns the debts whose locks are held, as their keys show it. The others are looked at again, until their
    /// leases end.
    fn find_held(self: &Arc<Self>, due: Vec<Debt>) -> Vec<Debt> {
        let (mut held, in_doubt): (Vec<_>, Vec<_>) = due.into_iter().partition(Debt::is_held);
        // While a thread of this process has the lock, its value is in the key.
        let (mut later, in_doubt): (Vec<_>, Vec<_>) =
            in_doubt.into_iter().partition(|debt| self.queue.is_held(&debt.key));
        for debt in &mut later {
            debt.is_absent = true;
        }
        self.owe_again(later);
        let (now, get) = (clock::now(), Trip::of(Command::Get));
        let trips: Vec<_> = in_doubt.iter().map(|debt| key_trip(&debt.key, &get)).collect();
        let Some(first) = trips.first() else { return held };
        let mut session = Session::new(self, first.key, Protocol::Classic, Some(now.uptime));
        session.limits.try_itself();
        let found = self.backend.send_all(&trips, &session.limits.of(&get, now));
        let now = clock::now();
        let mut later = Vec::new();
        for (mut debt, Sent { reply: found, .. }) in in_doubt.into_iter().zip(found) {
            let Debt { key, lease, .. } = &debt;
            match found {
                Some(Ok(Reply::Bulk(Some(found)))) if lease.value == *found => {
                    let observation = Observation::of(lease, now);
                    debt.holder = Some(self.queue.hold(key, &observation, no_hold()));
                    held.push(debt);
                }
                found => {
                    // A look that fails takes nothing back of what was seen before.
                    debt.is_absent |= matches!(found, Some(Ok(_)));
                    if let Some(Err(failure)) = found {
                        let why = Error::of_failure(debt.key.clone(), "GET", failure);
                        self.open_debts.note(debt.owed, &why);
                    }
                    later.push(debt);
                }
            }
        }
        self.owe_again(later);
        held
    }

    /// Has debts looked at again whose leases have not passed.
    fn owe_again(&self, debts: Vec<Debt>) {
        let now = clock::now();
        for debt in debts {
            let (key, owed) = (debt.key.clone(), debt.owed);
            let outcome = if debt.is_absent { Settlement::NotHeld } else { Settlement::LeftToExpire };
            if debt.lease.has_passed(now) || self.owe(debt).is_err() {
                self.settle(&key, owed, outcome);
            }
        }
    }
}

/// How long the pause is before the next attempt.
fn pause(since: Uptime, now: Uptime) -> Duration {
    now.since(since).clamp(PAUSES[0], PAUSES[1])
}
