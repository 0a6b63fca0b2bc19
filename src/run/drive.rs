//! Runs tasks until they end. The commands of several go together: what stands alone in one trip, and transactions as
//! one. They share the time of one call, which those of other nodes get once more if a node gives no answer.

use proto::task::Rules;
use proto::values::{Key, Now, Protocol};
use proto::{Command, GiveUp, Reply, Step, Trip};

use super::engine::Engine;
use super::outbox::{LateReport, Outbox};
use super::session::Session;
use crate::net::{KeyTrip, NodeId};
use crate::system::clock;

/// Rules that were begun, and the commands that they send.
pub(super) struct Job<'j, 'a, R: Rules> {
    key: &'j Key,
    rules: R,
    step: Step<R::Outcome>,
    session: &'j mut Session<'a>,
}

impl<'j, 'a, R: Rules> Job<'j, 'a, R> {
    #[inline]
    pub(super) fn new(
        key: &'j Key,
        (rules, step): (R, Step<R::Outcome>),
        session: &'j mut Session<'a>,
    ) -> Self {
        Self { key, rules, step, session }
    }

    /// Returns the trip that is to be made next, if there is one.
    fn trip(&self) -> Option<&Trip> {
        match &self.step {
            Step::Send(trip) => Some(trip),
            Step::Sleep(_) | Step::Done(_) | Step::GiveUp(_) => None,
        }
    }

    /// Returns the trip that is to be made now. A task whose call has
    /// failed and has no time left ends as if there were no connection.
    fn next(&mut self, now: Now) -> Option<&Trip> {
        self.session.limits.spend(now);
        if self.session.is_over(now) {
            self.abandon(now);
        }
        self.trip()
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

    /// Returns what came of a task that was driven. What happened on the way is reported later.
    #[inline]
    pub(super) fn outcome(self, outbox: &Outbox) -> Result<R::Outcome, GiveUp> {
        for note in self.rules.take_notes() {
            outbox.push(LateReport::Note(self.key.clone(), note));
        }
        self.step.outcome().unwrap_or_else(|_| unreachable!("it was driven"))
    }
}

impl Engine {
    /// Runs the jobs of these, which `job` returns, until all have ended.
    pub(super) fn drive<'j, 'a: 'j, R: Rules + 'j, J>(
        &self,
        jobs: &mut [J],
        job: impl Fn(&mut J) -> Option<&mut Job<'j, 'a, R>>,
        now: Now,
    ) {
        if let [one] = jobs {
            if let Some(job) = job(one) {
                job.run(now);
            }
            return;
        }
        let mut jobs: Vec<&mut Job<'j, 'a, R>> = jobs.iter_mut().filter_map(job).collect();
        self.go_together(&mut jobs, now);
        let node = |job: &&mut Job<'_, '_, R>| self.backend.node_of(job.key);
        let hung: Vec<NodeId> =
            jobs.iter().filter(|job| job.session.failures.are_unanswered()).map(node).collect();
        // Those of other nodes have waited for one that gives no answer.
        let mut others: Vec<_> = jobs.into_iter().filter(|job| job.trip().is_some()).collect();
        let is_hung = |job: &&mut Job<'_, '_, R>| hung.is_empty() || hung.contains(&node(job));
        let now = clock::now();
        others.extract_if(.., |job| is_hung(job)).for_each(|job| job.run(now));
        for job in &mut others {
            job.session.limits.begin_anew(now);
        }
        self.go_together(&mut others, now);
        for job in others {
            job.run(clock::now());
        }
    }

    /// Has jobs go together as long as there are several, and time.
    fn go_together<R: Rules>(&self, jobs: &mut [&mut Job<'_, '_, R>], mut now: Now) {
        while self.send_together(jobs, now) {
            // A lost reply may have been reported, to an observer that takes long.
            now = clock::now();
        }
    }

    /// Sends what each is to send next together, now, and changes the keys that transactions change by as few as
    /// possible. Returns false if there are no two that can go, or none went.
    fn send_together<R: Rules>(&self, jobs: &mut [&mut Job<'_, '_, R>], now: Now) -> bool {
        let goes = |trip: &Trip| match (&trip.if_holds, &trip.command) {
            (Some(expected), _) => !expected.without_ttl,
            (None, Command::Get | Command::GetSet(_) | Command::Del | Command::GetDel) => true,
            (None, command) => matches!(command, Command::Count { .. } | Command::ForgetAfter(_)),
        };
        let jobs = jobs.iter_mut().map(|job| &mut **job);
        let jobs: Vec<&mut Job<'_, '_, R>> =
            jobs.filter_map(|job| job.next(now).is_some_and(goes).then_some(job)).collect();
        if jobs.len() < 2 {
            return false;
        }
        let trips = jobs.iter().filter_map(|job| Some(job.session.trip(job.trip()?)));
        let trips: Vec<KeyTrip<'_>> = trips.collect();
        let needs = |job: &&mut Job<'_, '_, R>| {
            job.trip().map_or(Protocol::Classic, |trip| job.session.limits.needs(trip))
        };
        let needs = jobs.iter().map(needs).max_by_key(|protocol| protocol.min_version()).unwrap_or_default();
        let sent = self.backend.send_all(&trips, &jobs[0].session.limits.together(needs, now));
        drop(trips);
        let now = clock::now();
        let mut went = false;
        for (job, sent) in jobs.into_iter().zip(sent) {
            if let Step::Send(trip) = &job.step {
                // The server is too old only for what another of them has sent: this one goes again.
                let has = sent.protocol_instead();
                if has.is_some_and(|has| has.min_version() >= job.session.limits.needs(trip).min_version()) {
                    continue;
                }
                let replies = job.session.heard(trip, sent);
                job.step = job.rules.resume(replies, now);
                went = true;
            }
        }
        went
    }
}
