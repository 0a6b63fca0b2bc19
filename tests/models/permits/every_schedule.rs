//! A few small scenarios in every schedule with few preemptions, with every value that a weakly ordered load may see.

#[allow(
    clippy::duplicate_mod,
    dead_code,
    reason = "compiled with the primitives of another checker, which tries a part of it"
)]
#[path = "../../../src/backend/connections/permits.rs"]
mod subject;

use std::sync::Arc;

use loom::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use loom::thread;

use crate::weak_sync as sync;
use subject::{Class, Permits};

pub(super) const SCENARIOS: [(&str, fn()); 3] = [
    ("three_of_one", || run(1, [true; 3])),
    ("three_of_two", || run(2, [true; 3])),
    ("one_gives_up", || run(1, [true, false])),
];

/// Each thread uses a permit once, if it is patient enough to get one.
fn run<const N: usize>(free: usize, patient: [bool; N]) {
    let (permits, used) = (Permits::new(free), Arc::new(AtomicUsize::new(0)));
    let work = move |permits: &Arc<Permits>, used: &AtomicUsize, patient: bool| {
        let park = || {
            if patient {
                sync::park();
            }
            patient
        };
        let permit = permits.acquire(Class::Other, park);
        assert!(permit.is_some() || !patient);
        if permit.is_some() {
            assert!(used.fetch_add(1, SeqCst) < free);
            used.fetch_sub(1, SeqCst);
        }
    };
    let mut threads = Vec::new();
    for patient in patient.into_iter().skip(1) {
        let (permits, used) = (Arc::clone(&permits), Arc::clone(&used));
        threads.push(thread::spawn(move || work(&permits, &used, patient)));
    }
    work(&permits, &used, patient[0]);
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(format!("{permits:?}"), format!("Permits {{ free: {free}, queued: 0 }}"));
}
