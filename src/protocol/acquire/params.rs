//! What goes into the rules of acquiring, and what comes out of them.

use std::time::Duration;

use crate::clock::{Now, Uptime, Wall};
use crate::options::{LockOptions, Protocol};
use crate::protocol::lease::{GUARD, Lease};
use crate::protocol::{GiveUp, Request};
use crate::value::{Expiry, LockState, Nonce};

/// The parameters of an attempt to acquire a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Params {
    pub(crate) options: LockOptions,
    /// Monotonic (I7); `None` waits for ever.
    pub(crate) deadline: Option<Uptime>,
    /// How long an attempt goes on while replies are lost in a row.
    pub(crate) retry_for: Duration,
    /// The one before the first that is used.
    pub(crate) nonce: Nonce,
}

impl Params {
    pub(in crate::protocol) fn expires(&self) -> bool {
        self.options.expiration.is_some()
    }

    /// Limits a pause: it lasts no longer than until the lock that was seen may be taken over.
    pub(in crate::protocol) fn until_free(
        &self,
        pause: Duration,
        seen: Option<&LockState>,
        now: Wall,
    ) -> Duration {
        let Some(LockState::Until(Expiry(until))) = seen else { return pause };
        if !self.expires() || *until < now {
            return pause;
        }
        // Only a time in the past is taken over: one microsecond more.
        pause.min(until.since(now) + Duration::from_micros(1))
    }

    /// The protocol; [`Protocol::Auto`] until the server's version is known.
    pub(super) fn protocol(&self) -> Protocol {
        self.options.protocol
    }
}

/// What to do next to acquire a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Send(Request),
    /// Sleep, then call [`Acquiring::woken`], or [`Acquiring::freed`] at the hint that the lock is free. No connection is held
    /// meanwhile (I9).
    Sleep(Duration),
    Held(Lease),
    GiveUp(GiveUp),
}

/// Something that happened on the way and is reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// The attempt holds the lock, taken over from a holder whose time had passed.
    TakenOver(LockState),
    /// The attempt lost a takeover and has overwritten the winner's value, as the gem does: GETSET cannot prevent it.
    ValueOverwritten(LockState),
    /// The grant came after its own lease, and was not used.
    LateGrant,
    /// The key holds what never expires and cannot be taken over. Reported once for an attempt.
    NeverExpires(LockState),
}

/// What was last seen of a lock, and when: by the thread that talked to the server before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Observation {
    pub(crate) seen: Option<LockState>,
    pub(crate) at: Uptime,
}

impl Observation {
    /// What others see of a lease in its key.
    pub(crate) fn of(lease: &Lease, now: Now) -> Self {
        let seen = lease.end.map(|end| LockState::Until(Expiry(end.wall.after(GUARD))));
        Self { seen, at: now.uptime }
    }
}
