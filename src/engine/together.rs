//! The rules of many keys, whose commands go together: what stands alone in one trip, and transactions as one. What is left then, because
//! something went wrong, each key does by itself.

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

/// The task of one key, on the way.
pub(super) struct Run<'a, T> {
    pub(super) key: &'a Key,
    task: Task<T>,
    step: Step<T>,
    pub(super) call: Call<'a>,
}

impl<'a, T> Run<'a, T> {
    pub(super) fn new(key: &'a Key, (task, step): (Task<T>, Step<T>), call: Call<'a>) -> Self {
        Self { key, task, step, call }
    }

    /// Returns the command that is to be sent next, if there is one.
    fn request(&self) -> Option<&Request> {
        match &self.step {
            Step::Send(request) => Some(request),
            Step::Done(_) | Step::GiveUp(_) => None,
        }
    }

    fn reply(&mut self, reply: Reply, now: Now) {
        self.step = self.task.resume(reply, now);
    }

    /// Ends the rules as if there were no connection.
    pub(super) fn abandon(&mut self, now: Now) {
        while self.request().is_some() {
            self.reply(Reply::Unsent, now);
        }
    }

    /// Does the rest by itself, with the time of a call that begins now unless it has failed. Returns the outcome, and what is left.
    pub(super) fn end(mut self) -> (Result<T, GiveUp>, Call<'a>) {
        (self.outcome(), self.call)
    }

    /// Does the rest by itself, and returns the outcome, once.
    pub(super) fn outcome(&mut self) -> Result<T, GiveUp> {
        match std::mem::replace(&mut self.step, Step::GiveUp(GiveUp::Unsent)) {
            Step::Done(outcome) => Ok(outcome),
            Step::GiveUp(reason) => Err(reason),
            step @ Step::Send(_) => {
                let now = clock::now();
                if !self.call.has_failed() {
                    self.call.begin_anew(now);
                }
                self.call.run(&mut self.task, step, now)
            }
        }
    }

    fn finish(&mut self) {
        self.step = match self.outcome() {
            Ok(outcome) => Step::Done(outcome),
            Err(reason) => Step::GiveUp(reason),
        };
    }
}

impl Engine {
    /// Sends the commands of all together, as far as that is possible. If nothing goes wrong nothing is left for [`Run::end`].
    pub(super) fn run_together<T>(&self, mut runs: Vec<&mut Run<'_, T>>) {
        if runs.len() < 2 {
            return;
        }
        self.watch_together(&mut runs);
        for _ in 0..ROUNDS {
            self.send_together(&mut runs);
        }
    }

    /// Does what is left of each by itself. Once the server has taken long not to answer one, the others have less time; it may be one of
    /// several servers behind a proxy. When that has passed, nothing is sent for the rest.
    pub(super) fn finish_each<'r, 'a: 'r, T: 'r>(&self, runs: impl Iterator<Item = &'r mut Run<'a, T>>) {
        let command_timeout = self.backend.command_timeout();
        let mut unreachable: Option<(NoConnection, Uptime)> = None;
        for run in runs.filter(|run| run.request().is_some()) {
            let began = clock::now();
            match &unreachable {
                Some((cause, until)) if began.uptime >= *until => {
                    run.call.fail(cause.clone());
                    run.abandon(began);
                    continue;
                }
                Some(_) => run.call.hurry(command_timeout / 8),
                None => {}
            }
            run.finish();
            let ended = clock::uptime();
            let is_slow = ended.since(began.uptime) >= command_timeout / 2;
            if unreachable.is_none() && is_slow {
                unreachable = run.call.unreachable().map(|cause| (cause, ended.after(command_timeout)));
            }
        }
    }

    /// Sends the next command of those keys for which it is one that stands alone, in one trip.
    fn send_together<T>(&self, runs: &mut [&mut Run<'_, T>]) {
        let is_alone = |run: &&mut Run<'_, T>| {
            let command = run.request().map(|request| &request.command);
            matches!(command, Some(Command::Get | Command::GetSet(_) | Command::Del | Command::Count))
        };
        let mut runs: Vec<&mut Run<'_, T>> = runs.iter_mut().map(|run| &mut **run).filter(is_alone).collect();
        if runs.len() < 2 {
            return;
        }
        let now = clock::now();
        let (requests, along) = requests(&mut runs);
        let limits = runs[0].call.limits_together(Protocol::Classic, now);
        let answers = self.backend.call_all(&requests, &limits);
        note(&mut runs, &requests, along, answers, Protocol::Classic);
    }

    /// Watches the keys that are changed by transactions, and changes those that the rules say by one transaction. It fails for all
    /// if any of them is written meanwhile, or if the server refuses: it may not take several keys, as in a cluster, or one of these. Then
    /// each is done by itself.
    fn watch_together<T>(&self, runs: &mut [&mut Run<'_, T>]) {
        let is_watching =
            |run: &&mut Run<'_, T>| run.request().is_some_and(|request| request.command == Command::WatchGet);
        let mut runs: Vec<&mut Run<'_, T>> =
            runs.iter_mut().map(|run| &mut **run).filter(is_watching).collect();
        let now = clock::now();
        if runs.len() < 2 || self.refuses_many(now.uptime) {
            return;
        }
        let keys: Vec<Key> = runs.iter().map(|run| run.key.clone()).collect();
        let limits = runs[0].call.limits_together(Protocol::Watched, now);
        let (replies, watched) = match self.backend.watch_all(&keys, &limits) {
            Ok((replies, watched)) => (replies, Some(watched)),
            Err(Failure::Refused(refusal)) => return self.note_refused_many(&refusal),
            Err(failure) => (runs.iter().map(|_| Err(failure.clone())).collect(), None),
        };
        let now = clock::now();
        for (run, reply) in runs.iter_mut().zip(replies) {
            let reply = run.call.reply(reply, "WATCH", true, Protocol::Watched);
            run.reply(reply, now);
        }
        let Some(watched) = watched else { return };
        let changes = |run: &Run<'_, T>| {
            run.request().is_some_and(|request| matches!(request.command, Command::Exec(_)))
        };
        runs.retain(|run| changes(run));
        let Some(first) = runs.first() else { return watched.unwatch(&limits) };
        let limits = first.call.limits_together(Protocol::Watched, now);
        let (requests, along) = requests(&mut runs);
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
        note(&mut runs, &requests, along, answers, Protocol::Watched);
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
fn requests<T>(runs: &mut [&mut Run<'_, T>]) -> (Vec<KeyRequest>, Vec<Option<Next>>) {
    let (mut requests, mut all) = (Vec::with_capacity(runs.len()), Vec::with_capacity(runs.len()));
    for run in runs {
        if let Some(request) = run.request().cloned() {
            let along = run.call.along(&request.command);
            requests.push(KeyRequest { key: run.key.clone(), request, next: along.clone() });
            all.push(along);
        }
    }
    (requests, all)
}

fn note<T>(
    runs: &mut [&mut Run<'_, T>],
    requests: &[KeyRequest],
    along: Vec<Option<Next>>,
    answers: Vec<Answers>,
    needs: Protocol,
) {
    let now = clock::now();
    for (((run, request), along), answers) in runs.iter_mut().zip(requests).zip(along).zip(answers) {
        let reply = run.call.answers(&request.request.command, along.as_ref(), answers, needs);
        run.reply(reply, now);
    }
}
