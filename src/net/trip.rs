//! A round trip: what goes over a connection together for several keys and threads, and how the replies get to each.
//!
//! | in this order | for whom |
//! |---|---|
//! | the changes, and EXEC; or DISCARD if there are none | whose key was found to hold what it should, in the trip before |
//! | what goes behind each change | the same |
//! | a command, and what goes behind it | each of the others |
//! | WATCH and GET for each, and MULTI | who changes a key if it holds what it should |
//!
//! So threads that change keys by transactions share two trips; of several that change one key, the first does. MULTI
//! goes with what is watched: a server that refuses it does so before any change is on its way. If one of the keys was
//! written meanwhile, none is changed. That decides nothing about a key, which goes again: see `server/again.rs`.

use std::collections::BTreeSet;
use std::mem;
use std::sync::Arc;

use proto::values::Now;
use redis::Value;

use super::connections::Known;
use super::errors::TransportError;
use super::incoming::{self, AfterTrip, Incoming};
use super::item::Item;
use super::jobs::{Jobs, KEPT, Phase, TripState};
use super::lanes::Entry;
use super::packed::{Form, Packed};
use crate::system::sync::MutexGuard;

/// How large a buffer is that is used again, in bytes.
const LARGE: usize = 64 * 1024;

/// What is on the wire of a connection.
#[derive(Default)]
pub(super) struct Wire {
    pub(super) packed: Packed,
    pub(super) replies: Vec<Value>,
    /// The transaction that is open: how many keys it watches. The next trip ends it.
    open: Option<usize>,
    /// The one that this trip ends.
    ends: Option<usize>,
    /// MULTI, or DISCARD.
    beside: Item,
    /// How many jobs share this trip.
    pub(super) jobs: usize,
}

impl Wire {
    /// How many replies the trip has.
    pub(super) fn count(&self) -> usize {
        self.packed.awaited.len()
    }

    /// Returns true if a transaction is open.
    pub(super) fn is_watching(&self) -> bool {
        self.open.is_some()
    }

    /// Packs what may be sent now. Once a thread waits no longer, it has taken what is not sent as such.
    pub(super) fn pack<C>(&mut self, batch: &[Arc<Entry<Jobs, C>>], server: &Known, now: Now) {
        let waits = |entry: &Entry<Jobs, C>| !entry.is_gone();
        locked(batch, waits, |batch| self.pack_jobs(batch, server, now));
    }

