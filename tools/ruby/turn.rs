//! One turn: a wait for the lock, and the trade that it ends with, if any.

use std::time::SystemTime;

/// A turn, in microseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub(crate) language: Language,
    pub(crate) asked: u64,
    /// `None` if the wait ended at its timeout.
    pub(crate) trade: Option<Trade>,
}

/// A time that the lock was held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trade {
    pub(crate) acquired: u64,
    /// Just before the release.
    pub(crate) released: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    Ruby,
    Rust,
}

impl Turn {
    /// When the lock was acquired; for a wait that ended at its timeout, when it began.
    pub(crate) fn end_of_wait(&self) -> u64 {
        self.trade.map_or(self.asked, |trade| trade.acquired)
    }
}

/// Microseconds since 1970, by the clock that both languages read.
pub(crate) fn micros_now() -> u64 {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_micros()).unwrap_or(u64::MAX)
}
