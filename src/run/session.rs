//! A session: what one call sends for one lock, under its limits, and how it has failed.

use std::time::Duration;

use proto::hold::LOOKS;
use proto::lease::End;
use proto::values::{Key, Now, Protocol, Uptime};
use proto::{Command, GiveUp, Replies, Reply, Trip, WhyRefused};

use super::engine::Engine;
use super::outbox::{LateReport, Outbox};
use crate::net::{
    Budget, Failure, KeyTrip, Limits, NeverStops, Refusal, RefusalKind, Sent, Stop, TransportError,
};
use crate::report::error::Error;
use crate::system::clock;

/// What one call sends for one lock: its limits, its failures, and where what happens is reported.
pub(super) struct Session<'a> {
    engine: &'a Engine,
    key: &'a Key,
    /// As the options say, so that it may be [`Protocol::Auto`].
    protocol: Protocol,
    budget: Budget,
    /// When the lock ends that it releases: its waits for a connection do not count as time of its commands.
    held_until: Option<Uptime>,
    /// When the last trip was sent, until that counts as time of the commands; and how much they have taken.
    sent_at: Option<Uptime>,
    spent: Duration,
    /// True if its attempt to connect is its own, whatever others have just found.
    tries: bool,
    stop: &'a dyn Stop,
    /// True if it acquires.
    acquires: bool,
    /// The last command that has failed, and how.
    failed: Option<Box<(&'static str, Failure)>>,
    /// When the last trip was answered, if that is known.
    answered_at: Option<Now>,
    /// Where to put what is to be reported later; `None` if it is reported at once.
    outbox: Option<&'a Outbox>,
    /// What takes entries from waiting lists, behind the command that deletes the key, until that is sent.
    behind: Option<Command>,
    /// What came of the last command on the waiting list.
    listed: Option<Box<Result<Reply, Failure>>>,
    /// The last command that may have changed the key and whose reply was lost, and why.
    unanswered: Option<Box<(&'a Key, &'static str, TransportError)>>,
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
        let budget = engine.budget(deadline);
        Self {
            engine,
            key,
            protocol,
            budget,
            held_until: None,
            sent_at: None,
            spent: Duration::ZERO,
            tries: false,
            stop: &NeverStops,
            acquires: false,
            failed: None,
            answered_at: None,
            outbox: None,
            behind: None,
            listed: None,
            unanswered: None,
        }
    }

    /// Returns the session as that of a call that acquires, which ends its
    /// waits for a connection, and another time for an unreachable server.
    pub(super) fn stopped_by(mut self, stop: &'a dyn Stop, retry_for: Duration) -> Self {
        self.budget.retry_for = retry_for;
        Self { stop, acquires: true, ..self }
    }

    /// Returns the session as that of a call that acquires once.
    pub(super) fn acquiring(self) -> Self {
        Self { acquires: true, ..self }
    }

    /// Has the session try to connect itself: its attempt comes after others, when it is due.
    pub(super) fn try_itself(&mut self) {
        self.tries = true;
    }

    /// Returns the session as one that reports later: something is locked meanwhile.
    pub(super) fn reporting_to(self, outbox: &'a Outbox) -> Self {
        Self { outbox: Some(outbox), ..self }
    }

    /// How long a command may take from its call on.
    pub(super) fn command_timeout(&self) -> Duration {
        self.budget.command_timeout
    }

    /// Gives the commands that follow the time of a call that begins now.
    pub(super) fn begin_anew(&mut self, now: Now) {
        self.budget.deadline = Some(now.uptime);
    }

    /// Has the session also take entries from waiting lists, along with the command that deletes the key.
    pub(super) fn take(&mut self, entries: Command) {
        self.behind = Some(entries);
    }

    /// Probes whether the server has what the lock's protocol needs, if that is not known.
    pub(super) fn probe(&self, now: Now) -> Result<(), Failure> {
        let limits = self.limits(&Trip::of(Command::Get), now);
        self.engine.backend.probe(self.key, self.protocol, &limits)
    }

    /// Returns true if a command has failed, and there is no time for another.
    pub(super) fn is_over(&self, now: Now) -> bool {
        let ends = || Limits::within(self.budget_from(now), now).answered_by;
        self.failed.is_some() && now.uptime >= ends()
    }

    /// Makes a trip to the server. Returns the rules' replies.
    pub(super) fn send(&mut self, trip: &Trip, now: Now) -> Replies {
        self.spend(now);
        let limits = self.limits(trip, now);
        if self.failed.is_some() && clock::uptime() >= limits.answered_by {
            return Reply::Unsent.into();
        }
        let sent = self.engine.backend.send(&self.trip(trip), &limits);
        self.heard(trip, sent)
    }

    /// Returns a trip of this call, with what goes behind a command that deletes the key.
    pub(super) fn trip<'b>(&'b self, trip: &'b Trip) -> KeyTrip<'b> {
        let taking = self.behind.as_ref().filter(|_| matches!(trip.command, Command::Del | Command::GetDel));
        KeyTrip { behind: trip.behind.as_deref().or(taking), ..KeyTrip::new(self.key, trip) }
    }

    /// Notes what came of a trip. Returns the rules' replies.
    pub(super) fn heard(&mut self, trip: &Trip, sent: Sent) -> Replies {
        let Sent { found, mut reply, mut behind, epoch, began_at, at, changed_by, .. } = sent;
        (self.answered_at, self.sent_at) = (at, began_at);
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
        let reply = unanswered(&failure, self.protocol);
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
            if effect == Effect::Changes {
                self.unanswered = Some(Box::new((self.key, command, error.clone())));
            }
        }
        self.failed = Some(Box::new((command, failure)));
        reply
    }
}

