//! What is known of a server beyond a single connection: its version, how many connections are open, and that it closed some.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use crate::net::codec::Compares;
use crate::rules::fencing::Epoch;
use crate::values::version::Version;

/// Shared by an opener, its connections and their pool.
#[derive(Default)]
pub(crate) struct Health {
    open: AtomicUsize,
    /// Counts the connections that were found closed, or to lead to a replica. A connection opened before the last of them is
    /// suspect.
    closures: AtomicU64,
    /// The version that the server reported last, as a number.
    version: AtomicU64,
    /// The epoch of the server that a new connection has told last, and one; 0 if none has.
    epoch: AtomicU64,
    /// True if there was one.
    was_asked: AtomicBool,
    /// How the server compares and changes a key in one command, as a number; and if it has refused to.
    compares: AtomicU8,
}

/// Set in that number.
const REFUSED: u8 = 4;

impl Health {
    /// Counts an open connection, until the returned value is dropped.
    pub(super) fn count_open(self: &Arc<Self>) -> CountedOpen {
        self.open.fetch_add(1, Ordering::Relaxed);
        CountedOpen(Arc::clone(self))
    }

    /// Returns how many connections are open.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// Notes the epoch of the server that a new connection has told. Returns true if it has changed: numbers are not taken over earlier connections.
    pub(super) fn changes_epoch(&self, Epoch(epoch): Epoch) -> bool {
        let told = u64::from(epoch) + 1;
        ![0, told].contains(&self.epoch.swap(told, Ordering::Relaxed))
    }

    pub(super) fn note_version(&self, version: Option<Version>) {
        // One that does not report it is probably the same server, which is busy, or behind a proxy.
        if let Some(version) = version {
            self.version.store(version.packed(), Ordering::Relaxed);
        }
        self.was_asked.store(true, Ordering::Release);
    }

    /// Notes how the server compares and changes a key in one command, if it does, as a new connection has shown. A refusal stays.
    pub(super) fn note_compares(&self, compares: Option<Compares>) {
        let number = match compares {
            None => 0,
            Some(Compares::DelEx) => 1,
            Some(Compares::DelIfEq) => 2,
        };
        let change = |known: u8| (known & !REFUSED != number).then_some(number);
        let _ = self.compares.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
    }

    /// Notes that the server has refused to, or to this user.
    pub(in crate::net) fn refuses_to_compare(&self) {
        self.compares.fetch_or(REFUSED, Ordering::Relaxed);
    }

    /// Returns how the server compares and changes a key in one command.
    #[inline]
    pub(crate) fn compares(&self) -> Option<Compares> {
        match self.compares.load(Ordering::Relaxed) {
            1 => Some(Compares::DelEx),
            2 => Some(Compares::DelIfEq),
            _ => None,
        }
    }

    /// Returns true if a connection was opened, so that the version is known if the server reports it.
    pub(crate) fn was_asked(&self) -> bool {
        self.was_asked.load(Ordering::Acquire)
    }

    /// Returns the version that the server reported last.
    pub(crate) fn server_version(&self) -> Option<Version> {
        Version::of_packed(self.version.load(Ordering::Relaxed))
    }

    pub(crate) fn found_closed(&self) {
        self.closures.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn closures(&self) -> u64 {
        self.closures.load(Ordering::Relaxed)
    }
}

/// One of the open connections.
pub(super) struct CountedOpen(Arc<Health>);

impl Drop for CountedOpen {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}
