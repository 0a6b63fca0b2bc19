//! How long a call may take, and what its commands may do: from that follow the limits of each of its trips.

use std::time::Duration;

use proto::Trip;
use proto::lease::End;
use proto::values::{Now, Protocol, Uptime};

use crate::net::{Backend, Limits, Stop};

/// What a call may do, and until when.
pub(in crate::run) struct CallLimits<'a> {
    /// As the options say, so that it may be [`Protocol::Auto`].
    protocol: Protocol,
    /// When the call ends, except for its last command; `None` waits for ever.
    deadline: Option<Uptime>,
    /// How long an unreachable server is waited for.
    retry_for: Duration,
    command_timeout: Duration,
    /// True if it acquires.
    acquires: bool,
    /// True if its attempt to connect is its own, whatever others have just found.
    tries: bool,
    stop: &'a dyn Stop,
    /// When the lock ends that it releases: its waits for a connection do not count as time of its commands.
    held_until: Option<Uptime>,
    /// When the last trip was sent, until that counts as time of the commands; and how much they have taken.
    sent_at: Option<Uptime>,
    spent: Duration,
}

impl<'a> CallLimits<'a> {
    #[inline]
    pub(in crate::run) fn new(protocol: Protocol, deadline: Option<Uptime>, backend: &dyn Backend) -> Self {
        Self {
            protocol,
            deadline,
            retry_for: backend.retry_for(),
            command_timeout: backend.command_timeout(),
            acquires: false,
            tries: false,
            stop: &(),
            held_until: None,
            sent_at: None,
            spent: Duration::ZERO,
        }
    }

    /// Returns it as that of a call that acquires, which ends its waits for a connection, and another time for an
    /// unreachable server.
    pub(in crate::run) fn stopped_by(self, stop: &'a dyn Stop, retry_for: Duration) -> Self {
        Self { stop, acquires: true, retry_for, ..self }
    }

    /// Returns it as that of a call that acquires once.
    pub(in crate::run) fn acquiring(self) -> Self {
        Self { acquires: true, ..self }
    }

    /// Returns it as that of a call that releases a lock, which is held until then.
    #[inline]
    pub(in crate::run) fn held_until(self, end: Option<End>, now: Now) -> Self {
        let end = end.map_or(Uptime::MAX, |end| now.uptime.after(end.remaining(now)));
        Self { held_until: Some(end), ..self }
    }

    /// Has its commands connect themselves: the attempt comes after others, when it is due.
    pub(in crate::run) fn try_itself(&mut self) {
        self.tries = true;
    }

    /// Gives the commands that follow the time of a call that begins now.
    pub(in crate::run) fn begin_anew(&mut self, now: Now) {
        self.deadline = Some(now.uptime);
    }

    pub(in crate::run) fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// How long a command may take from its call on.
    pub(in crate::run) fn command_timeout(&self) -> Duration {
        self.command_timeout
    }

    /// Notes when a trip was sent, if it was.
    #[inline]
    pub(in crate::run) fn note_sent(&mut self, at: Option<Uptime>) {
        self.sent_at = at;
    }

    /// Counts the time from when the last trip was sent until its reply was there, which is now.
    pub(in crate::run) fn spend(&mut self, now: Now) {
        self.spent += self.sent_at.take().map_or(Duration::ZERO, |sent_at| now.uptime.since(sent_at));
    }

    /// A server that lacks a command of the protocol gets none of it, so that no lock is acquired that could not be
    /// released. Auto manages without transactions, and without a time to live.
    pub(in crate::run) fn needs(&self, trip: &Trip) -> Protocol {
        if self.protocol == Protocol::Auto { trip.needs() } else { self.protocol }
    }

    /// Returns until when the reply to a command is waited for that is decided on now.
    pub(in crate::run) fn ends(&self, now: Now) -> Uptime {
        self.within(now).answered_by
    }

    /// Returns the limits of a trip that is decided on now.
    #[inline]
    pub(in crate::run) fn of(&self, trip: &Trip, now: Now) -> Limits<'a> {
        let grants = self.acquires && trip.command.may_grant();
        Limits { grants, stop: self.stop, ..self.together(self.needs(trip), now) }
    }

    /// Returns the limits of commands of several calls that go together.
    #[inline]
    pub(in crate::run) fn together(&self, needs: Protocol, now: Now) -> Limits<'static> {
        let limits = self.within(now);
        let limits = if self.tries { limits.trying() } else { limits };
        Limits { needs, held_until: self.held_until, replied_within: self.time_left(), ..limits }
    }

    /// Returns how much time the commands of a release have left. Its waits for a connection do not count.
    fn time_left(&self) -> Option<Duration> {
        self.held_until.map(|_| self.command_timeout.saturating_sub(self.spent))
    }

    /// The commands of a call share the time of one; those of a release without its waits for a connection.
    #[inline]
    fn within(&self, now: Now) -> Limits<'static> {
        let deadline = match (self.held_until, self.deadline) {
            (Some(_), Some(_)) => Some(now.uptime.before(self.spent)),
            _ => self.deadline,
        };
        Limits::within(deadline, self.retry_for, self.command_timeout, now)
    }
}
