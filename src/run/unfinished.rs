//! Releases that have failed, and locks that may be held without a holder: the
//! server is asked again until the key is free, or the lease ends. Threads that wait
//! in this process learn of the release, or get the lock, when an attempt succeeds.
//!
//! A lock may be held whose command had no reply: that may still arrive, whatever the key showed since.

use std::sync::Arc;
use std::time::Duration;

use proto::hold::Release;
use proto::lease::Lease;
use proto::values::Now;
use proto::{Command, GiveUp, Reply};

use super::engine::{Engine, FailedRelease, Unfinished, What, for_each_engine};
use super::held::{Delivery, Earlier, HeldLock, MaybeHeld};
use crate::report::event::Event;
use crate::system::clock;
use crate::wait::{HolderTicket, Observation, no_hold};

/// The pause before the next attempt; it doubles each time, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How much earlier an attempt may be made, together with others.
const SLACK: Duration = Duration::from_millis(20);

/// Tries again what is due.
pub(super) fn work(due: Vec<Unfinished>) {
    for_each_engine(due, |unfinished| &unfinished.engine, Engine::try_again);
}

impl Unfinished {
    /// Returns true if it is a release that has failed.
    pub(crate) fn releases(&self) -> bool {
        matches!(self.what, What::Release(..))
    }
}

impl Engine {
    /// Releases a lock that may be held once its key shows it. Without a thread for that it expires.
    pub(crate) fn release_later(self: &Arc<Self>, maybe: MaybeHeld) {
        let _ = self.add_unfinished(FIRST_PAUSE, What::MaybeHeld(Box::new(maybe)));
    }

    /// Has a release that gave up for this reason tried again, if it may
    /// be. `next`: the lease that the key may hold instead of its own.
    ///
    /// # Errors
    ///
    /// The holder, if the release is not tried again.
    pub(super) fn release_again(
        self: &Arc<Self>,
        failed: HeldLock<'_>,
        gave_up: GiveUp,
        next: Option<&Lease>,
        now: Now,
    ) -> Result<(), HolderTicket<Delivery>> {
        let HeldLock { key, options, lease, holder, earlier } = failed;
        let Some(lease) = lease.again(gave_up, next, now) else { return Err(holder) };
        let pause = earlier.map_or(FIRST_PAUSE, |earlier| (earlier.pause * 2).min(LONGEST_PAUSE));
        let since = earlier.map_or(now.uptime, |earlier| earlier.since);
        let left = match lease.end {
            Some(end) => end.remaining(now),
            None => since.after(self.backend.retry_for()).since(now.uptime),
        };
        if left < pause {
            return Err(holder);
        }
        let release = FailedRelease { key: key.clone(), options: *options, lease, since };
        match self.add_unfinished(pause, What::Release(Box::new(release), holder)) {
            Err(What::Release(_, holder)) => Err(holder),
            Err(What::MaybeHeld(_)) | Ok(()) => Ok(()),
        }
    }

    fn add_unfinished(self: &Arc<Self>, pause: Duration, what: What) -> Result<(), What> {
        // What has been tried once more since the locker was dropped or shut down is left.
        if self.unfinished.is_closed() {
            return Err(what);
        }
        let key = match &what {
            What::Release(release, _) => &release.key,
            What::MaybeHeld(maybe) => &maybe.key,
        };
        let (node, at) = (self.backend.node_of(key), clock::uptime().after(pause));
        let unfinished = Unfinished { engine: Arc::clone(self), pause, what };
        let added = self.unfinished.add(node, at, SLACK, unfinished);
        added.map(drop).map_err(|(_, unfinished)| unfinished.what)
    }

    fn try_again(self: &Arc<Self>, due: Vec<Unfinished>) {
        let now = clock::now();
        let (mut failed, mut holders, mut maybe_held) = (Vec::new(), Vec::new(), Vec::new());
        for Unfinished { pause, what, .. } in due {
            match what {
                What::Release(release, holder) => {
                    failed.push(release);
                    holders.push((holder, pause));
                }
                What::MaybeHeld(maybe) => maybe_held.push((maybe, pause)),
            }
        }
        let locks = failed.iter().zip(holders).map(|(release, (holder, pause))| {
            let FailedRelease { key, options, lease, since } = &**release;
            let earlier = Some(Earlier { since: *since, pause });
            HeldLock { key, options, lease: lease.clone(), holder, earlier }
        });
        // A failure is tried again.
        let released = self.release_all(locks.collect(), now);
        for (release, released) in failed.iter().zip(released) {
            if let Ok(Release::Released { .. }) = released {
                let after = clock::uptime().since(release.since);
                self.observer.notify(&Event::ReleasedLate { key: &release.key, after });
            }
        }
        for (mut maybe, pause) in maybe_held {
            if !self.release_if_held(&mut maybe) {
                let _ = self.add_unfinished((pause * 2).min(LONGEST_PAUSE), What::MaybeHeld(maybe));
            }
        }
    }

    /// Releases the lock if its key holds the value of a command without a reply. Returns true if there is nothing left
    /// to do, since each lease is released or has ended.
    pub(super) fn release_if_held(self: &Arc<Self>, maybe: &mut MaybeHeld) -> bool {
        let MaybeHeld { key, options, unresolved } = maybe;
        if !unresolved.may_hold(0, clock::now()) {
            return true;
        }
        let Ok(Reply::Bulk(Some(found))) = self.once(key, Command::Get) else { return false };
        // Until it is there, the command may still arrive.
        if let Some((lease, _)) = unresolved.take(0, Some(&found)) {
            let now = clock::now();
            let holder = self.queue.hold(key, None, &Observation::of(&lease, now), no_hold());
            self.release_all_unwanted(vec![HeldLock::new(key, options, lease, holder)], now);
        }
        unresolved.is_empty()
    }
}
