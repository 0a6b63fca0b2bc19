//! Why a wait for a lock has failed, as an error that says it.

use std::time::Duration;

use super::Wait;
use crate::report::error::{Contention, Error};
use crate::rules::GiveUp;
use crate::run::acquire::Call;
use crate::run::session::Session;
use crate::run::thread_holds;
use crate::values::clock::{self, Now};
use crate::values::key::Key;
use crate::values::value::LockState;

impl Wait<'_> {
    pub(super) fn given_up(&self, session: &mut Session<'_>, reason: GiveUp) -> Error {
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
    pub(super) fn contended(&self, seen: Option<LockState>, exhausted: bool, now: Now) -> Error {
        let details = self.contention(seen, 0, now);
        let is_at_deadline = self.call.deadline.is_some_and(|deadline| now.uptime >= deadline);
        if exhausted && !is_at_deadline {
            return Error::Contended { key: self.key.clone(), timeout: None, details: Box::new(details) };
        }
        self.timed_out(details)
    }

    pub(super) fn timed_out(&self, details: Contention) -> Error {
        let timeout = Some(self.call.options.timeout.unwrap_or(Duration::MAX));
        Error::Contended { key: self.key.clone(), timeout, details: Box::new(details) }
    }

    pub(super) fn contention(&self, seen: Option<LockState>, ahead: usize, now: Now) -> Contention {
        let Self { call: Call { engine, options, .. }, key, one_of, .. } = self;
        let slots = one_of.map(|one_of| one_of.slots);
        let is_ours = |key: &Key| thread_holds::by_this_thread(&engine.identity, key).is_some();
        Contention {
            attempts: self.attempts.get(),
            waited: now.uptime.since(self.call.began.uptime),
            seen,
            expiring: options.expiration.is_some(),
            ahead,
            permits: slots.map(|slots| slots.len()),
            holder: self.names_holder.then(|| engine.name_of_holder(key)).flatten(),
            taken_by_this_thread: slots.map_or_else(|| is_ours(key), |slots| slots.iter().all(is_ours)),
        }
    }
}
