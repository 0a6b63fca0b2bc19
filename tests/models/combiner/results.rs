//! What became of each job: who has carried it, and what its thread was told.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a thread wants carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Job {
    pub(super) of: usize,
    pub(super) round: usize,
}

/// What a leader says has become of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Carried(Job),
    /// Its own thread may carry it.
    Unread(Job),
}

impl Answer {
    pub(super) fn job(self) -> Job {
        let (Answer::Carried(job) | Answer::Unread(job)) = self;
        job
    }
}

/// What joining came to, for the one whose job it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It leads, at once or after it has waited.
    Led {
        waited: bool,
    },
    Completed(Answer),
    Abandoned,
}

#[derive(Clone, Copy, Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "each may be so or not")]
struct Entry {
    /// How often it was taken along.
    taken: usize,
    /// How often it was carried, by whomever.
    carried: usize,
    /// How often an answer to it was handed out, and how often that was nobody's.
    answered: usize,
    orphaned: usize,
    /// Whether its thread has had enough, of the queue and of waiting for the answer.
    enough_queued: bool,
    enough_aboard: bool,
    /// Whether its thread died where it led.
    died: bool,
    /// Whether nobody may be told that it has an answer which is nobody's: whoever tells dies of it.
    untold: bool,
    end: Option<End>,
}

/// Kept by means that the checkers do not know: writing it is no moment for another thread.
#[derive(Default)]
pub(super) struct Ledger(Mutex<BTreeMap<Job, Entry>>);

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Job, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, job: Job, note: impl FnOnce(&mut Entry)) {
        note(self.lock().entry(job).or_default());
    }

    pub(super) fn taken(&self, job: Job) {
        self.note(job, |entry| {
            assert!(
                entry.end.is_none() || entry.enough_aboard,
                "{job:?} is taken along though its thread waits no longer"
            );
            entry.taken += 1;
            assert_eq!(entry.taken, 1, "{job:?} is taken along twice");
        });
    }

    pub(super) fn carried(&self, job: Job) -> Answer {
        self.note(job, |entry| {
            entry.carried += 1;
            assert_eq!(entry.carried, 1, "{job:?} is carried twice");
        });
        Answer::Carried(job)
    }

    /// To be noted before it is handed out.
    pub(super) fn answered(&self, job: Job) {
        self.note(job, |entry| entry.answered += 1);
    }

    pub(super) fn orphaned(&self, job: Job, answer: Answer) {
        assert_eq!(answer.job(), job, "told of another's answer");
        self.note(job, |entry| {
            assert!(entry.enough_aboard, "the answer to {job:?} is still waited for");
            entry.orphaned += 1;
            assert_eq!(entry.orphaned, 1, "told twice that {job:?} has an answer");
        });
    }

    pub(super) fn enough(&self, job: Job, in_flight: bool) {
        self.note(job, |entry| {
            let enough = if in_flight { &mut entry.enough_aboard } else { &mut entry.enough_queued };
            *enough = true;
        });
    }

    pub(super) fn died(&self, job: Job) {
        self.note(job, |entry| entry.died = true);
    }

    pub(super) fn may_stay_untold(&self, job: Job) {
        self.note(job, |entry| entry.untold = true);
    }

    pub(super) fn ended(&self, job: Job, end: End) {
        self.note(job, |entry| assert_eq!(entry.end.replace(end), None));
    }

    /// When all is over: each job was carried once, or its thread knows that this is not sure. Returns the fewest and the most that trips
    /// can have taken out of the queue.
    pub(super) fn look_back(&self, jobs: usize) -> [usize; 2] {
        let entries = self.lock();
        assert_eq!(entries.len(), jobs, "a thread has not come back: {entries:#?}");
        let mut dequeued = [0, 0];
        for (job, entry) in &*entries {
            let Entry { taken, carried, answered, orphaned, .. } = *entry;
            let (least, most) = match entry.end {
                Some(End::Led { waited }) => {
                    assert_eq!(
                        [taken, answered, orphaned],
                        [0, 0, 0],
                        "{job:?} was another's too: {entry:?}"
                    );
                    assert!(carried == 1 || entry.died, "{job:?} was not carried: {entry:?}");
                    // Who has had enough may have been the next just then.
                    (usize::from(waited && !entry.enough_queued), usize::from(waited))
                }
                Some(End::Completed(answer)) => {
                    assert_eq!(answer.job(), *job, "another's answer: {entry:?}");
                    assert_eq!([taken, carried, answered, orphaned], [1, 1, 1, 0], "{job:?}: {entry:?}");
                    (1, 1)
                }
                Some(End::Abandoned) => {
                    assert_eq!(taken, 1, "{job:?}: {entry:?}");
                    assert!(answered == 0 || entry.enough_aboard, "the answer to {job:?} is lost: {entry:?}");
                    assert!(orphaned == answered || entry.untold, "nobody is told of {job:?}: {entry:?}");
                    (1, 1)
                }
                None => panic!("{job:?} has no end: {entry:?}"),
            };
            dequeued = [dequeued[0] + least, dequeued[1] + most];
        }
        dequeued
    }
}
