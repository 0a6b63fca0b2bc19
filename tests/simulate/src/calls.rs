//! What a program does with locks: each call in its time, each hold looked at.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use setnx_lock::{Error, Lock, LockGuard};
use world::run::{self, chance, random};
use world::thread;

use crate::laws::{self, HoldId};
use crate::plan::Plan;

/// What a call may take beyond what is documented: other threads run.
const SLACK: Duration = Duration::from_millis(60);

/// How long a call takes at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    command: Duration,
    connect: Duration,
    retry: Duration,
}

impl Limits {
    pub(crate) fn of(plan: &Plan) -> Self {
        Self { command: plan.command_timeout, connect: plan.connect_timeout, retry: plan.retry_for }
    }

    /// Of a call that waits for a lock.
    pub(crate) fn waiting(self, timeout: Duration) -> Duration {
        (timeout + self.command).max(timeout.min(self.retry) + self.connect)
    }

    /// Of a call on a guard: it may wait for one before it.
    pub(crate) fn of_guard(self) -> Duration {
        2 * self.command
    }

    pub(crate) fn of_try(self) -> Duration {
        self.command
    }
}

/// How long a call takes, but for the time during which its process is stopped.
#[derive(Clone, Copy, Debug)]
struct Clock {
    began: Duration,
    stopped: Duration,
}

impl Clock {
    fn start() -> Self {
        Self { began: run::now(), stopped: run::stopped() }
    }

    /// The call has ended. Its process's clock may be slower.
    fn within(self, what: &str, limit: Duration) {
        let stopped = run::stopped().saturating_sub(self.stopped);
        let took = run::now().saturating_sub(self.began + stopped);
        if took > limit + limit / 500 + SLACK {
            laws::broken(&format!("{what} took {took:?}, and at most {limit:?}"));
        }
    }
}

/// Runs a call that is to end within a time.
pub(crate) fn timed<T>(what: &str, limit: Duration, call: impl FnOnce() -> T) -> T {
    let clock = Clock::start();
    let done = call();
    clock.within(what, limit);
    done
}

/// A lock that is held, and what the laws know of it.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) guard: LockGuard,
    pub(crate) id: HoldId,
    limits: Limits,
}

impl Hold {
    pub(crate) fn new(guard: LockGuard, waited_since: Option<Duration>, limits: Limits) -> Self {
        let left = guard.remaining().unwrap_or_default();
        let id = laws::acquired(&guard.key().to_string(), left, waited_since);
        Self { guard, id, limits }
    }

    /// Works for a while, and looks at the lock meanwhile. Returns false if it is lost.
    pub(crate) fn work(&self, time: Duration) -> bool {
        work(&self.guard, self.id, self.limits, time)
    }

    /// Releases it, in one of the ways there are.
    pub(crate) fn end(self) {
        let Self { guard, id, limits } = self;
        let key = guard.key().to_string();
        let left = guard.remaining().unwrap_or_default();
        laws::leaves(id);
        let limit = limits.of_guard() + left;
        match random(0..5) {
            0 => {
                // Late, and by another thread.
                let late = thread::spawn(move || {
                    thread::sleep(Duration::from_millis(random(0..300)));
                    drop(guard);
                });
                let _ended = late.join();
                laws::unknown(&key);
            }
            1 => {
                timed("drop", limit, || drop(guard));
                laws::unknown(&key);
            }
            _ => match timed("release", limit, || guard.release()) {
                Ok(()) => laws::freed(&key),
                Err(error) => told(id, &error),
            },
        }
    }
}

/// Works for a while with a guard.
fn work(guard: &LockGuard, id: HoldId, limits: Limits, time: Duration) -> bool {
    let until = run::now() + time;
    while run::now() < until {
        thread::sleep(Duration::from_micros(random(100..40_000)).min(until.saturating_sub(run::now())));
        let outcome = match random(0..12) {
            0 => timed("extend", limits.of_guard(), || guard.extend()),
            1 => timed("verify", limits.of_guard(), || guard.verify()),
            2 => timed("fencing_token", limits.of_guard(), || guard.fencing_token())
                .map(|number| laws::token(id, number)),
            _ => guard.ensure_held(),
        };
        match outcome {
            Ok(()) => laws::still_held(id, guard.remaining().unwrap_or_default()),
            Err(error) => {
                told(id, &error);
                if error.is_lost() {
                    laws::leaves(id);
                    return false;
                }
                laws::still_held(id, guard.remaining().unwrap_or_default());
            }
        }
    }
    true
}

/// A call has failed.
pub(crate) fn told(id: HoldId, error: &Error) {
    run::note(&format!("is told: {}", error.chain()));
    if error.is_lost() {
        laws::lost(id, &error.chain());
    }
}

/// What a program panics with on purpose.
#[derive(Debug)]
struct OnPurpose;

/// Runs a closure while a lock is held, which may panic.
pub(crate) fn with(lock: &Lock, limits: Limits, timeout: Duration, time: Duration) {
    let panics = chance(10);
    let (called, mut returned) = (Clock::start(), None);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        lock.with(|guard| {
            called.within("acquiring in with", limits.waiting(timeout));
            let left = || guard.remaining().unwrap_or_default();
            let id = laws::acquired(&guard.key().to_string(), left(), None);
            work(guard, id, limits, time);
            laws::leaves(id);
            returned = Some((Clock::start(), left()));
            if panics {
                resume_unwind(Box::new(OnPurpose));
            }
        })
    }));
    laws::unknown(&lock.key().to_string());
    match returned {
        Some((returned, left)) => returned.within("releasing in with", limits.of_guard() + left),
        None => called.within("with", limits.waiting(timeout)),
    }
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(error)) => run::note(&format!("with: {}", error.chain())),
        Err(panic) if panic.is::<OnPurpose>() => {}
        Err(panic) => resume_unwind(panic),
    }
}
