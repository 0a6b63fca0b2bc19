//! The pace of an attempt: when it looks again, and when it gives up.

use core::ops::ControlFlow::{self, Break, Continue};
use core::time::Duration;

use crate::lease::{Lease, TTL_GUARD, TTL_SHOWN_LATER};
use crate::task::Io;
use crate::values::{Now, Protocol, State, Tag, Terms, Uptime, Wall};
use crate::{Cue, GiveUp, Note, Pause, WhyRefused};

/// The server counts a time to live from when it receives the command. A look that comes too early costs a poll
/// interval.
const IN_TRANSIT: Duration = Duration::from_millis(2);

/// How long a pause is at most after the server has refused for now; the first is the poll interval.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How often in a row the attempt goes on without a sleep after the key changed between two commands. A key that
/// changes more often is under contention.
const IMMEDIATE_RETRIES: u32 = 3;

/// The parameters of an attempt to acquire a lock.
#[derive(Clone, Debug)]
pub struct Params {
    /// What the lock's options say.
    pub terms: Terms,
    /// What the options mean on this server, which is never [`Protocol::Auto`].
    pub protocol: Protocol,
    /// Until when to wait, by the monotonic clock (I7); `None` waits for ever.
    pub deadline: Option<Uptime>,
    /// How long an attempt goes on while replies are lost in a row.
    pub retry_for: Duration,
    /// With the nonce before the first that is used.
    pub tag: Tag,
}

/// How a round ends: what is done without a pause. In the code
/// of attempts `?` ends the round, even if the lock is held.
#[derive(Debug)]
pub enum Round {
    /// The lock is held, with this lease.
    Held(Lease),
    /// Pause for this time, and go on.
    Pause(Duration),
    /// The attempt ends without the lock.
    GiveUp(GiveUp),
}

/// What decides when an attempt looks again, and when it gives up.
#[derive(Debug)]
pub struct Pace {
    pub(crate) terms: Terms,
    /// The one that is used: what the options mean, or that of a lease that was handed over.
    pub(crate) protocol: Protocol,
    deadline: Option<Uptime>,
    pub(crate) retry_for: Duration,
    /// With the nonce that was used last.
    pub(crate) tag: Tag,
    /// True if a command whose reply was lost may have acquired a lock.
    pub(crate) in_doubt: bool,
    /// Since when replies have been lost in a row.
    losing_since: Option<Uptime>,
    round_began: Uptime,
    /// The attempts before this round, which is none if it is refused.
    attempts_before: u32,
    /// How long the next pause is while the server refuses for now.
    refused_for: Option<Duration>,
    /// Since when it says that it is a replica.
    read_only_since: Option<Uptime>,
    /// How often in this round it went on after the key had changed, and read again after a lost reply.
    immediate: (u32, u32),
    pub(crate) never_expires_noted: bool,
    /// How often it has looked whether the lock is free.
    pub attempts: u32,
    /// What the key was last seen to hold.
    pub seen: Option<State>,
    /// When the server removes a key that was left to it.
    pub(crate) removed_at: Option<Uptime>,
}

impl Pace {
    pub(crate) fn new(Params { terms, protocol, deadline, retry_for, tag }: Params) -> Self {
        debug_assert!(protocol != Protocol::Auto, "it is decided");
        Self {
            terms,
            protocol,
            deadline,
            retry_for,
            tag,
            in_doubt: false,
            losing_since: None,
            round_began: Uptime::default(),
            attempts_before: 0,
            refused_for: None,
            read_only_since: None,
            immediate: (0, 0),
            never_expires_noted: false,
            attempts: 0,
            seen: None,
            removed_at: None,
        }
    }

    pub(crate) fn expires(&self) -> bool {
        self.terms.expiration.is_some()
    }

    /// Returns true if the lock's value has a time, and this machine's clock shows none that can be right.
    fn lacks_time(&self, now: Now) -> bool {
        self.expires() && !now.is_plausible()
    }

    /// Gives up before a command is made of a time that cannot be right. What was sent before is judged all the same.
    pub(crate) fn may_begin(&self, cue: &Cue, now: Now) -> ControlFlow<Round> {
        match cue {
            Cue::Sent(..) | Cue::HandedOver { .. } => Continue(()),
            _ if self.lacks_time(now) => Break(self.give_up(GiveUp::ClockUnset)),
            _ => Continue(()),
        }
    }

    /// Takes a nonce for the tag that is in no other command of this client (I2).
    pub(crate) fn take_nonce(&mut self) {
        self.tag.nonce = self.tag.nonce.next();
    }

