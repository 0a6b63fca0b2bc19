//! A few small scenarios in every schedule with few preemptions, with every value that a weakly ordered load may see.

#[allow(
    clippy::duplicate_mod,
    dead_code,
    reason = "compiled with the primitives of another checker, which tries a part of it"
)]
#[path = "../../../src/backend/pipelining/combiner.rs"]
mod subject;

use std::sync::Arc;

use libtest_mimic::Trial;
use loom::thread;

use super::results::{Job, JobResult, Outcome, Results};
use crate::weak_sync as sync;
use GivesUp::{InFlight, Queued};
use subject::{Batch, Combiner, Joined, Rank, WaitStage};
use sync::Thread;

pub(super) fn trials() -> Vec<Trial> {
    let scenarios: [(&'static str, fn()); 4] = [
        ("three_share_in_batches_of_two", || run([None; 3], 2, 9)),
        ("two_are_overdue_one_after_the_other", || run([None, Some(Queued), Some(Queued)], 1, 1)),
        ("two_give_up_in_different_stages", || run([None, Some(Queued), Some(InFlight)], 3, 9)),
        ("one_of_three_gives_up_in_flight", || run([None, None, Some(InFlight)], 3, 9)),
    ];
    let trial = |(name, scenario)| crate::exhausted(format!("combiner::every_schedule::{name}"), scenario);
    scenarios.into_iter().map(trial).collect()
}

/// When a thread gives up: as the first of the queue, which is overdue then where no other batch may be in progress; or in flight.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GivesUp {
    Queued,
    InFlight,
}

struct Harness {
    combiner: Combiner<QueuedJob, JobResult>,
    results: Results,
}

struct QueuedJob {
    job: Job,
    /// The thread, if it gives up in flight: the leader unparks it without a result, so that it sees its stage.
    gives_up_in_flight: Option<Thread>,
}

/// Each thread wants one job executed, and may give up at once in one stage.
fn run<const N: usize>(workers: [Option<GivesUp>; N], max_batch: usize, max_in_progress: usize) {
    let combiner = Combiner::new(max_batch, max_in_progress);
    let harness = Arc::new(Harness { combiner, results: Results::default() });
    let mut threads = Vec::new();
    for (worker, gives_up) in workers.into_iter().enumerate().skip(1) {
        let harness = Arc::clone(&harness);
        threads.push(thread::spawn(move || harness.execute(Job { worker, round: 0 }, gives_up)));
    }
    harness.execute(Job { worker: 0, round: 0 }, workers[0]);
    for thread in threads {
        thread.join().unwrap();
    }
    harness.results.check(N);
    assert_eq!(format!("{:?}", harness.combiner), "Combiner { in_progress: 0, queued: 0, .. }");
}

impl Harness {
    fn execute(&self, job: Job, gives_up: Option<GivesUp>) {
        let gives_up_in_flight = gives_up == Some(InFlight);
        let queued = || QueuedJob { job, gives_up_in_flight: gives_up_in_flight.then(sync::current) };
        let park = |stage| {
            let in_flight = stage == WaitStage::InFlight;
            let as_first = stage == WaitStage::Queued(Rank::First);
            if gives_up == Some(InFlight) && in_flight || gives_up == Some(Queued) && as_first {
                if in_flight {
                    self.results.gave_up_in_flight(job);
                }
                return false;
            }
            sync::park();
            true
        };
        match self.combiner.join(queued, |_| true, park) {
            Joined::Leader { batch, .. } => {
                self.results.ended(job, Outcome::Led);
                self.lead(job, batch);
            }
            Joined::Completed(result) => self.results.ended(job, Outcome::Completed(result)),
            Joined::Abandoned => self.results.ended(job, Outcome::Abandoned),
        }
    }

    fn lead(&self, job: Job, mut batch: Batch<'_, QueuedJob, JobResult>) {
        batch.fill(|_| true);
        batch.jobs().for_each(|queued| self.results.batched(queued.job));
        batch.jobs().filter_map(|queued| queued.gives_up_in_flight.as_ref()).for_each(Thread::unpark);
        self.results.executed(job);
        let results: Vec<_> = batch.jobs().map(|queued| self.results.executed(queued.job)).collect();
        batch.jobs().for_each(|queued| self.results.completed(queued.job));
        batch.end(results, |queued, result| self.results.abandoned(queued.job, *result));
    }
}
