//! A session: what one call sends for one lock, what it may do, and how it has failed.

mod call_limits;
mod failures;

use std::time::Duration;

use proto::lease::End;
use proto::values::{Key, Now, Protocol, Uptime};
use proto::{Command, GiveUp, Replies, Reply, Trip, WhyRefused};

use super::codec::key_trip;
use super::engine::Engine;
use super::outbox::{LateReport, Outbox};
use crate::net::{Failure, KeyTrip, Request, Sent, Stop};
use crate::report::error::Error;
use crate::system::clock;
use call_limits::CallLimits;
use failures::{Failures, unanswered};

/// What one call sends for one lock.
pub(super) struct Session<'a> {
    engine: &'a Engine,
    key: &'a Key,
    pub(super) limits: CallLimits<'a>,
    pub(super) failures: Failures,
    /// When the last trip was answered, if that is known.
    answered_at: Option<Now>,
    /// Where to put what is to be reported later; `None` if it is reported at once.
    outbox: Option<&'a Outbox>,
    /// What takes entries from waiting lists, behind the command that deletes the key, until that is sent.
    behind: Option<Command>,
    /// What came of the last command on the waiting list.
    listed: Option<Box<Result<Reply, Failure>>>,
}

/// What a command does with the lock's key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    Reads,
    Changes,
}

impl<'a> Session<'a> {
    #[inline]
    pub(super) fn new(
        engine: &'a Engine,
        key: &'a Key,
        protocol: Protocol,
        deadline: Option<Uptime>,
    ) -> Self {
        Self {
            engine,
            key,
            limits: CallLimits::new(protocol, deadline, &*engine.backend),
            failures: Failures::default(),
            answered_at: None,
            outbox: None,
            behind: None,
            listed: None,
        }
    }

    /// Returns the session as that of a call that acquires, which ends its
    /// waits for a connection, and another time for an unreachable server.
    pub(super) fn stopped_by(self, stop: &'a dyn Stop, retry_for: Duration) -> Self {
        Self { limits: self.limits.stopped_by(stop, retry_for), ..self }
    }

    /// Returns the session as that of a call that acquires once.
    pub(super) fn acquiring(self) -> Self {
        Self { limits: self.limits.acquiring(), ..self }
    }

    /// Returns the session as that of a call that releases a lock, which is held until then.
    #[inline]
    pub(super) fn held_until(self, end: Option<End>, now: Now) -> Self {
        Self { limits: self.limits.held_until(end, now), ..self }
    }

    /// Returns the session as one that reports later: something is locked meanwhile.
    pub(super) fn reporting_to(self, outbox: &'a Outbox) -> Self {
        Self { outbox: Some(outbox), ..self }
    }

    /// Has the session also take entries from waiting lists, along with the command that deletes the key.
    pub(super) fn take(&mut self, entries: Command) {
        self.behind = Some(entries);
    }

    /// Probes whether the server has what the lock's protocol needs, if that is not known.
    pub(super) fn probe(&self, now: Now) -> Result<(), Failure> {
        let limits = self.limits.of(&Trip::of(Command::Get), now);
        self.engine.backend.probe(self.key, self.limits.protocol(), &limits)
    }

    /// Returns true if a command has failed, and there is no time for another.
    pub(super) fn is_over(&self, now: Now) -> bool {
        self.failures.last().is_some() && now.uptime >= self.limits.ends(now)
    }

    /// Makes a trip to the server. Returns the rules' replies.
    pub(super) fn send(&mut self, trip: &Trip, now: Now) -> Replies {
        self.limits.spend(now);
        let limits = self.limits.of(trip, now);
        if self.failures.last().is_some() && clock::uptime() >= limits.answered_by {
            return Reply::Unsent.into();
        }
        let sent = self.engine.backend.send(&self.trip(trip), &limits);
        self.heard(trip, sent)
    }

