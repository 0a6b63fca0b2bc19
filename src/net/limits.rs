//! What a command is sent under: what the server must support, and until when what is waited for.

use std::time::Duration;

use proto::values::{Key, Now, Protocol, Uptime};

use super::errors::{Failure, Refusal};

/// How long a failure to connect is remembered for others, which do not try then.
pub(in crate::net) const REMEMBERED: Duration = Duration::from_millis(50);

/// What a command is sent under.
#[derive(Clone, Copy)]
pub(crate) struct Limits<'a> {
    /// A server that is known to be too old for this protocol gets nothing sent.
    pub(crate) needs: Protocol,
    /// True if it may grant a lock: a server that settles gets it later.
    pub(crate) grants: bool,
    /// When the command was decided on, by the clocks as just read:
    /// whatever waits before it is sent reads them again (I4, I5).
    pub(crate) decided_at: Now,
    /// When it was first to be sent. An attempt to connect that failed
    /// since then, or shortly before, is one that it has waited for.
    pub(crate) waits_since: Uptime,
    /// An unreachable server is waited for until here.
    pub(crate) reachable_by: Uptime,
    /// A server that refuses connections for now is waited for until here.
    pub(crate) accepted_by: Uptime,
    /// A connection that is in use, or is being opened, is waited for until here.
    pub(crate) connected_by: Uptime,
    /// The reply is waited for until here, where the connection knows timeouts.
    pub(crate) answered_by: Uptime,
    /// Until when the lock is held that the command releases; only of a release. It goes before other commands.
    pub(crate) held_until: Option<Uptime>,
    /// How long the reply is waited for once the command has its
    /// connection, if that is waited for by itself; only of a release.
    pub(crate) replied_within: Option<Duration>,
    /// Ends the wait for a connection from outside.
    pub(crate) stop: &'a dyn Stop,
}

/// Returns how much of the time of one command may pass until it is sent. A quarter is left for the reply: a command
/// that got its connection in the last moment would lose its reply, and the connection with it.
pub(in crate::net) fn until_sent(command_timeout: Duration) -> Duration {
    command_timeout / 4 * 3
}

impl Limits<'_> {
    /// Returns until when a connection is waited for after this error.
    pub(in crate::net) fn waits_until(&self, failure: &Failure) -> Uptime {
        match failure {
            Failure::Unreachable { .. } => self.reachable_by,
            // The address may lead to the master in a moment.
            Failure::Refused(refusal) if refusal.is_of_replica() => self.reachable_by,
            Failure::Refused(refusal) if refusal.is_transient() => self.accepted_by,
            _ => Uptime::default(),
        }
    }

    /// Returns the limits of a trip that follows another of the same call, and has as much time for itself; all of them
    /// together have twice that.
    pub(in crate::net) fn for_the_next(self, now: Now, command_timeout: Duration) -> Self {
        let most = self.answered_by.after(command_timeout);
        let time = self.answered_by.since(self.decided_at.uptime).min(command_timeout);
        let by = |time: Duration| now.uptime.after(time).min(most);
        let connected_by = self.connected_by.max(by(until_sent(time)));
        Self { decided_at: now, connected_by, answered_by: self.answered_by.max(by(time)), ..self }
    }

    /// Returns the limits of a trip that connects by itself: a failure to connect before it does not count.
    pub(crate) fn trying(self) -> Self {
        Self { waits_since: self.waits_since.after(REMEMBERED), ..self }
    }

    /// Returns the limits of a trip that goes on with another, which was sent then, in the same time.
    pub(in crate::net) fn after(self, sent_at: Option<Uptime>, now: Now) -> Self {
        let spent = sent_at.map_or(Duration::ZERO, |sent_at| now.uptime.since(sent_at));
        let replied_within = self.replied_within.map(|time| time.saturating_sub(spent));
        Self { decided_at: now, replied_within, ..self }
    }

    /// Returns the limits where connections are in use for the time of a command each: a release waits for them as long
    /// as its lock is held. That leaves the time for the reply as it is.
    pub(in crate::net) fn for_own_connections(self) -> Self {
        let Some((held_until, time)) = self.held_until.zip(self.replied_within) else { return self };
        let connected_by = self.connected_by.max(held_until);
        Self { connected_by, answered_by: self.answered_by.max(connected_by.after(time)), ..self }
    }

    /// Returns until when the reply is waited for of a command whose connection is there now.
    pub(in crate::net) fn reply_by(&self, now: Uptime) -> Uptime {
        self.replied_within.map_or(self.answered_by, |time| now.after(time).min(self.answered_by))
    }
}