    /// Notes that a round begins, which may only look at what was seen before.
    pub(crate) fn enter_round(&mut self, now: Now) {
        (self.round_began, self.attempts_before) = (now.uptime, self.attempts);
    }

    /// Notes that what was sent first is answered. The round began when its lease was made.
    pub(crate) fn was_sent(&mut self, lease: &Lease) {
        self.round_began = lease.since;
        self.begin_round();
    }

    pub(crate) fn begin_round(&mut self) {
        self.attempts = self.attempts.saturating_add(1);
        self.immediate = (0, 0);
    }

    /// Notes that the server takes commands, or that there is nothing to send.
    pub(crate) fn not_refused(&mut self) {
        (self.refused_for, self.read_only_since) = (None, None);
    }

    /// Notes that the server has answered.
    pub(crate) fn answered(&mut self) {
        self.losing_since = None;
    }

    /// Returns true at the deadline, where the lock is asked for in any case.
    pub(crate) fn is_last(&self, now: Now) -> bool {
        self.deadline.is_some_and(|deadline| now.uptime >= deadline)
    }

    /// Returns true if the options allow no further attempt.
    pub fn has_used_its_attempts(&self) -> bool {
        self.terms.max_attempts.is_some_and(|most| self.attempts >= most)
    }

    /// Rule 5: sleeps the poll interval, but not past the deadline, where
    /// the lock is asked for once more, nor past the expiry that was seen.
    pub(crate) fn wait(&mut self, io: &Io) -> Round {
        self.wait_from(io.now().uptime, io)
    }

    /// Sleeps the rest of the pause that began at `looked`.
    pub(crate) fn wait_from(&mut self, looked: Uptime, io: &Io) -> Round {
        if let Some(state) = &self.seen
            && state.never_expires()
            && !self.never_expires_noted
        {
            self.never_expires_noted = true;
            io.note(Note::NeverExpires(state.clone()));
        }
        let now = io.now();
        match self.time_left(looked, now) {
            _ if self.lacks_time(now) => self.give_up(GiveUp::ClockUnset),
            Some(time) => Round::Pause(time.min(self.until_free(now))),
            None => self.give_up(GiveUp::Timeout),
        }
    }

    /// Returns how long a lock that was seen cannot be taken over, as far as is known.
    fn until_free(&mut self, now: Now) -> Duration {
        let removed = self.removed_at.take().map_or(Duration::MAX, |at| at.since(now.uptime));
        let Some(State::Until { until, .. }) = self.seen else { return removed };
        if !self.expires() || until < now.wall {
            return removed;
        }
        let is_known = removed < Duration::MAX;
        let protocol = if is_known { Protocol::Watched } else { self.protocol };
        removed.min(free_at(until, protocol, now.wall).since(now.wall))
    }

    /// Returns a pause of this time, with what others may know.
    pub(crate) fn pause(&self, time: Duration) -> Pause {
        let is_refused = self.refused_for.is_some();
        Pause { time, seen: self.seen.clone(), in_doubt: self.in_doubt, is_refused }
    }

    /// How often the key is read. A long value is no lock's, and costs the server and the network more.
    fn poll_interval(&self) -> Duration {
        let is_long = self.seen.as_ref().is_some_and(State::is_long);
        if is_long { self.terms.poll_interval.max(LONGEST_PAUSE) } else { self.terms.poll_interval }
    }

    /// `None` at the deadline, and after the last attempt.
    pub(crate) fn time_left(&self, looked: Uptime, now: Now) -> Option<Duration> {
        if self.has_used_its_attempts() {
            return None;
        }
        let pause = self.poll_interval().saturating_sub(now.uptime.since(looked));
        match self.deadline {
            Some(deadline) if now.uptime >= deadline => None,
            Some(deadline) => Some(pause.min(deadline.since(now.uptime))),
            None => Some(pause),
        }
    }

    /// After the key changed between two commands, goes on without a pause, if it did so not too often.
    pub(crate) fn retry(&mut self, io: &Io) -> ControlFlow<Round> {
        self.immediate.0 += 1;
        if self.immediate.0 <= IMMEDIATE_RETRIES { Continue(()) } else { Break(self.wait(io)) }
    }

