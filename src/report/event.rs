//! Events: what happens to locks, reported to the log and to the observer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use proto::values::{Cut, Key};

use crate::net::Refusal;
use crate::report::error::Error;
use crate::report::state::LockState;
use crate::report::state::LossReason;

/// Receives the events of a locker's locks: see [`LockerBuilder::observer`](crate::LockerBuilder::observer).
///
/// Implemented for closures, and for [`Arc`]s of observers. Events go to the log as well.
///
/// What a call notices is reported on its thread, before the call returns, so keep the observer quick. What the
/// library's own threads notice, such as a loss or an extension, is reported on a thread of its own, in its order: a
/// slow observer delays no lease. If 1,000 such events wait, further ones are [dropped](ProblemKind::EventsDropped),
/// except losses. A panic in an observer is caught and dropped.
///
/// ```
/// use setnx_lock::{Event, Locker};
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// static TAKEOVERS: AtomicU64 = AtomicU64::new(0);
///
/// let builder = Locker::builder("redis://127.0.0.1/")?.observer(|event: &Event<'_>| {
///     if let Event::TakenOver { .. } = event {
///         TAKEOVERS.fetch_add(1, Ordering::Relaxed);
///     }
/// });
/// let locker = builder.build()?;
/// # Ok::<(), setnx_lock::Error>(())
/// ```
pub trait Observer: Send + Sync + 'static {
    /// Receives one event.
    fn event(&self, event: &Event<'_>);
}

impl<F: Fn(&Event<'_>) + Send + Sync + 'static> Observer for F {
    fn event(&self, event: &Event<'_>) {
        self(event);
    }
}

impl<T: Observer + ?Sized> Observer for Arc<T> {
    fn event(&self, event: &Event<'_>) {
        (**self).event(event);
    }
}

/// Something that happened to a lock, as reported to an [`Observer`] and to the log.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A call that acquires a lock has ended, with or without the lock.
    ///
    /// Each call reports one such event, with these exceptions. A nested call that
    /// [joins](crate::LockOptions::reentrant) the enclosing one reports none. A call for [several
    /// keys](crate::MultiLock) reports one for each key that it requested separately or acquired. A call for a
    /// [permit](crate::Semaphore) reports the semaphore's name as the key, or `NAME:0` if there is only one permit.
    #[non_exhaustive]
    AcquireFinished {
        /// The lock's key.
        key: &'a Key,
        /// How long the call took.
        waited: Duration,
        /// How often the call asked the server for the lock. Zero if other threads were queued ahead all the time,
        /// or if the call ended before it began to wait.
        attempts: u32,
        /// `Ok` if the lock was acquired, otherwise why not. [Contention](Error::is_contention) is an error here,
        /// even if the call returns `None`.
        outcome: Result<(), &'a Error>,
    },
    /// The lock is about to be acquired by a takeover: its holder crashed, or outlasted its lease.
    #[non_exhaustive]
    TakenOver {
        /// The lock's key.
        key: &'a Key,
        /// What the key held.
        from: &'a LockState,
    },
    /// The key holds a value that never expires and is not taken over.
    ///
    /// If its holder has crashed, the key has to be cleared, unless the server frees it by a time to live.
    #[non_exhaustive]
    NeverExpires {
        /// The lock's key.
        key: &'a Key,
        /// What the key holds.
        state: &'a LockState,
    },
    /// The server refuses a call that waits for the lock, for a reason that may pass: it is over its memory, or has too
    /// few replicas after a failover. The call goes on waiting.
    #[non_exhaustive]
    RefusedForNow {
        /// The lock's key.
        key: &'a Key,
        /// The server's words.
        refusal: &'a Refusal,
    },
    /// The lease was extended, by a call or by [`auto_extend`](crate::LockOptions::auto_extend).
    #[non_exhaustive]
    Extended {
        /// The lock's key.
        key: &'a Key,
        /// True if the server proved that no other client had the lock meanwhile.
        certified: bool,
    },
    /// The lease could not be extended for now. The old lease continues, and `auto_extend` tries again.
    #[non_exhaustive]
    ExtendFailed {
        /// The lock's key.
        key: &'a Key,
        /// Why.
        error: &'a Error,
    },
    /// A lock that was held is lost. **Another holder may work at the same time.**
    ///
    /// Reported once, when this process first notices the loss, at the latest at the release. No
    /// [`Released`](Self::Released) follows.
    #[non_exhaustive]
    Lost {
        /// The lock's key.
        key: &'a Key,
        /// Why.
        reason: &'a LossReason,
        /// How long ago the lock was acquired.
        held: Duration,
    },
    /// A lock was released, or left to expire.
    #[non_exhaustive]
    Released {
        /// The lock's key.
        key: &'a Key,
        /// How long the lock was held.
        held: Duration,
        /// True if the server proved that no other client had the lock
        /// meanwhile: the key still held this holder's value.
        ///
        /// False without an expiration, if the key is left to expire, after an uncertified extension, or if a reply
        /// was lost. In [`Protocol::Classic`](crate::Protocol::Classic), true only if the lock is handed to a
        /// waiting thread of this process.
        certified: bool,
        /// True if the key is left to expire, by [`hold_at_least`](crate::LockOptions::hold_at_least) or
        /// [`leave_to_expire`](crate::LockGuard::leave_to_expire), or has expired: it was given up in time, and its
        /// lease ended before the release could be sent.
        left_to_expire: bool,
        /// True if the lease had ended, although no other client has
        /// taken the lock: the expiration is too short for the work.
        outlived_lease: bool,
    },
    /// A guard has become a [token](crate::LockGuard::into_token), by which another process goes on with the lock.
    /// There [`AcquireFinished`](Self::AcquireFinished) is reported.
    #[non_exhaustive]
    HandedOver {
        /// The lock's key.
        key: &'a Key,
        /// How long the lock was held here.
        held: Duration,
    },
    /// A lock could not be released, by a call or by dropping its guard.
    #[non_exhaustive]
    ReleaseFailed {
        /// The lock's key.
        key: &'a Key,
        /// Why.
        error: &'a Error,
    },
    /// What a failed call has left of a lock is settled by the library's thread: a release that had failed, or a lock
    /// that a command without a reply may have acquired.
    ///
    /// Follows each [`ReleaseFailed`](Self::ReleaseFailed) whose error says that the release is tried again, and each
    /// acquisition that left a command without a reply: one whose [`Error::InDoubt`] says that a thread releases the
    /// lock, or one that succeeded by a later command. It comes at the latest when the library notices that the lease
    /// has ended, or the locker is shut down.
    #[non_exhaustive]
    Settled {
        /// The lock's key.
        key: &'a Key,
        /// How long ago the call failed.
        after: Duration,
        /// How it has ended.
        outcome: Settlement,
    },
    /// This process leads: see [`Lock::lead`](crate::Lock::lead). [`AcquireFinished`](Self::AcquireFinished) is
    /// reported before.
    #[non_exhaustive]
    LeadershipBegan {
        /// The lock's key.
        key: &'a Key,
    },
    /// This process leads no more: the call of its work has returned.
    /// The lock has been released or left, or was [lost](Self::Lost).
    #[non_exhaustive]
    LeadershipEnded {
        /// The lock's key.
        key: &'a Key,
        /// How long it has led, until the lock was released.
        led: Duration,
    },
    /// This process could not wait to lead. It tries again after a pause.
    #[non_exhaustive]
    LeadershipFailed {
        /// The lock's key.
        key: &'a Key,
        /// Why.
        error: &'a Error,
    },
    /// Something else went wrong or needs attention. The [kind](ProblemKind) says what.
    #[non_exhaustive]
    Problem {
        /// The lock's key; `None` if the problem concerns the locker.
        key: Option<&'a Key>,
        /// The kind of problem.
        kind: ProblemKind,
        /// A description for people.
        details: &'a str,
    },
}

