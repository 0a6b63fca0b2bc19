//! A few threads, and how each of them waits and leads.

use std::sync::Arc;

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use shuttle::sync::{Condvar, Mutex};
use shuttle::thread;

use super::results::{Job, JobResult, Results};
use super::subject::Combiner;
use super::sync::{Thread, lock, wait_while};
use super::worker::Worker;

/// What a thread does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Behavior {
    pub(super) rounds: usize,
    pub(super) gives_up: GivesUp,
    pub(super) lead: Lead,
}

/// In which stage of waiting it gives up, at any moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GivesUp {
    Never,
    /// As the first of the queue, which is overdue then.
    First,
    Queued,
    InFlight,
    Anywhere,
}

/// What it does as the leader of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lead {
    /// Takes requests from the queue, executes all jobs, and hands out the results.
    Combines,
    /// Takes requests from the queue twice.
    FillsTwice,
    /// Takes no requests from the queue.
    Alone,
    /// The server has executed nothing. The batch ends, and the leader retries its own job.
    TooManyClients,
    /// The last job gets no result.
    LosesTheLastResult,
    PanicsBeforeExecution,
    PanicsAfterExecution,
    PanicsOnAnAbandonedResult,
}

impl Behavior {
    pub(super) fn new() -> Self {
        Self { rounds: 1, gives_up: GivesUp::Never, lead: Lead::Combines }
    }

    pub(super) fn gives_up(self, gives_up: GivesUp) -> Self {
        Self { gives_up, ..self }
    }

    pub(super) fn leads(self, lead: Lead) -> Self {
        Self { lead, ..self }
    }

    fn any() -> Self {
        let gives_up =
            [GivesUp::Never, GivesUp::First, GivesUp::Queued, GivesUp::InFlight, GivesUp::Anywhere];
        let lead = [
            Lead::Combines,
            Lead::FillsTwice,
            Lead::Alone,
            Lead::TooManyClients,
            Lead::LosesTheLastResult,
            Lead::PanicsBeforeExecution,
            Lead::PanicsAfterExecution,
            Lead::PanicsOnAnAbandonedResult,
        ];
        Self {
            rounds: thread_rng().gen_range(1..3),
            gives_up: gives_up[thread_rng().gen_range(0..gives_up.len())],
            lead: lead[thread_rng().gen_range(0..lead.len())],
        }
    }
}

pub(super) struct Scenario {
    workers: Vec<Behavior>,
    max_batch: usize,
    max_in_progress: usize,
    contended_above: usize,
    in_order: bool,
}

impl Scenario {
    pub(super) fn of<const N: usize>(workers: [Behavior; N]) -> Self {
        Self {
            workers: workers.to_vec(),
            max_batch: 128,
            max_in_progress: usize::MAX,
            contended_above: 0,
            in_order: false,
        }
    }

    /// Any scenario: another in each run.
    pub(super) fn any() -> Self {
        let workers = (0..thread_rng().gen_range(2..6)).map(|_| Behavior::any()).collect();
        let (max_batch, contended_above) = (thread_rng().gen_range(1..5), thread_rng().gen_range(0..4));
        let max_in_progress = thread_rng().gen_range(1..4);
        Self { workers, max_batch, max_in_progress, contended_above, in_order: false }
    }

    /// A batch has room for so many jobs, its leader's included.
    pub(super) fn with_max_batch(self, max_batch: usize) -> Self {
        Self { max_batch, ..self }
    }

    /// No request that is overdue leads a batch beside so many.
    pub(super) fn with_max_in_progress(self, max_in_progress: usize) -> Self {
        Self { max_in_progress, ..self }
    }

    /// The threads join one after the other, all of them before the first batch is filled.
    pub(super) fn in_order(self) -> Self {
        Self { in_order: true, ..self }
    }

    /// Runs the scenario once, in the schedule of the checker, and checks the results.
    pub(super) fn run(self) {
        let harness = Arc::new(Harness::new(self));
        let mut threads = Vec::new();
        for (number, behavior) in harness.scenario.workers.iter().copied().enumerate() {
            threads.push(spawn(&harness, move |harness| {
                harness.threads[number].clone().enter();
                Worker::new(harness, number, behavior).run();
            }));
            // One thread for each time limit, so that it is reached at any moment.
            if behavior.gives_up != GivesUp::Never {
                threads.push(spawn(&harness, move |harness| {
                    harness.timed_out[number].store(true, SeqCst);
                    harness.threads[number].unpark();
                    // Wakes the others in vain.
                    harness.combiner.wake_queued();
                }));
            }
        }
        for thread in threads {
            thread.join().unwrap();
        }
        harness.check();
    }
}

