//! Locks that the keeper of one locker extends.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use setnx_lock::{Error, Lock, LockGuard, LockOptions, Locker};

use super::{Failure, TOUCH, Work, write};

/// How many locks there are on one server, and their lease.
const KEPT: usize = 512;
const KEPT_LEASE: Duration = Duration::from_secs(3);

/// The same in a cluster.
const IN_CLUSTER: usize = 1000;
const CLUSTER_LEASE: Duration = Duration::from_secs(9);

/// The lease beside a node that hangs, and for how long it does.
const SHORT_LEASE: Duration = Duration::from_secs(6);
const HANGS_FOR: Duration = Duration::from_secs(20);

/// How often it is looked how much time is left.
const LOOK: Duration = Duration::from_millis(20);

impl Work {
    /// One keeper extends many locks, of which another client writes one all the time.
    pub(super) fn kept(&self) -> Result<(), Failure> {
        let (server, _relay, locker) = self.server()?;
        let key = |n: usize| if n == 0 { "written:0".to_owned() } else { format!("own:{n}") };
        let held = self.hold(&locker, (0..KEPT).map(key), KEPT_LEASE)?;
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let writer = scope.spawn(|| write(&server, 1, &TOUCH, &over));
            self.keep(held.into_iter().skip(1).collect(), 5 * KEPT_LEASE);
            over.store(true, Ordering::Relaxed);
            writer.join().expect("the writer ended")
        })
    }

    /// Many locks of all slots.
    pub(super) fn kept_in_a_cluster(&self) -> Result<(), Failure> {
        let (_cluster, _relays, locker) = self.cluster(Duration::from_secs(5))?;
        let held = self.hold(&locker, (0..IN_CLUSTER).map(|n| format!("own:{n}")), CLUSTER_LEASE)?;
        self.keep(held, 3 * CLUSTER_LEASE);
        Ok(())
    }

    /// A node hangs, and is not replaced. The locks of the others stay held.
    pub(super) fn kept_beside_a_node_that_hangs(&self) -> Result<(), Failure> {
        let (cluster, _relays, locker) = self.cluster(2 * HANGS_FOR)?;
        let mut on_others = Vec::new();
        for n in 0..self.plan.threads {
            let key = format!("own:{n}");
            if cluster.owner(cluster.slot(&key)?)? != 0 {
                on_others.push(key);
            }
        }
        let keys = (0..self.plan.threads).map(|n| format!("own:{n}"));
        let mut held = self.hold(&locker, keys, SHORT_LEASE)?;
        cluster.nodes[0].freeze();
        let hung: Vec<LockGuard> =
            held.extract_if(.., |held| !on_others.contains(&held.key().to_string())).collect();
        self.keep(held, HANGS_FOR);
        cluster.nodes[0].thaw();
        drop(hung);
        Ok(())
    }

    pub(super) fn hold(
        &self,
        locker: &Locker,
        keys: impl Iterator<Item = String>,
        lease: Duration,
    ) -> Result<Vec<LockGuard>, Failure> {
        let options = LockOptions::expiring_after(lease)
            .protocol(self.plan.protocol)
            .auto_extend(Duration::from_secs(600));
        let held = keys.map(|key| Lock::new(locker, key, options)?.lock());
        Ok(held.collect::<Result<_, Error>>()?)
    }

    /// Looks for a while how much time the locks have left, and releases them.
    pub(super) fn keep(&self, held: Vec<LockGuard>, time: Duration) {
        let began = Instant::now();
        let mut least_left = Duration::MAX;
        while began.elapsed() < time {
            thread::sleep(LOOK);
            let left = held.iter().filter_map(LockGuard::remaining).min();
            least_left = least_left.min(left.unwrap_or_default());
        }
        for held in held {
            self.note(held.ensure_held().and_then(|()| held.release()));
        }
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        tally.least_left = Some(least_left);
        tally.took += began.elapsed();
    }
}
