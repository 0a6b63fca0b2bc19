//! What rules do next, and how they go on.

use alloc::vec::Vec;
use core::time::Duration;

use crate::lease::{End, GUARD, Lease};
use crate::trip::{Replies, Reply, Trip, WhyRefused};
use crate::values::{Now, Protocol, State, Uptime};

/// Why rules ended without their goal. The library makes the user's error of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveUp {
    /// Another holder had the lock until the deadline, or in all attempts.
    Timeout,
    /// The reply to a command that may have changed the key was lost, and reading did not settle it (I6).
    Unknown,
    /// The reply to a DEL outside a transaction was lost, for a lease of Watched or Ttl: no other attempt follows.
    UnknownAlone,
    /// The server refused.
    Refused,
    /// The server refused, since it is over its `maxmemory`.
    OverMemory,
    /// The server is too old for the protocol that Auto has selected, and has this one.
    TooOld(Protocol),
    /// Replies were lost until the attempt gave up, but nothing is in doubt.
    Io,
    /// Nothing was sent: no connection came in time, or the time for the command had passed.
    Unsent,
    /// Nothing was carried out: another client wrote the key after each look.
    Rewritten,
    /// This machine's wall clock shows a time that cannot be right. In a value it would be taken for no time.
    ClockUnset,
}

impl Reply {
    /// Returns why a call ends that got this reply, has nothing else to do, and left nothing in doubt.
    pub fn gives_up(&self) -> GiveUp {
        match self {
            Reply::Refused(WhyRefused::OverMemory) => GiveUp::OverMemory,
            Reply::Refused(WhyRefused::TooOld(has)) => GiveUp::TooOld(*has),
            Reply::Refused(_) => GiveUp::Refused,
            Reply::Unsent | Reply::TooLate => GiveUp::Unsent,
            _ => GiveUp::Io,
        }
    }
}

/// How an attempt begins, or goes on after a pause.
#[derive(Clone, Debug)]
pub enum Cue {
    /// The lock is probably free.
    Ask,
    /// Another client probably has it. With what the key holds, if it was read meanwhile.
    Look(Option<Option<Vec<u8>>>),
    /// Another thread has just seen this, as if the attempt had looked itself. Only the beginning of an attempt.
    Behind(Observation),
    /// What asks for the lock was sent for the attempt, with this lease and these replies.
    Sent(Lease, Replies),
    /// A holder of the same process has written a lease for the attempt.
    HandedOver {
        /// That lease.
        lease: Lease,
        /// True if only the key shows whether it was written (I6).
        in_doubt: bool,
    },
}

/// A pause of an attempt, with what others may know of it. No connection is held meanwhile (I9).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// How long the pause lasts.
    pub time: Duration,
    /// What the key was last seen to hold.
    pub seen: Option<State>,
    /// True if a command whose reply was lost may have acquired the lock.
    pub in_doubt: bool,
    /// True if the server refuses: a look would only lead to what it refuses.
    pub is_refused: bool,
}

/// Something that happened on the way and is reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// The attempt replaced a value whose time had passed, or found the key removed since.
    TakenOver(State),
    /// Another client's value was overwritten or deleted: by a takeover that lost, as the gem does, or by a holder
    /// whose lock was lost between its look and its command.
    ValueOverwritten(State),
    /// A loser's value was found in the place of the holder's own, and replaced or deleted.
    WasOverwritten(State),
    /// An earlier value of the holder's was found, and replaced or deleted: the server has lost what was written since.
    WentBack,
    /// The grant came after its own lease, and was not used.
    LateGrant,
    /// The key holds a value without a time, which cannot be taken over;
    /// the server may still free it. Reported once for an attempt.
    NeverExpires(State),
    /// The server refuses for now.
    RefusedForNow,
}

/// What was last seen of a lock, and when: by the thread that talked to the server before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// What the key held; `None` if it was not read.
    pub seen: Option<State>,
    /// When that was seen.
    pub at: Uptime,
}

impl Observation {
    /// Returns what waiting threads are told of a lease: held until one second after its end.
    #[inline]
    pub fn of(lease: &Lease, now: Now) -> Self {
        let until = |end: End| end.wall.after(GUARD);
        let seen = lease.end.map(|end| State::Until { until: until(end), holder: lease.value.holder() });
        Self { seen, at: now.uptime }
    }
}

/// What a task does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step<T> {
    /// Make this trip, and go on with its replies.
    Send(Trip),
    /// Pause, then go on with a [`Cue`]. Only to acquire.
    Sleep(Pause),
    /// The rules have ended, with this outcome.
    Done(T),
    /// The rules have ended without their goal.
    GiveUp(GiveUp),
}

impl<T> Step<T> {
    /// Returns the outcome of code that never pauses, or the trip that is next.
    ///
    /// # Errors
    ///
    /// The trip that is next.
    pub fn outcome(self) -> Result<Result<T, GiveUp>, Trip> {
        match self {
            Step::Send(trip) => Err(trip),
            Step::Done(outcome) => Ok(Ok(outcome)),
            Step::GiveUp(reason) => Ok(Err(reason)),
            Step::Sleep(_) => unreachable!("only an attempt to acquire pauses"),
        }
    }
}
