//! How long an attempt to acquire one of several locks pauses before it looks again.

use std::time::Duration;

use super::{AcquiringPermit, Action, State};
use crate::clock::{Now, Uptime};
use crate::protocol::GiveUp;

impl AcquiringPermit {
    /// After replies to commands on a lock that was tried were lost: others may do, after a pause.
    pub(super) fn pause_or(&mut self, reason: GiveUp, now: Now) -> Action {
        match self.time_left(now.uptime, now) {
            Some(time) => self.sleep(time),
            None => Action::GiveUp(reason),
        }
    }

    /// The reply was lost. Whether SETNX was carried out is found out by reading, on a new connection (I6).
    pub(super) fn lost(&mut self, now: Now) -> Action {
        let Some(since) = self.losing_since else {
            // Often the server has only closed an idle connection: no pause.
            self.losing_since = Some(now.uptime);
            return self.look();
        };
        match self.time_left(now.uptime, now) {
            Some(time) if now.uptime.since(since) < self.params.retry_for => self.sleep(time),
            _ => self.give_up(GiveUp::Io),
        }
    }

    /// Sleeps the poll interval, but not past the deadline, nor past the first expiry that was seen; or until the end of a
    /// window.
    pub(super) fn wait_from(&mut self, looked: Uptime, now: Now) -> Action {
        let Some(time) = self.time_left(looked, now) else { return self.give_up(GiveUp::Timeout) };
        if let Some(until) = self.not_before {
            return self.sleep(until.since(now.uptime).min(self.rest(now)));
        }
        let time = self.params.until_free(time, self.seen.as_ref(), now.wall);
        let removed = self.removed_at.take().map_or(Duration::MAX, |at| at.since(now.uptime));
        self.sleep(time.min(removed))
    }

    fn rest(&self, now: Now) -> Duration {
        self.params.deadline.map_or(Duration::MAX, |deadline| deadline.since(now.uptime))
    }

    fn sleep(&mut self, time: Duration) -> Action {
        self.state = State::Sleeping;
        Action::Sleep(time)
    }

    /// The rest of the pause that began at `looked`; `None` at the deadline, and after the last attempt.
    fn time_left(&self, looked: Uptime, now: Now) -> Option<Duration> {
        let is_over = self.params.deadline.is_some_and(|deadline| now.uptime >= deadline);
        if is_over || self.has_used_its_attempts() {
            return None;
        }
        let pause = self.params.options.poll_interval;
        Some(pause.saturating_sub(now.uptime.since(looked)).min(self.rest(now)))
    }

    pub(super) fn give_up(&self, reason: GiveUp) -> Action {
        Action::GiveUp(if self.in_doubt { GiveUp::Unknown } else { reason })
    }
}
