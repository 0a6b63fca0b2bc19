//! What a contender is to the threads of a worker.

use std::time::Duration;

use super::Failure;
use super::hold::Outcome;

/// What one thread takes locks with.
pub(crate) trait ThreadClient {
    /// Tries to acquire a lock with this expiration until the timeout; `None` if others had it.
    fn acquire(
        &mut self,
        key: &str,
        expiration: Duration,
        timeout: Duration,
    ) -> Result<Option<Box<dyn HeldLock + '_>>, Failure>;

    /// Returns remarks on what happened since the last time, for the log.
    fn remarks(&mut self) -> Vec<String> {
        Vec::new()
    }
}

/// A lock that is held.
pub(crate) trait HeldLock {
    /// How long the holder may still rely on it.
    fn remaining(&self) -> Duration;

    /// Whether it was taken over from a holder whose lease had expired.
    fn taken_over(&self) -> bool;

    /// Releases it. Returns the outcome, and a remark for the log.
    fn release(self: Box<Self>) -> (Outcome, Option<String>);
}