    /// Returns a trip of this call, with what goes behind a command that deletes the key.
    pub(super) fn trip<'b>(&'b self, trip: &'b Trip) -> KeyTrip<'b> {
        let mut of_key = key_trip(self.key, trip);
        if let (Some(taking), None, Command::Del | Command::GetDel) =
            (&self.behind, &trip.behind, &trip.command)
        {
            of_key.behind = Some(taking as &dyn Request);
        }
        of_key
    }

    /// Notes what came of a trip. Returns the rules' replies.
    pub(super) fn heard(&mut self, trip: &Trip, sent: Sent) -> Replies {
        let Sent { found, mut reply, mut behind, epoch, began_at, at, changed_by, .. } = sent;
        self.answered_at = at;
        self.limits.note_sent(began_at);
        // A command on the waiting list may be refused, which is no failure of the call.
        if let Command::Waiting(_) = trip.command {
            match behind {
                Some(_) => self.listed = reply.take().map(Box::new),
                None => behind = reply.take(),
            }
        } else if trip.behind.is_none() && behind.is_some() {
            (self.behind, self.listed) = (None, behind.take().map(Box::new));
        }
        let found = found.map(|found| self.reply(found, "WATCH", Effect::Reads));
        let behind = behind.zip(trip.behind.as_deref()).and_then(|(outcome, behind)| match behind {
            // It only says more about what the command has found.
            Command::TimeToLive => outcome.ok(),
            behind => Some(self.reply(outcome, behind.name(), Effect::Reads)),
        });
        let leaves_key = trip.if_holds.is_none() && trip.command.leaves_key();
        let effect = if leaves_key { Effect::Reads } else { Effect::Changes };
        let name = changed_by.unwrap_or_else(|| trip.name());
        let reply = reply.map(|reply| self.reply(reply, name, effect));
        Replies { found, reply, behind, epoch }
    }

    /// Returns the time after the last trip.
    pub(super) fn now(&mut self) -> Now {
        self.answered_at.take().unwrap_or_else(clock::now)
    }

    /// Takes what came of the last command on the waiting list; `None` if it was not sent.
    pub(super) fn take_listed(&mut self) -> Option<Result<Reply, Failure>> {
        self.listed.take().map(|listed| *listed)
    }

    /// Returns the rules' reply for what the backend returned, and keeps why it is none.
    pub(super) fn reply(
        &mut self,
        carried: Result<Reply, Failure>,
        command: &'static str,
        effect: Effect,
    ) -> Reply {
        match carried {
            Ok(reply) => {
                if let Reply::Bulk(Some(found)) = &reply {
                    self.engine.gems.note(found);
                }
                reply
            }
            Err(failure) => self.failed(failure, command, effect),
        }
    }

    #[cold]
    fn failed(&mut self, failure: Failure, command: &'static str, effect: Effect) -> Reply {
        let reply = unanswered(&failure, self.limits.protocol());
        // A server that has no GETDEL gets DEL.
        let goes_on = command == "GETDEL" && reply == Reply::Refused(WhyRefused::Command);
        if reply == Reply::TooLate || goes_on {
            return reply;
        }
        if let Failure::Lost(error) = &failure {
            match self.outbox {
                Some(outbox) => {
                    outbox.push(LateReport::ReplyLost(self.key.clone(), command, error.clone()));
                }
                None => {
                    self.engine.observer.reply_lost(self.key, command, error);
                    self.answered_at = None;
                }
            }
        }
        self.failures.note(command, failure, effect);
        reply
    }
}

impl Session<'_> {
    /// Notes why a command was not sent. Returns why the call gives up.
    pub(super) fn refuse(&mut self, failure: Failure) -> GiveUp {
        self.reply(Err(failure), "SET", Effect::Reads).gives_up()
    }

    /// Makes the user's error: an unknown outcome comes first, then the last failure.
    pub(super) fn error(mut self, reason: GiveUp, advice: &'static str) -> Error {
        self.take_error(reason, advice)
    }

    /// Makes the user's error, and forgets the failure that it names.
    pub(super) fn take_error(&mut self, reason: GiveUp, advice: &'static str) -> Error {
        self.failures.take_error(self.key, self.limits.protocol(), reason, advice)
    }
}
