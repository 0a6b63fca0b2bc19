//! The keeper: a timer's threads work for locks that are held. They extend leases, look whether locks are still held, and note that a
//! lease has passed. What is due for many locks at a time goes together, for the locks of each node of a cluster on a thread of its own.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::engine::{Engine, Kept, for_each_engine};
use super::owner::Locked;
use super::reports::Outbox;
use crate::rules::keeping::{self, Due, Next, Progress};
use crate::run::hold::{Hold, Own};
use crate::values::clock::{self, Now, Uptime};

/// When a lock is looked at again that another thread was working on.
const BUSY: Duration = Duration::from_millis(20);

/// Works on what is due.
pub(super) fn work(due: Vec<(u64, Kept)>) {
    for_each_engine(due, |(_, kept)| &kept.engine, |engine, own| engine.keep(&own));
}

impl Engine {
    /// Has the keeper work on a lock that has just been acquired, if its options say so; or look at it once, if gems use the server.
    pub(super) fn keep_by_options(self: &Arc<Self>, hold: &Arc<Hold>) {
        if hold.options.auto_extend.is_some() {
            self.keep_from_now_on(hold);
        } else {
            self.look_once(hold);
        }
    }

    /// Has the keeper look at a lock that has just been acquired, if gems use the server.
    pub(super) fn look_once(self: &Arc<Self>, hold: &Arc<Hold>) {
        if self.gems.were_seen(hold.acquired.uptime) {
            self.reschedule(hold, &hold.own());
        }
    }

    /// Has the keeper work on a lock, if it does not do so yet.
    pub(super) fn keep_from_now_on(self: &Arc<Self>, hold: &Arc<Hold>) {
        let own = hold.own();
        if !hold.is_kept.swap(true, Ordering::Relaxed) {
            self.reschedule(hold, &own);
        }
        drop(own);
        hold.report();
    }

    /// Looks again when something is due for a lock. The hold reports a failure later, when nothing is locked.
    pub(super) fn reschedule(self: &Arc<Self>, hold: &Arc<Hold>, own: &Own) {
        if own.over {
            return;
        }
        match hold.kept_as.load(Ordering::Relaxed) {
            0 if hold.is_kept.load(Ordering::Relaxed)
                || own.lease.end.is_some() && self.gems.were_seen(own.began) =>
            {
                let id = self.keeper.new_id();
                hold.kept_as.store(id, Ordering::Relaxed);
                self.schedule(id, hold, own);
            }
            0 => {}
            id => self.schedule(id, hold, own),
        }
    }

    /// Has the keeper do no more for a lock.
    pub(super) fn forget(&self, hold: &Hold) {
        match hold.kept_as.load(Ordering::Relaxed) {
            0 => {}
            id => self.keeper.remove(id),
        }
    }

    fn schedule(self: &Arc<Self>, id: u64, hold: &Arc<Hold>, own: &Own) {
        match keeping::next(&hold.options, progress(hold, own, clock::now())) {
            Some(Next { at, slack, .. }) if hold.is_held() => self.schedule_at(id, hold, at, slack),
            _ => self.keeper.remove(id),
        }
    }

    fn schedule_at(self: &Arc<Self>, id: u64, hold: &Arc<Hold>, at: Uptime, slack: Duration) {
        let node = self.backend.node_of(&hold.key);
        let kept = Kept { engine: Arc::clone(self), hold: Arc::clone(hold), node };
        let added = self.keeper.add(id, node, at, slack, kept);
        // Where the program asks for nothing, nothing is missing.
        if hold.is_kept.load(Ordering::Relaxed) {
            hold.note_kept(added.map_err(|(error, _)| error));
        }
    }

    /// Does what is due for these locks, together if that is possible.
    fn keep(self: &Arc<Self>, due: &[(u64, Kept)]) {
        let outbox = Outbox::default();
        let (mut to_extend, mut to_verify) = (Vec::new(), Vec::new());
        for (id, Kept { hold, node, .. }) in due {
            // A node that hangs holds up no key that it has no longer.
            if self.backend.node_of(&hold.key) != *node {
                self.schedule_at(*id, hold, clock::uptime(), Duration::ZERO);
                continue;
            }
            match self.due(*id, hold) {
                Some((locked, true)) => to_extend.push(locked),
                // It is not locked while others are extended.
                Some((_, false)) => to_verify.push((*id, hold)),
                None => {}
            }
        }
        // By the clock that the new lease begins with: the lock is not held for longer in total than the options say.
        let time = |hold: &Hold, now: Now| keeping::lease(&hold.options, hold.acquired.uptime, now.uptime);
        let extended = self.extend_locked(&mut to_extend, &outbox, time);
        let now = clock::now();
        for ((hold, own), extended) in to_extend.iter().zip(&extended) {
            if extended.is_err() && own.lease.has_passed(now) {
                hold.lost(now);
            }
        }
        // A server without names is reported where a lock is acquired.
        self.end_extensions(to_extend, &outbox, &extended, self.has_names());
        let mut to_verify: Vec<Locked<'_>> =
            to_verify.into_iter().filter_map(|(id, hold)| Some(self.due(id, hold)?.0)).collect();
        // A failure is tried again, and a loss is reported by the hold.
        let verified = self.verify_locked(&mut to_verify, &outbox);
        self.end_verifications(to_verify, &outbox, &verified);
        for (_, kept) in due {
            kept.hold.report();
        }
    }

    /// Returns a lock for which something is due: whether its lease is to be extended, rather than its key looked at.
    fn due<'a>(self: &Arc<Self>, id: u64, hold: &'a Arc<Hold>) -> Option<(Locked<'a>, bool)> {
        let now = clock::now();
        let Some(own) = hold.try_own() else {
            self.schedule_at(id, hold, now.uptime.after(BUSY), Duration::ZERO);
            return None;
        };
        if own.over || !hold.is_held() {
            return None;
        }
        let Next { at, due, slack } = keeping::next(&hold.options, progress(hold, &own, now))?;
        if at > now.uptime.after(slack) {
            self.schedule_at(id, hold, at, slack);
            return None;
        }
        match due {
            Due::Extend => {
                let is_over = keeping::lease(&hold.options, hold.acquired.uptime, now.uptime).is_none();
                if is_over {
                    hold.lost(now);
                }
                (!is_over).then_some(((hold, own), true))
            }
            Due::Verify => Some(((hold, own), false)),
            Due::Expire => {
                if hold.lost(now).is_none() {
                    self.schedule(id, hold, &own);
                }
                None
            }
        }
    }
}

fn progress(hold: &Hold, own: &Own, now: Now) -> Progress {
    Progress {
        is_kept: hold.is_kept.load(Ordering::Relaxed),
        since: own.lease.since,
        acquired: hold.acquired.uptime,
        began: own.began,
        // By the clock that allows less.
        end: own.lease.end.map(|end| now.uptime.after(end.remaining(now))),
        asked: own.asked,
        failed: own.failed,
        now: now.uptime,
    }
}