    #[inline]
    fn pack_jobs(&mut self, batch: &mut [Locked<'_>], server: &Known, now: Now) {
        self.packed.clear();
        self.replies.clear();
        if self.jobs > KEPT {
            self.give_memory_back();
        }
        self.jobs = 0;
        self.ends = self.open.take();
        if self.ends.is_some() {
            self.pack_changes(batch, server, now);
        }
        let (mut looks, mut asks) = (false, false);
        for jobs in &mut *batch {
            self.jobs += jobs.used;
            for job in jobs.all() {
                let phase = job.phase;
                match phase {
                    Phase::Plain if job.sends(server, now) => {
                        self.packed.take(&mut job.own.packed);
                        if job.behind.is_sent() {
                            self.packed.take(&mut job.behind.packed);
                        }
                    }
                    Phase::Looking if job.looks(server, now) => (looks, asks) = (true, job.asks),
                    _ => {}
                }
            }
        }
        if looks {
            for job in each(batch).filter(|job| job.is_on_the_wire(Phase::Looking)) {
                self.packed.take(&mut job.look.packed);
            }
            self.packed.asks = asks;
            self.packed.okay().begun(b"*1\r\n$5\r\nMULTI\r\n", &[]);
            self.packed.asks = false;
        }
    }

    #[cold]
    fn give_memory_back(&mut self) {
        self.packed.bytes.shrink_to(LARGE);
        self.replies.shrink_to(KEPT);
    }

    fn pack_changes(&mut self, batch: &mut [Locked<'_>], server: &Known, now: Now) {
        for job in each(batch) {
            if job.phase == Phase::Changing && job.sends(server, now) {
                self.packed.take(&mut job.own.packed);
            }
        }
        if self.count() == 0 {
            self.packed.okay().words(&[b"DISCARD"]);
            return;
        }
        self.packed.awaits(Form::ListOrNil).begun(b"*1\r\n$4\r\nEXEC\r\n", &[]);
        for job in each(batch).filter(|job| job.is_on_the_wire(Phase::Changing)) {
            if job.behind.is_sent() {
                self.packed.take(&mut job.behind.packed);
            }
        }
    }

    /// Reads the replies, of which `ended` says why some are missing, and gives each job its own, in the order in which
    /// they were packed. Each job is a phase further then.
    pub(super) fn read<C>(
        &mut self,
        batch: &[Arc<Entry<Jobs, C>>],
        ended: Option<TransportError>,
    ) -> AfterTrip {
        locked(batch, |_| true, |batch| self.read_jobs(batch, ended))
    }

    #[inline]
    fn read_jobs(&mut self, batch: &mut [Locked<'_>], ended: Option<TransportError>) -> AfterTrip {
        let mut values = mem::take(&mut self.replies);
        let mut replies = Incoming::of(&mut values, ended);
        if let Some(watched) = self.ends {
            self.open = read_changes(batch, watched > 1, &mut self.beside, &mut replies).then_some(watched);
        }
        let mut looks = false;
        for jobs in &mut *batch {
            for job in jobs.all() {
                match job.phase {
                    Phase::Plain => {
                        replies.give(&mut job.own);
                        replies.give(&mut job.behind);
                        job.phase = Phase::Done;
                    }
                    Phase::Looking if job.look.is_sent() => looks = true,
                    Phase::Looking => job.phase = Phase::Done,
                    Phase::Changing | Phase::Done => {}
                }
            }
        }
        if looks {
            self.open = read_looks(batch, &mut self.beside, &mut replies);
        }
        let after = mem::take(&mut replies.after);
        drop(replies);
        self.replies = values;
        after
    }
}

/// The jobs of an entry. All of a batch are locked while they are packed, and while their replies are read: a thread may
/// give up at any time, and takes what came of its jobs before or after.
type Locked<'a> = MutexGuard<'a, Jobs>;

/// Locks the jobs of those of a batch that are wanted then.
#[inline]
fn locked<C, T>(
    batch: &[Arc<Entry<Jobs, C>>],
    wanted: impl Fn(&Entry<Jobs, C>) -> bool,
    then: impl FnOnce(&mut [Locked<'_>]) -> T,
) -> T {
    let lock = |entry| {
        let jobs = Entry::job(entry);
        wanted(entry).then_some(jobs)
    };
    match batch {
        [one] => then(lock(one).as_mut_slice()),
        batch => then(&mut batch.iter().filter_map(|entry| lock(entry)).collect::<Vec<_>>()),
    }
}

fn each<'a>(batch: &'a mut [Locked<'_>]) -> impl Iterator<Item = &'a mut TripState> {
    batch.iter_mut().flat_map(|jobs| jobs.all())
}

/// Reads the end of a transaction, which watches `many` keys. Returns whether it may be open still.
fn read_changes(
    batch: &mut [Locked<'_>],
    many: bool,
    discard: &mut Item,
    replies: &mut Incoming<'_>,
) -> bool {
    let may_be_open = end_transaction(each(batch), discard, replies);
    for job in each(batch).filter(|job| job.phase == Phase::Changing) {
        job.phase = Phase::Done;
        job.undecided = if many { job.own.undecided() } else { None };
        replies.give(&mut job.behind);
    }
    may_be_open
}

/// Reads the replies to the changes of a transaction, and to what ends it. Returns whether it may be open still.
#[inline]
fn end_transaction<'a>(
    jobs: impl Iterator<Item = &'a mut TripState>,
    discard: &mut Item,
    replies: &mut Incoming<'_>,
) -> bool {
    let mut changes = jobs.filter(|job| job.is_on_the_wire(Phase::Changing)).map(|job| &mut job.own);
    match (changes.next(), changes.next()) {
        (None, _) => {
            discard.set_beside("DISCARD", false);
            replies.give(discard);
            replies.after.out_of_order |= !incoming::is_closed_by(&discard.replies);
            false
        }
        (Some(one), None) => replies.give_change(one),
        (first, second) => {
            replies.give_changes(&mut first.into_iter().chain(second).chain(changes).collect::<Vec<_>>())
        }
    }
}

/// Reads what each key holds that is watched now. Returns how many the open transaction watches, if one is.
fn read_looks(batch: &mut [Locked<'_>], multi: &mut Item, replies: &mut Incoming<'_>) -> Option<usize> {
    let (mut watched, mut asks) = (0, false);
    for job in each(batch).filter(|job| job.phase == Phase::Looking) {
        replies.give(&mut job.look);
        (watched, asks) = (watched + 1, job.asks);
    }
    multi.set_beside("MULTI", asks);
    replies.give(multi);
    let is_open = matches!(multi.replies.as_slice(), [Value::Okay]);
    // It may be watching.
    replies.after.out_of_order |= !is_open;
    let (mut changed, many) = (BTreeSet::new(), watched > 1);
    for job in each(batch).filter(|job| job.phase == Phase::Looking) {
        job.read_look(multi, many, |key| changed.insert(key));
    }
    is_open.then_some(watched)
}

#[cfg(test)]
mod tests;
