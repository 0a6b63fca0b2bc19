//! A few small scenarios in every schedule with few preemptions, with every value that a weakly ordered load may see.

#[allow(
    clippy::duplicate_mod,
    dead_code,
    reason = "compiled with the primitives of another checker, which tries a part of it"
)]
#[path = "../../../src/backend/pipelining/admission.rs"]
mod subject;

use std::sync::Arc;

use loom::thread;

use crate::weak_sync as sync;
use subject::{Admission, Bounds};

pub(super) const SCENARIOS: [(&str, fn()); 5] = [
    ("two_where_one_may_be", || run(Admission::new(bounds(1, 1, 0, 9)), [true; 2])),
    ("three_where_one_may_be", || run(Admission::new(bounds(1, 1, 0, 9)), [true; 3])),
    ("three_where_two_may_be", || run(Admission::new(bounds(1, 2, 0, 9)), [true; 3])),
    ("each_that_leaves_lets_one_in", || run(Admission::new(bounds(1, 1, 0, 1)), [true; 3])),
    ("one_gives_up", || run(Admission::new(bounds(1, 1, 0, 9)), [true, false])),
];

/// The bounds of a scenario, few at a time.
fn bounds(fewest: usize, most: usize, unrestricted: usize, share: usize) -> Bounds {
    Bounds { unrestricted, most, fewest, share }
}

/// Each thread enters once, in turn or as soon as it finds that it would have to wait.
fn run<const N: usize>(admission: Admission, patient: [bool; N]) {
    let admission = Arc::new(admission);
    let work = |admission: &Admission, patient: bool| {
        let park = || {
            if patient {
                sync::park();
            }
            patient
        };
        drop(admission.enter_in_turn(park));
    };
    let mut threads = Vec::new();
    for patient in patient.into_iter().skip(1) {
        let admission = Arc::clone(&admission);
        threads.push(thread::spawn(move || work(&admission, patient)));
    }
    work(&admission, patient[0]);
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(format!("{admission:?}"), "Admission { inside: 0, queued: 0, .. }");
}
