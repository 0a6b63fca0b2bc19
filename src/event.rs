//! What a lock reports as it works, and to whom.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::key::Key;
use crate::protocol::release::Release;
use crate::value::Content;

/// Gets to know what the locks of a [`Locker`](crate::Locker) do. Called on the thread that works with the lock, between
/// two commands, or on the one that waits for tokens, so it should be quick. A panic in it is caught and dropped: releasing never panics.
///
/// ```
/// use setnx_lock::{Event, Observe};
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// #[derive(Debug, Default)]
/// struct Takeovers(AtomicU64);
///
/// impl Observe for Takeovers {
///     fn event(&self, event: &Event<'_>) {
///         if let Event::TookOver { .. } = event {
///             self.0.fetch_add(1, Ordering::Relaxed);
///         }
///     }
/// }
/// ```
pub trait Observe: Send + Sync + std::fmt::Debug + 'static {
    /// Takes notice of one event.
    fn event(&self, event: &Event<'_>);
}

/// Something that happened to a lock.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The lock is ours.
    #[non_exhaustive]
    Acquired {
        /// The lock's key.
        key: &'a Key,
        /// How often we looked whether it is free; 0 if another thread handed it over.
        tries: u32,
        /// How long it took.
        waited: Duration,
    },
    /// The lock is about to be ours, taken over from a holder whose time had passed: he died, or took too long.
    #[non_exhaustive]
    TookOver {
        /// The lock's key.
        key: &'a Key,
        /// What he had left there.
        from: &'a Content,
    },
    /// In Classic: a takeover was lost, and the winner's value overwritten, as the gem's protocol has it. Harmless while all use the same
    /// expiration. Or a lock was handed over that another had taken, whose value is overwritten then; the release says
    /// [`Lost`](Release::Lost).
    #[non_exhaustive]
    Overwrote {
        /// The lock's key.
        key: &'a Key,
        /// The winner's value.
        winner: &'a Content,
    },
    /// The server granted the lock so late that its lease had passed. It was not used, and frees itself.
    #[non_exhaustive]
    LateGrant {
        /// The lock's key.
        key: &'a Key,
    },
    /// The key holds what no wait sees expire and nobody takes over: the server may free it by a time to live, or somebody has
    /// to clear it if its holder is dead.
    #[non_exhaustive]
    Stuck {
        /// The lock's key.
        key: &'a Key,
        /// What it holds.
        content: &'a Content,
    },
    /// A command got no answer: carried out or not, nobody knows. What that means is found out by reading the key, where the
    /// value names its holder.
    #[non_exhaustive]
    Trouble {
        /// The lock's key.
        key: &'a Key,
        /// The command.
        command: &'static str,
        /// What went wrong.
        error: &'a redis::RedisError,
    },
    /// Wake-ups between processes do not work for now, one way or the other, and waiters rely on polling: said once until that works
    /// again. The server may be too old, or refuse the commands, or there is no connection. Told by the thread that waits for tokens, too.
    #[non_exhaustive]
    NoWakeUps {
        /// What does not work, and what is in the way.
        why: &'a str,
    },
    /// A lock was given back, well or not: see [`Release`].
    #[non_exhaustive]
    Released {
        /// The lock's key.
        key: &'a Key,
        /// What became of it.
        outcome: Release,
        /// How long it was held.
        held: Duration,
        /// Whether that was longer than its lease, whoever had the key afterwards: the expiration is too short for the work.
        overran: bool,
    },
    /// A lock was not got: somebody else held it until the timeout, or something went wrong.
    #[non_exhaustive]
    NotAcquired {
        /// The lock's key.
        key: &'a Key,
        /// Why.
        error: &'a Error,
    },
    /// A lock could not be given back, by a call or by dropping its guard.
    #[non_exhaustive]
    ReleaseFailed {
        /// The lock's key.
        key: &'a Key,
        /// Why.
        error: &'a Error,
    },
}

/// The observer unless another is set: writes to the [`log`] crate, under the target `setnx_lock`. What somebody should look
/// into is a warning, the rest is for debugging.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogObserver;

impl Observe for LogObserver {
    fn event(&self, event: &Event<'_>) {
        match event {
            Event::Acquired { key, tries: 0, waited } => {
                log::debug!(target: TARGET, "lock {key}: handed over by another thread after {waited:?}");
            }
            Event::Acquired { key, tries, waited } => {
                log::debug!(target: TARGET, "lock {key}: acquired after {waited:?}, tries: {tries}");
            }
            Event::TookOver { key, from } => {
                log::info!(target: TARGET, "lock {key}: taken over, it was {from}");
            }
            Event::Overwrote { key, winner } => {
                log::debug!(target: TARGET, "lock {key}: overwrote the value of another, who has the lock ({winner}): lost a takeover, or handed over what was his");
            }
            Event::LateGrant { key } => {
                log::warn!(target: TARGET, "lock {key}: granted after its lease had passed, and refused; the server is slow or the expiration too short");
            }
            Event::Stuck { key, content } => {
                let advice = content.advice().unwrap_or("which is waited for");
                log::warn!(target: TARGET, "lock {key}: {content}, {advice}");
            }
            Event::Trouble { key, command, error } => {
                log::warn!(target: TARGET, "lock {key}: {command} got no answer: {error}");
            }
            Event::NoWakeUps { why } => {
                log::warn!(target: TARGET, "no wake-ups between processes: {why}");
            }
            Event::Released { key, outcome: Release::Released { .. }, held, overran: true } => {
                log::warn!(target: TARGET, "lock {key}: held for {held:?}, longer than its lease; nobody took it meanwhile, but others might have: choose a longer expiration");
            }
            Event::Released { key, outcome: Release::Released { .. }, held, overran: false } => {
                log::debug!(target: TARGET, "lock {key}: released after {held:?}");
            }
            Event::Released { key, outcome: Release::HandedOver { .. }, held, .. } => {
                log::debug!(target: TARGET, "lock {key}: handed over to the next thread after {held:?}");
            }
            Event::Released { key, outcome: Release::Inherited, .. } => {
                log::debug!(target: TARGET, "lock {key}: left to the parent process, which holds it");
            }
            Event::Released { key, outcome: Release::Overran, held, .. } => {
                log::warn!(target: TARGET, "lock {key}: held for {held:?}, longer than its lease; others may have worked at the same time");
            }
            Event::Released { key, outcome: Release::Lost, held, .. } => {
                log::warn!(target: TARGET, "lock {key}: gone, or another's, when it was to be released after {held:?}: cleared, stolen, evicted, or lost in a failover; others may have worked at the same time");
            }
            Event::NotAcquired { key: _, error } => log::debug!(target: TARGET, "not acquired: {error}"),
            Event::ReleaseFailed { key: _, error } => log::warn!(target: TARGET, "not released: {error}"),
        }
    }
}

const TARGET: &str = "setnx_lock";

/// The observer as the library calls it.
#[derive(Clone, Debug)]
pub(crate) struct Observer(pub(crate) Arc<dyn Observe>);

impl Observer {
    pub(crate) fn tell(&self, event: &Event<'_>) {
        // I10: an observer that panics must not keep a lock from being released.
        let _ = catch_unwind(AssertUnwindSafe(|| self.0.event(event)));
    }
}
