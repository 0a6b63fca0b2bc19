//! Asking for several locks in one trip, and finding out what commands without a reply have acquired.

use super::WaitAll;
use crate::net::{Failure, KeyTrip, Sent};
use crate::report::error::Error;
use crate::rules::{Command, Reply, Trip};
use crate::run::acquire::{Asked, Call};
use crate::run::session::{Session, unanswered};
use crate::values::clock;
use crate::values::key::Key;

impl Call<'_> {
    /// Asks for locks in one trip, if there are two at least: up to the first that a thread of this process has or waits for, or that is left to a
    /// process which was just notified of its release.
    pub(super) fn ask_together<'k>(&self, keys: &'k [Key]) -> Vec<Asked<'k>> {
        let is_busy = |key| self.may_wait() && (!self.engine.queue.is_open_to(key) || self.is_left(key));
        let keys = &keys[..keys.iter().take_while(|key| !is_busy(*key)).count()];
        if keys.len() < 2 {
            return Vec::new();
        }
        let probed = self.probe(&keys[0]);
        let (now, protocol) = (clock::now(), self.engine.protocol_of(self.options));
        let mut asked: Vec<Asked<'_>> = keys.iter().map(|key| self.asks(key, protocol, now)).collect();
        match probed {
            Ok(()) => self.send(&mut asked),
            Err(failure) => asked.iter_mut().for_each(|asked| asked.fail(&failure)),
        }
        asked
    }
}

impl<'a> WaitAll<'a> {
    /// Adds what came of asking for locks from this one on.
    pub(super) fn add(&mut self, from: usize, asked: Vec<Asked<'a>>) {
        if asked.is_empty() {
            return self.rules.takes_one();
        }
        for (lock, asked) in (from..).zip(asked) {
            self.report_lost(lock);
            self.rules.asked(lock, &asked.lease, &reply(asked.sent.reply.as_ref()), asked.at);
            self.asked[lock] = Some(asked);
        }
        self.note_in_doubt();
    }

    /// Reads the keys of locks whose SETNX had no reply, in one trip.
    pub(super) fn read(&mut self, locks: &[usize]) {
        let (Call { engine, options, .. }, now, get) = (self.call, clock::now(), Trip::of(Command::Get));
        let trips: Vec<_> = locks.iter().map(|lock| KeyTrip::new(&self.keys[*lock], &get)).collect();
        let session = match &self.failed {
            None => self.call.session(trips[0].key),
            // The time of the call may be over.
            Some(_) => Session::new(engine, trips[0].key, options.protocol, Some(now.uptime)),
        };
        let found = engine.backend.send_all(&trips, &session.limits(&get, now));
        for (lock, Sent { reply: found, .. }) in locks.iter().zip(found) {
            if self.rules.read(*lock, &reply(found.as_ref())) {
                self.report_lost(*lock);
                if let Some(asked) = &mut self.asked[*lock] {
                    asked.sent.reply = Some(Ok(Reply::Integer(1)));
                }
            }
        }
        self.note_in_doubt();
    }

    /// Ends the call if it could not be found out what a command without a reply has acquired, or it has no expiration, so that the key names no
    /// holder.
    fn note_in_doubt(&mut self) {
        let in_doubt = self.rules.take_in_doubt();
        let mut errors: Vec<Error> = in_doubt.into_iter().filter_map(|lock| self.in_doubt(lock)).collect();
        if self.failed.is_some() {
            return self.not_released.append(&mut errors);
        }
        if !errors.is_empty() {
            let first = errors.remove(0);
            let error = first.and(errors);
            self.call.report_of_each(self.keys, &error, 1);
            self.fail(error);
        }
    }

    fn in_doubt(&mut self, lock: usize) -> Option<Error> {
        self.report_lost(lock);
        let asked = self.asked[lock].take()?;
        // What is known of it since says more.
        self.not_released.retain(|error| error.key() != Some(asked.key));
        let Some(Err(Failure::Lost(cause))) = asked.sent.reply else { return None };
        let (key, command) = (asked.key.clone(), asked.trip.name());
        Some(Error::InDoubt { key, command, advice: self.call.advice(), cause })
    }

    fn report_lost(&self, lock: usize) {
        if let Some(Asked { key, trip, sent, .. }) = &self.asked[lock]
            && let Some(Err(Failure::Lost(cause))) = &sent.reply
            && self.waited_for != Some(lock)
        {
            self.call.engine.observer.reply_lost(key, trip.name(), cause);
        }
    }
}

/// Returns the rules' reply.
fn reply(outcome: Option<&Result<Reply, Failure>>) -> Reply {
    match outcome {
        Some(Ok(reply)) => reply.clone(),
        Some(Err(failure)) => unanswered(failure),
        None => Reply::TooLate,
    }
}
