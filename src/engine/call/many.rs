//! Commands on several keys, or of several calls, in one trip.

use std::sync::Arc;

use super::{Call, at_any_time};
use crate::backend::{Answers, Failure, Incident, Limits, Report};
use crate::clock::Now;
use crate::key::Key;
use crate::options::Protocol;
use crate::protocol::{Command, Reply, Request};

impl<'a> Call<'a> {
    /// Sends a command on several keys, of which this call's is the first.
    pub(in crate::engine) fn send_on_many(&mut self, request: &Request, now: Now) -> Reply {
        let report = |incident: Incident<'_>| self.engine.observer.incident(&incident);
        let limits = self.limits(&request.command, Report(Some(&report)), now);
        let Answers { own, .. } = self.carry(request, None, &limits);
        if let Err(Failure::Refused(refusal)) = &own {
            self.engine.note_refused_many(refusal);
        }
        self.reply(own, request.command.name(), request.command.only_reads(), limits.needs)
    }

    /// Returns the limits of a transaction on several keys.
    pub(in crate::engine) fn limits_on_many(&self, needs: Protocol, now: Now) -> Limits<'a> {
        Limits { needs, stop: self.stop, ..Limits::within(self.budget, now) }
    }

    /// Returns the rules' reply to a part of a transaction on several keys.
    pub(in crate::engine) fn reply_on_many(
        &mut self,
        reply: Result<Reply, Failure>,
        command: &'static str,
        only_reads: bool,
    ) -> Reply {
        if let Err(Failure::Refused(refusal)) = &reply {
            self.engine.note_refused_many(refusal);
        }
        self.reply(reply, command, only_reads, Protocol::Watched)
    }

    /// Asks for this lock and reads what all of several hold, in one trip. Returns both replies.
    pub(in crate::engine) fn ask_and_look(
        &mut self,
        request: &Request,
        keys: &Arc<[Key]>,
        now: Now,
    ) -> (Reply, Reply) {
        let report = |incident: Incident<'_>| self.engine.observer.incident(&incident);
        let limits = self.limits(&request.command, Report(Some(&report)), now);
        let look = at_any_time(Command::GetAll(Arc::clone(keys)));
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
