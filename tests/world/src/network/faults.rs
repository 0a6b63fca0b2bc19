//! What goes wrong at random.

use std::time::Duration;

/// How often what goes wrong: once in so many messages of clients, or never if it is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    /// How long a message takes, at least and at most, in microseconds.
    pub latency: (u64, u64),
    /// The connection is closed before the server has the request, or has all of it: what is whole is executed.
    pub lost_requests: u64,
    /// The connection is closed before the client has the reply, or has all of it.
    pub lost_replies: u64,
    /// Nothing gets through any more, and nobody is told.
    pub silences: u64,
    /// A message, or the reply to it, takes up to `delay` longer.
    pub delays: u64,
    /// How much longer.
    pub delay: Duration,
}

/// How often what has gone wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Injected {
    /// Requests that were lost.
    pub lost_requests: u64,
    /// Replies that were lost.
    pub lost_replies: u64,
    /// Connections that fell silent.
    pub silences: u64,
    /// Messages that took longer.
    pub delays: u64,
}

impl Faults {
    /// A network between machines in one room, without faults.
    pub const NONE: Self = Self {
        latency: (30, 90),
        lost_requests: 0,
        lost_replies: 0,
        silences: 0,
        delays: 0,
        delay: Duration::ZERO,
    };
}

impl Injected {
    /// Nothing yet.
    pub const NONE: Self = Self { lost_requests: 0, lost_replies: 0, silences: 0, delays: 0 };

    /// Returns the sum.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.lost_requests + self.lost_replies + self.silences + self.delays
    }
}

/// What happens to one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Arrives,
    Delayed,
    ReplyDelayed,
    LostBefore,
    LostWithin,
    LostAfter,
    LostWithinReply,
    SilentBefore,
    SilentAfter,
}
