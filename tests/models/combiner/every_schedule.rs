//! A few small scenes in every schedule, and with every value that a weakly ordered load may see.

#[allow(clippy::duplicate_mod, reason = "made of what another checker knows")]
#[path = "../../../src/server/combining.rs"]
mod combining;

use std::sync::Arc;

use libtest_mimic::Trial;
use loom::thread;

use super::ledger::{Answer, End, Job, Ledger};
use crate::weak_sync as sync;
use combining::{Joined, Batch, Combiner, WaitStage};
use sync::Thread;

pub(super) fn trials() -> Vec<Trial> {
    let scenarios: [(&'static str, fn()); 7] = [
        ("two_share", || play([None; 2], 2)),
        ("three_share", || play([None; 3], 3)),
        ("three_share_by_twos", || play([None; 3], 2)),
        ("one_has_enough_in_the_queue", || play([None, Some(WaitStage::Queued)], 2)),
        ("one_has_enough_aboard", || play([None, Some(WaitStage::InFlight)], 2)),
        ("two_have_enough_here_and_there", || {
            play([None, Some(WaitStage::Queued), Some(WaitStage::InFlight)], 3);
        }),
        ("one_of_three_has_enough_aboard", || play([None, None, Some(WaitStage::InFlight)], 3)),
    ];
    let trial = |(name, scenario)| crate::exhausted(format!("trips::every_schedule::{name}"), scenario);
    scenarios.into_iter().map(trial).collect()
}

struct World {
    combiner: Combiner<QueuedCommand, Answer>,
    ledger: Ledger,
}

struct QueuedCommand {
    job: Job,
    /// Whoever has enough aboard is woken there for no reason, so that it sees where it is.
    impatient: Option<Thread>,
}

/// Each thread wants one job carried, and may have enough at once, here or there.
fn play<const N: usize>(parts: [Option<WaitStage>; N], max_batch: usize) {
    let world = Arc::new(World { combiner: Combiner::new(max_batch), ledger: Ledger::default() });
    let mut threads = Vec::new();
    for (of, enough) in parts.into_iter().enumerate().skip(1) {
        let world = Arc::clone(&world);
        threads.push(thread::spawn(move || world.travel(Job { of, round: 0 }, enough)));
    }
    world.travel(Job { of: 0, round: 0 }, parts[0]);
    for thread in threads {
        thread.join().unwrap();
    }
    let [least, most] = world.ledger.look_back(N);
    assert!((least..=most).contains(&world.combiner.dequeued()));
    assert_eq!(format!("{:?}", world.combiner), "Trips { under_way: 0, queued: 0, .. }");
}

impl World {
    fn travel(&self, job: Job, enough: Option<WaitStage>) {
        let impatient = enough == Some(WaitStage::InFlight);
        let load = || QueuedCommand { job, impatient: impatient.then(sync::current) };
        let park = |waiting| {
            if enough == Some(waiting) {
                self.ledger.enough(job, waiting == WaitStage::InFlight);
                return false;
            }
            sync::park();
            true
        };
        match self.combiner.join(load, |_| true, park) {
            Joined::Leader { batch, waited } => {
                self.ledger.ended(job, End::Led { waited });
                self.lead(job, batch);
            }
            Joined::Completed(answer) => self.ledger.ended(job, End::Completed(answer)),
            Joined::Abandoned => self.ledger.ended(job, End::Abandoned),
        }
    }

    fn lead(&self, job: Job, mut batch: Batch<'_, QueuedCommand, Answer>) {
        batch.fill();
        batch.jobs().for_each(|load| self.ledger.taken(load.job));
        batch.jobs().filter_map(|load| load.impatient.as_ref()).for_each(Thread::unpark);
        self.ledger.carried(job);
        let answers: Vec<_> = batch.jobs().map(|load| self.ledger.carried(load.job)).collect();
        batch.jobs().for_each(|load| self.ledger.answered(load.job));
        batch.end(answers, |load, answer| self.ledger.orphaned(load.job, *answer));
    }
}