/// Returns the rules' reply for a failure of a call with this protocol. Only Auto switches to another one.
pub(super) fn unanswered(failure: &Failure, protocol: Protocol) -> Reply {
    match failure {
        Failure::TooLate => Reply::TooLate,
        Failure::Refused(refusal) => Reply::Refused(match refusal.kind() {
            RefusalKind::WrongType => WhyRefused::NoLock,
            RefusalKind::ReadOnly => WhyRefused::ReadOnly,
            RefusalKind::OverMemory => WhyRefused::OverMemory,
            _ if refusal.is_transient() => WhyRefused::ForNow,
            _ if refusal.is_about_the_command() => match refusal.protocol_instead() {
                Some(has) if protocol == Protocol::Auto => WhyRefused::TooOld(has),
                _ => WhyRefused::Command,
            },
            _ => WhyRefused::Otherwise,
        }),
        Failure::Unreachable { .. } | Failure::Panicked(_) => Reply::Unsent,
        Failure::Lost(_) => Reply::Lost,
    }
}

impl<'a> Session<'a> {
    /// Returns the call as one that releases a lock, which is held until then.
    #[inline]
    pub(super) fn held_until(mut self, end: Option<End>, now: Now) -> Self {
        let end = end.map_or(Uptime::MAX, |end| now.uptime.after(end.remaining(now)));
        self.held_until = Some(end);
        self
    }

