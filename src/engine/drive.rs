//! Runs tasks until they end. The commands of several go together: what stands alone in one trip, and transactions as one. What is left then,
//! because something went wrong, each does by itself.

use std::mem;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Engine;
use super::call::Call;
use crate::backend::{Answers, Failure, KeyRequest, Next, NoConnection, Refusal};
use crate::clock::{self, Now, Uptime};
use crate::key::Key;
use crate::options::Protocol;
use crate::protocol::task::Task;
use crate::protocol::{Command, GiveUp, Reply, Request, Step};

/// For how long no command on several keys is sent to a server that has refused one.
const REFUSED: Duration = Duration::from_secs(60);

/// How often at most commands that stand alone are sent together: rules that ask for more meet failures.
const ROUNDS: usize = 2;

/// A task, and the commands that it sends.
pub(super) struct Job<'a, T> {
    pub(super) key: &'a Key,
    task: Task<T>,
    step: Step<T>,
    pub(super) call: Call<'a>,
}

impl<'a, T> Job<'a, T> {
    pub(super) fn new(key: &'a Key, (task, step): (Task<T>, Step<T>), call: Call<'a>) -> Self {
        Self { key, task, step, call }
    }

    /// Returns the command that is to be sent next, if there is one.
    fn request(&self) -> Option<&Request> {
        match &self.step {
            Step::Send(request) => Some(request),
            Step::Sleep(_) | Step::Done(_) | Step::GiveUp(_) => None,
        }
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
        self.step = match self.call.run(&mut self.task, step, now) {
            Ok(outcome) => Step::Done(outcome),
            Err(reason) => Step::GiveUp(reason),
        };
    }

    /// Returns what came of a task that was driven, once.
    pub(super) fn outcome(&mut self) -> Result<T, GiveUp> {
        let step = mem::replace(&mut self.step, Step::GiveUp(GiveUp::Unsent));
        step.outcome().unwrap_or_else(|_| unreachable!("it was driven"))
    }

    pub(super) fn end(mut self) -> (Result<T, GiveUp>, Call<'a>) {
        (self.outcome(), self.call)
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
        self.watch_together(&mut jobs);
        for _ in 0..ROUNDS {
            self.send_together(&mut jobs);
        }
        self.finish_each(jobs);
    }

    /// Does what is left of each by itself. Once the server has taken long not to answer one, the others have less time; it may be one of
    /// several servers behind a proxy. When that has passed, nothing is sent for the rest.
    fn finish_each<T>(&self, jobs: Vec<&mut Job<'_, T>>) {
        let command_timeout = self.backend.command_timeout();
        let mut unreachable: Option<(NoConnection, Uptime)> = None;
        for job in jobs.into_iter().filter(|job| job.request().is_some()) {
            let began = clock::now();
            match &unreachable {
                Some((cause, until)) if began.uptime >= *until => {
                    job.call.fail(cause.clone());
                    job.abandon(began);
                    continue;
                }
                Some(_) => job.call.hurry(command_timeout / 8),
                None => {}
            }
            if !job.call.has_failed() {
                job.call.begin_anew(began);
            }
            job.run(began);
            let ended = clock::uptime();
            let is_slow = ended.since(began.uptime) >= command_timeout / 2;
            if unreachable.is_none() && is_slow {
                unreachable = job.call.unreachable().map(|cause| (cause, ended.after(command_timeout)));
            }
        }
    }

    /// Sends the next command of those keys for which it is one that stands alone, in one trip.
    fn send_together<T>(&self, jobs: &mut [&mut Job<'_, T>]) {
        let is_alone = |job: &&mut Job<'_, T>| {
            let command = job.request().map(|request| &request.command);
            matches!(command, Some(Command::Get | Command::GetSet(_) | Command::Del | Command::Count))
        };
        let mut jobs: Vec<&mut Job<'_, T>> = jobs.iter_mut().map(|job| &mut **job).filter(is_alone).collect();
        if jobs.len() < 2 {
            return;
        }
        let now = clock::now();
        let (requests, along) = requests(&mut jobs);
        let limits = jobs[0].call.limits_together(Protocol::Classic, now);
        let answers = self.backend.call_all(&requests, &limits);
        note(&mut jobs, &requests, along, answers, Protocol::Classic);
    }

