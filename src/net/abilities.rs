//! What is known of what a server has, and its user may use, beyond the commands of Classic: transactions, and PTTL.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use proto::values::{Protocol, Version};

use crate::system::clock;

/// How long after a probe has found something lacking the next follows.
const LEFT_ALONE: Duration = Duration::from_secs(60);

/// What is known of a server.
#[derive(Default)]
pub(super) struct Abilities {
    /// The strength of the strongest protocol that was probed, and of the strongest that works, in four bits each.
    known: AtomicU8,
    /// Until when no probe follows one that has found something lacking, in microseconds of uptime; 0 if nothing is.
    lacking_until: AtomicU64,
    /// True if it hangs up on WATCH.
    hangs_up: AtomicBool,
}

/// How much a protocol needs of a server.
fn strength(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Ttl => 2,
        Protocol::Watched => 1,
        _ => 0,
    }
}

impl Abilities {
    /// Returns true if a lock of this protocol may be acquired without a probe. `version`: as the server reported it.
    pub(super) fn know(&self, protocol: Protocol, version: Option<Version>) -> bool {
        let [tried, works] = self.known();
        match protocol {
            Protocol::Auto => tried >= strength(protocol.on(version)) && !self.may_have_changed(),
            protocol => works >= strength(protocol),
        }
    }

    /// Returns what Auto means for locks that expire on a server of this version, as far as is known.
    pub(super) fn best(&self, version: Option<Version>) -> Protocol {
        let [tried, works] = self.known();
        let lacks = |protocol| (works + 1..=tried).contains(&strength(protocol)) && !self.may_have_changed();
        match Protocol::Auto.on(version) {
            _ if lacks(Protocol::Watched) => Protocol::Classic,
            Protocol::Ttl if lacks(Protocol::Ttl) => Protocol::Watched,
            best => best,
        }
    }

    /// Returns what was tried, and what works.
    fn known(&self) -> [u8; 2] {
        let known = self.known.load(Ordering::Acquire);
        [known >> 4, known & 15]
    }

    /// Returns true if something was found to be lacking, a while ago.
    /// There may be another proxy now, or the user have the right.
    fn may_have_changed(&self) -> bool {
        let until = self.lacking_until.load(Ordering::Relaxed);
        until > 0 && until <= clock::uptime().micros()
    }

    /// Returns true if it was found to hang up on WATCH, not long ago.
    pub(super) fn hangs_up(&self) -> bool {
        self.hangs_up.load(Ordering::Relaxed) && !self.may_have_changed()
    }

    /// Notes that the commands of a protocol work.
    pub(super) fn note_works(&self, protocol: Protocol) {
        let new = strength(protocol);
        self.update(|tried, works| [tried.max(new), works.max(new)]);
        let [tried, works] = self.known();
        if works >= tried {
            self.hangs_up.store(false, Ordering::Relaxed);
            self.lacking_until.store(0, Ordering::Relaxed);
        }
    }

    /// Notes that the server has hung up on WATCH, when the commands of a protocol were tried.
    pub(super) fn note_hang_up(&self, tried: Protocol) {
        self.hangs_up.store(true, Ordering::Relaxed);
        self.lack(tried, Protocol::Classic);
    }

    /// Notes that the commands of a protocol were tried, and that those of another work alone.
    pub(super) fn note_lacking(&self, tried: Protocol, works: Protocol) {
        self.hangs_up.store(false, Ordering::Relaxed);
        self.lack(tried, works);
    }

    fn lack(&self, tried: Protocol, works: Protocol) {
        self.lacking_until.store(clock::uptime().after(LEFT_ALONE).micros(), Ordering::Relaxed);
        self.update(|before, _| [before.max(strength(tried)), strength(works)]);
    }

    fn update(&self, change: impl Fn(u8, u8) -> [u8; 2]) {
        let change = |known: u8| {
            let [tried, works] = change(known >> 4, known & 15);
            Some(tried << 4 | works)
        };
        let _ = self.known.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
    }
}
