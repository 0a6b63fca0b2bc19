//! What goes into the rules of getting a lock, and what comes out of them.

use std::time::Duration;

use crate::clock::{Now, Uptime};
use crate::options::{Polling, Protocol, Takeover};
use crate::protocol::lease::{GUARD, Lease};
use crate::protocol::{GiveUp, Request};
use crate::value::{Content, Expiry, Nonce};

/// What an attempt to get a lock is to keep to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) protocol: Protocol,
    pub(crate) expiration: Option<Duration>,
    /// Monotonic (I7); `None` waits for ever.
    pub(crate) deadline: Option<Uptime>,
    pub(crate) polling: Polling,
    pub(crate) takeover: Takeover,
    /// How much longer than its time a value is left alone, for clocks that differ by more than the guard.
    pub(crate) takeover_margin: Duration,
    /// How long an attempt without a deadline puts up with lost answers in a row.
    pub(crate) patience: Duration,
    /// The one before the first that is used.
    pub(crate) nonce: Nonce,
}

/// What to do next to get a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Send(Request),
    /// Sleep, then call [`Acquiring::woken`], or [`Acquiring::freed`] at news. No connection is held meanwhile (I9).
    Sleep(Duration),
    Held(Lease),
    GiveUp(GiveUp),
}

/// Something that happened on the way and that somebody may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// We hold the lock, taken over from a holder whose time had passed.
    TookOver(Content),
    /// We lost a takeover and have overwritten the winner's value, as the gem does: nobody can prevent it with GETSET.
    Overwrote(Content),
    /// The grant came after its own lease, and was refused.
    LateGrant,
    /// The key holds what never expires and cannot be taken over. Said once an attempt.
    Stuck(Content),
}

/// What was last seen of a lock, and when: by whoever talked to the server before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sighting {
    pub(crate) seen: Option<Content>,
    pub(crate) at: Uptime,
}

impl Sighting {
    /// What others see of a lease that they meet with in the key.
    pub(crate) fn of(lease: &Lease, now: Now) -> Self {
        let seen = lease.end.map(|end| Content::Until(Expiry(end.wall.after(GUARD))));
        Self { seen, at: now.uptime }
    }
}
