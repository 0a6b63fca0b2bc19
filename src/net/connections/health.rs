//! What is known of a server beyond a single connection: its
//! version, how many connections are open, and that it closed some.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

use proto::fencing::Epoch;
use proto::values::Version;

use crate::net::request::Compares;

/// Shared by an opener, its connections and their pool.
#[derive(Default)]
pub(crate) struct Health {
    open: AtomicUsize,
    /// Counts the connections that were found closed, or to lead to a
    /// replica. A connection opened before the last of them is suspect.
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

    /// Notes the epoch of the server that a new connection has told. Returns true if it has changed: numbers are not
    /// taken over earlier connections.
    pub(super) fn changes_epoch(&self, Epoch(epoch): Epoch) -> bool {
        let told = u64::from(epoch) + 1;
        ![0, told].contains(&self.epoch.swap(told, Ordering::Relaxed))
    }

    pub(super) fn note_version(&self, version: Option<Version>) {
        // One that does not report it is probably the same server, which is busy, or behind a proxy.
        if let Some(version) = version {
            self.version.store(packed(version), Ordering::Relaxed);
        }
        self.was_asked.store(true, Ordering::Release);
    }

    /// Notes how the server compares and changes a key in one command,
    /// if it does, as a new connection has shown. A refusal stays.
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
        unpacked(self.version.load(Ordering::Relaxed))
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
/// Returns a version as a number, which is never 0.
fn packed(version: Version) -> u64 {
    let [major, minor, patch] = [version.major(), version.minor(), version.patch()].map(u64::from);
    1 << 48 | major << 32 | minor << 16 | patch
}

/// Returns the version of such a number; `None` for 0.
fn unpacked(packed: u64) -> Option<Version> {
    let [major, minor, patch] = [32, 16, 0].map(|shift| (packed >> shift & 0xFFFF) as u16);
    (packed > 0).then(|| Version::new(major, minor, patch))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_kept_as_a_number() {
        for version in [Version::new(0, 0, 0), Version::new(2, 6, 12), Version::new(1, u16::MAX, 65)] {
            assert_eq!(unpacked(packed(version)), Some(version));
        }
        assert_eq!(unpacked(0), None);
    }
}
