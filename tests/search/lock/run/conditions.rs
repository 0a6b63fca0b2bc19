//! The conditions of a random search.

use setnx_lock_proto::values::Protocol;

/// Which of the clients are gems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lock) enum Gems {
    None,
    /// Two, from 1.4.3 on.
    Newer,
    /// So many, up to 1.4.1. A holder looks whether they have overwritten its value, or does not.
    Classic {
        count: usize,
        looks: bool,
    },
}

/// The conditions of a run. Times are in milliseconds.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a condition of its own")]
pub(in crate::lock) struct Conditions {
    pub(in crate::lock) protocols: [Protocol; 3],
    pub(in crate::lock) expirations: [u64; 3],
    /// How far apart the clocks are at most.
    pub(in crate::lock) skew: u64,
    /// True if the key is cleared at times. Then two clients may well
    /// hold the lock, and none may be told that no other had it.
    pub(in crate::lock) clears: bool,
    /// How long a command may take from being sent to being carried out.
    pub(in crate::lock) delay: u64,
    /// True if a command may wait for a connection before it is sent, for any time, unless its time is limited.
    pub(in crate::lock) waits: bool,
    pub(in crate::lock) gems: Gems,
    /// For how much longer than a command a reply may take that is not a gem's.
    pub(in crate::lock) late: u64,
    /// True if machines are suspended at times: their monotonic clocks stand still.
    pub(in crate::lock) suspends: bool,
    /// True if no request and no reply is lost.
    pub(in crate::lock) reliable: bool,
    /// True if another client often writes the key and leaves its value.
    pub(in crate::lock) touches: bool,
    /// True if releases often get no reply, and a gem up to 1.4.1 acquires the key at times once it is absent.
    pub(in crate::lock) outages: bool,
    /// True if calls have little time, and end in doubt. What their commands may have acquired is released then.
    pub(in crate::lock) doubts: bool,
    /// True if holders mostly end their holds by tokens, which others use.
    pub(in crate::lock) tokens: bool,
    /// True if there are failovers, which lose the last writes.
    /// Then two clients may hold the lock, but not on one master.
    pub(in crate::lock) fails_over: bool,
    /// True if the server is full at times.
    pub(in crate::lock) fills: bool,
    /// True if the server comes back older at times, or newer.
    pub(in crate::lock) ages: bool,
}
