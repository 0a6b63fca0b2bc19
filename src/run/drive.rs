//! Runs tasks until they end. The commands of several go together: what stands alone in one trip, and transactions as one. What is left then,
//! because something went wrong, each does by itself.

use std::mem;

use super::engine::Engine;
use super::reports::{LateReport, Outbox};
use super::session::Session;
use crate::net::{Failure, KeyTrip, NodeId};
use crate::rules::task::Rules;
use crate::rules::{Command, GiveUp, Reply, Step, Trip};
use crate::values::clock::{self, Now, Uptime};
use crate::values::key::Key;
use crate::values::options::Protocol;

/// How many rounds go together at most: a look, then a change. Transactions go together in one of them.
const ROUNDS: usize = 2;
/// The same where counters are raised, as those of all keys are after a failover, and increased once more; or kept between look and change.
const ROUNDS_OF_COUNTERS: usize = 4;

/// Rules that were begun, and the commands that they send.
pub(super) struct Job<'a, R: Rules> {
    pub(super) key: &'a Key,
    pub(super) rules: R,
    step: Step<R::Outcome>,
    pub(super) session: Session<'a>,
}

impl<'a, R: Rules> Job<'a, R> {
    #[inline]
    pub(super) fn new(key: &'a Key, (rules, step): (R, Step<R::Outcome>), session: Session<'a>) -> Self {
        Self { key, rules, step, session }
    }

    /// Returns the trip that is to be made next, if there is one.
    fn trip(&self) -> Option<&Trip> {
        match &self.step {
            Step::Send(trip) => Some(trip),
            Step::Sleep(_) | Step::Done(_) | Step::GiveUp(_) => None,
        }
    }

    /// Returns true if it raises a counter, or increases it.
    fn counts(&self) -> bool {
        self.trip().is_some_and(|trip| matches!(trip.command, Command::Raise { .. } | Command::Count { .. }))
    }

    /// Returns true if it has a counter kept, before it extends a lease.
    fn keeps_counter(&self) -> bool {
        self.trip().is_some_and(|trip| matches!(trip.command, Command::ForgetAfter(_)))
    }

    /// Ends the task as if there were no connection.
    fn abandon(&mut self, now: Now) {
        while self.trip().is_some() {
            self.step = self.rules.resume(Reply::Unsent, now);
        }
    }

    /// Runs the task by itself.
    pub(super) fn run(&mut self, mut now: Now) {
        while let Step::Send(trip) = &self.step {
            let replies = self.session.send(trip, now);
            now = self.session.now();
            self.step = self.rules.resume(replies, now);
        }
    }

    /// Returns what came of a task that was driven, once. What happened on the way is reported later.
    #[inline]
    pub(super) fn outcome(&mut self, outbox: &Outbox) -> Result<R::Outcome, GiveUp> {
        for (_, note) in self.rules.take_notes() {
            outbox.push(LateReport::Note(self.key.clone(), note));
        }
        let step = mem::replace(&mut self.step, Step::GiveUp(GiveUp::Unsent));
        step.outcome().unwrap_or_else(|_| unreachable!("it was driven"))
    }

    pub(super) fn end(mut self, outbox: &Outbox) -> (Result<R::Outcome, GiveUp>, Session<'a>) {
        (self.outcome(outbox), self.session)
    }
}

impl Engine {
    /// Runs the jobs of these, which `job` returns, until all have ended.
    pub(super) fn drive<'a, R: Rules + 'a, J>(
        &self,
        jobs: &mut [J],
        job: impl Fn(&mut J) -> Option<&mut Job<'a, R>>,
        now: Now,
    ) {
        if let [one] = jobs {
            if let Some(job) = job(one) {
                job.run(now);
            }
            return;
        }
        let mut jobs: Vec<&mut Job<'a, R>> = jobs.iter_mut().filter_map(job).collect();
        let mut has_transacted = false;
        let (mut now, mut has_kept) = (now, false);
        for round in 0..ROUNDS_OF_COUNTERS {
            if round >= ROUNDS && !has_kept && !jobs.iter().any(|job| job.counts()) {
                break;
            }
            has_kept = jobs.iter().any(|job| job.keeps_counter());
            if round > 0 {
                // A lost reply may have been reported, to an observer that takes long.
                now = clock::now();
            }
            has_transacted |= self.send_together(&mut jobs, !has_transacted, now);
        }
        self.finish_each(jobs);
    }

    /// Does what is left of each by itself. Once a server has taken long not to answer one, its others have less time; it may be one of
    /// several servers behind a proxy. When that has passed, nothing is sent for the rest.
    fn finish_each<R: Rules>(&self, jobs: Vec<&mut Job<'_, R>>) {
        let command_timeout = self.backend.command_timeout();
        let mut hung: Vec<(NodeId, Failure, Uptime)> = Vec::new();
        for job in jobs.into_iter().filter(|job| job.trip().is_some()) {
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

    /// Sends what each is to send next together, now, and changes the keys that transactions change by as few as possible. Returns true if there
    /// were any.
    fn send_together<R: Rules>(&self, jobs: &mut [&mut Job<'_, R>], transacts: bool, now: Now) -> bool {
        let goes = |job: &&mut Job<'_, R>| match job.trip() {
            Some(Trip { if_holds: Some(expected), .. }) => {
                (transacts || job.counts()) && !expected.without_ttl
            }
            Some(Trip { command, .. }) => {
                matches!(command, Command::Get | Command::GetSet(_) | Command::Del)
                    || matches!(command, Command::Count { .. } | Command::ForgetAfter(_))
            }
            None => false,
        };
        let jobs: Vec<&mut Job<'_, R>> = jobs.iter_mut().map(|job| &mut **job).filter(goes).collect();
        if jobs.len() < 2 {
            return false;
        }
        let trips = jobs.iter().filter_map(|job| Some(job.session.trip(job.trip()?)));
        let trips: Vec<KeyTrip<'_>> = trips.collect();
        let transacted = trips.iter().any(|trip| trip.trip.if_holds.is_some());
        let needs = if transacted { Protocol::Watched } else { Protocol::Classic };
        let sent = self.backend.send_all(&trips, &jobs[0].session.limits_together(needs, now));
        drop(trips);
        let now = clock::now();
        for (job, sent) in jobs.into_iter().zip(sent) {
            if let Step::Send(trip) = &job.step {
                let replies = job.session.heard(trip, sent);
                job.step = job.rules.resume(replies, now);
            }
        }
        transacted
    }
}
