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

/// The outcome of a release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// The key was deleted: the next contender can acquire the lock.
    Released {
        /// Whether the key still held this holder's own bytes, which proves that no other client had the lock. Only Watched and Ttl look.
        certified: bool,
    },
    /// The lock was lost before. Nothing was deleted.
    Lost(LossReason),
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
