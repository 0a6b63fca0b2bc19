//! One of the threads of a scenario.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::Ordering::SeqCst;
use shuttle::thread;

use super::results::{Job, JobResult, Outcome};
use super::scenario::{Behavior, GivesUp, Harness, Lead};
use super::subject::{Batch, Joined, Rank, WaitStage};
use super::sync;

/// The payload of a panic that belongs to the scenario.
struct ExpectedPanic;

pub(super) struct Worker<'a> {
    harness: &'a Harness,
    number: usize,
    behavior: Behavior,
}

impl<'a> Worker<'a> {
    pub(super) fn new(harness: &'a Harness, number: usize, behavior: Behavior) -> Self {
        Self { harness, number, behavior }
    }

    pub(super) fn run(&self) {
        for round in 0..self.behavior.rounds {
            let job = Job { worker: self.number, round };
            match catch_unwind(AssertUnwindSafe(|| self.execute(job))) {
                Ok(()) => {}
                Err(panic) if panic.is::<ExpectedPanic>() => {}
                Err(panic) => resume_unwind(panic),
            }
        }
    }

    fn execute(&self, job: Job) {
        let new_job = || {
            assert!(self.harness.may_wait(), "a job is made for other threads where no thread waits");
            job
        };
        let is_contended = |active| self.harness.is_contended(active);
        let park = |stage| self.park(job, stage);
        self.harness.wait_to_join(self.number);
        let joined = self.harness.combiner.join(new_job, is_contended, park);
        let outcome = match &joined {
            Joined::Leader { .. } => Outcome::Led,
            Joined::Completed(result) => Outcome::Completed(*result),
            Joined::Abandoned => Outcome::Abandoned,
        };
        self.harness.results.ended(job, outcome);
        match joined {
            Joined::Leader { batch, .. } => self.lead(job, batch),
            Joined::Completed(JobResult::NotExecuted(_)) => {
                self.harness.results.executed(job);
            }
            Joined::Completed(JobResult::Executed(_)) | Joined::Abandoned => {}
        }
    }

    /// As the pooled backend does it.
    fn lead(&self, job: Job, mut batch: Batch<'_, Job, JobResult>) {
        self.harness.has_joined(self.number);
        self.harness.begins_batch(self.number);
        if self.behavior.lead != Lead::Alone {
            self.fill(&mut batch);
        }
        match self.behavior.lead {
            Lead::FillsTwice => self.fill(&mut batch),
            Lead::PanicsBeforeExecution => self.panic(job),
            Lead::TooManyClients => {
                let results = batch.jobs().copied().map(JobResult::NotExecuted).collect();
                self.end(&mut batch, results);
                batch.fill(|_| true);
                assert_eq!(batch.jobs().count(), 0, "a batch that has ended takes requests");
            }
            _ => {}
        }
        self.harness.results.executed(job);
        let execute = |job: &Job| {
            // It takes time.
            thread::yield_now();
            self.harness.results.executed(*job)
        };
        let mut results: Vec<_> = batch.jobs().map(execute).collect();
        match self.behavior.lead {
            Lead::Alone => self.harness.ends_batch(),
            Lead::PanicsAfterExecution => self.panic(job),
            // The batch has ended.
            Lead::TooManyClients => batch.end([], |_, _| unreachable!("no request is in it any more")),
            Lead::LosesTheLastResult => {
                results.pop();
                self.end(&mut batch, results);
            }
            _ => self.end(&mut batch, results),
        }
    }

    fn fill(&self, batch: &mut Batch<'_, Job, JobResult>) {
        let before: Vec<_> = batch.jobs().copied().collect();
        batch.fill(|_| true);
        let mut jobs = batch.jobs().copied();
        assert!(
            before.iter().all(|job| jobs.next() == Some(*job)),
            "a new request is ahead of an earlier one"
        );
        for job in jobs {
            self.harness.results.batched(job);
            self.harness.note_served(job.worker);
        }
        self.harness.check_batch(batch.jobs().count());
    }

    fn end(&self, batch: &mut Batch<'_, Job, JobResult>, results: Vec<JobResult>) {
        let panics = self.behavior.lead == Lead::PanicsOnAnAbandonedResult;
        for result in &results {
            self.harness.results.completed(result.job());
            if panics {
                self.harness.results.may_be_unreported(result.job());
            }
        }
        self.harness.ends_batch();
        batch.end(results, |job, result| {
            self.harness.results.abandoned(*job, *result);
            if panics {
                resume_unwind(Box::new(ExpectedPanic));
            }
        });
        assert_eq!(batch.jobs().count(), 0, "a request is still in the batch");
    }

    fn panic(&self, job: Job) {
        self.harness.results.panicked(job);
        self.harness.ends_batch();
        resume_unwind(Box::new(ExpectedPanic));
    }

    /// Sleeps. Returns whether to wait on.
    fn park(&self, job: Job, stage: WaitStage) -> bool {
        assert!(self.harness.may_wait(), "waits without contention");
        self.harness.has_joined(self.number);
        let gives_up = match stage {
            WaitStage::Queued(Rank::First) => {
                matches!(self.behavior.gives_up, GivesUp::First | GivesUp::Queued | GivesUp::Anywhere)
            }
            WaitStage::Queued(_) => matches!(self.behavior.gives_up, GivesUp::Queued | GivesUp::Anywhere),
            WaitStage::InFlight => matches!(self.behavior.gives_up, GivesUp::InFlight | GivesUp::Anywhere),
        };
        if gives_up && self.harness.timed_out[self.number].load(SeqCst) {
            if stage == WaitStage::InFlight {
                self.harness.results.gave_up_in_flight(job);
            }
            return false;
        }
        // Sometimes it returns spuriously.
        if !thread_rng().gen_bool(0.1) {
            sync::park();
        }
        true
    }
}
