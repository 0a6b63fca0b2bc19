//! What a worker process locks with: one file for each library in Rust. A worker of another language is in `peers/`.

mod ours;
mod peers;
mod raw;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Failure;
use crate::steady::{Log, Window};

pub(crate) use ours::{ONE_CONNECTION, VARIANTS, Variant};

/// How long an acquisition waits at most. No workload should come near it.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// A library, set up for one process.
pub(crate) trait Locks: Send + Sync {
    /// Returns its name and version.
    fn version(&self) -> String;

    /// Returns what one thread locks with.
    fn client(&self) -> Result<Box<dyn Client>, Failure>;

    /// Acquires and releases until `end`, on `tasks` keys at once, in another way than by threads. Returns how long
    /// each release took; `None` where threads are the way.
    fn pairs(&self, _tasks: usize, _keys: &str, _end: Instant) -> Option<Result<Vec<Duration>, Failure>> {
        None
    }

    /// Acquires and releases as long as `window` says, in another way than by threads. Returns what each task did;
    /// `None` where threads are the way.
    fn steady(&self, _keys: &str, _window: &Arc<Window>) -> Option<Vec<Result<Log, Failure>>> {
        None
    }
}

pub(crate) trait Client: Send {
    /// Waits for the lock, calls `inside` with it, and releases it.
    fn hold(&mut self, key: &str, inside: &mut dyn FnMut()) -> Result<(), Failure>;
}

/// Sets up the library that a candidate of that name uses.
pub(crate) fn open(candidate: &str, url: &str, lease: Duration) -> Result<Box<dyn Locks>, Failure> {
    if let Some(variant) = VARIANTS.iter().find(|variant| variant.name == candidate) {
        return Ok(Box::new(ours::Ours::open(variant, url, lease)?));
    }
    Ok(match candidate {
        "echo" => Box::new(raw::Raw::open(url, raw::What::Echo)?),
        "raw" => Box::new(raw::Raw::open(url, raw::What::Pair)?),
        "rslock" => Box::new(peers::Rslock::open(url, lease)?),
        "redlock" => Box::new(peers::Redlock::open(url, lease)?),
        _ => return Err(format!("no candidate {candidate}").into()),
    })
}

/// Reads the version of a dependency from what Cargo wrote down; of the newest, if there are several.
fn version_of(package: &str) -> &'static str {
    let versions = include_str!("../Cargo.lock").split("[[package]]").filter_map(|entry| {
        let name = entry.lines().find_map(|line| line.strip_prefix("name = "))?;
        let version = entry.lines().find_map(|line| line.strip_prefix("version = "))?;
        (name.trim_matches('"') == package).then_some(version.trim_matches('"'))
    });
    versions.last().unwrap_or("?")
}
