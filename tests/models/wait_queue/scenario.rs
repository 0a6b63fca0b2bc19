//! A few threads, what each of them does, and a server that knows whether a key is held.

use std::sync::Arc;

use shuttle::sync::Condvar;
use shuttle::sync::atomic::{AtomicBool, Ordering::SeqCst};
use shuttle::thread;

use super::Key;
use super::lease::{Lease, Server};
use super::notifications::Notifications;
use super::subject::{Hint, WaitQueue};
use super::sync::{Mutex, Thread};
use super::worker::Worker;

/// What a thread does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Behavior {
    pub(super) key: usize,
    pub(super) kind: Kind,
    pub(super) rounds: usize,
    pub(super) ending: Ending,
    pub(super) release: Release,
    /// The variant of its wait mode. Each has a head of its own.
    pub(super) variant: usize,
    /// It is queued as the first, since it may have the lock. Others that are heads go on as such.
    pub(super) is_ahead: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Waits,
    /// One attempt, without being queued.
    TriesOnce,
    /// One attempt in another process: the queue of this one knows of it only by notifications.
    InAnotherProcess,
}

/// How its wait ends if it does not acquire the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Never,
    /// It reaches its deadline at any moment.
    TimesOut,
    /// It looks once without a hint, at any moment, and goes on waiting.
    Polls,
    /// It panics while it sleeps, at any moment.
    Panics,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Release {
    Plain,
    /// To the first thread that sleeps, if there is one.
    HandsOver,
    /// The same, but it is released after all.
    HandsOverInVain,
    /// The same, and the reply is lost.
    HandsOverUnheard,
    Notifies,
    /// Only when the next thread is the head of the queue and could take over.
    OutlivesItsLease,
}

impl Behavior {
    pub(super) fn waits() -> Self {
        Self {
            key: 0,
            kind: Kind::Waits,
            rounds: 1,
            ending: Ending::Never,
            release: Release::Plain,
            variant: 0,
            is_ahead: false,
        }
    }

    pub(super) fn tries_once() -> Self {
        Self { kind: Kind::TriesOnce, ..Self::waits() }
    }

    pub(super) fn in_another_process() -> Self {
        Self { kind: Kind::InAnotherProcess, release: Release::Notifies, ..Self::waits() }
    }

    pub(super) fn of_key(self, key: usize) -> Self {
        Self { key, ..self }
    }

    pub(super) fn twice(self) -> Self {
        Self { rounds: 2, ..self }
    }

    pub(super) fn until(self, ending: Ending) -> Self {
        Self { ending, ..self }
    }

    pub(super) fn in_another_mode(self) -> Self {
        Self { variant: 1, ..self }
    }

    pub(super) fn ahead(self) -> Self {
        Self { is_ahead: true, ..self }
    }

    pub(super) fn then(self, release: Release) -> Self {
        Self { release, ..self }
    }
}

const KEYS: usize = 2;

#[allow(clippy::struct_excessive_bools, reason = "they are independent")]
pub(super) struct Scenario {
    workers: Vec<Behavior>,
    in_order: bool,
    closed: bool,
    never_free: bool,
    notifications: bool,
}

impl Scenario {
    pub(super) fn of<const N: usize>(workers: [Behavior; N]) -> Self {
        Self {
            workers: workers.to_vec(),
            in_order: false,
            closed: false,
            never_free: false,
            notifications: false,
        }
    }

    /// The threads join the queue one after the other, all of them before the lock is free for the first time.
    pub(super) fn in_order(self) -> Self {
        Self { in_order: true, ..self }
    }

    /// The queue is closed at any moment.
    pub(super) fn closed(self) -> Self {
        Self { closed: true, ..self }
    }

    /// Another process holds the locks for ever.
    pub(super) fn never_free(self) -> Self {
        Self { never_free: true, ..self }
    }

    /// A thread waits for notifications, and passes them to the queue.
    pub(super) fn with_notifications(self) -> Self {
        Self { notifications: true, ..self }
    }

