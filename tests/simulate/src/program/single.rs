//! One lock: with a closure, with a guard, with a limit, with a cancel token, with callbacks.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use setnx_lock::{CancelToken, Error, Lock};
use world::run::{self, chance, random};
use world::thread;

use super::Client;
use crate::calls::{Clock, Holding, refused, sleep_in_callback, timed, up_to};
use crate::laws;

/// What a program panics with on purpose.
#[derive(Debug)]
struct OnPurpose;

impl Client {
    /// Chooses one of the keys. Returns its lock, how long a call waits unless it waits for ever, and how long to work.
    fn lock(&self, waits_for_ever: bool) -> (Lock, Duration, Duration) {
        let number = random(0..self.plan.keys);
        let expiration = self.plan.expirations[usize::try_from(number).unwrap_or_default()];
        let (options, is_kept) = self.options(expiration);
        let timeout =
            Duration::from_millis([0, 50, 1000, 8000][usize::try_from(random(0..4)).unwrap_or_default()]);
        let options = options.notify_waiters(self.plan.notifies);
        let options = if waits_for_ever { options.wait_forever() } else { options.timeout(timeout) };
        let lock = Lock::new(&self.locker, format!("key {number}"), options);
        match lock {
            Ok(lock) => (lock, timeout, self.work_time(expiration, is_kept)),
            Err(error) => laws::broken(&format!("options are refused: {}", error.chain())),
        }
    }

    pub(super) fn use_a_lock(&self) {
        let (lock, timeout, time) = self.lock(false);
        let began = run::now();
        let (key, limits) = (lock.key().to_string(), self.limits);
        let guard = match random(0..4) {
            0 => timed("try_lock", limits.command, || lock.try_lock()),
            1 => timed("try_lock_for", limits.waiting(timeout), || lock.try_lock_for(timeout)),
            2 if chance(4) => {
                let lock = lock.cancelled_by(&cancelled_within(Duration::from_millis(500)));
                timed("lock", limits.waiting(timeout), || lock.lock()).map(Some)
            }
            _ => timed("lock", limits.waiting(timeout), || lock.lock()).map(Some),
        };
        match guard {
            Ok(Some(guard)) => {
                if chance(6) {
                    call_back(&guard);
                }
                let holding = Holding::begin([&guard], Some(began), limits);
                holding.work(time);
                let released = holding.end();
                match random(0..6) {
                    0 => released.by_dropping(guard),
                    1 => released.by(|| guard.leave_to_expire()),
                    2 => released.by(|| {
                        guard.release_later();
                        Ok(())
                    }),
                    _ => released.by(|| guard.release()),
                }
            }
            Ok(None) => {}
            Err(error) => refused(&key, began, &error),
        }
    }

    pub(super) fn use_with(&self) {
        if chance(8) {
            return self.use_within();
        }
        let (lock, timeout, time) = self.lock(false);
        let panics = chance(10);
        let (key, limits, began) = (lock.key().to_string(), self.limits, run::now());
        let (called, mut returned) = (Clock::start("with"), None);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            lock.with(|guard| {
                called.within("acquiring in with", limits.waiting(timeout));
                let holding = Holding::begin([guard], Some(began), limits);
                holding.work(time);
                returned = Some((holding.end(), Clock::start("returns")));
                if panics {
                    resume_unwind(Box::new(OnPurpose));
                }
            })
        }));
        match returned {
            Some((released, clock)) => {
                clock.within("releasing in with", released.limit);
                released.told(outcome.as_ref().ok().and_then(|outcome| outcome.as_ref().err()));
                released.done();
                return ended(outcome);
            }
            None => called.within("with", limits.waiting(timeout)),
        }
        match outcome {
            Ok(Err(error)) => refused(&key, began, &error),
            outcome => ended(outcome),
        }
    }
}

