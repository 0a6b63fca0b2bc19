//! The rules of releasing: by the clocks alone, or by a transaction that compares the key first.

mod classic;
mod watched;

use classic::ClassicRelease;
use watched::WatchedRelease;

use super::lease::Lease;
use super::ownership::LossReason;
use super::{Change, Reply, Rules, Step};
use crate::clock::Now;
use crate::options::Protocol;

/// The outcome of a release. [`Expired`](Self::Expired) and [`Lost`](Self::Lost) say that another holder may have worked at the same
/// time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Release {
    /// The key was deleted: the next contender can acquire the lock.
    Released {
        /// Whether the key still held this holder's very own bytes, so that no other holder had the lock meanwhile, whatever the clocks
        /// did. Only [`Protocol::Watched`](crate::Protocol::Watched) and [`Protocol::Ttl`](crate::Protocol::Ttl) look; without
        /// an expiration, and in [`Protocol::Classic`](crate::Protocol::Classic), it is `false`.
        certified: bool,
    },
    /// The lease had passed before the release, by the wall clock or by the monotonic one. Nothing was deleted, since the
    /// key may belong to another holder by now; **that one may have worked at the same time**. Choose a longer expiration.
    Expired,
    /// The key was missing or owned by another holder at release, although the lease had not passed: it was cleared or stolen, or the
    /// server lost it (eviction, a failover, a restart without persistence). **Another holder may have worked at the same time.**
    Lost,
    /// The key was left to expire: as the options ask for ([`hold_at_least`](crate::LockOptions::hold_at_least)), or by
    /// [`keep`](crate::LockGuard::keep).
    LeftToExpire,
    /// This process is a forked child of the one that took the lock: nothing was sent, the parent holds it.
    Inherited,
}

/// Releases one lease, by the rules of its protocol. A lease without an end has a value that names no holder, so looking at
/// it would prove nothing.
#[derive(Clone, Debug)]
pub(crate) enum Releasing {
    Classic(ClassicRelease),
    Watched(WatchedRelease),
}

impl Releasing {
    /// Begins to release a lease that was acquired by `protocol`, where the options say `asked`.
    pub(crate) fn start(
        protocol: Protocol,
        asked: Protocol,
        lease: &Lease,
        now: Now,
    ) -> (Self, Step<Release>) {
        match (protocol, lease.end) {
            (Protocol::Watched | Protocol::Ttl, Some(_)) => {
                let or_classic = asked == Protocol::Auto;
                let (releasing, step) = WatchedRelease::start(lease.clone(), or_classic);
                (Self::Watched(releasing), step)
            }
            (Protocol::Auto | Protocol::Classic, _) | (_, None) => {
                let (releasing, step) = ClassicRelease::start(lease.end, now);
                (Self::Classic(releasing), step)
            }
        }
    }

    /// Returns why the lock was lost, once the outcome says so.
    pub(crate) fn loss(&self) -> Option<LossReason> {
        match self {
            Self::Classic(releasing) => releasing.loss(),
            Self::Watched(releasing) => releasing.loss(),
        }
    }
}

impl Rules for Releasing {
    type Outcome = Release;

    fn reply(&mut self, reply: &Reply, now: Now) -> Step<Release> {
        match self {
            Self::Classic(releasing) => releasing.reply(reply, now),
            Self::Watched(releasing) => releasing.reply(reply, now),
        }
    }

    fn intended(&self) -> Option<(&[u8], &Change)> {
        match self {
            Self::Classic(_) => None,
            Self::Watched(releasing) => releasing.intended(),
        }
    }
}
