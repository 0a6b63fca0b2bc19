//! The rules of several locks for one holder: which step is next, given what came of those before.
//!
//! The locks are asked for in one trip, in an order that all clients share. If one is not granted, those granted behind
//! it are given back, it is waited for by the rules of one lock, and then the rest is asked for. So a client waits only
//! while it holds the locks before, and no two clients wait for each other. A lock whose SETNX had no reply is granted
//! if its key holds the value (I6).

use alloc::vec;
use alloc::vec::Vec;
use core::mem;
use core::ops::Range;
use core::time::Duration;

use super::lease::Lease;
use super::unresolved::Unresolved;
use super::{Reply, WhyRefused};
use crate::values::Now;

/// How often keys are read whose SETNX had no reply, before it is
/// given up. Each time a server that is unreachable is waited for.
const READS: u32 = 4;

/// What part of the expiration may have passed of a lease, when the last lock is held, before it is extended.
const FRESH: u32 = 10;

/// Returns true if so little is left of a lease, when the last lock is held, that it is extended first.
pub fn is_stale(left: Option<Duration>, expiration: Duration) -> bool {
    left.is_none_or(|left| left < expiration.saturating_sub(expiration / FRESH))
}

/// What is next. The locks have numbers, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Do {
    /// Ask for these in one trip: at least two, in order, from the first that
    /// is not held. If two cannot go together, call [`Several::takes_one`].
    Ask(Range<usize>),
    /// Read the keys of these in one trip.
    Read(Vec<usize>),
    /// Release these, which are granted or held.
    GiveBack(Vec<usize>),
    /// Hold this one if it is granted; else wait for it, beginning with what came of asking for it.
    Take(usize),
    /// Nothing: all are held, or the call has failed and none is, as far as is known.
    End,
}

/// What is known of one of the locks.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// It was not asked for, or given back since.
    Open,
    /// SETNX had no reply. Its key is to be read this many times at most.
    Lost(u32),
    /// SETNX had no reply, and its key cannot be read, or shows at the end of the call that it may yet come.
    InDoubt,
    NotGranted,
    Granted,
    /// It is granted, and those before as well.
    Held,
}

/// Several locks, on their way to one holder.
#[derive(Debug)]
pub struct Several {
    places: Vec<Place>,
    unresolved: Unresolved,
    /// True if the call may wait for other holders.
    may_wait: bool,
    /// True if the next is asked for by itself.
    takes_one: bool,
    failed: bool,
}

impl Several {
    /// Begins a call for so many locks. `may_wait`: it may wait for other holders.
    pub fn new(locks: usize, may_wait: bool) -> Self {
        Self {
            places: vec![Place::Open; locks],
            unresolved: Unresolved::default(),
            may_wait,
            takes_one: false,
            failed: false,
        }
    }

    /// Returns what is next.
    pub fn next(&mut self, now: Now) -> Do {
        for (lock, place) in self.places.iter_mut().enumerate() {
            if matches!(place, Place::Lost(_)) && !self.unresolved.may_hold(lock, now) {
                *place = Place::Open;
                // Its wait limits for how long replies are lost in a row.
                self.takes_one = true;
            }
        }
        let unread = self.which(|place| matches!(place, Place::Lost(1..)));
        if !unread.is_empty() {
            return Do::Read(unread);
        }
        if self.failed {
            let granted = self.which(|place| matches!(place, Place::Granted | Place::Held));
            return if granted.is_empty() { Do::End } else { Do::GiveBack(granted) };
        }
        let Some(next) = self.places.iter().position(|place| !matches!(place, Place::Held)) else {
            return Do::End;
        };
        let open = self.places[next..].iter().take_while(|place| matches!(place, Place::Open)).count();
        if open > 1 && !self.takes_one {
            return Do::Ask(next..next + open);
        }
        let granted = self.which(|place| matches!(place, Place::Granted));
        if granted.is_empty() || granted[0] == next || !self.may_wait {
            Do::Take(next)
        } else {
            Do::GiveBack(granted)
        }
    }

    fn which(&self, is: impl Fn(&Place) -> bool) -> Vec<usize> {
        (0..self.places.len()).filter(|lock| is(&self.places[*lock])).collect()
    }

    /// Notes the reply to the SETNX of a lock that was asked for in one trip with others.
    pub fn asked(&mut self, lock: usize, lease: &Lease, reply: &Reply, now: Now) {
        self.places[lock] = match reply {
            Reply::Integer(1..) => Place::Granted,
            // Without an expiration the value names no holder.
            Reply::Lost if lease.end.is_none() => Place::InDoubt,
            Reply::Lost => {
                self.unresolved.add(lock, lease.clone(), None, now);
                Place::Lost(READS)
            }
            _ => Place::NotGranted,
        };
    }

    /// Notes that no two can be asked for in one trip.
    pub fn takes_one(&mut self) {
        self.takes_one = true;
    }

    /// Notes what the key of a lock holds whose SETNX had no reply. Returns true if the lock is granted.
    pub fn read(&mut self, lock: usize, found: &Reply) -> bool {
        let Place::Lost(reads) = &mut self.places[lock] else { return false };
        match found {
            Reply::Bulk(found) if self.unresolved.take(lock, found.as_deref()).is_some() => {
                self.places[lock] = Place::Granted;
            }
            // The command may still arrive, and the key is not read again.
            Reply::Bulk(None) if self.failed => self.places[lock] = Place::InDoubt,
            Reply::Bulk(_) | Reply::Refused(WhyRefused::NoLock) => *reads = 0,
            _ if *reads > 1 => *reads -= 1,
            _ => self.places[lock] = Place::InDoubt,
        }
        matches!(self.places[lock], Place::Granted)
    }

    /// Returns the locks that came to be in doubt, once. They end the call.
    pub fn take_in_doubt(&mut self) -> Vec<usize> {
        let in_doubt = self.which(|place| matches!(place, Place::InDoubt));
        for lock in &in_doubt {
            self.forget(*lock);
        }
        in_doubt
    }

    /// Returns true if the reply to the SETNX of a lock was lost, and it is not known that it is granted.
    pub fn is_lost(&self, lock: usize) -> bool {
        matches!(self.places[lock], Place::Lost(_))
    }

    /// Notes that a lock is held whose turn it was.
    pub fn held(&mut self, lock: usize) {
        self.unresolved.forget(lock);
        self.places[lock] = Place::Held;
        self.takes_one = false;
    }

    /// Notes that a lock was given back, or that what is in doubt of it is known to the caller.
    pub fn forget(&mut self, lock: usize) {
        self.unresolved.forget(lock);
        self.places[lock] = Place::Open;
    }

    /// Ends the call, for what happened to one of the locks: all
    /// is given back. Keys of lost commands are read once more.
    pub fn fail(&mut self) {
        if mem::replace(&mut self.failed, true) {
            return;
        }
        for place in &mut self.places {
            if let Place::Lost(reads) = place {
                *reads = 1;
            }
        }
    }
}
