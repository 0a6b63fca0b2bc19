//! A few small scenarios in every schedule with few preemptions, with every value that a weakly ordered load may see.

#[allow(clippy::duplicate_mod, reason = "compiled with the primitives of another checker")]
#[path = "../../../src/backend/pipelining/combiner.rs"]
mod subject;

use std::sync::Arc;

use libtest_mimic::Trial;
use loom::thread;

use super::results::{Job, JobResult, Outcome, Results};
use crate::weak_sync as sync;
use subject::{Batch, Combiner, Joined, WaitStage};
use sync::Thread;

pub(super) fn trials() -> Vec<Trial> {
    let scenarios: [(&'static str, fn()); 7] = [
        ("two_share", || run([None; 2], 2)),
        ("three_share", || run([None; 3], 3)),
        ("three_share_in_batches_of_two", || run([None; 3], 2)),
        ("one_gives_up_in_the_queue", || run([None, Some(WaitStage::Queued)], 2)),
        ("one_gives_up_in_flight", || run([None, Some(WaitStage::InFlight)], 2)),
        ("two_give_up_in_different_stages", || {
            run([None, Some(WaitStage::Queued), Some(WaitStage::InFlight)], 3);
        }),
        ("one_of_three_gives_up_in_flight", || run([None, None, Some(WaitStage::InFlight)], 3)),
    ];
    let trial = |(name, scenario)| crate::exhausted(format!("combiner::every_schedule::{name}"), scenario);
    scenarios.into_iter().map(trial).collect()
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
fn run<const N: usize>(workers: [Option<WaitStage>; N], max_batch: usize) {
    let harness = Arc::new(Harness { combiner: Combiner::new(max_batch), results: Results::default() });
    let mut threads = Vec::new();
    for (worker, gives_up) in workers.into_iter().enumerate().skip(1) {
        let harness = Arc::clone(&harness);
        threads.push(thread::spawn(move || harness.execute(Job { worker, round: 0 }, gives_up)));
    }
    harness.execute(Job { worker: 0, round: 0 }, workers[0]);
    for thread in threads {
        thread.join().unwrap();
    }
    let [least, most] = harness.results.check(N);
    assert!((least..=most).contains(&harness.combiner.dequeued()));
    assert_eq!(format!("{:?}", harness.combiner), "Combiner { in_progress: 0, queued: 0, .. }");
}

impl Harness {
    fn execute(&self, job: Job, gives_up: Option<WaitStage>) {
        let gives_up_in_flight = gives_up == Some(WaitStage::InFlight);
        let queued = || QueuedJob { job, gives_up_in_flight: gives_up_in_flight.then(sync::current) };
        let park = |stage| {
            if gives_up == Some(stage) {
                self.results.gave_up(job, stage == WaitStage::InFlight);
                return false;
            }
            sync::park();
            true
        };
        match self.combiner.join(queued, |_| true, park) {
            Joined::Leader { batch, waited } => {
                self.results.ended(job, Outcome::Led { waited });
                self.lead(job, batch);
            }
            Joined::Completed(result) => self.results.ended(job, Outcome::Completed(result)),
            Joined::Abandoned => self.results.ended(job, Outcome::Abandoned),
        }
    }

    fn lead(&self, job: Job, mut batch: Batch<'_, QueuedJob, JobResult>) {
        batch.fill();
        batch.jobs().for_each(|queued| self.results.batched(queued.job));
        batch.jobs().filter_map(|queued| queued.gives_up_in_flight.as_ref()).for_each(Thread::unpark);
        self.results.executed(job);
        let results: Vec<_> = batch.jobs().map(|queued| self.results.executed(queued.job)).collect();
        batch.jobs().for_each(|queued| self.results.completed(queued.job));
        batch.end(results, |queued, result| self.results.abandoned(queued.job, *result));
    }
}
