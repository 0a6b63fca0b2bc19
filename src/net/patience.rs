//! How long a thread that waits for another's trip yields before it parks, and how many lanes pay.
//!
//! A yield takes about a microsecond, and to park and be woken three to five, so
//! a short wait is yielded through. Beside programs that compute each yield gives
//! them the processor for a long time: then threads park at once for a while.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use proto::values::Uptime;

use crate::system::clock;
use crate::system::thread;

/// How often a thread yields before it parks.
const YIELDS: u32 = 16;
/// How often it yields behind many others: their leader has more to do, and each yield takes longer.
const YIELDS_OF_MANY: u32 = 2;
const MANY: usize = 8;
/// Yielding may take this long, unless `FEW` jobs or more are sent
/// meanwhile: then the threads that run instead are those of this library.
const LONG: Duration = Duration::from_millis(2);
const FEW: u64 = 50;
/// For how long threads park at once, after others were found to compute on these processors, in microseconds; up to so
/// long if they are found again and again. A pause of the whole machine looks the same, once.
const CROWDED: u64 = 50_000;
const LONG_CROWDED: u64 = 400_000;
/// How many lanes there are while small trips are quick: on one machine
/// more cost speed. Where a trip takes longer, all connections pay.
const LANES: usize = 4;
const QUICK: u64 = 300;
/// How many jobs a small trip has at most.
pub(super) const SMALL: usize = 8;

#[derive(Default)]
pub(super) struct Patience {
    /// In microseconds of uptime.
    crowded_until: AtomicU64,
    crowded_for: AtomicU64,
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
    remaining: u32,
    has_yielded: bool,
}

impl Patience {
    pub(super) fn note_sent(&self, jobs: usize) {
        self.sent.fetch_add(jobs as u64, Ordering::Relaxed);
    }

    /// Notes how long a small trip took. A quick one counts at once:
    /// others take longer where their threads are kept from running.
    pub(super) fn note_trip(&self, took: Duration) {
        let (took, before) = (micros(took), self.trip.load(Ordering::Relaxed));
        let now = if took < before { took } else { (31 * before + took).div_ceil(32) };
        if now != before {
            self.trip.store(now, Ordering::Relaxed);
        }
    }

    /// Returns how many lanes there may be, of so many connections.
    pub(super) fn lanes(&self, connections: usize, now: Uptime) -> usize {
        let quick = self.trip.load(Ordering::Relaxed) < QUICK;
        if quick && !self.is_crowded(now) { connections.min(LANES) } else { connections }
    }

    fn note_crowd(&self, now: u64) {
        let (until, lasted) =
            (self.crowded_until.load(Ordering::Relaxed), self.crowded_for.load(Ordering::Relaxed));
        let again = now < until + lasted;
        let lasts = if again { (2 * lasted).min(LONG_CROWDED) } else { CROWDED };
        // Of several threads that find it at a time, the first counts.
        if now >= until {
            self.crowded_for.store(lasts, Ordering::Relaxed);
            self.crowded_until.store(now + lasts, Ordering::Relaxed);
        }
    }

    fn is_crowded(&self, now: Uptime) -> bool {
        now.micros() < self.crowded_until.load(Ordering::Relaxed)
    }

    /// Returns the yields of a wait behind so many others.
    pub(super) fn yields(&self, ahead: usize) -> Yields<'_> {
        let began = clock::uptime();
        let remaining = match ahead {
            _ if self.is_crowded(began) => 0,
            MANY.. => YIELDS_OF_MANY,
            _ => YIELDS,
        };
        Yields {
            patience: self,
            began,
            sent: self.sent.load(Ordering::Relaxed),
            remaining,
            has_yielded: false,
        }
    }
}

impl Yields<'_> {
    /// Yields; returns `false` instead once that was often enough.
    pub(super) fn one(&mut self) -> bool {
        if self.remaining == 0 {
            return false;
        }
        self.remaining -= 1;
        self.has_yielded = true;
        thread::yield_now();
        true
    }

    /// Notes a crowd if yielding took long although few jobs were sent.
    fn ended(&self, now: Uptime) {
        let sent = self.patience.sent.load(Ordering::Relaxed).wrapping_sub(self.sent);
        if now.since(self.began) > LONG && sent < FEW {
            self.patience.note_crowd(now.micros());
        }
    }
}

impl Drop for Yields<'_> {
    fn drop(&mut self) {
        if self.has_yielded {
            self.ended(clock::uptime());
        }
    }
}

/// How often a thread looks for a reply before it sleeps, yielding its processor in between. On one machine, and over a
/// fast network, a thread that sleeps and is woken takes longer than the server needs for a command.
const LOOKS: u32 = 100;
/// Looking that takes this long shows that others compute on these processors.
const CROWD: Duration = Duration::from_millis(1);
/// How many times what was in vain is left out at most.
const LEFT_OUT: u32 = 63;

/// Whether looking for replies pays. What was in vain is left out the
/// next time, then three times, and so on; what paid is done again.
#[derive(Default)]
pub(super) struct Looks {
    never: bool,
    left_out: AtomicU32,
    next: AtomicU32,
}

impl Looks {
    pub(super) fn never() -> Self {
        Self { never: true, ..Self::default() }
    }

