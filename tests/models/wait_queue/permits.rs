//! Two locks of which any will do, with a queue by their name, and threads that wait for one of them or for both.

use std::sync::Arc;

use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Condvar;
use shuttle::sync::atomic::{AtomicBool, Ordering::SeqCst};
use shuttle::thread;

use super::lease::{Lease, Server};
use super::subject::{self, Called, Hint, WaitQueue, Wake, no_hold};
use super::sync::{self, Mutex, Thread, wait_while};
use super::{Key, Observation, WaitMode};

/// The lease of one of the locks.
type ForOne = (usize, Lease);

/// A lock that was acquired, its holder, and that one's place in the queue by the name.
struct Held {
    at: usize,
    lease: Lease,
    holder: subject::HolderTicket<ForOne>,
    place: subject::HolderTicket<Held>,
}

const LOCKS: usize = 2;
const FREED: Wake = Wake::Hint(Hint::Freed);

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
    /// To the next that sleeps.
    HandingOver,
    /// The same, but it is released after all.
    HandingOverInVain,
    /// The same, and the reply is lost.
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
    line: Arc<WaitQueue<Held>>,
    locks: [Key; LOCKS],
    name: Key,
    servers: [Arc<Server>; LOCKS],
    threads: Vec<Thread>,
    ends: Vec<AtomicBool>,
    /// How often a lock was held; no holder of the first two leaves before the other has come, if they are to meet.
    held: (Mutex<usize>, Condvar),
    meet: bool,
}