/// How the library has settled what a failed call had left: see [`Event::Settled`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Settlement {
    /// The lock was held, and was released.
    Released,
    /// The lock is not held: it was lost meanwhile, or no command had acquired it before its lease ended or the locker
    /// was shut down. A command that is still on its way then may acquire the lock, which frees itself when its lease ends.
    NotHeld,
    /// The library has stopped trying, since the lease has ended or the locker was shut down. If the lock is held, it
    /// frees itself when its lease has passed. Without an expiration the library stops after
    /// [`retry_for`](crate::LockerBuilder::retry_for): look at the key then, and clear it if it is still there.
    LeftToExpire,
}

/// The kind of an [`Event::Problem`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProblemKind {
    /// The server granted the lock after its lease had passed. The grant is not used, and expires.
    LateGrant,
    /// A holder's value was overwritten, as the Classic protocol does.
    ///
    /// - This contender lost a takeover, which is harmless while all clients use the same expiration.
    /// - This holder extended its lease, or handed the lock over, and overwrote the value of a client that had taken
    ///   the lock; or released it on a [full server](crate::documentation::limits#a-full-server), and deleted that.
    /// - This holder found the value of a client that had lost a takeover, or had asked just as the lock was
    ///   released, in place of its own. It still had the lock, and has replaced or deleted that value.
    ValueOverwritten,
    /// The server has lost the last writes, as in a failover or a restart from a
    /// snapshot: the key held an earlier value of this holder. It still has the lock,
    /// and has replaced or deleted that value. Nothing certifies the hold any more.
    ServerWentBack,
    /// The reply to a command was lost, so it is unknown whether the command was carried out. If the value names
    /// the holder, the key is read to find out.
    ReplyLost,
    /// Release notifications do not work for now, in one direction or both, so waiters rely on polling. The server
    /// may be too old, refuse the commands, or be unreachable.
    ///
    /// If none can be received, this is reported once until the locker listens again. If none can be sent, it is
    /// reported at most once a minute.
    NotificationsUnavailable,
    /// The keeper thread could not be started, so this lock is neither extended nor checked.
    ///
    /// Reported once. A call that extends the lock tries again to start the thread.
    KeeperUnavailable,
    /// Events of the library's own threads were not reported, because
    /// the observer or the log takes too long. The text says how many.
    ///
    /// A [`Lost`](Event::Lost) is always reported.
    EventsDropped,
}

