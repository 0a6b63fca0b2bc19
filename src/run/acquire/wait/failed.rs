//! Why a wait for a lock has failed, as an error that says it.

use std::time::Duration;

use super::Wait;
use crate::report::error::{Contention, Error};
use crate::rules::GiveUp;
use crate::run::acquire::Call;
use crate::run::thread_holds;
use crate::values::clock;
use crate::values::key::Key;
use crate::values::value::LockState;

impl Wait<'_> {
    /// The error of an attempt that has given up.
    pub(super) fn ended(&mut self, reason: GiveUp) -> Error {
        // Unless the outcome is unknown, the end of the wait from outside is the reason.
        let from_outside =
            if reason == GiveUp::Unknown { None } else { self.call.check(self.want.name()).err() };
        from_outside.unwrap_or_else(|| self.given_up(reason))
    }

    pub(super) fn given_up(&mut self, reason: GiveUp) -> Error {
        let session = &mut self.session;
        // A thread that gives up at its own deadline has found out nothing for those behind it.
        let now = clock::uptime();
        let before_deadline = self.call.deadline.is_none_or(|deadline| now < deadline);
        let unreachable = match reason {
            // That all connections are in use says nothing about the server.
            GiveUp::Unsent => !session.found_all_in_use(),
            reason => reason == GiveUp::Io,
        };
        if before_deadline && unreachable {
            self.call.engine.note_unreachable();
        }
        session.has_waited(now.since(self.call.began.uptime));
        session.take_error(reason, self.call.advice())
    }

    /// The error of an attempt that has found the lock held until the end.
    pub(super) fn contended(&self, seen: Option<LockState>, exhausted: bool) -> Error {
        let (details, now) = (self.contention(seen, 0), self.now);
        let is_at_deadline = self.call.deadline.is_some_and(|deadline| now.uptime >= deadline);
        if exhausted && !is_at_deadline {
            return Error::Contended {
                key: self.want.name().clone(),
                timeout: None,
                details: Box::new(details),
            };
        }
        self.timed_out(details)
    }

    pub(super) fn timed_out(&self, details: Contention) -> Error {
        let timeout = Some(self.call.options.timeout.unwrap_or(Duration::MAX));
        Error::Contended { key: self.want.name().clone(), timeout, details: Box::new(details) }
    }

    pub(super) fn contention(&self, seen: Option<LockState>, ahead: usize) -> Contention {
        let Self { call: Call { engine, options, .. }, want, .. } = self;
        // A call that tries once has no holder to show.
        let names_holder = engine.holder_name.is_some()
            && want.several().is_none()
            && options.timeout != Some(Duration::ZERO);
        let is_ours = |key: &Key| thread_holds::by_this_thread(&engine.identity, key).is_some();
        Contention {
            attempts: self.attempts,
            waited: self.now.uptime.since(self.call.began.uptime),
            seen,
            expiring: options.expiration.is_some(),
            ahead,
            permits: want.several().map(|slots| slots.len()),
            holder: names_holder.then(|| engine.name_of_holder(want.name())).flatten(),
            taken_by_this_thread: want.slots().iter().all(is_ours),
        }
    }
}
