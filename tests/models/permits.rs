//! Threads that use connections by permit, as the pool's do: they wait in turn or ahead of others, give up, and wake each other in vain.

mod every_schedule;
#[allow(dead_code, reason = "the pool uses all of it")]
#[path = "../../src/backend/connections/permits.rs"]
mod subject;

use std::sync::Arc;

use libtest_mimic::Trial;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use shuttle::thread;

use crate::sync::{self, Thread, lock};
use subject::{Class, Permits};

pub(crate) fn trials() -> Vec<Trial> {
    let scenarios: [(&'static str, fn()); 6] = [
        ("two_for_all", || run(2, [Worker::default(); 5])),
        ("all_give_up", || run(1, [Worker { gives_up: true, ..Worker::default() }; 4])),
        ("some_want_another_first", || {
            let growing = Worker { wants_another: true, ..Worker::default() };
            run(2, [growing, Worker::default(), Worker::default(), growing]);
        }),
        ("one_is_retired", || {
            run(2, [Worker { retires: true, ..Worker::default() }, Worker::default(), Worker::default()]);
        }),
        ("some_release", || {
            let releasing = Worker { class: Some(Class::Releases), ..Worker::default() };
            let growing = Worker { wants_another: true, ..Worker::default() };
            run(2, [growing, Worker::default(), releasing, Worker { gives_up: true, ..releasing }]);
        }),
        ("releases_first_then_first_come_first_served", || {
            in_order([Class::Other, Class::Releases, Class::Other, Class::Releases], [1, 3, 0, 2]);
        }),
    ];
    let searched = |(name, run): (&str, fn())| crate::searched(format!("permits::{name}"), run);
    let every_schedule = every_schedule::SCENARIOS
        .map(|(name, run)| crate::exhausted(format!("permits::every_schedule::{name}"), run));
    scenarios.into_iter().map(searched).chain(every_schedule).collect()
}

#[derive(Clone, Copy, Default)]
struct Worker {
    gives_up: bool,
    /// [`Class::Other`] if it is `None`.
    class: Option<Class>,
    /// It retires its second permit.
    retires: bool,
    /// With a permit, it waits ahead of others for another for a while, as a thread does that may not open a connection.
    wants_another: bool,
}

/// Each thread uses permits twice. Never are more in use than there are, and in the end all are free.
fn run<const N: usize>(free: usize, workers: [Worker; N]) {
    let (permits, used) = (Permits::new(free), Arc::new(AtomicUsize::new(0)));
    let mut threads = Vec::new();
    for worker in workers {
        let (over, handle) = (Arc::new(AtomicBool::new(false)), Thread::default());
        {
            let (permits, used) = (Arc::clone(&permits), Arc::clone(&used));
            let (over, handle) = (Arc::clone(&over), handle.clone());
            threads.push(thread::spawn(move || {
                handle.enter();
                (0..2).for_each(|round| work(worker, round, &permits, &used, &over));
            }));
        }
        if worker.gives_up || worker.wants_another {
            let permits = Arc::clone(&permits);
            threads.push(thread::spawn(move || {
                over.store(true, SeqCst);
                if thread_rng().gen_bool(0.5) {
                    permits.wake_all();
                } else {
                    handle.unpark();
                }
                handle.unpark();
            }));
        }
    }
    for thread in threads {
        thread.join().unwrap();
    }
    let retired = workers.iter().filter(|worker| worker.retires).count();
    assert_eq!([permits.newly_retired(), permits.newly_retired()], [retired, 0]);
    assert_eq!(format!("{permits:?}"), format!("Permits {{ free: {}, queued: 0 }}", free - retired));
}

fn work(worker: Worker, round: u32, permits: &Arc<Permits>, used: &AtomicUsize, over: &AtomicBool) {
    let may_give_up = |may: bool| {
        move || {
            if may && over.load(SeqCst) {
                return false;
            }
            // Sometimes it returns spuriously.
            if !thread_rng().gen_bool(0.1) {
                sync::park();
            }
            true
        }
    };
    let first = permits.try_acquire();
    let permit =
        first.or_else(|| permits.acquire(worker.class.unwrap_or(Class::Other), may_give_up(worker.gives_up)));
    assert!(permit.is_some() || worker.gives_up, "a thread without a time limit gets no permit");
    if permit.is_some() {
        used.fetch_add(1, SeqCst);
        thread::yield_now();
        used.fetch_sub(1, SeqCst);
    }
    if worker.retires && round == 1 {
        permit.expect("it does not give up").retire();
        return;
    }
    if worker.wants_another && permit.is_some() {
        let returned = permits.returned();
        thread::yield_now();
        let another = permits.next_returned(returned, may_give_up(true));
        match (permit, another) {
            (Some(permit), Some(another)) => {
                permit.give_away();
                drop(another);
            }
            (permit, _) => drop(permit),
        }
    }
}

/// The threads queue one after the other, while the first has the only permit.
fn in_order<const N: usize>(classes: [Class; N], order: [usize; N]) {
    let (permits, served) = (Permits::new(1), Arc::new(Mutex::new(Vec::new())));
    let held = permits.try_acquire();
    assert!(permits.try_acquire().is_none());
    let mut threads = Vec::new();
    for (number, class) in classes.into_iter().enumerate() {
        let (permits, served) = (Arc::clone(&permits), Arc::clone(&served));
        let queued = Arc::new(AtomicBool::new(false));
        let noted = Arc::clone(&queued);
        threads.push(thread::spawn(move || {
            let park = || {
                noted.store(true, SeqCst);
                sync::park();
                true
            };
            let _permit = permits.acquire(class, park);
            lock(&served).push(number);
        }));
        while !queued.load(SeqCst) {
            thread::yield_now();
        }
    }
    drop(held);
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(*lock(&served), order);
}