    /// Runs the scenario once, in the schedule of the checker, and checks the results.
    pub(super) fn run(self) {
        let harness = Arc::new(Harness::new(&self));
        let listener = self.notifications.then(|| spawn(&harness, Harness::listen));
        let mut threads = Vec::new();
        for (number, behavior) in self.workers.iter().copied().enumerate() {
            threads.push(spawn(&harness, move |harness| {
                harness.threads[number].clone().enter();
                Worker { harness, number, behavior }.run();
            }));
        }
        // One thread for each ending, so that each comes at any moment.
        for (number, behavior) in self.workers.iter().enumerate() {
            if behavior.ending != Ending::Never {
                let thread = harness.threads[number].clone();
                threads.push(spawn(&harness, move |harness| {
                    harness.ends[number].store(true, SeqCst);
                    thread.unpark();
                }));
            }
        }
        if self.closed {
            threads.push(spawn(&harness, |harness| harness.queue.close()));
        }
        for thread in threads {
            thread.join().unwrap();
        }
        harness.notifications.stop();
        if let Some(listener) = listener {
            listener.join().unwrap();
        }
        harness.check(&self);
    }
}

fn spawn(harness: &Arc<Harness>, body: impl FnOnce(&Harness) + Send + 'static) -> thread::JoinHandle<()> {
    let harness = Arc::clone(harness);
    thread::spawn(move || body(&harness))
}

pub(super) struct Harness {
    pub(super) queue: Arc<WaitQueue<Lease>>,
    pub(super) keys: Vec<Key>,
    pub(super) servers: Vec<Arc<Server>>,
    pub(super) notifications: Notifications,
    threads: Vec<Thread>,
    /// Which threads are to end their wait, by the ending of their behavior.
    pub(super) ends: Vec<AtomicBool>,
    /// How many threads have joined the queue, where the order matters.
    pub(super) joined: Option<(Mutex<usize>, Condvar)>,
    /// The last thread that became a head.
    pub(super) head: (Mutex<usize>, Condvar),
    /// The threads that acquired the lock, in that order, where it matters.
    pub(super) served: Mutex<Vec<usize>>,
    /// Whether a head has a command on its way, for each key and variant.
    pub(super) asked: [[AtomicBool; 2]; KEYS],
}

impl Harness {
    fn new(scenario: &Scenario) -> Self {
        let server = |name| Server::new(scenario.never_free || scenario.in_order && name == 0);
        Self {
            queue: Arc::default(),
            keys: (0..KEYS).map(|name| Key { name, copies: Arc::new(()) }).collect(),
            servers: (0..KEYS).map(server).collect(),
            notifications: Notifications::default(),
            threads: scenario.workers.iter().map(|_| Thread::default()).collect(),
            ends: scenario.workers.iter().map(|_| AtomicBool::new(false)).collect(),
            joined: scenario.in_order.then(|| (Mutex::new(0), Condvar::new())),
            head: (Mutex::new(0), Condvar::new()),
            served: Mutex::new(Vec::new()),
            asked: Default::default(),
        }
    }

    /// The thread that passes notifications to the queue.
    fn listen(&self) {
        while self.notifications.next() {
            if !self.queue.notify(&self.keys[0], Hint::Freed) {
                // For another process, until a thread waits here.
                self.notifications.put_back(|| self.queue.is_waited_for(&self.keys[0]));
            }
        }
    }

    fn check(&self, scenario: &Scenario) {
        for (key, server) in self.keys.iter().zip(&self.servers) {
            let as_left = if scenario.never_free { server.is_held_elsewhere() } else { server.is_free() };
            assert!(as_left, "a lock is lost: {server:?}");
            assert_eq!(
                Arc::strong_count(&key.copies),
                1,
                "the entry of a key outlives its last holder and waiter"
            );
        }
        if scenario.in_order {
            let served = self.served.lock();
            assert!(served.is_sorted(), "not first come, first served: {served:?}");
            let patient = scenario
                .workers
                .iter()
                .enumerate()
                .filter(|(_, worker)| worker.ending == Ending::Never)
                .map(|(number, _)| number);
            assert!(patient.clone().all(|number| served.contains(&number)));
        }
    }
}
