//! For how long a thread that waits for others yields before it parks, and how many lanes pay.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::clock::{self, Uptime};

/// How often a thread yields before it parks.
const YIELDS: u32 = 16;
/// Yielding may take so long, unless so many jobs are sent meanwhile: then the threads that run instead are those of this library.
const LONG: Duration = Duration::from_millis(2);
const FEW: u64 = 50;
/// For how long threads park at once, after others were found to compute on these processors.
const CROWDED: Duration = Duration::from_millis(50);
/// How many lanes there are while small trips are quick: on one machine more cost speed. Where a trip takes longer, all connections pay.
const LANES: usize = 4;
const QUICK: u64 = 300;
/// How many jobs a small trip has at most.
pub(super) const SMALL: usize = 8;

#[derive(Debug, Default)]
pub(super) struct Patience {
    /// In microseconds of uptime.
    crowded_until: AtomicU64,
    /// How many jobs were sent.
    sent: AtomicU64,
    /// How long a small trip takes of late, in microseconds.
    trip: AtomicU64,
}

/// The yields of one wait.
pub(super) struct Yields<'a> {
    patience: &'a Patience,
    began: Uptime,
    sent: u64,
    left: u32,
}

impl Patience {
    pub(super) fn note_sent(&self, jobs: usize) {
        self.sent.fetch_add(jobs as u64, Ordering::Relaxed);
    }

    /// Notes how long a small trip took.
    pub(super) fn note_trip(&self, took: Duration) {
        let (took, before) = (micros(took), self.trip.load(Ordering::Relaxed));
        self.trip.store((7 * before + took) / 8, Ordering::Relaxed);
    }

    /// Returns how many lanes there may be, of so many connections.
    pub(super) fn lanes(&self, connections: usize) -> usize {
        let quick = self.trip.load(Ordering::Relaxed) < QUICK;
        if quick { connections.min(LANES) } else { connections }
    }

    pub(super) fn yields(&self) -> Yields<'_> {
        let began = clock::uptime();
        let crowded = micros(began.0) < self.crowded_until.load(Ordering::Relaxed);
        let left = if crowded { 0 } else { YIELDS };
        Yields { patience: self, began, sent: self.sent.load(Ordering::Relaxed), left }
    }
}

impl Yields<'_> {
    /// Yields; returns `false` instead once that was often enough.
    pub(super) fn one(&mut self) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        thread::yield_now();
        true
    }
}

impl Drop for Yields<'_> {
    fn drop(&mut self) {
        if self.left == YIELDS {
            return;
        }
        let now = clock::uptime();
        let sent = self.patience.sent.load(Ordering::Relaxed).wrapping_sub(self.sent);
        if now.since(self.began) > LONG && sent < FEW {
            self.patience.crowded_until.store(micros(now.after(CROWDED).0), Ordering::Relaxed);
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_parks_after_its_yields_and_at_once_where_others_compute() {
        let patience = Patience::default();
        let mut yields = patience.yields();
        assert_eq!((0..100).filter(|_| yields.one()).count(), 16);
        yields.began = Uptime(yields.began.0.saturating_sub(Duration::from_millis(3)));
        let began = yields.began;
        patience.note_sent(50);
        drop(yields);
        assert!(patience.yields().left > 0, "these were this library's");
        let mut yields = patience.yields();
        assert!(yields.one());
        yields.began = began;
        drop(yields);
        assert_eq!(patience.yields().left, 0);
    }

    #[test]
    fn there_are_more_lanes_where_trips_take_long() {
        let patience = Patience::default();
        assert_eq!([1, 3, 16].map(|connections| patience.lanes(connections)), [1, 3, 4]);
        (0..30).for_each(|_| patience.note_trip(Duration::from_millis(1)));
        assert_eq!([1, 3, 16].map(|connections| patience.lanes(connections)), [1, 3, 16]);
        (0..30).for_each(|_| patience.note_trip(Duration::from_micros(50)));
        assert_eq!(patience.lanes(16), 4);
    }
}
