//! A session: what one call sends for one lock, under its limits, and how it has failed.

mod failure;
mod limits;

use std::time::Duration;

use super::Engine;
use super::acquire::Answer;
use super::outbox::{LateReport, Outbox};
use crate::net::{Budget, Failure, RefusalKind, Sent, StopCheck, TransportError, Trip, Watch};
use crate::rules::lease::Lease;
use crate::rules::task::{Plan, Task};
use crate::rules::waiting_list::Waiting;
use crate::rules::{Command, GiveUp, Reply, Request, Step, WhyRefused};
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
    stop: StopCheck<'a>,
    /// True if it acquires.
    acquires: bool,
    /// The last command that has failed, and how.
    failed: Option<Box<(&'static str, Failure)>>,
    /// True if the last command got no answer.
    unanswered_last: bool,
    /// Where to put what is to be reported later; `None` if it is reported at once.
    outbox: Option<&'a Outbox>,
    /// What takes an entry from the key's waiting list, behind the command that deletes the key, until that is sent.
    behind: Option<Waiting>,
    /// The reply to the command on the waiting list.
    pub(super) taken: Option<Box<Result<Reply, Failure>>>,
    /// What came of the change that was sent with WATCH: it is the reply to the EXEC that the rules ask for next.
    changed: Option<Box<Result<Reply, Failure>>>,
    /// The last command that may have changed the key and whose reply was lost, and why.
    unanswered: Option<Box<(&'static str, TransportError)>>,
}

impl<'a> Session<'a> {
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
            acquires: false,
            failed: None,
            unanswered_last: false,
            outbox: None,
            behind: None,
            taken: None,
            changed: None,
            unanswered: None,
        }
    }

    /// Returns the session as that of a call that acquires, with a check that ends its waits for a connection, and another time for an
    /// unreachable server.
    pub(super) fn stopped_by(mut self, stop: StopCheck<'a>, retry_for: Duration) -> Self {
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
        self.behind = Some(waiting);
    }

    /// Connects if no connection was opened before, so that it is known what the server has.
    pub(super) fn connect(&self, now: Now) -> Result<(), Failure> {
        self.engine.backend.connect(&self.limits(&Command::Get, now))
    }

    /// Notes that there was no connection. Returns why the call ends.
    pub(super) fn not_connected(&mut self, failure: Failure) -> GiveUp {
        match self.reply(Err(failure), "SET", true) {
            Reply::Refused(_) => GiveUp::Refused,
            _ => GiveUp::Unsent,
        }
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
                Ok(outcome) => return outcome,
            };
            let reply = self.send(&request, task.take_plan().as_ref(), now);
            now = clock::now();
            step = task.resume(reply, now);
        }
    }

    /// Sends a command; a WATCH with what is planned to follow.
    pub(super) fn send(&mut self, request: &Request, plan: Option<&Plan>, now: Now) -> Reply {
        if let Command::Exec(_) = request.command {
            // It was sent with its WATCH.
            return self.changed();
        }
        let change = plan.map_or(&request.command, |plan| &plan.change.command);
        let behind = self.behind(change);
        let limits = self.limits(change, now);
        if self.is_too_late(&limits) {
            return Reply::Unsent;
        }
        let sent = self.engine.backend.send(&trip(self.key, request, plan, behind.as_ref()), &limits);
        self.heard(request, sent)
    }

    /// Returns what goes behind a command.
    pub(super) fn behind(&self, command: &Command) -> Option<Command> {
        self.behind.as_ref().filter(|_| command.deletes()).cloned().map(Command::Waiting)
    }

    /// Notes what came of a trip. Returns the rules' reply to its first command.
    pub(super) fn heard(&mut self, request: &Request, sent: Sent) -> Reply {
        let Sent { watched, reply, behind, .. } = sent;
        if let Some(taken) = behind {
            (self.behind, self.taken) = (None, Some(Box::new(taken)));
        }
        let command = &request.command;
        match watched {
            Some(watched) => {
                self.changed = reply.map(Box::new);
                self.reply(watched, command.name(), true)
            }
            None => self.reply(reply.unwrap_or(Err(Failure::TooLate)), command.name(), command.only_reads()),
        }
    }

    /// Returns the rules' reply to EXEC. None was sent if the key holds something else than was expected, or its time had passed.
    pub(super) fn changed(&mut self) -> Reply {
        match self.changed.take() {
            Some(changed) => self.reply(*changed, "EXEC", false),
            None => Reply::TooLate,
        }
    }

    /// Sends a command, and another behind it in the same trip. Returns both replies; none to the second if that was not sent.
    fn send_both(&mut self, request: &Request, behind: &Command, now: Now) -> Option<Sent> {
        let limits = self.limits(&request.command, now);
        if self.is_too_late(&limits) {
            return None;
        }
        let trip = Trip { behind: Some(behind), ..Trip::new(self.key, request) };
        Some(self.engine.backend.send(&trip, &limits))
    }

    /// Asks for this lock and looks at others in one trip. Returns both replies.
    pub(super) fn ask_and_look(&mut self, request: &Request, look: &Command, now: Now) -> (Reply, Reply) {
        let Some(Sent { reply, behind, .. }) = self.send_both(request, look, now) else {
            return (Reply::Unsent, Reply::Unsent);
        };
        let found = behind.map_or(Reply::Unsent, |found| self.reply(found, look.name(), true));
        let reply = reply.unwrap_or(Err(Failure::TooLate));
        (self.reply(reply, request.command.name(), false), found)
    }

    /// Sends a command and another behind it, whose failure does not matter. Returns both replies; none to the second if it has failed.
    pub(super) fn send_with(
        &mut self,
        request: &Request,
        behind: &Command,
        now: Now,
    ) -> (Reply, Option<Reply>) {
        let Some(mut sent) = self.send_both(request, behind, now) else {
            return (Reply::Unsent, None);
        };
        let behind = sent.behind.take().and_then(Result::ok);
        (self.heard(request, sent), behind)
    }

    /// Sends a trip for each of several keys, of which this call's is the first, together.
    pub(super) fn send_each(&self, trips: &[Trip<'_>], now: Now) -> Vec<Sent> {
        let limits = self.limits(&trips[0].request.command, now);
        self.engine.backend.send_all(trips, &limits)
    }

    /// Looks at the key, right behind a command on its waiting list. Returns the replies to both; none to that one if it was not sent.
    pub(super) fn look(&mut self, waiting: Waiting, now: Now) -> (Reply, Option<Result<Reply, Failure>>) {
        let request = Request::at_any_time(Command::Waiting(waiting));
        let Some(Sent { reply, behind, .. }) = self.send_both(&request, &Command::Get, now) else {
            return (Reply::Unsent, None);
        };
        let (entered, looked) = match (reply, behind) {
            (entered, Some(looked)) => (entered, looked),
            (failed, None) => (None, failed.unwrap_or(Err(Failure::TooLate))),
        };
        (self.reply(looked, Command::Get.name(), true), entered)
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
        let reply = match &failure {
            Failure::TooLate => return Reply::TooLate,
            Failure::Refused(refusal) => Reply::Refused(match refusal.kind() {
                RefusalKind::WrongType => WhyRefused::NoLock,
                RefusalKind::ReadOnly => WhyRefused::ReadOnly,
                _ if refusal.is_transient() => WhyRefused::ForNow,
                _ if refusal.is_about_the_command() => WhyRefused::Command,
                _ => WhyRefused::Otherwise,
            }),
            Failure::Unreachable { .. } | Failure::Panicked(_) => Reply::Unsent,
            Failure::Lost(error) => {
                match self.outbox {
                    Some(outbox) => {
                        outbox.push(LateReport::ReplyLost(self.key.clone(), command, error.clone()));
                    }
                    None => self.engine.observer.reply_lost(self.key, command, error),
                }
                if !only_reads {
                    self.unanswered = Some(Box::new((command, error.clone())));
                }
                Reply::Lost
            }
        };
        self.failed = Some(Box::new((command, failure)));
        reply
    }

    /// Returns the lease and the reply of an answer, as if this call had sent the command.
    pub(super) fn answered(&mut self, answer: Answer) -> (Lease, Reply) {
        let Answer { lease, command, reply, .. } = answer;
        (lease, self.reply(reply, command, false))
    }
}

/// Returns the trip of a command, and of what is planned to follow if that is a WATCH.
pub(super) fn trip<'a>(
    key: &'a Key,
    request: &'a Request,
    plan: Option<&'a Plan>,
    behind: Option<&'a Command>,
) -> Trip<'a> {
    match plan {
        Some(Plan { expected, change }) => {
            let watch = Some(Watch { command: &request.command, expected });
            Trip { watch, behind, ..Trip::new(key, change) }
        }
        None => Trip { behind, ..Trip::new(key, request) },
    }
}
