//! One process of a fleet: a locker, and threads that use its locks until the run's end.

use std::time::Duration;

use setnx_lock::{CancelToken, Error, Event, Lock, LockOptions, Locker, Observer};
use world::network::ServerId;
use world::run::{self, chance, random};
use world::thread;

use crate::calls::{self, Hold, Limits, timed};
use crate::plan::Plan;

/// What a process of the fleet runs.
pub(crate) fn run(plan: &Plan, server: ServerId, number: u64) {
    let locker = match locker(plan, server, number) {
        Ok(locker) => locker,
        Err(error) => return run::note(&format!("no locker: {}", error.chain())),
    };
    let until = plan.length;
    let threads: Vec<_> = (0..plan.threads)
        .map(|thread| {
            let (locker, plan) = (locker.clone(), plan.clone());
            let client = thread::Builder::new().name(format!("client {thread}"));
            client.spawn(move || Client::new(&plan, locker).until(until)).expect("a thread")
        })
        .collect();
    for thread in threads {
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    }
    if chance(2) {
        let drained = timed("drain", Duration::from_secs(1) + plan.command_timeout, || {
            locker.drain(Duration::from_secs(1))
        });
        run::note(&format!("{drained:?}"));
    }
}

fn locker(plan: &Plan, server: ServerId, number: u64) -> Result<Locker, Error> {
    let mut builder = Locker::builder(&server.url())?
        .pool_size(plan.pool_size)
        .command_timeout(plan.command_timeout)
        .connect_timeout(plan.connect_timeout)
        .retry_for(plan.retry_for)
        .observer(Notes);
    if plan.version >= setnx_lock_testing::ServerVersion::V2_0 && chance(4) {
        builder = builder.holder_name(format!("process:{number}"));
    }
    builder.build()
}

/// Has what the library reports in the trace.
#[derive(Debug)]
struct Notes;

impl Observer for Notes {
    fn event(&self, event: &Event<'_>) {
        match event {
            Event::AcquireFinished { .. } | Event::Released { .. } | Event::Extended { .. } => {}
            other => run::note(&format!("event: {other:?}")),
        }
    }
}

/// A thread that uses locks.
struct Client {
    plan: Plan,
    locker: Locker,
    limits: Limits,
}

impl Client {
    fn new(plan: &Plan, locker: Locker) -> Self {
        Self { plan: plan.clone(), locker, limits: Limits::of(plan) }
    }

    fn until(&self, until: Duration) {
        // Some threads loop, others come now and then.
        let pause = [0, 5, 100, 1500][usize::try_from(random(0..4)).unwrap_or_default()];
        while run::now() < until {
            thread::sleep(Duration::from_millis(random(0..pause + 1)));
            self.use_a_lock();
        }
    }

    fn use_a_lock(&self) {
        let key = random(0..self.plan.keys);
        let expiration = self.plan.expirations[usize::try_from(key).unwrap_or_default()];
        let timeout =
            Duration::from_millis([0, 50, 1000, 8000][usize::try_from(random(0..4)).unwrap_or_default()]);
        let mut options = LockOptions::expiring_after(expiration)
            .protocol(self.plan.protocol)
            .timeout(timeout)
            .poll_interval(self.plan.poll_interval)
            .notify_waiters(self.plan.notifies);
        let is_kept = chance(4);
        if is_kept {
            options = options.auto_extend(expiration * 4);
        }
        let lock = match Lock::new(&self.locker, format!("key {key}"), options) {
            Ok(lock) => lock,
            Err(error) => crate::laws::broken(&format!("options are refused: {}", error.chain())),
        };
        let time = self.work_time(expiration, is_kept);
        if chance(4) {
            return calls::with(&lock, self.limits, timeout, time);
        }
        self.hold(&lock, timeout, time);
    }

    /// Mostly well within the lease.
    fn work_time(&self, expiration: Duration, is_kept: bool) -> Duration {
        let longest = match random(0..10) {
            0 if is_kept => 3 * expiration,
            0 if !self.plan.is_calm() => expiration + expiration / 2,
            1 => expiration / 2,
            _ => Duration::from_millis(30).min(expiration / 2),
        };
        Duration::from_micros(random(0..u64::try_from(longest.as_micros()).unwrap_or(1) + 1))
    }

    fn hold(&self, lock: &Lock, timeout: Duration, time: Duration) {
        let began = run::now();
        let stop = CancelToken::new();
        let cancelled = lock.clone().cancelled_by(&stop);
        let is_cancelled = chance(12);
        if is_cancelled {
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(random(0..500)));
                stop.cancel();
            });
        }
        let guard = match random(0..3) {
            0 => timed("try_lock", self.limits.of_try(), || lock.try_lock()),
            1 => timed("try_lock_for", self.limits.waiting(timeout), || cancelled.try_lock_for(timeout)),
            _ => timed("lock", self.limits.waiting(timeout), || cancelled.lock()).map(Some),
        };
        match guard {
            Ok(Some(guard)) => {
                let hold = Hold::new(guard, Some(began), self.limits);
                hold.work(time);
                hold.end();
            }
            Ok(None) => {}
            Err(error) => run::note(&format!("not acquired: {}", error.chain())),
        }
    }
}