    /// A reply was lost. Goes on to read: that is how it is found out
    /// whether the command was carried out, which is never sent again (I6).
    pub(crate) fn lost(&mut self, now: Now) -> ControlFlow<Round> {
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
            Some(time) if now.uptime.since(since) < self.retry_for => Round::Pause(time),
            _ => self.give_up(GiveUp::Io),
        })
    }

    /// The server has refused. What may pass is waited out, with pauses
    /// that grow, unless the call tries once. It counts no attempt.
    pub(crate) fn refused(&mut self, why: WhyRefused, io: &Io) -> Round {
        let now = io.now();
        let passes = match why {
            WhyRefused::OverMemory | WhyRefused::ForNow => {
                self.read_only_since = None;
                true
            }
            // Later it is not a failover, but an address that is wrong. The time of the round counts, in which the
            // network may have waited.
            WhyRefused::ReadOnly => {
                let since = *self.read_only_since.get_or_insert(self.round_began);
                now.uptime.since(since) < self.retry_for
            }
            WhyRefused::Command | WhyRefused::TooOld(_) | WhyRefused::NoLock | WhyRefused::Otherwise => false,
        };
        if !passes || self.is_last(now) || self.terms.max_attempts == Some(1) {
            return self.give_up(GiveUp::Refused);
        }
        let least = self.terms.poll_interval;
        let pause = self.refused_for.unwrap_or(least);
        self.refused_for = Some((2 * pause).min(LONGEST_PAUSE.max(least)));
        self.attempts = self.attempts_before;
        io.note(Note::RefusedForNow);
        let left = self.deadline.map_or(Duration::MAX, |deadline| deadline.since(now.uptime));
        Round::Pause(pause.min(left))
    }

    pub(crate) fn give_up(&self, reason: GiveUp) -> Round {
        Round::GiveUp(if self.in_doubt { GiveUp::Unknown } else { reason })
    }
}

/// Returns when a lock is free whose key shows this time, as far as is known.
pub fn free_at(until: Wall, protocol: Protocol, now: Wall) -> Wall {
    // The bytes do not show whether the server removes the key earlier.
    let may_be_removed = until.before(TTL_SHOWN_LATER).after(TTL_GUARD).after(IN_TRANSIT);
    let free = if protocol == Protocol::Ttl && may_be_removed >= now { may_be_removed } else { until };
    // Only a time in the past is taken over.
    free.after(Duration::from_micros(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acquire::{Attempt, acquire};
    use crate::task::{Rules, Task};
    use crate::values::{Nonce, Terms, Wall};
    use crate::{Reply, Step};

    const HOUR: Duration = Duration::from_secs(3600);
    const START: Now = Now { wall: Wall(1_700_000_000_000_000), uptime: Uptime::of(HOUR) };

    fn params(terms: Terms) -> Params {
        let tag = Tag { nonce: Nonce::from_random(7), name: None };
        let terms = Terms { poll_interval: HOUR, ..terms };
        Params { terms, protocol: Protocol::Classic, deadline: None, retry_for: HOUR, tag }
    }

    /// Begins an attempt.
    fn stepped(params: Params, cue: Cue, now: Now) -> (Task<Lease>, Step<Lease>) {
        Task::begin(now, async move |io| acquire(io, &mut Attempt::new(params), cue).await)
    }

    fn pause<T>(step: Step<T>) -> Duration {
        match step {
            Step::Sleep(pause) => pause.time,
            _ => panic!("it goes on"),
        }
    }

    #[test]
    fn a_look_takes_nothing_over_for_an_attempt_without_an_expiration() {
        let (mut attempt, _) = stepped(params(Terms::without_expiration()), Cue::Ask, START);
        assert_eq!(pause(attempt.resume(Reply::Integer(0), START)), HOUR);
        let step = attempt.wake(Cue::Look(Some(Some(b"1532000016.5".to_vec()))), START);
        assert_eq!(pause(step), HOUR);
        let step = attempt.wake(Cue::Look(Some(None)), START);
        assert!(matches!(step, Step::Send(_)), "{step:?}");
    }

    #[test]
    fn after_a_late_grant_the_pause_ends_when_the_key_expires() {
        const LEASE: Duration = Duration::from_millis(100);
        let (mut attempt, _) = stepped(params(Terms::expiring_after(LEASE)), Cue::Ask, START);
        let late = Now { wall: START.wall.after(2 * LEASE), uptime: START.uptime.after(2 * LEASE) };
        let step = attempt.resume(Reply::Integer(1), late);
        assert_eq!(attempt.io().take_notes(), [Note::LateGrant]);
        // The expiration and the gem's second, less what has passed, and one microsecond.
        assert_eq!(pause(step), Duration::from_micros(900_001));
    }
}
