//! Runs tasks until they end. The commands of several go together: what stands alone in one trip, and transactions as one. What is left then,
//! because something went wrong, each does by itself.

use std::mem;

use super::Engine;
use super::outbox::{LateReport, Outbox};
use super::session::{self, Session};
use crate::net::{Failure, NodeId, Trip};
use crate::rules::task::{Plan, Task};
use crate::rules::{Command, GiveUp, Reply, Request, Step};
use crate::values::clock::{self, Now, Uptime};
use crate::values::key::Key;
use crate::values::options::Protocol;

/// How many rounds go together at most: a look, then a change. Transactions go together in one of them.
const ROUNDS: usize = 2;

/// A task, and the commands that it sends.
pub(super) struct Job<'a, T> {
    pub(super) key: &'a Key,
    task: Task<T>,
    step: Step<T>,
    pub(super) session: Session<'a>,
}

/// What a job sends next.
struct Sends<'a> {
    key: &'a Key,
    request: Request,
    plan: Option<Plan>,
    behind: Option<Command>,
}

impl<'a, T> Job<'a, T> {
    pub(super) fn new(key: &'a Key, (task, step): (Task<T>, Step<T>), session: Session<'a>) -> Self {
        Self { key, task, step, session }
    }

    /// Returns the command that is to be sent next, if there is one.
    fn request(&self) -> Option<&Request> {
        match &self.step {
            Step::Send(request) => Some(request),
            Step::Sleep(_) | Step::Done(_) | Step::GiveUp(_) => None,
        }
    }

    /// Returns what it sends next.
    fn sends(&mut self) -> Option<Sends<'a>> {
        let request = self.request()?.clone();
        let plan = self.task.take_plan();
        let behind = self.session.behind(plan.as_ref().map_or(&request.command, |plan| &plan.change.command));
        Some(Sends { key: self.key, request, plan, behind })
    }

    fn reply(&mut self, reply: Reply, now: Now) {
        self.step = self.task.resume(reply, now);
    }

    /// Ends the task as if there were no connection.
    fn abandon(&mut self, now: Now) {
        while self.request().is_some() {
            self.reply(Reply::Unsent, now);
        }
    }

    /// Runs the task by itself.
    fn run(&mut self, now: Now) {
        let step = mem::replace(&mut self.step, Step::GiveUp(GiveUp::Unsent));
        self.step = match self.session.run(&mut self.task, step, now) {
            Ok(outcome) => Step::Done(outcome),
            Err(reason) => Step::GiveUp(reason),
        };
    }

    /// Returns what came of a task that was driven, once. What happened on the way is reported later.
    pub(super) fn outcome(&mut self, outbox: &Outbox) -> Result<T, GiveUp> {
        for (_, note) in self.task.io().take_notes() {
            outbox.push(LateReport::Note(self.key.clone(), note));
        }
        let step = mem::replace(&mut self.step, Step::GiveUp(GiveUp::Unsent));
        step.outcome().unwrap_or_else(|_| unreachable!("it was driven"))
    }

    pub(super) fn end(mut self, outbox: &Outbox) -> (Result<T, GiveUp>, Session<'a>) {
        (self.outcome(outbox), self.session)
    }
}

impl Engine {
    /// Runs the jobs of these, which `job` returns, until all have ended.
    pub(super) fn drive<'a, T, J>(
        &self,
        jobs: &mut [J],
        job: impl Fn(&mut J) -> Option<&mut Job<'a, T>>,
        now: Now,
    ) where
        T: 'a,
    {
        if let [one] = jobs {
            if let Some(job) = job(one) {
                job.run(now);
            }
            return;
        }
        let mut jobs: Vec<&mut Job<'a, T>> = jobs.iter_mut().filter_map(job).collect();
        let mut has_transacted = false;
        for _ in 0..ROUNDS {
            has_transacted |= self.send_together(&mut jobs, !has_transacted);
        }
        self.finish_each(jobs);
    }

    /// Does what is left of each by itself. Once a server has taken long not to answer one, its others have less time; it may be one of
    /// several servers behind a proxy. When that has passed, nothing is sent for the rest.
    fn finish_each<T>(&self, jobs: Vec<&mut Job<'_, T>>) {
        let command_timeout = self.backend.command_timeout();
        let mut hung: Vec<(NodeId, Failure, Uptime)> = Vec::new();
        for job in jobs.into_iter().filter(|job| job.request().is_some()) {
            let began = clock::now();
            let node = self.backend.node_of(job.key);
            match hung.iter().find(|(at, ..)| *at == node) {
                Some((_, failure, until)) if began.uptime >= *until => {
                    job.session.fail(failure.clone());
                    job.abandon(began);
                    continue;
                }
                Some(_) => job.session.hurry(command_timeout / 8),
                None => {}
            }
            if !job.session.has_failed() {
                job.session.begin_anew(began);
            }
            job.run(began);
            let ended = clock::uptime();
            let is_slow = ended.since(began.uptime) >= command_timeout / 2;
            if is_slow && let Some(failure) = job.session.unreachable() {
                hung.push((node, failure, ended.after(command_timeout)));
            }
        }
    }

    /// Sends what each is to send next together, and changes the keys that transactions change by as few as possible. Returns true if there were
    /// any.
    fn send_together<T>(&self, jobs: &mut [&mut Job<'_, T>], transacts: bool) -> bool {
        let now = clock::now();
        let goes = |job: &&mut Job<'_, T>| match job.request().map(|request| &request.command) {
            Some(Command::Get | Command::GetSet(_) | Command::Del | Command::Count) => true,
            Some(Command::WatchGet) => transacts,
            _ => false,
        };
        let mut jobs: Vec<&mut Job<'_, T>> = jobs.iter_mut().map(|job| &mut **job).filter(goes).collect();
        if jobs.len() < 2 {
            return false;
        }
        let sends: Vec<_> = jobs.iter_mut().filter_map(|job| job.sends()).collect();
        let trips: Vec<Trip<'_>> = sends
            .iter()
            .map(|Sends { key, request, plan, behind }| {
                session::trip(key, request, plan.as_ref(), behind.as_ref())
            })
            .collect();
        let watches = trips.iter().any(|trip| trip.watch.is_some());
        let needs = if watches { Protocol::Watched } else { Protocol::Classic };
        let limits = jobs[0].session.limits_together(needs, now);
        let sent = self.backend.send_all(&trips, &limits);
        drop(trips);
        let now = clock::now();
        for ((job, Sends { request, .. }), sent) in jobs.iter_mut().zip(sends).zip(sent) {
            let reply = job.session.heard(&request, sent);
            job.reply(reply, now);
            if let Some(Command::Exec(_)) = job.request().map(|request| &request.command) {
                let reply = job.session.changed();
                job.reply(reply, now);
            }
        }
        watches
    }
}
