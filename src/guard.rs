//! A lock that is held. Knows its lease and how to release it; does not know how it was declared.

use std::sync::Arc;
use std::time::{Duration, SystemTime};
use std::{fmt, mem};

use chrono::{DateTime, Utc};

use crate::clock::{self, Now};
use crate::engine::{Acquired, Answer, Engine, HeldLock};
use crate::error::Error;
use crate::event::Event;
use crate::key::Key;
use crate::options::{LockOptions, Protocol};
use crate::protocol::lease::Lease;
use crate::protocol::release::Release;
use crate::queue::HolderTicket;
use crate::thread_holds::HoldMark;

/// A lock that is held: released when dropped, also by a panic.
///
/// It can be moved to another thread and dropped there. It holds no connection. With an expiration it is a promise for a
/// limited time: call [`ensure_held`](Self::ensure_held) before a step that must not happen twice.
///
/// A process that is forked while it holds a lock has two guards of it; the child's releases nothing.
#[must_use = "if unused, the lock is released at once"]
pub struct LockGuard {
    engine: Arc<Engine>,
    key: Key,
    options: LockOptions,
    protocol: Protocol,
    lease: Lease,
    acquired: Now,
    attempts: u32,
    waited: Duration,
    /// Taken out at the release.
    holder: Option<HolderTicket<Answer>>,
    _mark: HoldMark,
}

impl LockGuard {
    pub(crate) fn new(
        engine: Arc<Engine>,
        key: Key,
        options: LockOptions,
        acquired: Acquired,
        mark: HoldMark,
    ) -> Self {
        let Acquired { lease, protocol, holder, at, attempts, waited } = acquired;
        Self {
            engine,
            key,
            options,
            protocol,
            lease,
            acquired: at,
            attempts,
            waited,
            holder: Some(holder),
            _mark: mark,
        }
    }

    /// Returns the lock's key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns how often the server was asked for the lock: 1 if it was free, or if the release of another thread of this process got it
    /// before this one had asked.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Returns how long the lock was waited for.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Returns the protocol that the lock was acquired by and is released by: never [`Protocol::Auto`], which was decided then.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Returns how long the lock can still be relied on, by the clock that allows less; zero when its lease has passed;
    /// `None` without an expiration. Asks the clocks, not the server.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.lease.end.map(|end| end.remaining(clock::now()))
    }

    /// Returns when the lease ends, by the wall clock; `None` without an expiration. The value in the key names a
    /// time one second later, the gem's guard against clocks that differ.
    #[must_use]
    pub fn expires_at(&self) -> Option<DateTime<Utc>> {
        self.lease.end.and_then(|end| end.wall.date())
    }

    /// The same as [`expires_at`](Self::expires_at), as the standard library's time.
    #[must_use]
    pub fn expires_at_system_time(&self) -> Option<SystemTime> {
        self.lease.end.and_then(|end| end.wall.system_time())
    }

    /// Checks that the lease has not passed, for use before a step that must not happen twice. Without an expiration it
    /// never passes. Asks the clocks, not the server: a key that was cleared is not noticed (see
    /// [`Lock::state`](crate::Lock::state) for what the key holds).
    ///
    /// # Errors
    ///
    /// [`Error::Expired`] if the lease has passed by either clock: another holder may have the lock by now.
    pub fn ensure_held(&self) -> Result<(), Error> {
        let now = clock::now();
        let Some(end) = self.lease.end.filter(|end| end.has_passed(now)) else { return Ok(()) };
        Err(Error::Expired {
            key: self.key.clone(),
            late: now.uptime.since(end.uptime).max(now.wall.since(end.wall)),
        })
    }

    /// Releases the lock and returns the outcome, by the rules of its [protocol](Self::protocol). In Classic one DEL, and only while
    /// the lease has not passed; after that the key is left to its holder of then. In Watched and Ttl a look at the key, and a
    /// transaction that deletes this holder's value, also after the lease. Waits for the server only, at most the time of one command.
    ///
    /// If another thread of this process is queued for the key, through the same [`Locker`](crate::Locker), its SETNX goes in the same
    /// trip, right behind the deletion, and it is woken with the reply. With
    /// [`notify_waiters`](crate::LockOptions::notify_waiters) the same trip asks whether another process waits; if one does, a second one
    /// notifies it.
    ///
    /// The gem's release at the end of a block, which reports nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`] if the reply to the deletion was lost, [`Error::Io`] if the look got none, [`Error::NoConnection`] without a
    /// connection, [`Error::Refused`] if the server refuses. In each case an expiring lock frees itself, and nothing is sent
    /// again.
    pub fn release(mut self) -> Result<Release, Error> {
        self.end()
    }

    fn end(&mut self) -> Result<Release, Error> {
        let Some(holder) = self.holder.take() else { unreachable!("a lock is released once") };
        let now = clock::now();
        let held = now.uptime.since(self.acquired.uptime);
        // I10: the parent holds the lock, and its connections and its queue are not the child's to use.
        let outcome = if self.engine.identity.is_this_process() {
            let Self { key, options, protocol, lease, .. } = &*self;
            self.engine.release(HeldLock { key, options, protocol: *protocol, lease, holder }, now)
        } else {
            mem::forget(holder);
            Ok(Release::Inherited)
        };
        self.engine.observer.notify(&match &outcome {
            Ok(outcome) => {
                let outlived_lease = self.lease.has_passed(now);
                Event::Released { key: &self.key, outcome: *outcome, held, outlived_lease }
            }
            Err(error) => Event::ReleaseFailed { key: &self.key, error },
        });
        outcome
    }
}

