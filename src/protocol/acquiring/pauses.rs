//! How long an attempt pauses before it looks again.

use std::time::Duration;

use super::{Acquiring, Action, Note, State};
use crate::clock::{Now, Uptime};
use crate::protocol::GiveUp;

impl Acquiring {
    /// Rule 5: sleeps the poll interval, but not past the deadline, where the lock is asked for once more, nor past the expiry
    /// that was seen.
    pub(super) fn wait(&mut self, now: Now) -> Action {
        self.wait_from(now.uptime, now)
    }

    pub(super) fn wait_from(&mut self, looked: Uptime, now: Now) -> Action {
        self.note_if_it_never_expires();
        let Some(time) = self.time_left(looked, now) else { return self.give_up(GiveUp::Timeout) };
        let time = self.params.until_free(time, self.seen.as_ref(), now.wall);
        self.sleep(time)
    }

    pub(super) fn sleep(&mut self, time: Duration) -> Action {
        self.state = State::Sleeping;
        Action::Sleep(time)
    }

    /// The rest of the pause that began at `looked`, or the time until the deadline if that is shorter; `None` at the deadline, and after
    /// the last attempt.
    pub(super) fn time_left(&self, looked: Uptime, now: Now) -> Option<Duration> {
        if self.has_used_its_attempts() {
            return None;
        }
        let pause = match self.not_before {
            Some(until) => until.since(now.uptime),
            None if self.asks(now.uptime) => Duration::ZERO,
            None => self.params.options.poll_interval.saturating_sub(now.uptime.since(looked)),
        };
        match self.params.deadline {
            Some(deadline) if now.uptime >= deadline => None,
            Some(deadline) => Some(pause.min(deadline.since(now.uptime))),
            None => Some(pause),
        }
    }

    fn note_if_it_never_expires(&mut self) {
        if let Some(state) = &self.seen
            && state.advice().is_some()
            && !self.never_expires_noted
        {
            self.never_expires_noted = true;
            self.notes.push(Note::NeverExpires(state.clone()));
        }
    }
}
