//! Several keys, permits, readers and writers.

use std::time::Duration;

use setnx_lock::{Error, MultiLock, RwLock, Semaphore};
use world::run::{self, chance, random};

use super::Client;
use crate::calls::{Holding, refused, timed};
use crate::laws;

impl Client {
    fn sure<T>(made: Result<T, Error>) -> T {
        made.unwrap_or_else(|error| laws::broken(&format!("options are refused: {}", error.chain())))
    }

    /// Some of three keys, or all of them, in any order.
    pub(super) fn use_several(&self) {
        let (options, is_kept) = self.options(self.plan.shared_expiration);
        let names = ["first", "second", "third"];
        let first = usize::try_from(random(0..3)).unwrap_or_default();
        let count = usize::try_from(random(1..4)).unwrap_or(1);
        let keys = (0..count).map(|number| names[(first + number) % 3]);
        let timeout = Duration::from_millis(random(0..4000));
        let options = options.timeout(timeout).notify_waiters(self.plan.notifies);
        let locks = Self::sure(MultiLock::new(&self.locker, keys, options));
        let (began, limit) = (run::now(), self.limits.waiting_for_several(timeout));
        let guard = if chance(4) {
            timed("try_lock of several", self.limits.waiting_for_several(Duration::ZERO), || locks.try_lock())
        } else {
            timed("lock of several", limit, || locks.lock()).map(Some)
        };
        match guard {
            Ok(Some(guard)) => {
                let holding = Holding::begin(guard.guards(), None, self.limits);
                holding.work(self.work_time(self.plan.shared_expiration, is_kept));
                let released = holding.end();
                if chance(4) {
                    released.by_dropping(guard);
                } else {
                    released.by(|| guard.release());
                }
            }
            Ok(None) => {}
            Err(error) => refused("several", began, &error),
        }
    }

    pub(super) fn use_a_permit(&self) {
        let (options, is_kept) = self.options(self.plan.shared_expiration);
        let timeout = Duration::from_millis(random(0..4000));
        let permits = usize::try_from(self.plan.permits).unwrap_or(1);
        let semaphore =
            Self::sure(Semaphore::new(&self.locker, "permits", permits, options.timeout(timeout)));
        let began = run::now();
        let permit = if chance(4) {
            timed("try_acquire", self.limits.waiting_for_several(Duration::ZERO), || semaphore.try_acquire())
        } else {
            timed("acquire", self.limits.waiting_for_several(timeout), || semaphore.acquire()).map(Some)
        };
        match permit {
            Ok(Some(permit)) => {
                let holding = Holding::begin([&*permit], None, self.limits);
                holding.work(self.work_time(self.plan.shared_expiration, is_kept));
                let released = holding.end();
                if chance(4) {
                    released.by_dropping(permit);
                } else {
                    released.by(|| permit.release());
                }
            }
            Ok(None) => {}
            Err(error) => refused("permits", began, &error),
        }
    }

    pub(super) fn read_or_write(&self) {
        let (options, is_kept) = self.options(self.plan.shared_expiration);
        let timeout = Duration::from_millis(random(0..4000));
        let readers = usize::try_from(self.plan.permits).unwrap_or(1);
        let lock = Self::sure(RwLock::new(&self.locker, "shared", readers, options.timeout(timeout)));
        let (began, limit) = (run::now(), self.limits.waiting_for_several(timeout));
        let time = self.work_time(self.plan.shared_expiration, is_kept);
        if chance(3) {
            match timed("write", limit, || lock.write()) {
                Ok(guard) => {
                    let holding = Holding::begin(guard.guards(), None, self.limits);
                    holding.work(time);
                    if chance(2) {
                        return holding.end().by(|| guard.release());
                    }
                    let released = holding.end();
                    let permit = timed("downgrade", released.limit, || guard.downgrade());
                    let before = released.id_of(&permit.key().to_string());
                    released.done();
                    let holding = Holding::begin([&*permit], None, self.limits);
                    laws::same_hold(holding.id(), before);
                    holding.work(time);
                    holding.end().by(|| permit.release());
                }
                Err(error) => refused("shared", began, &error),
            }
        } else {
            match timed("read", limit, || lock.read()) {
                Ok(permit) => {
                    let holding = Holding::begin([&*permit], None, self.limits);
                    holding.work(time);
                    holding.end().by(|| permit.release());
                }
                Err(error) => refused("shared", began, &error),
            }
        }
    }
}
