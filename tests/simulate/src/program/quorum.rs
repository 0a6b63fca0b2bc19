//! A process of a fleet that locks on a majority of servers.

use std::time::Duration;

use setnx_lock::{Error, LockOptions, Locker, Quorum, QuorumGuard};
use world::run::{self, chance, random};
use world::thread;

use super::Notes;
use crate::calls::{Limits, one_of, refused, timed, told, up_to};
use crate::laws::{self, HoldId, broken};
use crate::plan::Plan;
use crate::servers::Servers;

/// A thread that uses it.
struct Client {
    plan: Plan,
    lockers: Vec<Locker>,
    limits: Limits,
}

/// What such a process runs.
pub(super) fn run(plan: &Plan, servers: &Servers) {
    let open = |url: &String| {
        let builder = Locker::builder(url)?
            .pool_size(plan.pool_size)
            .command_timeout(plan.command_timeout)
            .connect_timeout(plan.connect_timeout)
            .retry_for(plan.retry_for)
            .key_prefix(plan.prefix)
            .settle_after_restart(plan.longest_lease())
            .observer(Notes { is_slow: false });
        builder.build()
    };
    // The servers have run for long enough.
    thread::sleep((plan.longest_lease() + Duration::from_secs(3)).saturating_sub(run::now()));
    let lockers: Result<Vec<Locker>, Error> = servers.urls().iter().map(open).collect();
    let lockers = lockers.unwrap_or_else(|error| broken(&format!("no locker: {}", error.chain())));
    let threads: Vec<_> = (0..plan.threads)
        .map(|_| {
            let client = Client { plan: plan.clone(), lockers: lockers.clone(), limits: Limits::of(plan) };
            thread::spawn(move || client.run())
        })
        .collect();
    for thread in threads {
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    }
}

impl Client {
    fn run(&self) {
        let pause = Duration::from_millis(one_of(&[1, 20, 500]));
        while run::now() < self.plan.length {
            thread::sleep(up_to(pause));
            self.use_it();
        }
    }

    fn use_it(&self) {
        let number = random(0..self.plan.keys);
        let expiration = self.plan.expirations[usize::try_from(number).unwrap_or_default()];
        let timeout = Duration::from_millis(one_of(&[0, 50, 1000, 8000]));
        let mut options = LockOptions::expiring_after(expiration)
            .protocol(self.plan.protocol)
            .timeout(timeout)
            .poll_interval(self.plan.poll_interval);
        if chance(4) {
            options = options.auto_extend(4 * expiration);
        }
        let key = format!("key {number}");
        let lock = match Quorum::new(&self.lockers, key.as_str(), options) {
            Ok(lock) => lock,
            Err(error) => broken(&format!("options are refused: {}", error.chain())),
        };
        let began = run::now();
        // Without a majority it is given back in the time of a
        // command. An answer is waited for a moment longer than that.
        let more = self.limits.command + Duration::from_millis(100);
        let limit = self.limits.waiting(timeout) + more;
        let guard = match random(0..3) {
            0 => {
                timed("try_lock of a quorum", self.limits.waiting(Duration::ZERO) + more, || lock.try_lock())
            }
            _ => timed("lock of a quorum", limit, || lock.lock()).map(Some),
        };
        match guard {
            Ok(Some(guard)) => {
                let id = laws::acquired(&key, guard.remaining(), None);
                self.work(&guard, id, expiration);
                laws::leaves(id);
                let outcome = timed("release of a quorum", self.limits.of_release(guard.remaining()), || {
                    guard.release()
                });
                if let Err(error) = outcome {
                    told(id, &error);
                }
                laws::forget(id);
            }
            Ok(None) => {}
            Err(error) => refused(&key, began, &error),
        }
    }

    fn work(&self, guard: &QuorumGuard, id: HoldId, expiration: Duration) {
        let until = run::now() + up_to(expiration / one_of(&[1, 4, 50]));
        while run::now() < until {
            thread::sleep(up_to(Duration::from_millis(40)));
            let chosen = random(0..10);
            if chosen == 0 {
                laws::extends(id);
            }
            let outcome = match chosen {
                0 => timed("extend of a quorum", 2 * self.limits.command, || guard.extend()),
                1 => timed("verify of a quorum", 2 * self.limits.command, || guard.verify()),
                _ => timed("ensure_held of a quorum", Duration::ZERO, || guard.ensure_held()),
            };
            if let Err(error) = &outcome {
                told(id, error);
                if error.is_lost() {
                    return laws::leaves(id);
                }
            }
            laws::still_held(id, guard.remaining());
        }
    }
}