impl Limits<'static> {
    /// Returns the limits of a command that is decided on now, of a call that ends at the deadline, except for its last
    /// command: the last attempt comes at the deadline, may have to wait for a connection of the pool, and has the time
    /// of one command. Without a deadline it waits for ever. `retry_for`: how long an unreachable server is waited for.
    #[inline]
    pub(crate) fn within(
        deadline: Option<Uptime>,
        retry_for: Duration,
        command_timeout: Duration,
        now: Now,
    ) -> Self {
        let patient_until = now.uptime.after(retry_for);
        let (reachable_by, accepted_by, connected_by, answered_by) = match deadline {
            Some(deadline) => {
                let last = deadline.after(command_timeout);
                let connected_by = deadline.after(until_sent(command_timeout));
                (patient_until.min(deadline), deadline, connected_by, last)
            }
            None => (patient_until, Uptime::MAX, Uptime::MAX, Uptime::MAX),
        };
        Self {
            needs: Protocol::Classic,
            grants: false,
            decided_at: now,
            waits_since: now.uptime,
            reachable_by,
            accepted_by,
            connected_by,
            answered_by,
            held_until: None,
            replied_within: None,
            stop: &(),
        }
    }
}

/// Says whether a wait has been ended from outside.
pub(crate) trait Stop: Sync {
    fn is_over(&self) -> bool;

    /// Notes that a server refuses connections for now, and is waited for with a command for this key.
    fn waits(&self, _key: &Key, _refusal: &Refusal) {}
}

/// Of waits that end by themselves.
impl Stop for () {
    fn is_over(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::clock;

    const SECOND: Duration = Duration::from_secs(1);

    fn within(deadline: Option<Uptime>, now: Now) -> Limits<'static> {
        let (retry_for, command_timeout) = (4 * SECOND, 2 * SECOND);
        Limits::within(deadline, retry_for, command_timeout, now)
    }

    #[test]
    fn a_release_waits_for_own_connections_as_long_as_its_lock_is_held() {
        let now = clock::now();
        let limits = within(Some(now.uptime), now);
        let own = limits.for_own_connections();
        let untils = |limits: &Limits<'_>| [limits.connected_by, limits.answered_by];
        assert_eq!(untils(&own), untils(&limits), "only a release");
        for (held, connected, answered) in [(60, 60, 61), (1, 1, 2)] {
            let until = |time: u32| now.uptime.after(time * SECOND);
            let replied_within = Some(SECOND);
            let limits =
                Limits { held_until: Some(until(held)), replied_within, ..limits }.for_own_connections();
            assert_eq!(limits.connected_by, until(connected).max(now.uptime.after(SECOND + SECOND / 2)));
            assert_eq!(limits.answered_by, until(answered).max(now.uptime.after(5 * SECOND / 2)));
            // That wait leaves the time for the reply as it is.
            assert_eq!(limits.reply_by(now.uptime), until(1));
            assert_eq!(limits.reply_by(until(1)), until(2));
            let sent_at = Some(now.uptime);
            let later = Now { uptime: now.uptime.after(SECOND / 4), ..now };
            assert_eq!(limits.after(sent_at, later).replied_within, Some(SECOND * 3 / 4));
            assert_eq!(
                [limits.reachable_by, limits.accepted_by],
                [now.uptime; 2],
                "a server is not waited for"
            );
        }
    }

    #[test]
    fn a_connection_comes_in_time_for_the_reply_and_all_within_the_deadline_and_a_command() {
        let now = clock::now();
        for timeout in [Duration::ZERO, 10 * SECOND] {
            let deadline = now.uptime.after(timeout);
            let limits = within(Some(deadline), now);
            assert_eq!(limits.reachable_by, deadline.min(now.uptime.after(4 * SECOND)));
            assert_eq!(limits.accepted_by, deadline);
            assert_eq!(limits.connected_by, deadline.after(SECOND + SECOND / 2));
            assert_eq!(limits.answered_by, deadline.after(2 * SECOND));
        }
    }

    #[test]
    fn a_trip_that_follows_another_has_its_own_time_and_all_have_twice_that() {
        let now = clock::now();
        let limits = within(Some(now.uptime), now);
        let next = |millis: u64| {
            let began = Now { uptime: now.uptime.after(Duration::from_millis(millis)), ..now };
            let next = limits.for_the_next(began, 2 * SECOND);
            [next.connected_by, next.answered_by].map(|until| until.since(now.uptime))
        };
        let millis = Duration::from_millis;
        assert_eq!(next(500), [millis(2000), millis(2500)]);
        assert_eq!(next(1500), [millis(3000), millis(3500)]);
        assert_eq!(next(3000), [4 * SECOND; 2], "twice the time of a command is over");
        let endless = within(None, now).for_the_next(now, 2 * SECOND);
        assert_eq!([endless.connected_by, endless.answered_by], [Uptime::MAX; 2]);
    }

    #[test]
    fn without_a_deadline_only_an_unreachable_server_is_given_up() {
        let now = clock::now();
        let limits = within(None, now);
        assert_eq!(limits.reachable_by, now.uptime.after(4 * SECOND));
        assert_eq!([limits.accepted_by, limits.connected_by, limits.answered_by], [Uptime::MAX; 3]);
    }
}