/// Runs the threads once, in the schedule of the checker. If the
/// first two holders are to `meet`, one lock is not enough for them.
pub(super) fn run(behaviors: &[Behavior], meet: bool) {
    let key = |name| Key { name, copies: Arc::new(()) };
    let pool = Arc::new(Pool {
        queue: Arc::default(),
        line: Arc::default(),
        locks: [key(0), key(1)],
        name: key(LOCKS),
        servers: [Server::new(false), Server::new(false)],
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
    for server in &pool.servers {
        assert!(server.is_free(), "a lock is lost");
    }
    for key in pool.locks.iter().chain([&pool.name]) {
        assert_eq!(Arc::strong_count(&key.copies), 1, "an entry outlives its last holder and waiter");
    }
}

struct Worker<'a> {
    pool: &'a Pool,
    number: usize,
    behavior: Behavior,
}

impl Worker<'_> {
    fn run(&self) {
        for _ in 0..self.behavior.rounds {
            let held = match self.behavior.wants {
                Wants::Any => self.any().into_iter().collect(),
                Wants::One(at) => self.one(at).into_iter().collect(),
                Wants::Both => self.both(),
            };
            self.work(&held);
            for held in held {
                self.release(held);
            }
        }
    }

    /// Waits as a semaphore does.
    fn any(&self) -> Option<Held> {
        let pool = self.pool;
        let mut ticket = pool.line.join(&pool.name, Self::MODE);
        let (mut handed, mut look) = match ticket.wait(None, false, || self.park()) {
            Called::Lease(held) => (Some(held), false),
            Called::Over { .. } => return None,
            Called::Head { seen, .. } => (None, seen.is_none()),
        };
        let mut over = false;
        loop {
            if let Some(held) = handed.take() {
                held.lease.assert_held();
                ticket.leave();
                return Some(held);
            }
            if look && let Some((at, lease, another_is_free)) = self.ask() {
                lease.assert_held();
                let seen = Observation::default();
                let holder = pool.queue.hold(&pool.locks[at], &seen, no_hold());
                let (place, _) = ticket.enter_with_one(&seen, another_is_free);
                return Some(Held { at, lease, holder, place });
            }
            if over {
                return None;
            }
            look = true;
            match ticket.wait(Some(Observation::default()), false, || self.park()) {
                Called::Lease(held) => handed = Some(held),
                // A thread that is past its deadline passes the hint on.
                Called::Head { hint: Some(hint), .. } if self.is_over() => {
                    pool.line.notify(&pool.name, hint);
                    return None;
                }
                Called::Head { .. } => {}
                Called::Over { .. } => over = true,
            }
        }
    }

    /// Waits as the engine does for a lock.
    fn one(&self, at: usize) -> Option<Held> {
        let pool = self.pool;
        let key = &pool.locks[at];
        let mut ticket = pool.queue.join(key, Self::MODE);
        let (mut delivered, mut look) = match ticket.wait(None, false, || self.park()) {
            Called::Lease((_, lease)) => (Some(lease), false),
            Called::Over { .. } => return None,
            Called::Head { seen, .. } => (None, seen.is_none()),
        };
        let mut over = false;
        loop {
            let lease = delivered.take().or_else(|| if look { pool.servers[at].set() } else { None });
            if let Some(lease) = lease {
                lease.assert_held();
                let holder = ticket.enter(&Observation::default(), no_hold());
                let place = pool.line.hold_one_of(&pool.name, super::Uptime);
                return Some(Held { at, lease, holder, place });
            }
            if over {
                return None;
            }
            look = true;
            match ticket.wait(Some(Observation::default()), false, || self.park()) {
                Called::Lease((_, lease)) => delivered = Some(lease),
                Called::Head { hint: Some(hint), .. } if self.is_over() => {
                    pool.queue.notify(key, hint);
                    return None;
                }
                Called::Head { .. } => {}
                Called::Over { .. } => over = true,
            }
        }
    }

    fn both(&self) -> Vec<Held> {
        let mut held = Vec::new();
        for at in 0..LOCKS {
            match self.one(at) {
                Some(one) => held.push(one),
                None => {
                    for held in held.drain(..) {
                        self.release(held);
                    }
                    break;
                }
            }
        }
        held
    }

    /// One trip and what follows: asks for one of the locks, reads all,
    /// and asks for one that was free. Returns also whether another was.
    fn ask(&self) -> Option<(usize, Lease, bool)> {
        let first = usize::from(thread_rng().gen_bool(0.5));
        let servers = &self.pool.servers;
        if let Some(lease) = servers[first].set() {
            return Some((first, lease, servers.iter().any(|server| server.is_free())));
        }
        let other = 1 - first;
        let lease = if servers[other].is_free() { servers[other].set() } else { None };
        lease.map(|lease| (other, lease, false))
    }

    fn work(&self, held: &[Held]) {
        let Some((Held { lease: first, .. }, others)) = held.split_first() else { return };
        let meet = || {
            let (count, changed) = &self.pool.held;
            let mut count = count.lock();
            *count += held.len();
            changed.notify_all();
            if self.pool.meet {
                drop(wait_while(changed, count, |count| *count < LOCKS));
            }
        };
        match others.first() {
            Some(Held { lease: other, .. }) => first.work(|| other.work(meet)),
            None => first.work(meet),
        }
    }

    /// Releases a lock: as a semaphore does, to the next that sleeps in the queue by the name, unless a thread waits for
    /// this very lock. The place ends after the lock.
    fn release(&self, held: Held) {
        let pool = self.pool;
        let hands_over = self.behavior.releases != Releases::Plainly;
        let goes_on = hands_over && !pool.queue.is_waited_for(&pool.locks[held.at]);
        let next = if goes_on { pool.line.next(&pool.name, &mut Vec::new(), |_| true) } else { None };
        match (self.behavior.releases, next) {
            (Releases::HandingOver, Some(mode)) => {
                let Held { at, lease, holder, place } = held;
                let handed = Held { at, lease: lease.replace(), holder, place };
                if let Err(held) = pool.line.deliver(&pool.name, &mode, handed, super::Uptime) {
                    Self::end(held);
                }
            }
            // It is not known whether the lease was written anew: it is released.
            _ => self.release_alone(held, hands_over),
        }
    }

    /// Releases a lock as the engine does.
    fn release_alone(&self, held: Held, hands_over: bool) {
        let next = if hands_over { held.holder.next(&mut Vec::new(), |_| true) } else { None };
        match (self.behavior.releases, next) {
            (Releases::HandingOver, Some(mode)) => {
                let Held { at, lease, holder, place } = held;
                let delivered = holder.deliver(&mode, (at, lease.replace()), super::Uptime);
                if let Err((holder, (at, lease))) = delivered {
                    return Self::end(Held { at, lease, holder, place });
                }
                place.finish(FREED, super::Uptime);
            }
            // The holder does not learn that it was written. It expires.
            (Releases::Unheard, Some(_)) => {
                held.lease.replace().end();
                drop((held.holder, held.place));
            }
            _ => Self::end(held),
        }
    }

    fn end(Held { lease, holder, place, .. }: Held) {
        lease.end();
        holder.finish(FREED, super::Uptime);
        place.finish(FREED, super::Uptime);
    }

    const MODE: WaitMode = WaitMode { notified: false, variant: 0 };

    fn is_over(&self) -> bool {
        self.pool.ends[self.number].load(SeqCst)
    }

    /// Sleeps. Returns whether to sleep on.
    fn park(&self) -> bool {
        if self.is_over() {
            return false;
        }
        // Sometimes it returns spuriously.
        if !thread_rng().gen_bool(0.1) {
            sync::park();
        }
        true
    }
}
