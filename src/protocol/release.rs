//! The rules of giving a lock back: by the clocks alone, or by a look at the key that nobody can come between.

mod by_the_clocks;
mod watched;

use by_the_clocks::ByTheClocks;
use watched::Watched;

use super::lease::Lease;
use super::{GiveUp, Reply, Request};
use crate::clock::Now;
use crate::options::Protocol;

/// What became of a lock that was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[must_use = "`Overran` and `Lost` say that others may have been at work at the same time"]
pub enum Release {
    /// The key was deleted: the next contender gets the lock.
    Released {
        /// Whether the key still held our very own bytes, so that nobody took the lock while it was ours, whatever the clocks
        /// did. Only [`Protocol::Watched`](crate::Protocol::Watched) and [`Protocol::Ttl`](crate::Protocol::Ttl) look; without
        /// an expiration, and in [`Protocol::Classic`](crate::Protocol::Classic), it is `false`.
        certified: bool,
    },
    /// The lock was passed on to the next thread of this process, with a lease of its own, and the key was not deleted. Only with
    /// [`LockOptions::hand_over`](crate::LockOptions::hand_over).
    HandedOver {
        /// Whether the key still held our very own bytes, as in `Released`. In [`Protocol::Classic`](crate::Protocol::Classic) too, where
        /// passing a lock on shows what the key held.
        certified: bool,
    },
    /// The lease had passed before the release, by the wall clock or by the monotonic one. Nothing was deleted, since the
    /// key may be another's by now; **others may have worked at the same time**. Choose a longer expiration.
    Overran,
    /// The key was gone, or another's, although the lease had not passed: somebody cleared it or stole it, or the server lost
    /// it (eviction, a failover, a restart without persistence). **Others may have worked at the same time.**
    Lost,
    /// This process is a forked child of the one that took the lock: nothing was sent, the parent holds it.
    Inherited,
}

/// What to do next to give a lock back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Send(Request),
    Done(Release),
    GiveUp(GiveUp),
}

/// Gives one lease back, by the rules of its protocol. A lease without an end has a value that names nobody, so looking at
/// it would prove nothing.
#[derive(Clone, Debug)]
pub(crate) enum Releasing {
    ByTheClocks(ByTheClocks),
    Watched(Watched),
}

impl Releasing {
    pub(crate) fn start(protocol: Protocol, lease: &Lease, now: Now) -> (Self, Step) {
        match (protocol, lease.end) {
            (Protocol::Watched | Protocol::Ttl, Some(end)) => {
                let (releasing, step) = Watched::start(lease.value.clone(), end);
                (Self::Watched(releasing), step)
            }
            (Protocol::Classic, _) | (_, None) => {
                let (releasing, step) = ByTheClocks::start(lease.end, now);
                (Self::ByTheClocks(releasing), step)
            }
        }
    }

    pub(crate) fn reply(&mut self, reply: &Reply, now: Now) -> Step {
        match self {
            Self::ByTheClocks(releasing) => releasing.reply(reply, now),
            Self::Watched(releasing) => releasing.reply(reply, now),
        }
    }
}

/// Whether a lease is over; one without an end never is.
fn has_passed(end: Option<super::lease::End>, now: Now) -> bool {
    end.is_some_and(|end| end.has_passed(now))
}