    /// Returns the limits of a trip that is decided on now.
    #[inline]
    pub(super) fn limits(&self, trip: &Trip, now: Now) -> Limits<'a> {
        Limits {
            needs: self.needs(trip),
            grants: self.acquires && trip.command.may_grant(),
            held_until: self.held_until,
            replied_within: self.time_left(),
            stop: self.stop,
            ..self.limits_from(now)
        }
    }

    /// Counts the time from when the last trip was sent until its reply was there, which is now.
    pub(super) fn spend(&mut self, now: Now) {
        self.spent += self.sent_at.take().map_or(Duration::ZERO, |sent_at| now.uptime.since(sent_at));
    }

    /// Returns how much time the commands of a release have left. Its waits for a connection do not count.
    fn time_left(&self) -> Option<Duration> {
        self.held_until.map(|_| self.budget.command_timeout.saturating_sub(self.spent))
    }

    /// The commands of a call share the time of one; those of a release without its waits for a connection.
    fn budget_from(&self, now: Now) -> Budget {
        match (self.held_until, self.budget.deadline) {
            (Some(_), Some(_)) => Budget { deadline: Some(now.uptime.before(self.spent)), ..self.budget },
            _ => self.budget,
        }
    }

    fn limits_from(&self, now: Now) -> Limits<'static> {
        let limits = Limits::within(self.budget_from(now), now);
        if self.tries { limits.trying() } else { limits }
    }

    /// Returns the limits of commands of several calls that go together.
    pub(super) fn limits_together(&self, needs: Protocol, now: Now) -> Limits<'static> {
        Limits {
            needs,
            held_until: self.held_until,
            replied_within: self.time_left(),
            ..self.limits_from(now)
        }
    }

    /// A server that lacks a command of the protocol gets none of it, so that no lock is acquired that could not be
    /// released. Auto manages without transactions, and without a time to live.
    pub(super) fn needs(&self, trip: &Trip) -> Protocol {
        if self.protocol == Protocol::Auto { trip.needs() } else { self.protocol }
    }
}

impl Session<'_> {
    /// Returns true if a command has had no connection or no reply, so that the next may not take long.
    pub(super) fn has_failed(&self) -> bool {
        self.failure().is_some_and(Failure::is_unanswered)
    }

    /// Returns how the server has refused the last command, if it has.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        if let Failure::Refused(refusal) = self.failure()? { Some(refusal.clone()) } else { None }
    }

    fn failure(&self) -> Option<&Failure> {
        Some(&self.failed.as_deref()?.1)
    }

    /// Returns true if a release that gave up for this reason may be tried again: not after a refusal that stays.
    pub(super) fn may_pass(&self, gave_up: GiveUp) -> bool {
        match gave_up {
            // A password may be about to change on this side as well.
            GiveUp::Refused => self.refusal().is_some_and(|refusal| {
                let of_login = [RefusalKind::NoPassword, RefusalKind::WrongPassword];
                refusal.is_transient() || of_login.contains(&refusal.kind())
            }),
            _ => true,
        }
    }

    /// Notes why a command was not sent. Returns why the call gives up.
    pub(super) fn refuse(&mut self, failure: Failure) -> GiveUp {
        self.reply(Err(failure), "SET", Effect::Reads).gives_up()
    }

    /// Returns true if the last command was not sent because all connections were in use.
    pub(super) fn found_all_in_use(&self) -> bool {
        self.failure().is_some_and(Failure::found_all_in_use)
    }

    /// Forgets for how long the last command of a call waited for a connection: it had little time left.
    pub(super) fn has_waited(&mut self, total: Duration) {
        if let Some((_, Failure::Unreachable { waited, .. })) = self.failed.as_deref_mut()
            && *waited < total / 2
        {
            *waited = Duration::ZERO;
        }
    }

    /// Makes the user's error: an unknown outcome comes first, then the last failure.
    pub(super) fn error(mut self, reason: GiveUp, advice: &'static str) -> Error {
        self.take_error(reason, advice)
    }

    /// Makes the user's error, and forgets the failure that it names.
    pub(super) fn take_error(&mut self, reason: GiveUp, advice: &'static str) -> Error {
        if let (GiveUp::Unknown | GiveUp::UnknownAlone, Some((key, command, cause))) =
            (reason, self.unanswered.take().map(|unanswered| *unanswered))
        {
            return Error::InDoubt { key: key.clone(), command, advice, cause };
        }
        let key = self.key.clone();
        if reason == GiveUp::Rewritten {
            return Error::refused(key, Refusal::of_rewritten(LOOKS));
        }
        if reason == GiveUp::ClockUnset {
            return Error::clock_unset(key, clock::now().wall);
        }
        let (command, failure) = self.failed.take().map_or(("", Failure::TooLate), |failed| *failed);
        match failure {
            // Auto has used what the server had, so that another protocol is no advice.
            Failure::Refused(refusal) if self.protocol == Protocol::Auto => Error::refused(key, refusal),
            failure => Error::of_failure(key, command, failure),
        }
    }
}
