//! What is known of a server beyond a single connection: how connecting failed, its version, and that it closed connections.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::backend::errors::ConnectError;
use crate::clock::{self, Uptime};
use crate::version::Version;

/// Shared by a manager, its connections and their pool.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// r2d2 connects on threads of its own and keeps only the text of what went wrong.
    last_failure: Mutex<Option<(Uptime, ConnectError)>>,
    /// Counts the connections that were found closed, or to lead to a replica. A connection opened before the last of them is
    /// suspect.
    closures: AtomicU64,
    /// The version that the server reported on the last connection.
    version: Mutex<Option<Version>>,
}

impl Health {
    pub(crate) fn connect_failed(&self, error: ConnectError) {
        let mut last = self.last_failure.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Some((clock::uptime(), error));
    }

    /// Notes a new connection, and the version that the server reported on it.
    pub(crate) fn connected(&self, version: Option<Version>) {
        *self.version.lock().unwrap_or_else(PoisonError::into_inner) = version;
        *self.last_failure.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Returns how connecting failed and when, unless a later attempt succeeded.
    pub(crate) fn last_connect_failure(&self) -> Option<(Uptime, ConnectError)> {
        self.last_failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the version that the server reported on the connection opened last.
    pub(crate) fn server_version(&self) -> Option<Version> {
        *self.version.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn found_closed(&self) {
        self.closures.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn closures(&self) -> u64 {
        self.closures.load(Ordering::Relaxed)
    }
}
