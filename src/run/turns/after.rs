//! Whose turn it is after a holder: that of a thread of its process, of pollers, or of the process that has waited
//! longest for notifications.

use std::sync::Arc;

use proto::Reply;
use proto::values::{Now, Uptime};
use proto::waiting_list::Waiting;
use proto::window::Activity;

use super::notifications::{Notifications, Passed};
use super::{SLICE, Turn};
use crate::net::{Failure, Limits};
use crate::run::held::Holder;
use crate::system::clock;
use crate::wait::{Hint, Wake};

/// Whose turn it is after a holder.
pub(in crate::run) enum Next {
    /// A thread of this process that is queued.
    Thread,
    /// Any client: no thread of this process is queued.
    Any,
    /// Other processes poll: the lock is left to them for a while.
    Pollers,
    /// Other processes are in the waiting list, from which the first is taken.
    Listed(Waiting),
}

impl Next {
    /// Returns what takes the first process from the waiting list.
    pub(in crate::run) fn listed(&self) -> Option<&Waiting> {
        if let Self::Listed(taking) = self { Some(taking) } else { None }
    }
}

impl Turn<'_> {
    /// Returns whose turn it is after this holder.
    #[inline]
    pub(in crate::run) fn after(&self, holder: &Holder, now: Now) -> Next {
        let in_window = |activity: Activity| activity.window(self.busy, now).is_some();
        let yields = holder.of_next(|activity| {
            self.has_windows && (in_window(activity) || self.window_of_one(now).is_some())
        });
        if yields == Some(true) {
            return Next::Pollers;
        }
        if let Some(notifications) = &self.notifications {
            let slice = holder.slice();
            if slice.is_some_and(|since| now.uptime.since(since) < SLICE) {
                return Next::Thread;
            }
            if let Some(taking) = notifications.next(self.key, slice.is_some()) {
                return Next::Listed(taking);
            }
        }
        if yields.is_some() { Next::Thread } else { Next::Any }
    }

    /// Returns whose turn it is after one of several locks, which no thread of this process gets handed over.
    pub(in crate::run) fn after_one(&self, now: Now) -> Next {
        let follows = self.waiters().is_waited_for(self.key);
        if follows && self.window(now).is_some() {
            return Next::Pollers;
        }
        let next = self.notifications.as_ref().and_then(|all| all.next(self.key, follows));
        next.map_or(Next::Any, Next::Listed)
    }

    /// Returns true if the locks of this name pass among the threads of this process, in its slice since then: no other
    /// process is to be notified yet.
    pub(crate) fn is_in_slice(&self, since: Option<Uptime>, now: Now) -> bool {
        let in_slice = || since.is_some_and(|since| now.uptime.since(since) < SLICE);
        self.notifications.as_ref().is_none_or(|notifications| !notifications.can_send() || in_slice())
    }

    /// Notifies the next process, if it is its turn, after the lock was `released` or not. `taken`: what came of taking
    /// it from the list. Returns how the threads of this process learn of the release.
    #[inline]
    pub(in crate::run) fn pass_on(
        &self,
        next: &Next,
        released: bool,
        taken: Option<Result<Reply, Failure>>,
        now: Uptime,
    ) -> Wake {
        match (next, &self.notifications) {
            (Next::Listed(taking), Some(notifications)) => {
                let passed = self.notify_next(notifications, taking, released, taken, now);
                if released { passed } else { Wake::Hint(Hint::Changed) }
            }
            _ if !released => Wake::Hint(Hint::Changed),
            (Next::Pollers, _) => Wake::NextSlice(Hint::Freed),
            _ => Wake::Hint(Hint::Freed),
        }
    }

    #[inline(never)]
    fn notify_next(
        &self,
        notifications: &Arc<Notifications>,
        taking: &Waiting,
        released: bool,
        taken: Option<Result<Reply, Failure>>,
        now: Uptime,
    ) -> Wake {
        notifications.sent_next(self.key, taking, taken.as_ref());
        let passed = match taken {
            // Even if the key holds another's value: the process that is
            // notified then looks, and enters the list again.
            Some(taken) if released || taken.is_ok() => {
                let backend = &self.turns.backend;
                let (retry_for, command_timeout) = (backend.retry_for(), backend.command_timeout());
                let limits = Limits::within(Some(now), retry_for, command_timeout, clock::now());
                notifications.pass_on(self.key, taken, &limits, self.observer)
            }
            _ => Passed::ToNone,
        };
        match passed {
            Passed::ToNone => Wake::NextSlice(Hint::Freed),
            Passed::ToOther if notifications.is_listed(self.key) => Wake::Notification(Hint::Freed),
            // A thread that has come meanwhile, or whose entry was taken, is to look, and to enter the list.
            Passed::ToOther => Wake::NextSlice(Hint::Changed),
        }
    }

    /// A lock was released, and its waiting list was left alone. If the threads that it was left to have given up
    /// meanwhile, it is the turn of the next process.
    #[inline]
    pub(in crate::run) fn was_left(&self, next: &Next) {
        if let Some(notifications) = &self.notifications
            && !matches!(next, Next::Listed(_))
            && !self.waiters().is_waited_for(self.key)
        {
            notifications.was_left_to_none(self.key);
        }
    }
}
