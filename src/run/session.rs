//! A session: what one call sends for one lock, under its limits, and how it has failed.

mod failure;
mod limits;

use std::time::Duration;

use super::engine::Engine;
use super::outbox::{LateReport, Outbox};
use crate::net::{Budget, Failure, KeyTrip, NeverStops, RefusalKind, Sent, Stop, TransportError};
use crate::rules::waiting_list::Waiting;
use crate::rules::{Command, Replies, Reply, Trip, WhyRefused};
use crate::values::clock::{self, Now, Uptime};
use crate::values::key::Key;
use crate::values::options::Protocol;

/// What one call sends for one lock: its limits, its failures, and where what happens is reported.
pub(super) struct Session<'a> {
    engine: &'a Engine,
    key: &'a Key,
    /// As the options say, so that it may be [`Protocol::Auto`].
    protocol: Protocol,
    budget: Budget,
    /// Until when the lock is held that it releases; only of a release.
    held_until: Option<Uptime>,
    stop: &'a dyn Stop,
    /// True if it acquires.
    acquires: bool,
    /// The last command that has failed, and how.
    failed: Option<Box<(&'static str, Failure)>>,
    /// True if the last command got no answer.
    unanswered_last: bool,
    /// When the last trip was answered, if that is known.
    answered_at: Option<Now>,
    /// Where to put what is to be reported later; `None` if it is reported at once.
    outbox: Option<&'a Outbox>,
    /// What takes an entry from the key's waiting list, behind the command that deletes the key, until that is sent.
    behind: Option<Command>,
    /// What came of the last command on the waiting list.
    listed: Option<Box<Result<Reply, Failure>>>,
    /// The last command that may have changed the key and whose reply was lost, and why.
    unanswered: Option<Box<(&'static str, TransportError)>>,
}

impl<'a> Session<'a> {
    #[inline]
    pub(super) fn new(
        engine: &'a Engine,
        key: &'a Key,
        protocol: Protocol,
        deadline: Option<Uptime>,
    ) -> Self {
        let budget = engine.budget(deadline);
        Self {
            engine,
            key,
            protocol,
            budget,
            held_until: None,
            stop: &NeverStops,
            acquires: false,
            failed: None,
            unanswered_last: false,
            answered_at: None,
            outbox: None,
            behind: None,
            listed: None,
            unanswered: None,
        }
    }

    /// Returns the session as that of a call that acquires, which ends its waits for a connection, and another time for an
    /// unreachable server.
    pub(super) fn stopped_by(mut self, stop: &'a dyn Stop, retry_for: Duration) -> Self {
        self.budget.retry_for = retry_for;
        self.stop = stop;
        self.acquires = true;
        self
    }

    /// Returns the session as one that reports later: something is locked meanwhile.
    pub(super) fn reporting_to(self, outbox: &'a Outbox) -> Self {
        Self { outbox: Some(outbox), ..self }
    }

    /// Gives the commands that follow the time of a call that begins now.
    pub(super) fn begin_anew(&mut self, now: Now) {
        self.budget.deadline = Some(now.uptime);
    }

    /// Gives its commands less time, if the command timeout is longer.
    pub(super) fn hurry(&mut self, time: Duration) {
        self.budget.command_timeout = self.budget.command_timeout.min(time);
    }

    /// Has the session also take an entry from the key's waiting list, along with the command that deletes the key.
    pub(super) fn take(&mut self, waiting: Waiting) {
        self.behind = Some(Command::Waiting(waiting));
    }

    /// Probes whether the server has what the lock's protocol needs, if that is not known.
    pub(super) fn probe(&self, now: Now) -> Result<(), Failure> {
        let limits = self.limits(&Trip::of(Command::Get), now);
        self.engine.backend.probe(self.key, self.protocol, &limits)
    }

    /// Makes a trip to the server. Returns the rules' replies.
    pub(super) fn send(&mut self, trip: &Trip, now: Now) -> Replies {
        let limits = self.limits(trip, now);
        if self.failed.is_some() && clock::uptime() >= limits.answered_by {
            return Reply::Unsent.into();
        }
        let sent = self.engine.backend.send(&self.trip(trip), &limits);
        self.heard(trip, sent)
    }

    /// Returns a trip of this call, with what goes behind a command that deletes the key.
    pub(super) fn trip<'b>(&'b self, trip: &'b Trip) -> KeyTrip<'b> {
        let taking = self.behind.as_ref().filter(|_| trip.command == Command::Del);
        KeyTrip { behind: trip.behind.as_deref().or(taking), ..KeyTrip::new(self.key, trip) }
    }

    /// Notes what came of a trip. Returns the rules' replies.
    pub(super) fn heard(&mut self, trip: &Trip, sent: Sent) -> Replies {
        let Sent { found, mut reply, mut behind, at, changed_by, .. } = sent;
        self.answered_at = at;
        // A command on the waiting list may be refused, which is no failure of the call.
        if let Command::Waiting(_) = trip.command {
            match behind {
                Some(_) => self.listed = reply.take().map(Box::new),
                None => behind = reply.take(),
            }
        } else if trip.behind.is_none() && behind.is_some() {
            (self.behind, self.listed) = (None, behind.take().map(Box::new));
        }
        let found = found.map(|found| self.reply(found, "WATCH", true));
        let behind = behind.zip(trip.behind.as_deref()).and_then(|(outcome, behind)| match behind {
            // It only says more about what the command has found.
            Command::TimeToLive | Command::HolderName(_) => outcome.ok(),
            behind => Some(self.reply(outcome, behind.name(), true)),
        });
        let only_reads = trip.if_holds.is_none() && trip.command.only_reads();
        let name = changed_by.unwrap_or_else(|| trip.name());
        let reply = reply.map(|reply| self.reply(reply, name, only_reads));
        Replies { found, reply, behind }
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
        only_reads: bool,
    ) -> Reply {
        self.unanswered_last = carried.as_ref().is_err_and(Failure::is_unanswered);
        let failure = match carried {
            Ok(reply) => {
                if let Reply::Bulk(Some(found)) = &reply {
                    self.engine.gems.note(found);
                }
                return reply;
            }
            Err(failure) => failure,
        };
        let reply = unanswered(&failure);
        if reply == Reply::TooLate {
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
            if !only_reads {
                self.unanswered = Some(Box::new((command, error.clone())));
            }
        }
        self.failed = Some(Box::new((command, failure)));
        reply
    }
}

/// Returns the rules' reply for a failure.
pub(super) fn unanswered(failure: &Failure) -> Reply {
    match failure {
        Failure::TooLate => Reply::TooLate,
        Failure::Refused(refusal) => Reply::Refused(match refusal.kind() {
            RefusalKind::WrongType => WhyRefused::NoLock,
            RefusalKind::ReadOnly => WhyRefused::ReadOnly,
            _ if refusal.is_transient() => WhyRefused::ForNow,
            _ if refusal.is_about_the_command() => WhyRefused::Command,
            _ => WhyRefused::Otherwise,
        }),
        Failure::Unreachable { .. } | Failure::Panicked(_) => Reply::Unsent,
        Failure::Lost(_) => Reply::Lost,
    }
}