impl Drop for LockGuard {
    /// Releases, and reports a failure to the log and the observer: dropping never fails and never panics (I10).
    fn drop(&mut self) {
        if self.holder.is_some() {
            // A failure has been reported.
            let _ = self.end();
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("key", &self.key)
            .field("protocol", &self.protocol)
            .field("remaining", &self.remaining())
            .field("attempts", &self.attempts)
            .field("waited", &self.waited)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Mutex, PoisonError};

    use crate::backend::scripted::ScriptedBackend;
    use crate::identity::Identity;
    use crate::{Lock, Locker};

    fn assert_owned_and_sendable<T: Send + Sync + 'static>() {}

    #[test]
    fn a_guard_can_go_to_any_thread() {
        assert_owned_and_sendable::<LockGuard>();
    }

    fn commands(backend: &ScriptedBackend) -> usize {
        backend.sent.lock().unwrap().len()
    }

    #[test]
    fn a_forked_child_releases_nothing() {
        let backend = ScriptedBackend::granting();
        let lock =
            Lock::new(&Locker::over(backend.clone()), "k", LockOptions::held_until_released()).unwrap();
        for by_dropping in [true, false] {
            let mut held = lock.lock().unwrap();
            Arc::make_mut(&mut held.engine).identity = Arc::new(Identity::in_forked_child());
            let before = commands(&backend);
            if by_dropping {
                drop(held);
            } else {
                assert_eq!(held.release().unwrap(), Release::Inherited);
            }
            assert_eq!(commands(&backend), before, "nothing was sent");
        }
    }

    #[test]
    fn a_forked_child_is_told_to_open_a_locker_of_its_own() {
        let backend = ScriptedBackend::granting();
        let locker = Locker::over(backend.clone()).in_forked_child();
        let lock = Lock::new(&locker, "k", LockOptions::held_until_released()).unwrap();
        assert!(matches!(lock.lock(), Err(Error::Forked { .. })));
        assert!(matches!(lock.state(), Err(Error::Forked { .. })));
        assert!(lock.clear().unwrap_err().to_string().contains("open a new one in the child"));
        let error = locker.inspect().unwrap_err();
        assert!(error.to_string().ends_with("open a new locker in the child"), "{error}");
        assert_eq!(commands(&backend), 0, "nothing was sent");
    }

    #[test]
    fn an_observer_that_panics_keeps_no_lock_from_being_released() {
        let backend = ScriptedBackend::granting();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let events = Arc::clone(&seen);
        let locker = Locker::over(backend.clone()).observed_by(move |event: &Event<'_>| {
            events.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{event:?}"));
            std::panic::resume_unwind(Box::new("on purpose"));
        });
        drop(Lock::new(&locker, "k", LockOptions::held_until_released()).unwrap().lock().unwrap());
        assert_eq!(commands(&backend), 2, "SETNX and DEL");
        let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(seen.iter().any(|event| event.starts_with("AcquireFinished")), "{seen:?}");
        assert!(seen.iter().any(|event| event.starts_with("Released")), "{seen:?}");
    }

    /// The program's logger, in the unit tests: it panics at what this test sends.
    struct PanickingLog;

    impl log::Log for PanickingLog {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }

        fn log(&self, record: &log::Record<'_>) {
            if record.args().to_string().contains("panicking-log") {
                std::panic::resume_unwind(Box::new("on purpose"));
            }
        }

        fn flush(&self) {}
    }

    #[test]
    fn a_logger_that_panics_keeps_no_lock_from_being_released() {
        log::set_logger(&PanickingLog).unwrap();
        log::set_max_level(log::LevelFilter::Trace);
        let backend = ScriptedBackend::granting();
        let locker = Locker::over(backend.clone());
        let lock = Lock::new(&locker, "panicking-log", LockOptions::held_until_released()).unwrap();
        drop(lock.lock().unwrap());
        assert_eq!(commands(&backend), 2, "SETNX and DEL");
    }
}
