//! What the rules know of a lock's options.

use core::time::Duration;

/// The terms of a lock: for how long it is held, and how it is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// How long a lease lasts; `None` for a lock that is held until it is released.
    pub expiration: Option<Duration>,
    /// How long a waiter pauses between two attempts.
    pub poll_interval: Duration,
    /// The attempts of a call, at most.
    pub max_attempts: Option<u32>,
    /// For how long in total the lease is extended.
    pub auto_extend: Option<Duration>,
    /// How long after its acquisition the lock stays held at least.
    pub hold_at_least: Duration,
    /// How long after the last fencing token its counter is forgotten.
    pub forget_tokens_after: Option<Duration>,
    /// How much earlier a lease ends, so that clocks may differ by this much more than a second; only in a quorum.
    pub allowance: Duration,
}

impl Terms {
    /// The gem's poll interval, 0.1 s.
    pub const POLL_INTERVAL: Duration = Duration::from_millis(100);

    /// Returns the terms of a lock whose lease lasts for `expiration`.
    pub const fn expiring_after(expiration: Duration) -> Self {
        Self { expiration: Some(expiration), ..Self::without_expiration() }
    }

    /// Returns the terms of a lock that is held until it is released.
    pub const fn without_expiration() -> Self {
        Self {
            expiration: None,
            poll_interval: Self::POLL_INTERVAL,
            max_attempts: None,
            auto_extend: None,
            hold_at_least: Duration::ZERO,
            forget_tokens_after: None,
            allowance: Duration::ZERO,
        }
    }
}
