//! A few threads, and how each of them waits and leads.

use std::sync::Arc;

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use shuttle::sync::{Condvar, Mutex};
use shuttle::thread;

use super::actor::Actor;
use super::combining::{Joined, Batch, Combiner};
use super::ledger::{Answer, Job, Ledger};
use super::sync::{Thread, lock, wait_while};

/// What a thread does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Encoded {
    pub(super) rounds: usize,
    pub(super) enough: Enough,
    pub(super) lead: Lead,
}

/// Where it has had enough of waiting, at any moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Enough {
    Nowhere,
    Queued,
    InFlight,
    Anywhere,
}

/// What it does with a trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lead {
    /// Takes others along, carries all that is wanted, and hands out the answers.
    Shares,
    /// Asks once more who wants to come.
    InTwoGoes,
    /// Does not come to the point where it takes others along, and just goes.
    Alone,
    /// The server has read nothing. The trip ends, and the leader tries again.
    Crowded,
    /// The last gets no answer.
    TellsFew,
    /// It panics before anything is carried.
    DiesOnTheWay,
    /// It panics when all is carried.
    DiesWithTheAnswers,
    /// It panics where it is told of an answer that is nobody's.
    DiesOfAnOrphan,
}

impl Encoded {
    pub(super) fn new() -> Self {
        Self { rounds: 1, enough: Enough::Nowhere, lead: Lead::Shares }
    }

    pub(super) fn times(self, rounds: usize) -> Self {
        Self { rounds, ..self }
    }

    pub(super) fn until(self, enough: Enough) -> Self {
        Self { enough, ..self }
    }

    pub(super) fn by(self, lead: Lead) -> Self {
        Self { lead, ..self }
    }

    fn any() -> Self {
        let enough = [Enough::Nowhere, Enough::Queued, Enough::InFlight, Enough::Anywhere];
        let lead = [
            Lead::Shares,
            Lead::InTwoGoes,
            Lead::Alone,
            Lead::Crowded,
            Lead::TellsFew,
            Lead::DiesOnTheWay,
            Lead::DiesWithTheAnswers,
            Lead::DiesOfAnOrphan,
        ];
        Self {
            rounds: thread_rng().gen_range(1..3),
            enough: enough[thread_rng().gen_range(0..enough.len())],
            lead: lead[thread_rng().gen_range(0..lead.len())],
        }
    }
}

pub(super) struct Scene {
    parts: Vec<Encoded>,
    max_batch: usize,
    crowds_above: usize,
    in_order: bool,
}

impl Scene {
    pub(super) fn of<const N: usize>(parts: [Encoded; N]) -> Self {
        Self { parts: parts.to_vec(), max_batch: 128, crowds_above: 0, in_order: false }
    }

    /// Whatever there is, another each time.
    pub(super) fn any() -> Self {
        let parts = (0..thread_rng().gen_range(2..6)).map(|_| Encoded::any()).collect();
        let (max_batch, crowds_above) = (thread_rng().gen_range(1..5), thread_rng().gen_range(0..4));
        Self { parts, max_batch, crowds_above, in_order: false }
    }

    /// A trip carries so many, its leader included.
    pub(super) fn with_seats(self, max_batch: usize) -> Self {
        Self { max_batch, ..self }
    }

    /// So many threads are none, but one more is.
    pub(super) fn with_crowds_above(self, crowds_above: usize) -> Self {
        Self { crowds_above, ..self }
    }

    /// They come one after the other, each before the first goes.
    pub(super) fn in_order(self) -> Self {
        Self { in_order: true, ..self }
    }

    /// Plays it once, in the schedule of the checker, and looks whether all came out right.
    pub(super) fn play(self) {
        let world = Arc::new(World::new(self));
        let mut threads = Vec::new();
        for (number, part) in world.scenario.parts.iter().copied().enumerate() {
            threads.push(spawn(&world, move |world| {
                world.threads[number].clone().enter();
                Actor::new(world, number, part).act();
            }));
            // Who ends waits: one thread for each, so that it comes at any moment.
            if part.enough != Enough::Nowhere {
                threads.push(spawn(&world, move |world| {
                    world.over[number].store(true, SeqCst);
                    world.threads[number].unpark();
                }));
            }
        }
        for thread in threads {
            thread.join().unwrap();
        }
        world.look_back();
    }
}

fn spawn(world: &Arc<World>, body: impl FnOnce(&World) + Send + 'static) -> thread::JoinHandle<()> {
    let world = Arc::clone(world);
    thread::spawn(move || body(&world))
}

pub(super) struct World {
    scenario: Scene,
    pub(super) combiner: Combiner<Job, Answer>,
    pub(super) ledger: Ledger,
    threads: Vec<Thread>,
    /// Who has had enough.
    pub(super) over: Vec<AtomicBool>,
    /// How many have come, where the order matters.
    came: (Mutex<usize>, Condvar),
    /// Whose jobs were carried or taken along by whoever carries them, in that order.
    served: Mutex<Vec<usize>>,
    in_progress: AtomicUsize,
}