const TARGET: &str = "setnx_lock";

/// Returns the key and the kind of an event whose warnings may repeat.
pub(crate) fn repeated<'a>(event: &Event<'a>) -> Option<(&'a Key, &'static str)> {
    Some(match event {
        Event::NeverExpires { key, .. } => (key, "never expires"),
        Event::RefusedForNow { key, .. } => (key, "refused for now"),
        Event::ExtendFailed { key, .. } => (key, "not extended"),
        Event::ReleaseFailed { key, .. } => (key, "not released"),
        Event::LeadershipFailed { key, .. } => (key, "not leading"),
        Event::Problem { key: Some(key), kind: ProblemKind::LateGrant, .. } => (key, "granted late"),
        Event::Problem { key: Some(key), kind: ProblemKind::ReplyLost, .. } => (key, "reply lost"),
        _ => return None,
    })
}

/// How many warnings were left out before one.
pub(crate) struct LeftOut(pub(crate) u32);

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            count => write!(f, " ({count} more since the last such warning)"),
        }
    }
}

/// Writes an event to the log: a warning if it needs attention, otherwise mostly for debugging.
pub(crate) fn log_event(event: &Event<'_>, more: &LeftOut) {
    macro_rules! log_at {
        ($level:ident, $key:expr, $($text:tt)*) => {
            log::$level!(target: TARGET, "lock {}: {}", Cut($key.as_bytes()), format_args!($($text)*))
        };
    }
    match event {
        Event::AcquireFinished { key, waited, attempts, outcome: Ok(()) } => {
            log_at!(debug, key, "acquired after {waited:.1?}, attempts: {attempts}");
        }
        Event::AcquireFinished { outcome: Err(error), .. } => {
            log::debug!(target: TARGET, "not acquired: {}", error.chain());
        }
        Event::TakenOver { key, from } => log_at!(info, key, "taken over, it was {from}"),
        Event::NeverExpires { key, state } => {
            log_at!(warn, key, "{state}, {}{more}", state.advice().unwrap_or("and is waited for"));
        }
        Event::RefusedForNow { key, refusal } => log_at!(warn, key, "waiting: {refusal}{more}"),
        Event::Extended { key, certified } => log_at!(debug, key, "extended, certified: {certified}"),
        Event::ExtendFailed { error, .. } => {
            log::warn!(target: TARGET, "not extended: {}{more}", error.chain());
        }
        Event::Lost { key, reason, held } => {
            log_at!(warn, key, "lost: {reason}; another holder may work at the same time (held {held:.1?})");
        }
        Event::Released { key, held, outlived_lease: true, .. } => log_at!(
            warn,
            key,
            "released after its lease ended (held {held:.1?}); nobody else took it this time: choose a longer expiration"
        ),
        Event::Released { key, held, left_to_expire: true, .. } => {
            log_at!(debug, key, "left to expire after {held:.1?}");
        }
        Event::Released { key, held, .. } => log_at!(debug, key, "released after {held:.1?}"),
        Event::HandedOver { key, held } => log_at!(debug, key, "handed over by a token after {held:.1?}"),
        Event::Settled { key, after, outcome: Settlement::Released } => {
            log_at!(info, key, "released {after:.1?} after a call had failed");
        }
        Event::Settled { key, outcome: Settlement::NotHeld, .. } => {
            log_at!(debug, key, "not held after a call had failed");
        }
        Event::Settled { key, after, outcome: Settlement::LeftToExpire } => {
            log_at!(warn, key, "not released {after:.1?} after a call had failed; it is left to expire");
        }
        Event::ReleaseFailed { error, .. } => {
            log::warn!(target: TARGET, "not released: {}{more}", error.chain());
        }
        Event::LeadershipBegan { key } => log_at!(info, key, "leads"),
        Event::LeadershipEnded { key, led } => log_at!(info, key, "leads no more, after {led:.1?}"),
        Event::LeadershipFailed { error, .. } => {
            log::warn!(target: TARGET, "not leading, tries again: {}{more}", error.chain());
        }
        Event::Problem { key: Some(key), kind: ProblemKind::ValueOverwritten, details } => {
            log_at!(debug, key, "{details}");
        }
        Event::Problem { key: Some(key), details, .. } => log_at!(warn, key, "{details}{more}"),
        Event::Problem { key: None, details, .. } => log::warn!(target: TARGET, "{details}"),
    }
}