    /// Calls `look` until it returns something, for a while.
    pub(super) fn until_some<T>(&self, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        let mut found = look();
        if found.is_none() {
            let began = clock::uptime();
            for _ in 0..LOOKS {
                thread::yield_now();
                found = look();
                if clock::uptime().since(began) > CROWD {
                    // A thread that sleeps is preferred to one that yields.
                    self.leave_out(LEFT_OUT);
                    return found;
                }
                if found.is_some() {
                    break;
                }
            }
        }
        if found.is_some() {
            self.note_paid();
        } else {
            self.note_vain();
        }
        found
    }

    /// Returns true if it is time to look again.
    pub(super) fn may_pay(&self) -> bool {
        let left_out = self.left_out.load(Ordering::Relaxed);
        if left_out == 0 && !self.never {
            return true;
        }
        self.left_out.store(left_out.saturating_sub(1), Ordering::Relaxed);
        false
    }

    /// Notes that a look has found the reply.
    fn note_paid(&self) {
        let next = self.next.load(Ordering::Relaxed);
        if next > 0 {
            self.next.store(next / 2, Ordering::Relaxed);
        }
    }

    /// Notes that a look was in vain.
    fn note_vain(&self) {
        let next = self.next.load(Ordering::Relaxed);
        self.leave_out((2 * next + 1).min(LEFT_OUT));
    }

    fn leave_out(&self, times: u32) {
        self.next.store(times, Ordering::Relaxed);
        self.left_out.store(times, Ordering::Relaxed);
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
        let mut yields = patience.yields(0);
        assert_eq!((0..100).filter(|_| yields.one()).count(), 16);
        let mut of_many = patience.yields(8);
        assert_eq!((0..100).filter(|_| of_many.one()).count(), 2);
        let later = yields.began.after(Duration::from_millis(3));
        patience.note_sent(50);
        yields.ended(later);
        assert!(!patience.is_crowded(later), "these were this library's");
        patience.yields(0).ended(later.after(Duration::from_secs(60)));
        assert_eq!(patience.yields(0).remaining, 0);
        // The end of its yields is the end of a wait; without a yield there was none.
        let patience = Patience::default();
        let [mut some, none] = [patience.yields(0), patience.yields(0)];
        assert!(some.one());
        thread::sleep(2 * LONG);
        drop(none);
        assert_eq!(patience.crowded_until.load(Ordering::Relaxed), 0);
        drop(some);
        assert!(patience.crowded_until.load(Ordering::Relaxed) > 0);
    }

    #[test]
    fn threads_park_longer_and_have_all_connections_where_others_go_on_computing() {
        let patience = Patience::default();
        let until = |now: u64| {
            patience.note_crowd(now);
            patience.crowded_until.load(Ordering::Relaxed) - now
        };
        assert_eq!(until(1_000_000), 50_000);
        let at = |now: u64| patience.lanes(16, Uptime::of(Duration::from_micros(now)));
        assert_eq!([at(1_049_999), at(1_050_000)], [16, 4]);
        patience.note_crowd(1_020_000);
        assert_eq!(at(1_050_000), 4, "one of the threads that wait counts");
        assert_eq!(
            [until(1_060_000), until(1_200_000), until(1_410_000), until(1_900_000)],
            [100_000, 200_000, 400_000, 400_000]
        );
        assert_eq!(until(9_000_000), 50_000);
    }

    #[test]
    fn looking_in_vain_is_left_out_more_and_more_until_it_pays() {
        let looks = Looks::default();
        let in_vain = |wanted: usize| {
            let looks = |_: &usize| {
                looks.may_pay() && {
                    looks.note_vain();
                    true
                }
            };
            (0..1000).filter(looks).take(wanted).collect::<Vec<_>>()
        };
        assert_eq!(in_vain(5), [0, 2, 6, 14, 30]);
        let mut times = 0;
        while !looks.may_pay() {
            times += 1;
        }
        assert!(looks.until_some(|| Some(())).is_some());
        assert_eq!(times, 31);
        assert_eq!(in_vain(2), [0, 32]);
        assert!(!Looks::never().may_pay());
        // Looking in vain counts, however long it takes.
        let (looks, mut looked) = (Looks::default(), 0);
        for _ in 0..2 {
            let in_vain = || {
                looked += 1;
                None::<()>
            };
            if looks.may_pay() {
                assert!(looks.until_some(in_vain).is_none());
            }
        }
        assert!(looked <= 101 && looked > 1, "the second time it is left out: {looked}");
    }

    #[test]
    fn there_are_more_lanes_where_trips_take_long() {
        let patience = Patience::default();
        assert_eq!([1, 3, 16].map(|connections| patience.lanes(connections, Uptime::default())), [1, 3, 4]);
        (0..30).for_each(|_| patience.note_trip(Duration::from_millis(1)));
        assert_eq!([1, 3, 16].map(|connections| patience.lanes(connections, Uptime::default())), [1, 3, 16]);
        patience.note_trip(Duration::from_micros(50));
        (0..5).for_each(|_| patience.note_trip(Duration::from_millis(1)));
        assert_eq!(patience.lanes(16, Uptime::default()), 4);
    }
}