impl World {
    fn new(scenario: Scene) -> Self {
        Self {
            combiner: Combiner::new(scenario.max_batch),
            ledger: Ledger::default(),
            threads: scenario.parts.iter().map(|_| Thread::default()).collect(),
            over: scenario.parts.iter().map(|_| AtomicBool::new(false)).collect(),
            came: (Mutex::new(0), Condvar::new()),
            served: Mutex::new(Vec::new()),
            in_progress: AtomicUsize::new(0),
            scenario,
        }
    }

    /// Where the order matters, returns when those before this one have come.
    pub(super) fn wait_for_turn(&self, number: usize) {
        if self.scenario.in_order {
            let (came, more) = &self.came;
            drop(wait_while(more, lock(came), |came| *came < number));
        }
    }

    /// This one is in the queue now, or leads.
    pub(super) fn has_come(&self, number: usize) {
        if self.scenario.in_order {
            let (came, more) = &self.came;
            let mut came = lock(came);
            *came = (*came).max(number + 1);
            more.notify_all();
        }
    }

    /// Where the order matters, the first has them all come before it does anything.
    pub(super) fn sets_out(&self, number: usize) {
        let others = self.in_progress.fetch_add(1, SeqCst);
        assert!(others == 0 || !self.all_wait(), "two lead, though others wait for one");
        if number == 0 {
            self.wait_for_turn(self.scenario.parts.len());
        }
        self.serves(number);
    }

    pub(super) fn serves(&self, number: usize) {
        lock(&self.served).push(number);
    }

    /// To be called before the trip ends.
    pub(super) fn comes_back(&self) {
        self.in_progress.fetch_sub(1, SeqCst);
    }

    pub(super) fn is_contended(&self, number: usize, active: usize) -> bool {
        let threads = self.scenario.parts.len();
        assert!((1..=threads).contains(&active), "{about} are about, of {threads}");
        if self.scenario.in_order && self.all_wait() {
            assert_eq!(active, number + 1, "so many are here");
        }
        active > self.scenario.crowds_above
    }

    /// Whether so many are ever a crowd.
    pub(super) fn may_wait(&self) -> bool {
        self.scenario.parts.len() > self.scenario.crowds_above
    }

    /// So many are aboard of a trip that takes nobody else along.
    pub(super) fn sees_aboard(&self, others: usize) {
        assert!(others < self.scenario.max_batch, "too many are aboard");
        let full = others + 1 == self.scenario.max_batch;
        assert!(full || self.who_is_left() == 0, "there are seats, and others wait");
    }

    /// A trip has ended, which began to when so many had been moved.
    pub(super) fn sees_answers(&self, dequeued: usize) {
        let left = self.who_is_left();
        assert!(left == 0 || self.combiner.dequeued() > dequeued, "others are answered before the next is on its way");
    }

    /// How many are in the queue for sure.
    fn who_is_left(&self) -> usize {
        if self.scenario.in_order && self.all_wait() {
            self.scenario.parts.len() - lock(&self.served).len()
        } else {
            0
        }
    }

    /// Whether nobody leads beside another.
    fn all_wait(&self) -> bool {
        let has_enough = |part: &Encoded| matches!(part.enough, Enough::Queued | Enough::Anywhere);
        self.scenario.crowds_above == 0 && !self.scenario.parts.iter().any(has_enough)
    }

    fn look_back(&self) {
        let rounds = self.scenario.parts.iter().map(|part| part.rounds);
        let [least, most] = self.ledger.look_back(rounds.sum());
        let dequeued = self.combiner.dequeued();
        assert!((least..=most).contains(&dequeued), "{moved} were moved, but it was {least} to {most}");
        if self.scenario.in_order {
            let patient = |number: &usize| self.scenario.parts[*number].enough == Enough::Nowhere;
            let served: Vec<_> = lock(&self.served).iter().copied().filter(patient).collect();
            assert!(served.is_sorted(), "not first come, first served: {served:?}");
        }
        self.is_at_rest();
    }

    /// Nothing is under way, nobody is in the queue, and nobody is about.
    fn is_at_rest(&self) {
        let mut first = self.leads_at_once(|active| panic!("a trip is under way yet, and {about} are about"));
        first.fill();
        assert_eq!(first.jobs().count(), 0, "somebody is in the queue yet");
        let second = self.leads_at_once(|active| {
            assert_eq!(active, 2, "somebody else is about yet");
            false
        });
        // Its thread is about, as long as it has something to do.
        first.end([], |_, _| ());
        let third = self.leads_at_once(|active| {
            assert_eq!(active, 3, "all that lead are about");
            false
        });
        let all = format!("{:?}", self.combiner);
        assert_eq!(all, "Trips { under_way: 2, queued: 0, .. }");
        drop((first, second, third));
        let all = format!("{:?}", self.combiner);
        assert_eq!(all, "Trips { under_way: 0, queued: 0, .. }");
    }

    fn leads_at_once(&self, is_contended: impl Fn(usize) -> bool) -> Batch<'_, Job, Answer> {
        let job = || unreachable!("nobody is to carry it");
        match self.combiner.join(job, is_contended, |_| panic!("there is nothing to wait for")) {
            Joined::Leader { batch, waited: false } => batch,
            _ => panic!("it has waited"),
        }
    }
}
