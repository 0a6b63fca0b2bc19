//! Commands on several keys, or of several calls, in one trip.

use super::{Call, at_any_time};
use crate::backend::{Answers, Incident, KeyRequest, Limits, Report};
use crate::clock::Now;
use crate::options::Protocol;
use crate::protocol::{Command, Reply, Request};

impl Call<'_> {
    /// Sends a command on each of several keys, of which this call's is the first, in one trip. Returns the replies.
    pub(in crate::engine) fn send_each(&self, requests: &[KeyRequest], now: Now) -> Vec<Answers> {
        let report = |incident: Incident<'_>| self.engine.observer.incident(&incident);
        let limits = self.limits(&requests[0].request.command, Report(Some(&report)), now);
        self.engine.backend.call_all(requests, &limits)
    }

    /// Asks for this lock and reads what all of several hold, in one trip. Returns both replies.
    pub(in crate::engine) fn ask_and_look(
        &mut self,
        request: &Request,
        look: Command,
        now: Now,
    ) -> (Reply, Reply) {
        let report = |incident: Incident<'_>| self.engine.observer.incident(&incident);
        let limits = self.limits(&request.command, Report(Some(&report)), now);
        let look = at_any_time(look);
        let Answers { own, next } = self.carry(request, Some(&look), &limits);
        let found = match next {
            Some(found) => self.reply(found, look.request.command.name(), true, limits.needs),
            None => Reply::Unsent,
        };
        let set = self.reply(own, request.command.name(), false, limits.needs);
        (set, found)
    }

    /// Returns the limits of commands of several calls that go together.
    pub(in crate::engine) fn limits_together(&self, needs: Protocol, now: Now) -> Limits<'static> {
        Limits { needs, held_until: self.held_until, ..Limits::within(self.budget_from(now), now) }
    }
}
