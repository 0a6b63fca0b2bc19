//! One of the threads of a scene.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::Ordering::SeqCst;
use shuttle::thread;

use super::combining::{Joined, Batch, WaitStage};
use super::ledger::{Answer, End, Job};
use super::scenario::{Enough, Lead, Encoded, World};
use super::sync;

/// What a thread panics with that is meant to.
struct Death;

pub(super) struct Actor<'a> {
    world: &'a World,
    number: usize,
    part: Encoded,
    /// How many it has seen moved.
    dequeued: Cell<usize>,
}

impl<'a> Actor<'a> {
    pub(super) fn new(world: &'a World, number: usize, part: Encoded) -> Self {
        Self { world, number, part, dequeued: Cell::new(0) }
    }

    pub(super) fn act(&self) {
        for round in 0..self.part.rounds {
            let job = Job { of: self.number, round };
            match catch_unwind(AssertUnwindSafe(|| self.travel(job))) {
                Ok(()) => {}
                Err(panic) if panic.is::<Death>() => {}
                Err(panic) => resume_unwind(panic),
            }
        }
    }

    fn travel(&self, job: Job) {
        let (made, parked) = (Cell::new(false), Cell::new(false));
        let load = || {
            assert!(self.world.may_wait(), "a job is made for others where nobody waits");
            made.set(true);
            job
        };
        let is_contended = |active| self.world.is_contended(self.number, active);
        let park = |waiting| {
            parked.set(true);
            self.park(job, waiting)
        };
        self.world.wait_for_turn(self.number);
        let joined = self.world.combiner.join(load, is_contended, park);
        self.sees_moved();
        let end = match &joined {
            Joined::Leader { waited, .. } => End::Led { waited: *waited },
            Joined::Completed(answer) => End::Completed(*answer),
            Joined::Abandoned => End::Abandoned,
        };
        assert!(end == End::Led { waited: false } || made.get(), "waited for a job that was not made");
        assert!(end != End::Led { waited: false } || !parked.get(), "waited, and was told that it has not");
        self.world.ledger.ended(job, end);
        match joined {
            Joined::Leader { batch, .. } => self.lead(job, batch),
            Joined::Completed(Answer::Unread(_)) => {
                self.world.ledger.carried(job);
            }
            Joined::Completed(Answer::Carried(_)) | Joined::Abandoned => {}
        }
    }

    /// As the window does it.
    fn lead(&self, job: Job, mut batch: Batch<'_, Job, Answer>) {
        self.world.has_come(self.number);
        self.world.sets_out(self.number);
        if self.part.lead != Lead::Alone {
            self.fill(&mut batch);
        }
        match self.part.lead {
            Lead::InTwoGoes => self.fill(&mut batch),
            Lead::DiesOnTheWay => self.die(job),
            Lead::Crowded => {
                let answers = batch.jobs().copied().map(Answer::Unread).collect();
                self.end(&mut batch, answers);
                batch.fill();
                assert_eq!(batch.jobs().count(), 0, "taken along by a trip that is over");
            }
            _ => {}
        }
        self.world.ledger.carried(job);
        let carry = |job: &Job| {
            // It takes time.
            thread::yield_now();
            self.world.ledger.carried(*job)
        };
        let mut answers: Vec<_> = batch.jobs().map(carry).collect();
        match self.part.lead {
            Lead::Alone => self.world.comes_back(),
            Lead::DiesWithTheAnswers => self.die(job),
            // It is over.
            Lead::Crowded => batch.end([], |_, _| unreachable!("nobody is aboard any more")),
            Lead::TellsFew => {
                answers.pop();
                self.end(&mut batch, answers);
            }
            _ => self.end(&mut batch, answers),
        }
    }

    fn fill(&self, batch: &mut Batch<'_, Job, Answer>) {
        let before: Vec<_> = batch.jobs().copied().collect();
        batch.fill();
        let mut jobs = batch.jobs().copied();
        assert!(before.iter().all(|job| jobs.next() == Some(*job)), "others come after those who are here");
        for job in jobs {
            self.world.ledger.taken(job);
            self.world.serves(job.of);
        }
        self.world.sees_aboard(batch.jobs().count());
        self.sees_moved();
    }

    fn end(&self, batch: &mut Batch<'_, Job, Answer>, answers: Vec<Answer>) {
        let dies_of_an_orphan = self.part.lead == Lead::DiesOfAnOrphan;
        for answer in &answers {
            self.world.ledger.answered(answer.job());
            if dies_of_an_orphan {
                self.world.ledger.may_stay_untold(answer.job());
            }
        }
        self.world.comes_back();
        let dequeued = self.world.combiner.dequeued();
        let answers = answers.into_iter().inspect(|_| self.world.sees_answers(dequeued));
        batch.end(answers, |job, answer| {
            self.world.ledger.orphaned(*job, *answer);
            if dies_of_an_orphan {
                resume_unwind(Box::new(Death));
            }
        });
        assert_eq!(batch.jobs().count(), 0, "somebody is aboard yet");
    }

    fn die(&self, job: Job) {
        self.world.ledger.died(job);
        self.world.comes_back();
        resume_unwind(Box::new(Death));
    }

    /// Sleeps, and says whether to wait on.
    fn park(&self, job: Job, waiting: WaitStage) -> bool {
        assert!(self.world.may_wait(), "waits, though so many are no crowd");
        self.world.has_come(self.number);
        self.sees_moved();
        let has_enough = match waiting {
            WaitStage::Queued => matches!(self.part.enough, Enough::Queued | Enough::Anywhere),
            WaitStage::InFlight => matches!(self.part.enough, Enough::InFlight | Enough::Anywhere),
        };
        if has_enough && self.world.over[self.number].load(SeqCst) {
            self.world.ledger.enough(job, waiting == WaitStage::InFlight);
            return false;
        }
        // It may return for no reason at all.
        if !thread_rng().gen_bool(0.1) {
            sync::park();
        }
        true
    }

    fn sees_moved(&self) {
        let dequeued = self.world.combiner.dequeued();
        assert!(self.dequeued.replace(dequeued) <= dequeued, "those who were moved are in the queue again");
    }
}
