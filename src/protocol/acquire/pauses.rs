//! How long an attempt pauses before it looks again.

use std::ops::ControlFlow::{self, Break, Continue};
use std::time::Duration;

use super::{Attempt, IMMEDIATE_RETRIES, Note, Pause, Round};
use crate::clock::{Now, Uptime};
use crate::protocol::GiveUp;
use crate::protocol::task::Io;

impl Attempt {
    /// Rule 5: sleeps the poll interval, but not past the deadline, where the lock is asked for once more, nor past the expiry
    /// that was seen.
    pub(super) fn wait(&mut self, io: &Io) -> Round {
        self.wait_from(io.now().uptime, io)
    }

    /// The rest of the pause that began at `looked`.
    pub(super) fn wait_from(&mut self, looked: Uptime, io: &Io) -> Round {
        if let Some(state) = &self.seen
            && state.advice().is_some()
            && !self.never_expires_noted
        {
            self.never_expires_noted = true;
            io.note(Note::NeverExpires(state.clone()));
        }
        let now = io.now();
        match self.time_left(looked, now) {
            Some(time) => Round::Pause(self.params.until_free(time, self.seen.as_ref(), now.wall)),
            None => self.give_up(GiveUp::Timeout),
        }
    }

    /// What a pause of this time is for others.
    pub(super) fn pause(&self, time: Duration) -> Pause {
        let (seen, in_doubt) = (self.seen.clone(), self.unresolved.in_doubt);
        Pause { time, seen, in_doubt, leaves: self.not_before.is_some() }
    }

    /// `None` at the deadline, and after the last attempt.
    fn time_left(&self, looked: Uptime, now: Now) -> Option<Duration> {
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

    /// After the key changed between two commands, goes on without a pause, if it did so not too often.
    pub(super) fn retry(&mut self, io: &Io) -> ControlFlow<Round> {
        self.immediate.0 += 1;
        if self.immediate.0 <= IMMEDIATE_RETRIES { Continue(()) } else { Break(self.wait(io)) }
    }

    /// A reply was lost. Goes on to read: that is how it is found out whether the command was carried out, which is never sent
    /// again (I6).
    pub(super) fn lost(&mut self, now: Now) -> ControlFlow<Round> {
        let since = match self.losing_since {
            Some(since) => since,
            None => {
                self.losing_since = Some(now.uptime);
                // Often the server has only closed an idle connection: no pause. But some hang up on one command alone.
                self.immediate.1 += 1;
                if self.immediate.1 <= IMMEDIATE_RETRIES {
                    return Continue(());
                }
                now.uptime
            }
        };
        Break(match self.time_left(now.uptime, now) {
            Some(time) if now.uptime.since(since) < self.params.retry_for => Round::Pause(time),
            _ => self.give_up(GiveUp::Io),
        })
    }

    pub(super) fn give_up(&self, reason: GiveUp) -> Round {
        Round::GiveUp(if self.unresolved.in_doubt { GiveUp::Unknown } else { reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Wall;
    use crate::identity::Identity;
    use crate::options::LockOptions;
    use crate::protocol::acquire::{Cue, Params, begin};
    use crate::protocol::{Reply, Step};

    const HOUR: Duration = Duration::from_secs(3600);
    const START: Now = Now { wall: Wall(1_700_000_000_000_000), uptime: Uptime(HOUR) };

    fn params(options: LockOptions) -> Params {
        let nonce = Identity::new().next_nonce();
        Params { options: options.poll_interval(HOUR), deadline: None, retry_for: HOUR, nonce }
    }

    fn pause<T>(step: Step<T>) -> Duration {
        match step {
            Step::Sleep(pause) => pause.time,
            _ => panic!("it goes on"),
        }
    }

    #[test]
    fn a_thread_that_wakes_after_a_window_asks_at_once() {
        let (_, step) = begin(params(LockOptions::expiring_after(HOUR)), Cue::Leave(START.uptime), START);
        assert!(matches!(step, Step::Send(_)), "{step:?}");
    }

    #[test]
    fn a_look_takes_nothing_over_for_an_attempt_without_an_expiration() {
        let (mut attempt, _) = begin(params(LockOptions::without_expiration()), Cue::Ask, START);
        assert_eq!(pause(attempt.resume(Reply::Integer(0), START)), HOUR);
        let step = attempt.wake(Cue::Saw(Some(b"1532000016.5".to_vec())), START);
        assert_eq!(pause(step), HOUR);
        let step = attempt.wake(Cue::Saw(None), START);
        assert!(matches!(step, Step::Send(_)), "{step:?}");
    }

    #[test]
    fn after_a_late_grant_the_pause_ends_when_the_key_expires() {
        const LEASE: Duration = Duration::from_millis(100);
        let (mut attempt, _) = begin(params(LockOptions::expiring_after(LEASE)), Cue::Ask, START);
        let late = Now { wall: START.wall.after(2 * LEASE), uptime: START.uptime.after(2 * LEASE) };
        let step = attempt.resume(Reply::Integer(1), late);
        assert_eq!(attempt.io().take_notes(), [Note::LateGrant]);
        // The expiration and the gem's second, less what has passed, and one microsecond.
        assert_eq!(pause(step), Duration::from_micros(900_001));
    }
}
