//! Two locks of which any will do, in a queue that they share, and threads that wait for one of them or for both.

use std::sync::Arc;

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use shuttle::sync::{Condvar, Mutex};
use shuttle::thread;

use super::subject::{self, Ending, Hint, Sleep, Turn, WaitQueue, Woken};
use super::sync::{self, Thread, lock, wait_while};
use super::{Answer, Key, Observation, WaitMode};

/// For which lock a holder has asked, and what came of it.
type ForOne = (usize, Answer);
type HolderTicket = subject::HolderTicket<ForOne>;

const LOCKS: usize = 2;
const FREE: usize = 0;
/// By the first thread; the others follow.
const BY_FIRST: usize = 1;

/// What a thread wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wants {
    Any,
    One(usize),
    /// One after the other, in their order, as a writer.
    Both,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Releases {
    Plainly,
    /// Asks for the next that sleeps.
    Asking,
    /// The same, and the server has the lock taken by another process in between, which releases it again.
    AskingInVain,
    /// The same, and the replies are lost.
    Unheard,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Behavior {
    wants: Wants,
    releases: Releases,
    rounds: usize,
    /// Whether it reaches its deadline, at any moment.
    times_out: bool,
}

pub(super) const fn wants(wants: Wants) -> Behavior {
    Behavior { wants, releases: Releases::Plainly, rounds: 1, times_out: false }
}

impl Behavior {
    pub(super) const fn releases(self, releases: Releases) -> Self {
        Self { releases, ..self }
    }

    pub(super) const fn twice(self) -> Self {
        Self { rounds: 2, ..self }
    }

    pub(super) const fn times_out(self) -> Self {
        Self { times_out: true, ..self }
    }
}

/// The queue, the server, and the threads.
struct Pool {
    queue: Arc<WaitQueue<ForOne>>,
    locks: [Key; LOCKS],
    shared: Key,
    values: [AtomicUsize; LOCKS],
    holders: [AtomicUsize; LOCKS],
    threads: Vec<Thread>,
    ends: Vec<AtomicBool>,
    /// How often a lock was held; no holder of the first two leaves before the other has come, if they are to meet.
    held: (Mutex<usize>, Condvar),
    meet: bool,
}

/// Runs the threads once, in the schedule of the checker. If the first two holders are to `meet`, one lock is not enough for them.
pub(super) fn run(behaviors: &[Behavior], meet: bool) {
    let key = |name| Key { name, copies: Arc::new(()) };
    let pool = Arc::new(Pool {
        queue: Arc::default(),
        locks: [key(0), key(1)],
        shared: key(LOCKS),
        values: [AtomicUsize::new(FREE), AtomicUsize::new(FREE)],
        holders: [AtomicUsize::new(0), AtomicUsize::new(0)],
        threads: behaviors.iter().map(|_| Thread::default()).collect(),
        ends: behaviors.iter().map(|_| AtomicBool::new(false)).collect(),
        held: (Mutex::new(0), Condvar::new()),
        meet,
    });
    let mut threads = Vec::new();
    for (number, behavior) in behaviors.iter().copied().enumerate() {
        let shared = Arc::clone(&pool);
        threads.push(thread::spawn(move || {
            shared.threads[number].clone().enter();
            Worker { pool: &shared, number, behavior }.run();
        }));
        if behavior.times_out {
            let pool = Arc::clone(&pool);
            threads.push(thread::spawn(move || {
                pool.ends[number].store(true, SeqCst);
                pool.threads[number].unpark();
            }));
        }
    }
    for thread in threads {
        thread.join().unwrap();
    }
    for value in &pool.values {
        assert_eq!(value.load(SeqCst), FREE, "a lock is lost");
    }
    for key in pool.locks.iter().chain([&pool.shared]) {
        assert_eq!(Arc::strong_count(&key.copies), 1, "an entry outlives its last holder and waiter");
    }
}

struct Worker<'a> {
    pool: &'a Pool,
    number: usize,
    behavior: Behavior,
}

/// A lock that was acquired, and its holder.
type Held = (usize, HolderTicket);

