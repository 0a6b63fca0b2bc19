//! What became of each job: which thread executed it, and what was reported to its own thread.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a thread wants executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Job {
    pub(super) worker: usize,
    pub(super) round: usize,
}

/// The result that a leader hands out for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobResult {
    Executed(Job),
    /// Its own thread may execute it.
    NotExecuted(Job),
}

impl JobResult {
    pub(super) fn job(self) -> Job {
        let (JobResult::Executed(job) | JobResult::NotExecuted(job)) = self;
        job
    }
}

/// The outcome of joining, for the thread whose job it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Led,
    Completed(JobResult),
    Abandoned,
}

#[derive(Clone, Copy, Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "they are independent")]
struct Entry {
    /// How often another thread's batch took it.
    batched: usize,
    /// How often it was executed, by any thread.
    executed: usize,
    /// How often a result was handed out for it.
    results: usize,
    /// How often its result was reported as abandoned.
    abandoned: usize,
    gave_up_in_flight: bool,
    /// Whether its thread panicked as a leader.
    panicked: bool,
    /// Whether an abandoned result may stay unreported, since the leader panics at the first.
    may_be_unreported: bool,
    outcome: Option<Outcome>,
}

/// The results, under a mutex that the checkers do not know: noting one is not a scheduling point.
#[derive(Default)]
pub(super) struct Results(Mutex<BTreeMap<Job, Entry>>);

impl Results {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Job, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, job: Job, note: impl FnOnce(&mut Entry)) {
        note(self.lock().entry(job).or_default());
    }

    pub(super) fn batched(&self, job: Job) {
        self.note(job, |entry| {
            assert!(
                entry.outcome.is_none() || entry.gave_up_in_flight,
                "{job:?} is in a batch though its thread waits no longer"
            );
            entry.batched += 1;
            assert_eq!(entry.batched, 1, "{job:?} is in two batches");
        });
    }

    pub(super) fn executed(&self, job: Job) -> JobResult {
        self.note(job, |entry| {
            entry.executed += 1;
            assert_eq!(entry.executed, 1, "{job:?} is executed twice");
        });
        JobResult::Executed(job)
    }

    /// Noted before the result is handed out.
    pub(super) fn completed(&self, job: Job) {
        self.note(job, |entry| entry.results += 1);
    }

    pub(super) fn abandoned(&self, job: Job, result: JobResult) {
        assert_eq!(result.job(), job, "the result of another job");
        self.note(job, |entry| {
            assert!(entry.gave_up_in_flight, "the result of {job:?} is abandoned though its thread waits");
            entry.abandoned += 1;
            assert_eq!(entry.abandoned, 1, "the result of {job:?} is reported twice");
        });
    }

    pub(super) fn gave_up_in_flight(&self, job: Job) {
        self.note(job, |entry| entry.gave_up_in_flight = true);
    }

    pub(super) fn panicked(&self, job: Job) {
        self.note(job, |entry| entry.panicked = true);
    }

    pub(super) fn may_be_unreported(&self, job: Job) {
        self.note(job, |entry| entry.may_be_unreported = true);
    }

    pub(super) fn ended(&self, job: Job, outcome: Outcome) {
        self.note(job, |entry| assert_eq!(entry.outcome.replace(outcome), None));
    }

    /// Checks at the end that each job was executed once, or that its thread knows that this is uncertain.
    pub(super) fn check(&self, jobs: usize) {
        let entries = self.lock();
        assert_eq!(entries.len(), jobs, "jobs are missing: {entries:#?}");
        for (job, entry) in &*entries {
            let Entry { batched, executed, results, abandoned, .. } = *entry;
            match entry.outcome {
                Some(Outcome::Led) => {
                    assert_eq!(
                        [batched, results, abandoned],
                        [0, 0, 0],
                        "{job:?} was also in another thread's batch: {entry:?}"
                    );
                    assert!(executed == 1 || entry.panicked, "{job:?} was not executed: {entry:?}");
                }
                Some(Outcome::Completed(result)) => {
                    assert_eq!(result.job(), *job, "the result of another job: {entry:?}");
                    assert_eq!([batched, executed, results, abandoned], [1, 1, 1, 0], "{job:?}: {entry:?}");
                }
                Some(Outcome::Abandoned) => {
                    assert_eq!(batched, 1, "{job:?}: {entry:?}");
                    assert!(
                        results == 0 || entry.gave_up_in_flight,
                        "the result of {job:?} is lost: {entry:?}"
                    );
                    assert!(
                        abandoned == results || entry.may_be_unreported,
                        "the result of {job:?} is unreported: {entry:?}"
                    );
                }
                None => panic!("{job:?} has no outcome: {entry:?}"),
            }
        }
    }
}