fn spawn(harness: &Arc<Harness>, body: impl FnOnce(&Harness) + Send + 'static) -> thread::JoinHandle<()> {
    let harness = Arc::clone(harness);
    thread::spawn(move || body(&harness))
}

pub(super) struct Harness {
    scenario: Scenario,
    pub(super) combiner: Combiner<Job, JobResult>,
    pub(super) results: Results,
    threads: Vec<Thread>,
    /// Which threads have reached their time limit.
    pub(super) timed_out: Vec<AtomicBool>,
    /// How many threads have joined, where the order matters.
    joined: (Mutex<usize>, Condvar),
    /// The threads whose jobs were taken by a batch or led one, in that order.
    served: Mutex<Vec<usize>>,
    in_progress: AtomicUsize,
}

impl Harness {
    fn new(scenario: Scenario) -> Self {
        Self {
            combiner: Combiner::new(scenario.max_batch, scenario.max_in_progress),
            results: Results::default(),
            threads: scenario.workers.iter().map(|_| Thread::default()).collect(),
            timed_out: scenario.workers.iter().map(|_| AtomicBool::new(false)).collect(),
            joined: (Mutex::new(0), Condvar::new()),
            served: Mutex::new(Vec::new()),
            in_progress: AtomicUsize::new(0),
            scenario,
        }
    }

    /// Where the order matters, returns when the threads before this one have joined.
    pub(super) fn wait_to_join(&self, number: usize) {
        if self.scenario.in_order {
            let (joined, changed) = &self.joined;
            drop(wait_while(changed, lock(joined), |joined| *joined < number));
        }
    }

    /// The thread is in the queue, or leads.
    pub(super) fn has_joined(&self, number: usize) {
        if self.scenario.in_order {
            let (joined, changed) = &self.joined;
            let mut joined = lock(joined);
            *joined = (*joined).max(number + 1);
            changed.notify_all();
        }
    }

    /// Where the order matters, the first leader waits here until all threads have joined.
    pub(super) fn begins_batch(&self, number: usize) {
        let others = self.in_progress.fetch_add(1, SeqCst);
        assert!(others == 0 || !self.all_wait(), "two batches are in progress, and no thread has given up");
        if number == 0 {
            self.wait_to_join(self.scenario.workers.len());
        }
        self.note_served(number);
    }

    pub(super) fn note_served(&self, number: usize) {
        lock(&self.served).push(number);
    }

    /// Called before the batch ends.
    pub(super) fn ends_batch(&self) {
        self.in_progress.fetch_sub(1, SeqCst);
    }

    pub(super) fn is_contended(&self, active: usize) -> bool {
        active > self.scenario.contended_above
    }

    /// Whether there can be contention.
    pub(super) fn may_wait(&self) -> bool {
        self.scenario.workers.len() > self.scenario.contended_above
    }

    /// Checks a batch that has just been filled with requests of so many other threads.
    pub(super) fn check_batch(&self, others: usize) {
        assert!(others < self.scenario.max_batch, "the batch is too large");
        let full = others + 1 == self.scenario.max_batch;
        assert!(full || self.still_queued() == 0, "the batch has room, and requests are queued");
    }

    /// How many requests are certainly in the queue.
    fn still_queued(&self) -> usize {
        if self.scenario.in_order && self.all_wait() {
            self.scenario.workers.len() - lock(&self.served).len()
        } else {
            0
        }
    }

    /// Whether there is never more than one batch in progress.
    fn all_wait(&self) -> bool {
        let gives_up = |worker: &Behavior| match worker.gives_up {
            GivesUp::First => self.scenario.max_in_progress > 1,
            GivesUp::Queued | GivesUp::Anywhere => true,
            GivesUp::Never | GivesUp::InFlight => false,
        };
        self.scenario.contended_above == 0 && !self.scenario.workers.iter().any(gives_up)
    }

    fn check(&self) {
        let rounds = self.scenario.workers.iter().map(|worker| worker.rounds);
        self.results.check(rounds.sum());
        if self.scenario.in_order {
            let patient = |number: &usize| self.scenario.workers[*number].gives_up == GivesUp::Never;
            let served: Vec<_> = lock(&self.served).iter().copied().filter(patient).collect();
            assert!(served.is_sorted(), "not first come, first served: {served:?}");
        }
        // A leader is active until its batch is dropped.
        assert_eq!(format!("{:?}", self.combiner), "Combiner { in_progress: 0, queued: 0, .. }");
    }
}
