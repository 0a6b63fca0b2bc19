//! What is known of a server beyond a single connection: that connecting failed, and that it closed connections.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::manager::ConnectError;
use crate::clock::{self, Uptime};

/// Shared by a manager, its connections and the window.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// r2d2 connects on threads of its own and keeps only the text of what went wrong.
    last_failure: Mutex<Option<(Uptime, ConnectError)>>,
    /// Counts the times that a connection was found closed, or to lead to the wrong server. One opened before the last such time is
    /// doubtful.
    closures: AtomicU64,
}

impl Health {
    pub(crate) fn connect_failed(&self, error: ConnectError) {
        let mut last = self.last_failure.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Some((clock::uptime(), error));
    }

    pub(crate) fn connected(&self) {
        *self.last_failure.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Returns how connecting failed and when, unless a later try went well.
    pub(crate) fn last_connect_failure(&self) -> Option<(Uptime, ConnectError)> {
        self.last_failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn found_closed(&self) {
        self.closures.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn closures(&self) -> u64 {
        self.closures.load(Ordering::Relaxed)
    }
}
