//! The keeper: a timer's threads work for locks that are held. They extend leases, look whether locks are still held,
//! and note that a lease has passed. What is due for many locks at a time goes together, for the locks of each node of
//! a cluster on a thread of its own.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use proto::keeping::{self, Duty, NextLook, Progress};
use proto::values::{Now, Uptime};

use super::engine::{Engine, Kept, for_each_engine};
use super::holder::Locked;
use super::outbox::Outbox;
use super::timer;
use crate::run::hold::{Hold, HoldState};
use crate::system::clock;

/// When a lock is looked at again that another thread was working on.
const BUSY: Duration = Duration::from_millis(20);

/// Works on what is due.
pub(super) fn work(due: Vec<Kept>) {
    for_each_engine(due, |kept| &kept.engine, |engine, state| engine.keep(&state));
}

impl Engine {
    /// Has the keeper work on a lock that has just been acquired, if
    /// its options say so; or look at it once, if gems use the server.
    pub(crate) fn keep_by_options(self: &Arc<Self>, hold: &Arc<Hold>) {
        if hold.options.terms.auto_extend.is_some() {
            self.keep_from_now_on(hold);
        } else {
            self.look_once(hold);
        }
    }

    /// Has the keeper look at a lock that has just been acquired, if gems use the server.
    pub(crate) fn look_once(self: &Arc<Self>, hold: &Arc<Hold>) {
        if self.gems.were_seen(hold.acquired.uptime) {
            self.look_soon(hold);
        }
    }

    /// Has the keeper look at a lock that has just been acquired, unless it does so now.
    pub(super) fn look_soon(self: &Arc<Self>, hold: &Arc<Hold>) {
        if let Some(mut state) = hold.state_of_keeper() {
            self.schedule(hold, &mut state);
        }
    }

    /// Has the keeper work on a lock, if it does not do so yet.
    pub(crate) fn keep_from_now_on(self: &Arc<Self>, hold: &Arc<Hold>) {
        let mut state = hold.state();
        if !hold.is_kept.swap(true, Ordering::Relaxed) {
            self.reschedule(hold, &mut state);
        }
        drop(state);
        hold.report();
    }

    /// Looks again when something is due for a lock. The hold reports a failure later, when nothing is locked.
    pub(super) fn reschedule(self: &Arc<Self>, hold: &Arc<Hold>, state: &mut HoldState) {
        let is_kept = state.due.is_some() || hold.is_kept.load(Ordering::Relaxed);
        if is_kept || state.lease.end.is_some() && self.gems.were_seen(state.began) {
            self.schedule(hold, state);
        }
    }

    /// Has the keeper do no more for a lock that its program gives up.
    pub(crate) fn forget(&self, state: &mut HoldState) {
        if let Some(due) = state.due.take() {
            self.keeper.remove(due);
        }
    }

    fn schedule(self: &Arc<Self>, hold: &Arc<Hold>, state: &mut HoldState) {
        self.forget(state);
        let next = keeping::next(&hold.options.terms, progress(hold, state, clock::now()));
        if let Some(NextLook { at, slack, .. }) = next.filter(|_| hold.is_held()) {
            state.due = self.look_at(hold, at, slack);
        }
    }

    /// Has the keeper look at a lock at this time, or up to `slack` earlier.
    fn look_at(self: &Arc<Self>, hold: &Arc<Hold>, at: Uptime, slack: Duration) -> Option<timer::Due> {
        let node = self.backend.node_of(&hold.key);
        let kept = Kept { engine: Arc::clone(self), hold: Arc::clone(hold), node };
        let (due, failed) = match self.keeper.add(node, at, slack, kept) {
            Ok(due) => (Some(due), Ok(())),
            Err((error, _)) => (None, Err(error)),
        };
        // Where the program asks for nothing, nothing is missing.
        if hold.is_kept.load(Ordering::Relaxed) {
            hold.note_kept(failed);
        }
        due
    }

    /// Does what is due for these locks, together if that is possible.
    fn keep(self: &Arc<Self>, due: &[Kept]) {
        let outbox = Outbox::default();
        let (mut to_extend, mut to_verify) = (Vec::new(), Vec::new());
        for Kept { hold, node, .. } in due {
            // A node that hangs holds up no key that it has no longer.
            if self.backend.node_of(&hold.key) != *node {
                self.look_at(hold, clock::uptime(), Duration::ZERO);
                continue;
            }
            match self.due(hold) {
                Some((locked, Duty::Extend)) => to_extend.push(locked),
                // It is not locked while others are extended.
                Some(_) => to_verify.push(hold),
                None => {}
            }
        }
        for (_, state) in &mut to_extend {
            state.is_kept_now();
        }
        // By the clock that the new lease begins with: the lock is not held for longer in total than the options say.
        let time = |hold: &Hold, _: &HoldState, now: Now| {
            keeping::lease(&hold.options.terms, hold.acquired.uptime, now.uptime)
        };
        let extended = self.extend_locked(&mut to_extend, &outbox, clock::now(), time);
        let now = clock::now();
        for ((hold, state), extended) in to_extend.iter().zip(&extended) {
            if extended.is_err() && state.lease.has_passed(now) {
                hold.lost(now);
            }
        }
        self.end_extensions(to_extend, &outbox, &extended);
        let mut to_verify: Vec<Locked<'_>> =
            to_verify.into_iter().filter_map(|hold| Some(self.due(hold)?.0)).collect();
        for (_, state) in &mut to_verify {
            state.is_kept_now();
        }
        // A failure is tried again, and a loss is reported by the hold.
        self.verify_locked(&mut to_verify, &outbox);
        self.end_verifications(to_verify, &outbox);
        for kept in due {
            kept.hold.report();
        }
    }

    /// Returns a lock for which something is due, and whether that is to extend or to verify it.
    fn due<'a>(self: &Arc<Self>, hold: &'a Arc<Hold>) -> Option<(Locked<'a>, Duty)> {
        let now = clock::now();
        let Some(mut state) = hold.state_of_keeper() else {
            self.look_at(hold, now.uptime.after(BUSY), Duration::ZERO);
            return None;
        };
        if !hold.is_held() {
            return None;
        }
        let NextLook { at, duty, slack } = keeping::next(&hold.options.terms, progress(hold, &state, now))?;
        if at > now.uptime.after(slack) {
            self.forget(&mut state);
            state.due = self.look_at(hold, at, slack);
            return None;
        }
        match duty {
            Duty::Extend => {
                let is_over = keeping::lease(&hold.options.terms, hold.acquired.uptime, now.uptime).is_none();
                if is_over {
                    hold.lost(now);
                }
                (!is_over).then_some(((hold, state), duty))
            }
            Duty::Verify => Some(((hold, state), duty)),
            Duty::Expire => {
                if hold.lost(now).is_none() {
                    self.schedule(hold, &mut state);
                }
                None
            }
        }
    }
}

fn progress(hold: &Hold, state: &HoldState, now: Now) -> Progress {
    Progress {
        is_kept: hold.is_kept.load(Ordering::Relaxed),
        since: state.lease.since,
        acquired: hold.acquired.uptime,
        began: state.began,
        // By the clock that allows less.
        end: state.lease.end.map(|end| now.uptime.after(end.remaining(now))),
        asked: state.asked,
        failed: state.failed,
        now: now.uptime,
    }
}
