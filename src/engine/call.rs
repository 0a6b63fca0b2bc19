//! The commands of one call on one lock: under which limits and on which connection each is sent.

mod failure;
mod limits;
mod many;
mod watching;

use std::time::Duration;

use super::Engine;
use super::outbox::{LateReport, Outbox};
use super::wait::Answer;
use crate::backend::{
    Answers, Budget, Failure, Incident, Limits, Next, RefusalKind, Report, StopCheck, TransportError,
    WatchedConnection,
};
use crate::clock::{self, Now, Uptime};
use crate::key::Key;
use crate::options::Protocol;
use crate::protocol::lease::Lease;
use crate::protocol::task::{Plan, Task};
use crate::protocol::waiting_list::Waiting;
use crate::protocol::{Command, GiveUp, Reply, Request, Step};
use failure::LastFailure;

/// The commands of one call on one lock, and the last failure.
pub(super) struct Call<'a> {
    engine: &'a Engine,
    key: &'a Key,
    /// As the options say, so that it may be [`Protocol::Auto`].
    protocol: Protocol,
    budget: Budget,
    /// Until when the lock is held that it releases; only of a release.
    held_until: Option<Uptime>,
    stop: StopCheck<'a>,
    last_failure: Option<Box<LastFailure>>,
    /// Whether the last command got no answer.
    unanswered_last: bool,
    /// Where to put what is to be reported later; `None` if it is reported at once.
    outbox: Option<&'a Outbox>,
    /// What takes an entry from the key's waiting list, behind the command that deletes the key, until that is sent.
    behind: Option<Waiting>,
    /// The reply to the command on the waiting list.
    pub(super) taken: Option<Result<Reply, Failure>>,
    /// The connection that watches the key, and until when leaving it may take.
    watched: Option<Box<(Box<dyn WatchedConnection>, Limits<'static>)>>,
    /// The change that was sent with WATCH, and what went behind it: its answers are for the EXEC that the rules ask for next.
    changed: Option<Box<(Option<Next>, Answers)>>,
    /// The last command that may have changed the key and whose reply was lost, and why.
    unanswered: Option<Box<(&'static str, TransportError)>>,
}

impl<'a> Call<'a> {
    pub(super) fn new(
        engine: &'a Engine,
        key: &'a Key,
        protocol: Protocol,
        deadline: Option<Uptime>,
    ) -> Self {
        let budget = engine.budget(deadline);
        let stop = StopCheck::NEVER;
        Self {
            engine,
            key,
            protocol,
            budget,
            held_until: None,
            stop,
            last_failure: None,
            unanswered_last: false,
            outbox: None,
            behind: None,
            taken: None,
            watched: None,
            changed: None,
            unanswered: None,
        }
    }

    /// Returns the call with a check that ends its waits for a connection, and another time for an unreachable server.
    pub(super) fn stopped_by(mut self, stop: StopCheck<'a>, retry_for: Duration) -> Self {
        self.budget.retry_for = retry_for;
        self.stop = stop;
        self
    }

    /// Returns the call as one that reports later: something is locked meanwhile.
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

    /// Has the call also take an entry from the key's waiting list, along with the command that deletes the key.
    pub(super) fn take(&mut self, waiting: Waiting) {
        self.behind = Some(waiting);
    }

    /// Runs a task until it ends.
    pub(super) fn run<T>(
        &mut self,
        task: &mut Task<T>,
        mut step: Step<T>,
        mut now: Now,
    ) -> Result<T, GiveUp> {
        loop {
            let request = match step.outcome() {
                Err(request) => request,
                Ok(outcome) => {
                    self.unwatch();
                    return outcome;
                }
            };
            let reply = match task.take_plan() {
                Some(Plan { own, change }) => self.change(&own, &change, now),
                None => self.send(&request, now),
            };
            now = clock::now();
            step = task.resume(reply, now);
        }
    }

    pub(super) fn send(&mut self, request: &Request, now: Now) -> Reply {
        if let Some((along, answers)) = self.changed.take().map(|changed| *changed) {
            let needs = self.needs(&request.command);
            return self.answers(&request.command, along.as_ref(), answers, needs);
        }
        let sent = self.within_limits(&request.command, now, |call, limits| {
            let along = call.along(&request.command);
            let answers = call.carry(request, along.as_ref(), limits);
            (along, answers, limits.needs)
        });
        match sent {
            Some((along, answers, needs)) => self.answers(&request.command, along.as_ref(), answers, needs),
            None => Reply::Unsent,
        }
    }

    /// Has `carry` send a command, unless its time is over.
    fn within_limits<T>(
        &mut self,
        command: &Command,
        now: Now,
        carry: impl FnOnce(&mut Self, &Limits<'_>) -> T,
    ) -> Option<T> {
        let (engine, outbox) = (self.engine, self.outbox);
        let report = |incident: Incident<'_>| match outbox {
            Some(outbox) => outbox.push(incident.into()),
            None => engine.observer.incident(&incident),
        };
        let limits = self.limits(command, Report(Some(&report)), now);
        if self.is_too_late(&limits) {
            return None;
        }
        Some(carry(self, &limits))
    }

    /// Returns what is to go behind a command.
    pub(super) fn along(&mut self, command: &Command) -> Option<Next> {
        let waiting = self.behind.take_if(|_| command.deletes())?;
        Some(at_any_time(Command::Waiting(waiting)))
    }

    /// Notes the answers to a command and to what went behind it, if something did. Returns the rules' reply.
    pub(super) fn answers(
        &mut self,
        command: &Command,
        along: Option<&Next>,
        answers: Answers,
        needs: Protocol,
    ) -> Reply {
        let Answers { own, next } = answers;
        if along.is_some() {
            self.taken = next;
        }
        self.reply(own, command.name(), command.only_reads(), needs)
    }

    /// Looks at the key, right behind a command on its waiting list. Returns the replies to both; none to that one if it was not sent.
    pub(super) fn look(&mut self, waiting: Waiting, now: Now) -> (Reply, Option<Result<Reply, Failure>>) {
        let report = |incident: Incident<'_>| self.engine.observer.incident(&incident);
        let request = Request::at_any_time(Command::Waiting(waiting));
        let limits = self.limits(&request.command, Report(Some(&report)), now);
        if self.is_too_late(&limits) {
            return (Reply::Unsent, None);
        }
        let get = at_any_time(Command::Get);
        let (entered, looked) = match self.carry(&request, Some(&get), &limits) {
            Answers { own, next: Some(looked) } => (Some(own), looked),
            Answers { own, next: None } => (None, own),
        };
        (self.reply(looked, get.request.command.name(), true, limits.needs), entered)
    }

    /// Returns the rules' reply for what the backend returned, and keeps why it is none.
    pub(super) fn reply(
        &mut self,
        carried: Result<Reply, Failure>,
        command: &'static str,
        only_reads: bool,
        needs: Protocol,
    ) -> Reply {
        self.unanswered_last = matches!(carried, Err(Failure::Lost(_) | Failure::NoConnection { .. }));
        let (reply, failure) = match carried {
            Ok(reply) => return reply,
            Err(Failure::TooLate) => return Reply::TooLate,
            Err(Failure::TooOld(version)) => {
                (Reply::Refused, LastFailure::TooOld { version, protocol: needs })
            }
            Err(Failure::NoTransactions(refusal)) => {
                (Reply::Refused, LastFailure::NoTransactions { refusal, protocol: needs })
            }
            Err(Failure::Refused(refusal)) => {
                let no_lock = refusal.kind() == RefusalKind::WrongType;
                let reply = if no_lock { Reply::NoLock } else { Reply::Refused };
                (reply, LastFailure::Refused { command, refusal })
            }
            Err(Failure::NoConnection { cause, waited }) => {
                (Reply::Unsent, LastFailure::NoConnection { cause, waited })
            }
            Err(Failure::Lost(error)) => {
                match self.outbox {
                    Some(outbox) => {
                        outbox.push(LateReport::ReplyLost(self.key.clone(), command, error.clone()));
                    }
                    None => self.engine.observer.reply_lost(self.key, command, &error),
                }
                if !only_reads {
                    self.unanswered = Some(Box::new((command, error.clone())));
                }
                (Reply::Lost, LastFailure::Lost { command, error })
            }
        };
        self.last_failure = Some(Box::new(failure));
        reply
    }

    /// Returns the lease and the reply of an answer, as if this call had sent the command.
    pub(super) fn answered(&mut self, answer: Answer) -> (Lease, Reply) {
        let Answer { lease, command, reply, .. } = answer;
        (lease, self.reply(reply, command, false, self.protocol.on(None)))
    }
}

fn at_any_time(command: Command) -> Next {
    Next { request: Request::at_any_time(command), needs: Protocol::Classic }
}
