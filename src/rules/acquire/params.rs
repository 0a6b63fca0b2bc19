//! What goes into the rules of acquiring, and what comes out of them.

use std::time::Duration;

use crate::rules::Reply;
use crate::rules::lease::{GUARD, Lease};
use crate::values::clock::{Now, Uptime};
use crate::values::options::{LockOptions, Protocol};
use crate::values::value::{Expiry, LockState, Nonce};

/// The parameters of an attempt to acquire a lock.
#[derive(Clone, Copy)]
pub(crate) struct Params {
    /// Their protocol is never [`Protocol::Auto`].
    pub(crate) options: LockOptions,
    /// True if it was Auto: where the server refuses a command of the protocol, another will do.
    pub(crate) auto: bool,
    /// Monotonic (I7); `None` waits for ever.
    pub(crate) deadline: Option<Uptime>,
    /// How long an attempt goes on while replies are lost in a row.
    pub(crate) retry_for: Duration,
    /// The one before the first that is used.
    pub(crate) nonce: Nonce,
}

/// How an attempt begins, or goes on after a pause.
#[derive(Clone)]
pub(crate) enum Cue {
    /// The lock is probably free.
    Ask,
    /// Another client probably has it.
    Look,
    /// Another thread has just seen this, as if the attempt had looked itself. Only the beginning of an attempt.
    Behind(Observation),
    /// The key was read meanwhile.
    Saw(Option<Vec<u8>>),
    /// SETNX was sent for the attempt, with this lease and reply.
    Sent(Lease, Reply),
    /// A holder of the same process has written this lease for the attempt. If that is `in_doubt`, the key decides (I6).
    HandedOver { lease: Lease, protocol: Protocol, in_doubt: bool },
    /// The lock is left to other processes until then.
    Leave(Uptime),
    /// It is left to pollers in a window that ends then. Now and then the attempt looks at it, and asks for it for a moment if a poller
    /// has it.
    Window(Uptime),
}

/// A pause of an attempt, with what others may know of it. No connection is held meanwhile (I9).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pause {
    pub(crate) time: Duration,
    /// What the key was last seen to hold.
    pub(crate) seen: Option<LockState>,
    /// True if a command whose reply was lost may have acquired the lock.
    pub(crate) in_doubt: bool,
    /// True if the lock is not asked for meanwhile, even if it is free: it is left to other processes, or the server refuses.
    pub(crate) leaves: bool,
}

/// Something that happened on the way and is reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// The attempt holds the lock, taken over from a holder whose time had passed.
    TakenOver(LockState),
    /// The attempt lost a takeover and has overwritten the winner's value, as the gem does: GETSET cannot prevent it.
    ValueOverwritten(LockState),
    /// A loser's value was found in the place of the holder's own, and replaced or deleted.
    WasOverwritten(LockState),
    /// The grant came after its own lease, and was not used.
    LateGrant,
    /// The key holds what never expires and cannot be taken over. Reported once for an attempt.
    NeverExpires(LockState),
    /// The server refuses for now.
    RefusedForNow,
    /// In a window, a poller has the lock.
    PollerMet,
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
