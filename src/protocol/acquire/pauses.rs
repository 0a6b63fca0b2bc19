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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Wall;
    use crate::identity::Identity;
    use crate::options::LockOptions;
    use crate::protocol::Reply;
    use crate::protocol::acquire::Params;

    #[test]
    fn a_thread_that_wakes_after_a_window_asks_at_once() {
        let hour = Duration::from_secs(3600);
        let params = Params {
            options: LockOptions::expiring_after(hour).poll_interval(hour),
            deadline: None,
            retry_for: hour,
            nonce: Identity::new().next_nonce(),
        };
        let now = Now { wall: Wall(1_700_000_000_000_000), uptime: Uptime(hour) };
        let (_, action) = Acquiring::not_before(params, now.uptime, now);
        assert!(matches!(action, Action::Send(_)), "{action:?}");
    }

    #[test]
    fn a_look_takes_nothing_over_for_an_attempt_without_an_expiration() {
        let hour = Duration::from_secs(3600);
        let options = LockOptions::without_expiration().poll_interval(hour);
        let nonce = Identity::new().next_nonce();
        let params = Params { options, deadline: None, retry_for: hour, nonce };
        let now = Now { wall: Wall(1_700_000_000_000_000), uptime: Uptime(hour) };
        let (mut attempt, _) = Acquiring::start(params, now);
        assert_eq!(attempt.reply(Reply::Integer(0), now), Action::Sleep(hour));
        let action = attempt.looked(Reply::Bulk(Some(b"1532000016.5".to_vec())), now);
        assert_eq!(action, Some(Action::Sleep(hour)));
        let action = attempt.looked(Reply::Bulk(None), now);
        assert!(matches!(action, Some(Action::Send(_))), "{action:?}");
    }

    #[test]
    fn after_a_late_grant_the_pause_ends_when_the_key_expires() {
        const LEASE: Duration = Duration::from_millis(100);
        let hour = Duration::from_secs(3600);
        let params = Params {
            options: LockOptions::expiring_after(LEASE).poll_interval(hour),
            deadline: None,
            retry_for: hour,
            nonce: Identity::new().next_nonce(),
        };
        let start = Now { wall: Wall(1_700_000_000_000_000), uptime: Uptime(hour) };
        let (mut attempt, action) = Acquiring::start(params, start);
        assert!(matches!(action, Action::Send(_)), "{action:?}");
        let late = Now { wall: start.wall.after(2 * LEASE), uptime: start.uptime.after(2 * LEASE) };
        let action = attempt.reply(Reply::Integer(1), late);
        assert_eq!(attempt.notes, [Note::LateGrant]);
        // The expiration and the gem's second, less what has passed, and one microsecond.
        assert_eq!(action, Action::Sleep(Duration::from_micros(900_001)));
    }
}
