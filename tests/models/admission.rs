//! Threads that enter where some may be inside at a time, as those that send commands do: they come back, wait in turn, give up, and enter
//! without waiting.

mod every_schedule;
#[path = "../../src/backend/pipelining/admission.rs"]
mod subject;

use std::sync::Arc;

use libtest_mimic::Trial;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicBool, Ordering::SeqCst};
use shuttle::thread;

use crate::sync::{self, Thread, lock};
use Enters::{AtOnce, FallingAsleep, GivingUp, InTurn};
use subject::{Admission, Bounds};

pub(crate) fn trials() -> Vec<Trial> {
    let scenarios: [(&'static str, fn()); 12] = [
        ("one_at_a_time", || run(Admission::new(bounds(1, 1, 0, 100)), [InTurn; 4])),
        ("two_at_a_time", || run(Admission::new(bounds(1, 2, 0, 100)), [InTurn; 4])),
        ("each_that_leaves_lets_one_in", || run(Admission::new(bounds(1, 1, 0, 1)), [InTurn; 4])),
        ("one_of_two_that_leave_lets_one_in", || run(Admission::new(bounds(1, 2, 0, 2)), [InTurn; 5])),
        ("some_do_not_wait", || run(Admission::new(bounds(1, 1, 0, 2)), [InTurn, AtOnce, InTurn, AtOnce])),
        ("three_are_not_restricted", || {
            run(Admission::new(bounds(1, 1, 3, 100)), [InTurn, FallingAsleep, InTurn]);
        }),
        ("one_falls_asleep", || run(Admission::new(bounds(1, 1, 0, 100)), [InTurn, FallingAsleep, InTurn])),
        ("all_fall_asleep", || run(Admission::new(bounds(1, 2, 0, 2)), [FallingAsleep; 4])),
        ("one_gives_up", || run(Admission::new(bounds(1, 1, 0, 100)), [InTurn, GivingUp, InTurn])),
        ("all_give_up", || run(Admission::new(bounds(1, 1, 0, 2)), [GivingUp; 4])),
        ("first_come_first_served", in_order),
        ("a_thread_that_waits_is_let_in_though_another_comes_back", share),
    ];
    let searched = |(name, run): (&str, fn())| crate::searched(format!("admission::{name}"), run);
    let every_schedule = every_schedule::SCENARIOS
        .map(|(name, run)| crate::exhausted(format!("admission::every_schedule::{name}"), run));
    scenarios.into_iter().map(searched).chain(every_schedule).collect()
}

/// The bounds of a scenario, few at a time.
fn bounds(fewest: usize, most: usize, unrestricted: usize, share: usize) -> Bounds {
    Bounds { unrestricted, most, fewest, share }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Enters {
    InTurn,
    AtOnce,
    GivingUp,
    FallingAsleep,
}

/// Each thread enters twice. In the end none is inside, and none waits.
fn run<const N: usize>(admission: Admission, workers: [Enters; N]) {
    let admission = Arc::new(admission);
    let mut threads = Vec::new();
    for worker in workers {
        let (over, handle) = (Arc::new(AtomicBool::new(false)), Thread::default());
        if worker == GivingUp {
            let (admission, over, handle) = (Arc::clone(&admission), Arc::clone(&over), handle.clone());
            threads.push(thread::spawn(move || {
                over.store(true, SeqCst);
                if thread_rng().gen_bool(0.5) {
                    admission.wake_queued();
                } else {
                    handle.unpark();
                }
            }));
        }
        let admission = Arc::clone(&admission);
        threads.push(thread::spawn(move || {
            handle.enter();
            for _ in 0..2 {
                let park = || {
                    if over.load(SeqCst) {
                        return false;
                    }
                    // Sometimes it returns spuriously.
                    if !thread_rng().gen_bool(0.1) {
                        sync::park();
                    }
                    true
                };
                let admitted =
                    if worker == AtOnce { admission.enter() } else { admission.enter_in_turn(park) };
                assert!(worker != AtOnce || !admitted.waited);
                thread::yield_now();
                if worker == FallingAsleep {
                    admitted.give_up_place();
                    thread::yield_now();
                }
                drop(admitted);
            }
        }));
    }
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(format!("{admission:?}"), "Admission { inside: 0, queued: 0, .. }");
}

/// Starts a thread that waits, and returns once it does.
fn queued(admission: &Arc<Admission>, then: impl FnOnce() + Send + 'static) -> thread::JoinHandle<()> {
    let (admission, waits) = (Arc::clone(admission), Arc::new(AtomicBool::new(false)));
    let noted = Arc::clone(&waits);
    let thread = thread::spawn(move || {
        let admitted = admission.enter_in_turn(|| {
            noted.store(true, SeqCst);
            sync::park();
            true
        });
        assert!(admitted.waited);
        then();
    });
    while !waits.load(SeqCst) {
        thread::yield_now();
    }
    thread
}

/// The threads queue one after the other, while one is inside.
fn in_order() {
    let (admission, served) =
        (Arc::new(Admission::new(bounds(1, 1, 0, 100))), Arc::new(Mutex::new(Vec::new())));
    let inside = admission.enter_in_turn(|| unreachable!("there is room"));
    let threads = [0, 1, 2].map(|number| {
        let served = Arc::clone(&served);
        queued(&admission, move || lock(&served).push(number))
    });
    assert!(inside.others_queue());
    drop(inside);
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(*lock(&served), [0, 1, 2]);
}

/// Two threads are inside. One of them leaves and comes back at once, again and again, while two others wait.
fn share() {
    let admission = Arc::new(Admission::new(bounds(1, 2, 0, 3)));
    let is_in = Arc::new(AtomicBool::new(false));
    let (stays, mut comes_back) = (admission.enter(), admission.enter());
    // The first to leave lets one in.
    let noted = Arc::clone(&is_in);
    let waits = [queued(&admission, || ()), queued(&admission, move || noted.store(true, SeqCst))];
    let mut rounds = 0;
    for _ in 0..4 {
        drop(comes_back);
        comes_back = admission.enter();
        rounds += u32::from(!is_in.load(SeqCst));
    }
    for thread in waits {
        thread.join().unwrap();
    }
    assert!(is_in.load(SeqCst) && rounds > 0);
    drop((stays, comes_back));
}