impl Worker<'_> {
    fn run(&self) {
        for _ in 0..self.behavior.rounds {
            let held = match self.behavior.wants {
                Wants::Any => self.any().into_iter().collect(),
                Wants::One(at) => self.one(at).into_iter().collect(),
                Wants::Both => self.both(),
            };
            self.work(&held);
            for (at, holder) in held {
                self.release(at, holder);
            }
        }
    }

    /// Waits as the engine does for a permit.
    fn any(&self) -> Option<Held> {
        let pool = self.pool;
        let mut ticket = pool.queue.join(&pool.shared, self.mode());
        let (mut answer, mut look) = match ticket.turn(|sleep| self.park(sleep)) {
            Turn::Answered(answer) => (Some(answer), false),
            Turn::Over { .. } => return None,
            Turn::Head(observation, _) => (None, observation.is_none()),
        };
        let mut over = false;
        loop {
            let granted = match answer.take() {
                Some((at, Answer::Granted)) => Some((at, false)),
                // It reads what the locks hold, which shows its own value if the command was carried out.
                Some((at, Answer::Lost)) if self.owns(at) => Some((at, self.sees_free())),
                Some(_) => self.ask(),
                None if look => self.ask(),
                None => None,
            };
            if let Some((at, another_is_free)) = granted {
                assert!(self.owns(at), "not granted to this thread");
                let observation = Observation::default();
                return Some((at, ticket.enter_one(&pool.locks[at], &observation, another_is_free)));
            }
            if over {
                return None;
            }
            look = true;
            match ticket.sleep(Observation::default(), true, |sleep| self.park(sleep)) {
                Woken::Answered(answered) => answer = Some(answered),
                // A thread that is past its deadline passes the hint on.
                Woken::Hint(hint) if self.is_over() => {
                    pool.queue.notify(&pool.shared, hint);
                    return None;
                }
                Woken::Hint(_) => {}
                Woken::Over => over = true,
            }
        }
    }

    /// Waits as the engine does for a lock.
    fn one(&self, at: usize) -> Option<Held> {
        let pool = self.pool;
        let key = &pool.locks[at];
        let mut ticket = pool.queue.join(key, self.mode());
        let (mut answer, mut look) = match ticket.turn(|sleep| self.park(sleep)) {
            Turn::Answered((_, answer)) => (Some(answer), false),
            Turn::Over { .. } => return None,
            Turn::Head(observation, _) => (None, observation.is_none()),
        };
        let mut over = false;
        loop {
            let granted = match answer.take() {
                Some(Answer::Granted) => true,
                Some(Answer::Lost) => self.owns(at) || self.set(at),
                Some(Answer::NotGranted) => false,
                None => look && self.set(at),
            };
            if granted {
                assert!(self.owns(at), "not granted to this thread");
                return Some((at, ticket.enter(Some(&pool.shared), &Observation::default())));
            }
            if over {
                return None;
            }
            look = true;
            match ticket.sleep(Observation::default(), true, |sleep| self.park(sleep)) {
                Woken::Answered((_, answered)) => answer = Some(answered),
                Woken::Hint(hint) if self.is_over() => {
                    pool.queue.notify(key, hint);
                    return None;
                }
                Woken::Hint(_) => {}
                Woken::Over => over = true,
            }
        }
    }

    fn both(&self) -> Vec<Held> {
        let mut held = Vec::new();
        for at in 0..LOCKS {
            match self.one(at) {
                Some(one) => held.push(one),
                None => {
                    for (at, holder) in held.drain(..) {
                        self.release(at, holder);
                    }
                    break;
                }
            }
        }
        held
    }

    /// One trip and what follows: asks for one of the locks, reads all, and asks for one that was free. Returns also whether another was.
    fn ask(&self) -> Option<(usize, bool)> {
        let first = usize::from(thread_rng().gen_bool(0.5));
        if self.set(first) {
            return Some((first, self.sees_free()));
        }
        let other = 1 - first;
        (self.pool.values[other].load(SeqCst) == FREE && self.set(other)).then_some((other, false))
    }

    fn sees_free(&self) -> bool {
        self.pool.values.iter().any(|value| value.load(SeqCst) == FREE)
    }

    fn set(&self, at: usize) -> bool {
        self.pool.values[at].compare_exchange(FREE, BY_FIRST + self.number, SeqCst, SeqCst).is_ok()
    }

    fn owns(&self, at: usize) -> bool {
        self.pool.values[at].load(SeqCst) == BY_FIRST + self.number
    }

    fn work(&self, held: &[Held]) {
        for (at, _) in held {
            assert_eq!(self.pool.holders[*at].fetch_add(1, SeqCst), 0, "two threads hold a lock");
        }
        let (count, changed) = &self.pool.held;
        let mut count = lock(count);
        *count += held.len();
        changed.notify_all();
        if self.pool.meet && !held.is_empty() {
            drop(wait_while(changed, count, |count| *count < LOCKS));
        } else {
            drop(count);
            thread::yield_now();
        }
        for (at, _) in held {
            assert_eq!(self.pool.holders[*at].fetch_sub(1, SeqCst), 1, "two threads hold a lock");
        }
    }

    fn release(&self, at: usize, holder: HolderTicket) {
        const FREED: Ending = Ending::Hint(Hint::Freed);
        let mut next = None;
        let asks = self.behavior.releases != Releases::Plainly;
        let claim = if asks {
            holder.claim(|mode| {
                next = Some(mode.worker);
                Some((at, Answer::Lost))
            })
        } else {
            None
        };
        let next = next.filter(|_| self.behavior.releases != Releases::AskingInVain);
        // One trip: no other client comes in between.
        let after = next.map_or(FREE, |next| BY_FIRST + next);
        let released = self.pool.values[at].compare_exchange(BY_FIRST + self.number, after, SeqCst, SeqCst);
        assert!(released.is_ok(), "another thread holds the lock: {released:?}");
        match (self.behavior.releases, claim) {
            (Releases::Asking | Releases::AskingInVain, Some(claim)) => {
                let answer = if next.is_some() { Answer::Granted } else { Answer::NotGranted };
                let taken = claim.answer((at, answer));
                holder.end(if taken && next.is_some() { Ending::Answer } else { FREED }, super::Uptime);
            }
            (Releases::Unheard, claim) => {
                drop(claim);
                drop(holder);
            }
            _ => holder.end(FREED, super::Uptime),
        }
    }

    fn mode(&self) -> WaitMode {
        WaitMode { notified: false, variant: 0, worker: self.number }
    }

    fn is_over(&self) -> bool {
        self.pool.ends[self.number].load(SeqCst)
    }

    /// Sleeps. Returns whether to sleep on.
    fn park(&self, sleep: Sleep) -> bool {
        if sleep == Sleep::Waiting && self.is_over() {
            return false;
        }
        // Sometimes it returns spuriously.
        if !thread_rng().gen_bool(0.1) {
            sync::park();
        }
        true
    }
}
