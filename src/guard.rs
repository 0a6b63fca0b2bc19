//! A lock that is held. Knows its lease and how to give it back; does not know how it was declared.

use std::sync::Arc;
use std::time::{Duration, SystemTime};
use std::{fmt, mem};

use chrono::{DateTime, Utc};

use crate::clock::{self, Now};
use crate::engine::{Acquired, Engine, Held};
use crate::error::Error;
use crate::event::Event;
use crate::held::Mark;
use crate::key::Key;
use crate::options::LockOptions;
use crate::protocol::lease::Lease;
use crate::protocol::release::Release;
use crate::waiting::Hold;

/// A lock that is held: released when dropped, also by a panic.
///
/// It can be moved to another thread and dropped there. It holds no connection. With an expiration it is a promise for a
/// limited time: ask [`remaining`](Self::remaining) or [`ensure_held`](Self::ensure_held) before a step that must not
/// happen twice.
///
/// A process that is forked while it holds a lock has two guards of it; the child's releases nothing.
#[must_use = "if unused, the lock is released at once"]
pub struct LockGuard {
    engine: Arc<Engine>,
    key: Key,
    options: LockOptions,
    lease: Lease,
    passed: u32,
    acquired: Now,
    tries: u32,
    waited: Duration,
    /// Taken out when the lock is given back.
    hold: Option<Hold>,
    _mark: Mark,
}

impl LockGuard {
    pub(crate) fn new(
        engine: Arc<Engine>,
        key: Key,
        options: LockOptions,
        acquired: Acquired,
        mark: Mark,
    ) -> Self {
        let Acquired { lease, hold, passed, at, tries, waited } = acquired;
        Self {
            engine,
            key,
            options,
            lease,
            passed,
            acquired: at,
            tries,
            waited,
            hold: Some(hold),
            _mark: mark,
        }
    }

    /// Returns the lock's key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// Returns how often we looked whether the lock is free until it was ours: 1 if it was, 0 if another thread
    /// [handed it over](crate::LockOptions::hand_over) before we had looked.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.tries
    }

    /// Returns how long it took to get the lock.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Returns how long the lock can still be relied on, by the clock that allows less; zero when its lease has passed;
    /// `None` without an expiration. Asks the clocks, not the server.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.lease.end.map(|end| end.remaining(clock::now()))
    }

    /// Returns when the promised time ends, by the wall clock; `None` without an expiration. The value in the key names a
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

    /// Says whether the lease still lasts, for use before a step that must not happen twice. Without an expiration it
    /// always does. Asks the clocks, not the server: that somebody cleared the key is not noticed (see
    /// [`Lock::peek`](crate::Lock::peek) for what the key holds).
    ///
    /// # Errors
    ///
    /// [`Error::Expired`] if the lease has passed by either clock: others may have the lock by now.
    pub fn ensure_held(&self) -> Result<(), Error> {
        let now = clock::now();
        let Some(end) = self.lease.end.filter(|end| end.has_passed(now)) else { return Ok(()) };
        Err(Error::Expired {
            key: self.key.clone(),
            late: now.uptime.since(end.uptime).max(now.wall.since(end.wall)),
        })
    }

    /// Gives the lock back and tells what became of it, by the rules of the options'
    /// [protocol](crate::LockOptions::protocol). In Classic one DEL, and only while the lease has not passed; a lock that overran
    /// is left to whoever has it by now. In Watched and Ttl a look at the key, and a transaction that deletes what is ours,
    /// also after the lease. Waits for the server, not for anybody else, and at most the time of one command.
    ///
    /// With [`hand_over`](crate::LockOptions::hand_over) the lock is passed on instead, if another thread stands in line for it: a GETSET,
    /// or a transaction that sets the key. With [`with_wake_ups`](crate::LockOptions::with_wake_ups) one more trip leaves a token.
    ///
    /// The gem's release at the end of a block, which tells nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Unknown`] if the answer to the deletion got lost, [`Error::Io`] if the look got none, [`Error::Pool`] without a
    /// connection, [`Error::Refused`] if the server says no. In each case an expiring lock frees itself, and nothing is sent
    /// again.
    pub fn release(mut self) -> Result<Release, Error> {
        self.give_back()
    }

    fn give_back(&mut self) -> Result<Release, Error> {
        let Some(hold) = self.hold.take() else { unreachable!("a lock is given back once") };
        let now = clock::now();
        let time = now.uptime.since(self.acquired.uptime);
        // I10: the parent holds the lock, and its connections and its line are not the child's to use.
        let outcome = if self.engine.identity.is_this_process() {
            let Self { key, options, lease, passed, .. } = &*self;
            self.engine.give_back(Held { key, options, lease, passed: *passed, hold }, now)
        } else {
            mem::forget(hold);
            Ok(Release::Inherited)
        };
        self.engine.observer.tell(&match &outcome {
            Ok(outcome) => {
                let overran = self.lease.has_passed(now);
                Event::Released { key: &self.key, outcome: *outcome, held: time, overran }
            }
            Err(error) => Event::ReleaseFailed { key: &self.key, error },
        });
        outcome
    }
}

