//! The rules of several locks for one holder: which step is next, given what came of those before.
//!
//! The locks are asked for in one trip, in an order that all clients share. If one is not granted, those granted behind
//! it are given back, it is waited for by the rules of one lock, and then the rest is asked for. So a client waits only
//! while it holds the locks before, and no two clients wait for each other. A SETNX without a reply is settled by the
//! wait for its lock (I6); one behind the lock that is waited for is a debt, and released if it has acquired its lock.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use core::time::Duration;

use super::Reply;

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
    /// Release these, which are granted or held. What had no reply is owed.
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
    /// SETNX had no reply.
    Lost,
    NotGranted,
    Granted,
    /// It is granted, and those before as well.
    Held,
}

/// Several locks, on their way to one holder.
#[derive(Debug)]
pub struct Several {
    places: Vec<Place>,
    /// True if the call may wait for other holders.
    may_wait: bool,
    /// True if the next is asked for by itself.
    takes_one: bool,
    failed: bool,
}

impl Several {
    /// Begins a call for so many locks. `may_wait`: it may wait for other holders.
    pub fn new(locks: usize, may_wait: bool) -> Self {
        Self { places: vec![Place::Open; locks], may_wait, takes_one: false, failed: false }
    }

    /// Returns what is next.
    pub fn next(&self) -> Do {
        if self.failed {
            let left = self.which(|place| matches!(place, Place::Lost | Place::Granted | Place::Held));
            return if left.is_empty() { Do::End } else { Do::GiveBack(left) };
        }
        let Some(next) = self.places.iter().position(|place| !matches!(place, Place::Held)) else {
            return Do::End;
        };
        let open = self.places[next..].iter().take_while(|place| matches!(place, Place::Open)).count();
        if open > 1 && !self.takes_one {
            return Do::Ask(next..next + open);
        }
        let mut behind = self.which(|place| matches!(place, Place::Lost | Place::Granted));
        behind.retain(|lock| *lock > next);
        let is_granted = matches!(self.places[next], Place::Granted);
        if behind.is_empty() || is_granted || !self.may_wait { Do::Take(next) } else { Do::GiveBack(behind) }
    }

    fn which(&self, is: impl Fn(&Place) -> bool) -> Vec<usize> {
        (0..self.places.len()).filter(|lock| is(&self.places[*lock])).collect()
    }

    /// Notes the reply to the SETNX of a lock that was asked for in one trip with others.
    pub fn asked(&mut self, lock: usize, reply: &Reply) {
        self.places[lock] = match reply {
            Reply::Integer(1..) => Place::Granted,
            Reply::Lost => Place::Lost,
            _ => Place::NotGranted,
        };
    }

    /// Notes that no two can be asked for in one trip.
    pub fn takes_one(&mut self) {
        self.takes_one = true;
    }

    /// Notes that a lock is held whose turn it was.
    pub fn held(&mut self, lock: usize) {
        self.places[lock] = Place::Held;
        self.takes_one = false;
    }

    /// Notes that a lock was given back, or that what is in doubt of it is known to the caller.
    pub fn forget(&mut self, lock: usize) {
        self.places[lock] = Place::Open;
    }

    /// Ends the call, for what happened to one of the locks: all is given back.
    pub fn fail(&mut self) {
        self.failed = true;
    }
}
