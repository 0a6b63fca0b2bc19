//! The limits of a call's commands.

use std::time::Duration;

use super::Session;
use crate::net::{Budget, Limits};
use crate::rules::lease::End;
use crate::rules::{Command, Trip};
use crate::values::clock::{Now, Uptime};
use crate::values::options::Protocol;

impl<'a> Session<'a> {
    /// Returns the call as one that releases a lock, which is held until then.
    #[inline]
    pub(in crate::run) fn held_until(mut self, end: Option<End>, now: Now) -> Self {
        let end = end.map_or(Uptime::MAX, |end| now.uptime.after(end.remaining(now)));
        self.held_until = Some(end);
        self
    }

    /// Returns the limits of a trip that is decided on now.
    #[inline]
    pub(in crate::run) fn limits(&self, trip: &Trip, now: Now) -> Limits<'a> {
        Limits {
            needs: self.needs(trip),
            grants: self.acquires && trip.command.may_grant(),
            held_until: self.held_until,
            stop: self.stop,
            ..Limits::within(self.budget_from(now), now)
        }
    }

    /// The commands of a call share the time of one. But a release may have waited for a connection: then there is a quarter of that time
    /// for the next command, and all of it after a longer wait than any reply takes.
    fn budget_from(&self, now: Now) -> Budget {
        let Budget { deadline: Some(began), command_timeout, .. } = self.budget else { return self.budget };
        if self.held_until.is_none() || self.has_failed() {
            return self.budget;
        }
        let waited = now.uptime.since(began);
        let used = if waited >= command_timeout {
            Duration::ZERO
        } else {
            waited.min(Budget::until_sent(command_timeout))
        };
        Budget { deadline: Some(now.uptime.before(used)), ..self.budget }
    }

    /// Returns the limits of commands of several calls that go together.
    pub(in crate::run) fn limits_together(&self, needs: Protocol, now: Now) -> Limits<'static> {
        Limits { needs, held_until: self.held_until, ..Limits::within(self.budget_from(now), now) }
    }

    /// A server that lacks a command of the protocol gets none of it, so that no lock is acquired that could not be released. Auto
    /// manages without transactions, and without a time to live.
    fn needs(&self, trip: &Trip) -> Protocol {
        let gives_ttl =
            matches!(&trip.command, Command::SetNx(value) | Command::Set(value) if value.ttl.is_some());
        match self.protocol {
            Protocol::Auto if gives_ttl => Protocol::Ttl,
            Protocol::Auto if trip.if_holds.is_some() => Protocol::Watched,
            protocol => protocol.on(None, true),
        }
    }
}