impl Drop for LockGuard {
    /// Releases, and reports trouble to the observer: dropping never fails and never panics (I10).
    fn drop(&mut self) {
        if self.hold.is_some() {
            // What went wrong has been reported.
            let _ = self.give_back();
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("key", &self.key)
            .field("remaining", &self.remaining())
            .field("tries", &self.tries)
            .field("waited", &self.waited)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU32, Ordering};

    use crate::event::Observe;
    use crate::identity::Identity;
    use crate::protocol::{Reply, Request};
    use crate::server::{Burst, Failure, Limits, Server, Window};
    use crate::{Lock, Locker};

    fn assert_owned_and_sendable<T: Send + Sync + 'static>() {}

    #[test]
    fn a_guard_can_go_to_any_thread() {
        assert_owned_and_sendable::<LockGuard>();
    }

    /// Grants every lock, and counts what is asked of it.
    #[derive(Debug, Default)]
    struct Generous(AtomicU32);

    impl Window for Generous {
        fn call(&self, _: &Key, _: &Request, _: &Limits<'_>) -> Result<Reply, Failure> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(Reply::Integer(1))
        }

        fn watch(&self, _: &Key, _: &Limits<'_>) -> Result<(Reply, Box<dyn Burst>), Failure> {
            unreachable!("Classic watches nothing")
        }

        fn survey(&self, _: &Key, _: &Limits<'_>) -> Result<Server, Failure> {
            unreachable!("it is not asked what it is")
        }

        fn command_timeout(&self) -> Duration {
            Duration::from_secs(1)
        }

        fn patience(&self) -> Duration {
            Duration::from_secs(1)
        }
    }

    #[test]
    fn a_forked_child_releases_nothing() {
        let window = Arc::new(Generous::default());
        let lock =
            Lock::new(&Locker::through(window.clone()), "k", LockOptions::held_until_released()).unwrap();
        for by_dropping in [true, false] {
            let mut held = lock.lock().unwrap();
            let parent = Identity::of_a_parent();
            held.engine = Arc::new(Engine { identity: Arc::new(parent), ..(*held.engine).clone() });
            let asked = window.0.load(Ordering::Relaxed);
            if by_dropping {
                drop(held);
            } else {
                assert_eq!(held.release().unwrap(), Release::Inherited);
            }
            assert_eq!(window.0.load(Ordering::Relaxed), asked, "nothing was sent");
        }
    }

    #[test]
    fn a_forked_child_is_told_to_open_a_locker_of_its_own() {
        let window = Arc::new(Generous::default());
        let locker = Locker::through(window.clone()).of_a_parent();
        let lock = Lock::new(&locker, "k", LockOptions::held_until_released()).unwrap();
        assert!(matches!(lock.lock(), Err(Error::Forked { .. })));
        assert!(matches!(lock.peek(), Err(Error::Forked { .. })));
        assert!(lock.clear().unwrap_err().to_string().contains("open a new one in the child"));
        let error = Locker::through(window.clone()).of_a_parent().server().unwrap_err();
        assert!(error.to_string().ends_with("open a new one in the child"), "{error}");
        assert_eq!(window.0.load(Ordering::Relaxed), 0, "nothing was sent");
    }

    #[test]
    fn an_observer_that_panics_keeps_no_lock_from_being_released() {
        #[derive(Debug, Default)]
        struct Panics(Arc<Mutex<Vec<String>>>);
        impl Observe for Panics {
            fn event(&self, event: &Event<'_>) {
                self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(format!("{event:?}"));
                std::panic::resume_unwind(Box::new("on purpose"));
            }
        }
        let window = Arc::new(Generous::default());
        let observer = Panics::default();
        let seen = Arc::clone(&observer.0);
        let locker = Locker::through(window.clone()).observed_by(observer);
        drop(Lock::new(&locker, "k", LockOptions::held_until_released()).unwrap().lock().unwrap());
        assert_eq!(window.0.load(Ordering::Relaxed), 2, "SETNX and DEL");
        let seen = seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        assert!(seen.iter().any(|event| event.starts_with("Acquired")), "{seen:?}");
        assert!(seen.iter().any(|event| event.starts_with("Released")), "{seen:?}");
    }
}