impl Client {
    /// Uses a lock inside a closure that has it: the same hold if it is reentrant, and an error otherwise.
    fn use_within(&self) {
        let number = random(0..self.plan.keys);
        let expiration = self.plan.expirations[usize::try_from(number).unwrap_or_default()];
        let (options, is_kept) = self.options(expiration);
        let is_reentrant = chance(2);
        let options = options.timeout(Duration::from_secs(1)).notify_waiters(self.plan.notifies);
        let options = if is_reentrant { options.reentrant() } else { options };
        let lock = match Lock::new(&self.locker, format!("key {number}"), options) {
            Ok(lock) => lock,
            Err(error) => laws::broken(&format!("options are refused: {}", error.chain())),
        };
        let time = self.work_time(expiration, is_kept) / 2;
        let (limits, began) = (self.limits, run::now());
        world::network::begin_call();
        let outcome = lock.with(|guard| {
            let holding = Holding::begin([guard], Some(began), limits);
            let is_held = holding.work(time);
            let inner = timed("with within", Duration::ZERO, || {
                lock.with(|inner| inner.expires_at() == guard.expires_at())
            });
            match inner {
                Ok(is_same) if is_reentrant && is_same => {}
                Err(Error::Nested { .. }) if !is_reentrant => {}
                Err(error) if is_reentrant && error.is_lost() => {}
                Err(Error::ShutDown { .. }) => {}
                other => laws::broken(&format!(
                    "a lock within itself, held: {is_held}, reentrant: {is_reentrant}: {other:?}"
                )),
            }
            world::network::begin_call();
            holding.end()
        });
        match outcome {
            Ok(released) => released.done(),
            Err(error) => refused(&lock.key().to_string(), began, &error),
        }
    }

    /// Looks at a lock as people do, who decide nothing by it.
    pub(super) fn look_at(&self) {
        let (lock, _, _) = self.lock(false);
        let seen = timed("state", self.limits.command, || lock.state());
        match seen {
            Ok(state) => run::note(&format!("{} is {state:?}", lock.key())),
            Err(error) => laws::failed(&error),
        }
        if let Err(error) = timed("holder", self.limits.command, || lock.holder()) {
            laws::failed(&error);
        }
        run::note(&format!("{:?}", self.locker.held()));
    }
}

/// A panic of the program's own is expected.
fn ended(outcome: std::thread::Result<Result<(), setnx_lock::Error>>) {
    match outcome {
        Err(panic) if !panic.is::<OnPurpose>() => resume_unwind(panic),
        _ => {}
    }
}

impl Client {
    /// Leads for a while, if it is this process's turn.
    pub(super) fn lead(&self) {
        let (options, _) = self.options(self.plan.shared_expiration);
        let options = options
            .wait_forever()
            .auto_extend(20 * self.plan.shared_expiration)
            .notify_waiters(self.plan.notifies);
        let Ok(lock) = Lock::new(&self.locker, "leader", options) else { return };
        let stop = cancelled_within(Duration::from_secs(4));
        let limits = self.limits;
        let outcome = lock.lead(&stop, |guard| {
            let holding = Holding::begin([guard], None, limits);
            holding.work(up_to(Duration::from_secs(2)));
            holding.end().done();
        });
        if let Err(error) = outcome {
            laws::broken(&format!("leading ends by itself: {}", error.chain()));
        }
    }

    /// Waits without a limit, until it is cancelled.
    pub(super) fn wait_for_ever(&self) {
        let (lock, _, time) = self.lock(true);
        let lock = lock.cancelled_by(&cancelled_within(Duration::from_secs(2)));
        let began = run::now();
        world::network::begin_call();
        match lock.lock() {
            Ok(guard) => {
                let holding = Holding::begin([&guard], Some(began), self.limits);
                holding.work(time);
                holding.end().by(|| guard.release());
            }
            Err(error) => refused(&lock.key().to_string(), began, &error),
        }
    }
}

/// Returns a token that another thread cancels soon.
fn cancelled_within(time: Duration) -> CancelToken {
    let (token, soon) = (CancelToken::new(), up_to(time));
    let stop = token.clone();
    thread::spawn(move || {
        thread::sleep(soon);
        stop.cancel();
    });
    token
}

/// Has a callback that blocks or panics called if the lock is lost.
fn call_back(guard: &setnx_lock::LockGuard) {
    let (panics, time) = (chance(2), up_to(Duration::from_millis(800)));
    guard.on_loss(move |reason| {
        run::note(&format!("on_loss: {reason}"));
        sleep_in_callback(time);
        if panics {
            resume_unwind(Box::new(OnPurpose));
        }
    });
}