    /// Watches the keys that are changed by transactions, and changes those that the rules say by one transaction. It fails for all
    /// if any of them is written meanwhile, or if the server refuses: it may not take several keys, as in a cluster, or one of these. Then
    /// each is done by itself.
    fn watch_together<T>(&self, jobs: &mut [&mut Job<'_, T>]) {
        let is_watching =
            |job: &&mut Job<'_, T>| job.request().is_some_and(|request| request.command == Command::WatchGet);
        let mut jobs: Vec<&mut Job<'_, T>> =
            jobs.iter_mut().map(|job| &mut **job).filter(is_watching).collect();
        let now = clock::now();
        if jobs.len() < 2 || self.refuses_many(now.uptime) {
            return;
        }
        let keys: Vec<Key> = jobs.iter().map(|job| job.key.clone()).collect();
        let limits = jobs[0].call.limits_together(Protocol::Watched, now);
        let (replies, watched) = match self.backend.watch_all(&keys, &limits) {
            Ok((replies, watched)) => (replies, Some(watched)),
            Err(Failure::Refused(refusal)) => return self.note_refused_many(&refusal),
            Err(failure) => (jobs.iter().map(|_| Err(failure.clone())).collect(), None),
        };
        let now = clock::now();
        for (job, reply) in jobs.iter_mut().zip(replies) {
            let reply = job.call.reply(reply, "WATCH", true, Protocol::Watched);
            job.reply(reply, now);
        }
        let Some(watched) = watched else { return };
        let changes = |job: &Job<'_, T>| {
            job.request().is_some_and(|request| matches!(request.command, Command::Exec(_)))
        };
        jobs.retain(|job| changes(job));
        let Some(first) = jobs.first() else { return watched.unwatch(&limits) };
        let limits = first.call.limits_together(Protocol::Watched, now);
        let (requests, along) = requests(&mut jobs);
        let mut answers = watched.exec_all(&requests, &limits);
        if requests.len() > 1 {
            for Answers { own, .. } in &mut answers {
                // Not carried out for any of them.
                if let Err(Failure::Refused(refusal)) = own {
                    self.note_refused_many(refusal);
                    *own = Ok(Reply::Executed(None));
                }
            }
        }
        note(&mut jobs, &requests, along, answers, Protocol::Watched);
    }

    /// Whether the server has refused a command on several keys lately.
    pub(super) fn refuses_many(&self, now: Uptime) -> bool {
        self.refuses_many_until.load(Ordering::Relaxed) > micros(now)
    }

    /// Has commands on several keys left out for a while, unless the reason passes by itself.
    pub(super) fn note_refused_many(&self, refusal: &Refusal) {
        if !refusal.may_pass() {
            let until = clock::uptime().after(REFUSED);
            self.refuses_many_until.store(micros(until), Ordering::Relaxed);
        }
    }
}

fn micros(time: Uptime) -> u64 {
    u64::try_from(time.0.as_micros()).unwrap_or(u64::MAX)
}

/// Returns the commands that are to be sent next, with what goes behind each.
fn requests<T>(jobs: &mut [&mut Job<'_, T>]) -> (Vec<KeyRequest>, Vec<Option<Next>>) {
    let (mut requests, mut all) = (Vec::with_capacity(jobs.len()), Vec::with_capacity(jobs.len()));
    for job in jobs {
        if let Some(request) = job.request().cloned() {
            let along = job.call.along(&request.command);
            requests.push(KeyRequest { key: job.key.clone(), request, next: along.clone() });
            all.push(along);
        }
    }
    (requests, all)
}

fn note<T>(
    jobs: &mut [&mut Job<'_, T>],
    requests: &[KeyRequest],
    along: Vec<Option<Next>>,
    answers: Vec<Answers>,
    needs: Protocol,
) {
    let now = clock::now();
    for (((job, request), along), answers) in jobs.iter_mut().zip(requests).zip(along).zip(answers) {
        let reply = job.call.answers(&request.request.command, along.as_ref(), answers, needs);
        job.reply(reply, now);
    }
}
