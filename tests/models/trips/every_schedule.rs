//! A few small scenes in every schedule, and with every value that a weakly ordered load may see.

#[allow(clippy::duplicate_mod, reason = "made of what another checker knows")]
#[path = "../../../src/server/combining.rs"]
mod combining;

use std::sync::Arc;

use libtest_mimic::Trial;
use loom::thread;

use super::ledger::{Answer, End, Job, Ledger};
use crate::weak_sync as sync;
use combining::{Joined, Trip, Trips, Waiting};
use sync::Thread;

pub(super) fn trials() -> Vec<Trial> {
    let scenarios: [(&'static str, fn()); 7] = [
        ("two_share", || play([None; 2], 2)),
        ("three_share", || play([None; 3], 3)),
        ("three_share_by_twos", || play([None; 3], 2)),
        ("one_has_enough_in_the_queue", || play([None, Some(Waiting::ToGo)], 2)),
        ("one_has_enough_aboard", || play([None, Some(Waiting::ForTheAnswer)], 2)),
        ("two_have_enough_here_and_there", || {
            play([None, Some(Waiting::ToGo), Some(Waiting::ForTheAnswer)], 3);
        }),
        ("one_of_three_has_enough_aboard", || play([None, None, Some(Waiting::ForTheAnswer)], 3)),
    ];
    let trial = |(name, scenario)| crate::exhausted(format!("trips::every_schedule::{name}"), scenario);
    scenarios.into_iter().map(trial).collect()
}

struct World {
    trips: Trips<Load, Answer>,
    ledger: Ledger,
}

struct Load {
    job: Job,
    /// Whoever has enough aboard is woken there for no reason, so that it sees where it is.
    impatient: Option<Thread>,
}

/// Each thread wants one job carried, and may have enough at once, here or there.
fn play<const N: usize>(parts: [Option<Waiting>; N], seats: usize) {
    let world = Arc::new(World { trips: Trips::new(seats), ledger: Ledger::default() });
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
    assert!((least..=most).contains(&world.trips.moved()));
    assert_eq!(format!("{:?}", world.trips), "Trips { under_way: 0, queued: 0, .. }");
}

impl World {
    fn travel(&self, job: Job, enough: Option<Waiting>) {
        let impatient = enough == Some(Waiting::ForTheAnswer);
        let load = || Load { job, impatient: impatient.then(sync::current) };
        let park = |waiting| {
            if enough == Some(waiting) {
                self.ledger.enough(job, waiting == Waiting::ForTheAnswer);
                return false;
            }
            sync::park();
            true
        };
        match self.trips.join(load, |_| true, park) {
            Joined::Leads { trip, waited } => {
                self.ledger.ended(job, End::Led { waited });
                self.lead(job, trip);
            }
            Joined::Answered(answer) => self.ledger.ended(job, End::Answered(answer)),
            Joined::Unanswered => self.ledger.ended(job, End::Unanswered),
        }
    }

    fn lead(&self, job: Job, mut trip: Trip<'_, Load, Answer>) {
        trip.take_along();
        trip.jobs().for_each(|load| self.ledger.taken(load.job));
        trip.jobs().filter_map(|load| load.impatient.as_ref()).for_each(Thread::unpark);
        self.ledger.carried(job);
        let answers: Vec<_> = trip.jobs().map(|load| self.ledger.carried(load.job)).collect();
        trip.jobs().for_each(|load| self.ledger.answered(load.job));
        trip.end(answers, |load, answer| self.ledger.orphaned(load.job, *answer));
    }
}
