//! Many locks of one process that are extended for as long as it works.

use setnx_lock::{Lock, LockOptions};
use world::run::random;

use super::Client;
use crate::calls::{Holding, refused, timed, up_to};
use crate::laws;

impl Client {
    /// Keeps many locks for longer than their leases.
    pub(super) fn keep_many(&self) {
        let lease = self.plan.shared_expiration;
        let options = LockOptions::expiring_after(lease).protocol(self.plan.protocol).auto_extend(20 * lease);
        let thread = random(0..1000);
        let mut guards = Vec::new();
        for number in 0..random(1..self.plan.kept) {
            let lock = match Lock::new(&self.locker, format!("kept {thread}:{number}"), options) {
                Ok(lock) => lock,
                Err(error) => laws::broken(&format!("options are refused: {}", error.chain())),
            };
            match timed("try_lock", self.limits.command, || lock.try_lock()) {
                Ok(Some(guard)) => guards.push(guard),
                Ok(None) => {}
                Err(error) => {
                    refused("kept", world::run::now(), &error);
                    break;
                }
            }
        }
        if guards.is_empty() {
            return;
        }
        let holding = Holding::begin(&guards, None, self.limits);
        holding.work(up_to(3 * lease));
        holding.end().done();
        for guard in guards.drain(..) {
            let left = crate::calls::left(&guard);
            timed("drop of a kept lock", self.limits.of_release(left), || drop(guard));
        }
    }
}
