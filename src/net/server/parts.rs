//! Several trips, of which not all can go together: those of each slot
//! of a cluster, and what a shared transaction has not carried out.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use super::OneServer;
use crate::net::errors::Failure;
use crate::net::limits::Limits;
use crate::net::threads::on_threads;
use crate::net::{KeyTrip, Sent};
use crate::system::clock;
use crate::system::sync::Mutex;

/// Of so many keys that a transaction has not changed, each goes alone; of more, half of them go together.
const FEW: usize = 8;

/// What is to be sent of several trips still, and what came of the others.
struct Parts {
    all: Vec<Sent>,
    pending: Vec<Part>,
    /// Set once the server has taken long not to answer: nothing more is sent.
    stuck: Option<Failure>,
}

/// Trips that are sent together.
struct Part {
    /// Their places in the list.
    places: Vec<usize>,
    /// True if they were not sent before. One may then go with those of other threads.
    is_new: bool,
}

impl OneServer {
    /// Sends trips, those of a slot together. What comes of a transaction of several says nothing about one of them:
    /// those that it has not changed go again in halves, and in the end each alone.
    pub(super) fn send_in_parts(&self, trips: &[KeyTrip<'_>], limits: &Limits<'_>) -> Vec<Sent> {
        let places = || (0..trips.len()).collect();
        let in_cluster = self.in_cluster.load(Ordering::Relaxed);
        let parts = if in_cluster {
            let part = |places| Part { places, is_new: true };
            // First what needs no transaction.
            let pending = self.by_slot(trips, places()).into_iter().rev().map(part).collect();
            Parts { all: trips.iter().map(|_| Sent::default()).collect(), pending, stuck: None }
        } else {
            let all = self.send_part(trips, limits);
            if all.iter().all(|sent| sent.undecided.is_none()) {
                return all;
            }
            let pending = self.divide(trips, &all, places());
            Parts { all, pending, stuck: None }
        };
        // Transactions of several slots need a connection each. Other users of a pool need some as well.
        let count = if in_cluster && !self.opener.lends() { parts.pending.len().min(self.size) } else { 1 };
        let parts = Mutex::new(parts);
        on_threads(count, || {
            let mut own = *limits;
            while self.send_next(&parts, trips, &own) {
                if in_cluster {
                    // What others took before it says nothing about the next.
                    own = limits.for_the_next(clock::now(), self.opener.command_timeout);
                }
            }
        });
        parts.into_inner().all
    }

    /// Sends the next of several parts. Returns false if there is none.
    fn send_next(&self, parts: &Mutex<Parts>, trips: &[KeyTrip<'_>], limits: &Limits<'_>) -> bool {
        let parts = || parts.lock();
        let began = clock::uptime();
        let mut before = parts();
        let Some(Part { places, is_new }) = before.pending.pop() else { return false };
        let batch: Vec<KeyTrip<'_>> = places.iter().map(|at| before.all[*at].again(&trips[*at])).collect();
        let stuck = before.stuck.clone();
        drop(before);
        let sent = match (stuck, batch.as_slice()) {
            (Some(failure), batch) => {
                let failure = failure.after(began.since(limits.waits_since));
                batch.iter().map(|trip| Sent::failed(trip, failure.clone())).collect()
            }
            (None, batch) => {
                let limits = Limits { decided_at: clock::now(), ..*limits };
                match batch {
                    [one] if is_new => vec![self.send_one(one, &limits)],
                    batch => self.send_part(batch, &limits),
                }
            }
        };
        let mut after = parts();
        if after.stuck.is_none() && clock::uptime().since(began) >= self.opener.command_timeout / 2 {
            after.stuck = sent.iter().find_map(Sent::unreachable);
        }
        for (at, sent) in places.iter().zip(sent) {
            after.all[*at].replace(sent);
        }
        let divided = self.divide(trips, &after.all, places);
        after.pending.extend(divided);
        true
    }

    /// Returns in which parts those of these trips go again that are undecided.
    fn divide(&self, trips: &[KeyTrip<'_>], all: &[Sent], mut part: Vec<usize>) -> Vec<Part> {
        part.retain(|at| all[*at].undecided.is_some());
        let parts = if part.iter().any(|at| self.learns_slots(&all[*at])) {
            self.by_slot(trips, part)
        } else if part.len() <= FEW {
            part.into_iter().map(|at| vec![at]).collect()
        } else {
            let half = part.split_off(part.len() / 2);
            vec![half, part]
        };
        parts.into_iter().map(|places| Part { places, is_new: false }).collect()
    }

    /// Divides places of trips by their slots.
    fn by_slot(&self, trips: &[KeyTrip<'_>], places: Vec<usize>) -> Vec<Vec<usize>> {
        let mut slots: BTreeMap<Option<u16>, Vec<usize>> = BTreeMap::new();
        for at in places {
            slots.entry(self.slot(&trips[at])).or_default().push(at);
        }
        slots.into_values().collect()
    }
}
