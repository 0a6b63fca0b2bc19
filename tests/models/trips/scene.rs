//! A few threads, and how each of them waits and leads.

use std::sync::Arc;

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use shuttle::sync::{Condvar, Mutex};
use shuttle::thread;

use super::actor::Actor;
use super::combining::{Joined, Trip, Trips};
use super::ledger::{Answer, Job, Ledger};
use super::sync::{Thread, lock, wait_while};

/// What a thread does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) rounds: usize,
    pub(super) enough: Enough,
    pub(super) lead: Lead,
}

/// Where it has had enough of waiting, at any moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Enough {
    Nowhere,
    Queued,
    Aboard,
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

impl Part {
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
        let enough = [Enough::Nowhere, Enough::Queued, Enough::Aboard, Enough::Anywhere];
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
    parts: Vec<Part>,
    seats: usize,
    crowds_above: usize,
    in_order: bool,
}

impl Scene {
    pub(super) fn of<const N: usize>(parts: [Part; N]) -> Self {
        Self { parts: parts.to_vec(), seats: 128, crowds_above: 0, in_order: false }
    }

    /// Whatever there is, another each time.
    pub(super) fn any() -> Self {
        let parts = (0..thread_rng().gen_range(2..6)).map(|_| Part::any()).collect();
        let (seats, crowds_above) = (thread_rng().gen_range(1..5), thread_rng().gen_range(0..4));
        Self { parts, seats, crowds_above, in_order: false }
    }

    /// A trip carries so many, its leader included.
    pub(super) fn with_seats(self, seats: usize) -> Self {
        Self { seats, ..self }
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
        for (number, part) in world.scene.parts.iter().copied().enumerate() {
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
    scene: Scene,
    pub(super) trips: Trips<Job, Answer>,
    pub(super) ledger: Ledger,
    threads: Vec<Thread>,
    /// Who has had enough.
    pub(super) over: Vec<AtomicBool>,
    /// How many have come, where the order matters.
    came: (Mutex<usize>, Condvar),
    /// Whose jobs were carried or taken along by whoever carries them, in that order.
    served: Mutex<Vec<usize>>,
    under_way: AtomicUsize,
}

impl World {
    fn new(scene: Scene) -> Self {
        Self {
            trips: Trips::new(scene.seats),
            ledger: Ledger::default(),
            threads: scene.parts.iter().map(|_| Thread::default()).collect(),
            over: scene.parts.iter().map(|_| AtomicBool::new(false)).collect(),
            came: (Mutex::new(0), Condvar::new()),
            served: Mutex::new(Vec::new()),
            under_way: AtomicUsize::new(0),
            scene,
        }
    }

    /// Where the order matters, returns when those before this one have come.
    pub(super) fn wait_for_turn(&self, number: usize) {
        if self.scene.in_order {
            let (came, more) = &self.came;
            drop(wait_while(more, lock(came), |came| *came < number));
        }
    }

    /// This one is in the queue now, or leads.
    pub(super) fn has_come(&self, number: usize) {
        if self.scene.in_order {
            let (came, more) = &self.came;
            let mut came = lock(came);
            *came = (*came).max(number + 1);
            more.notify_all();
        }
    }

    /// Where the order matters, the first has them all come before it does anything.
    pub(super) fn sets_out(&self, number: usize) {
        let others = self.under_way.fetch_add(1, SeqCst);
        assert!(others == 0 || !self.all_wait(), "two lead, though others wait for one");
        if number == 0 {
            self.wait_for_turn(self.scene.parts.len());
        }
        self.serves(number);
    }

    pub(super) fn serves(&self, number: usize) {
        lock(&self.served).push(number);
    }

    /// To be called before the trip ends.
    pub(super) fn comes_back(&self) {
        self.under_way.fetch_sub(1, SeqCst);
    }

    pub(super) fn is_crowd(&self, number: usize, about: usize) -> bool {
        let threads = self.scene.parts.len();
        assert!((1..=threads).contains(&about), "{about} are about, of {threads}");
        if self.scene.in_order && self.all_wait() {
            assert_eq!(about, number + 1, "so many are here");
        }
        about > self.scene.crowds_above
    }

    /// Whether so many are ever a crowd.
    pub(super) fn may_wait(&self) -> bool {
        self.scene.parts.len() > self.scene.crowds_above
    }

    /// So many are aboard of a trip that takes nobody else along.
    pub(super) fn sees_aboard(&self, others: usize) {
        assert!(others < self.scene.seats, "too many are aboard");
        let full = others + 1 == self.scene.seats;
        assert!(full || self.who_is_left() == 0, "there are seats, and others wait");
    }

    /// A trip has ended, which began to when so many had been moved.
    pub(super) fn sees_answers(&self, moved: usize) {
        let left = self.who_is_left();
        assert!(left == 0 || self.trips.moved() > moved, "others are answered before the next is on its way");
    }

    /// How many are in the queue for sure.
    fn who_is_left(&self) -> usize {
        if self.scene.in_order && self.all_wait() {
            self.scene.parts.len() - lock(&self.served).len()
        } else {
            0
        }
    }

    /// Whether nobody leads beside another.
    fn all_wait(&self) -> bool {
        let has_enough = |part: &Part| matches!(part.enough, Enough::Queued | Enough::Anywhere);
        self.scene.crowds_above == 0 && !self.scene.parts.iter().any(has_enough)
    }

    fn look_back(&self) {
        let rounds = self.scene.parts.iter().map(|part| part.rounds);
        let [least, most] = self.ledger.look_back(rounds.sum());
        let moved = self.trips.moved();
        assert!((least..=most).contains(&moved), "{moved} were moved, but it was {least} to {most}");
        if self.scene.in_order {
            let patient = |number: &usize| self.scene.parts[*number].enough == Enough::Nowhere;
            let served: Vec<_> = lock(&self.served).iter().copied().filter(patient).collect();
            assert!(served.is_sorted(), "not first come, first served: {served:?}");
        }
        self.is_at_rest();
    }

    /// Nothing is under way, nobody is in the queue, and nobody is about.
    fn is_at_rest(&self) {
        let mut first = self.leads_at_once(|about| panic!("a trip is under way yet, and {about} are about"));
        first.take_along();
        assert_eq!(first.jobs().count(), 0, "somebody is in the queue yet");
        let second = self.leads_at_once(|about| {
            assert_eq!(about, 2, "somebody else is about yet");
            false
        });
        // Its thread is about, as long as it has something to do.
        first.end([], |_, _| ());
        let third = self.leads_at_once(|about| {
            assert_eq!(about, 3, "all that lead are about");
            false
        });
        let all = format!("{:?}", self.trips);
        assert_eq!(all, "Trips { under_way: 2, queued: 0, .. }");
        drop((first, second, third));
        let all = format!("{:?}", self.trips);
        assert_eq!(all, "Trips { under_way: 0, queued: 0, .. }");
    }

    fn leads_at_once(&self, is_crowd: impl Fn(usize) -> bool) -> Trip<'_, Job, Answer> {
        let job = || unreachable!("nobody is to carry it");
        match self.trips.join(job, is_crowd, |_| panic!("there is nothing to wait for")) {
            Joined::Leads { trip, waited: false } => trip,
            _ => panic!("it has waited"),
        }
    }
}
