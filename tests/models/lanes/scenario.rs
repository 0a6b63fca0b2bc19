//! Threads that each have some jobs carried, one after the other.

use std::mem;
use std::sync::Arc;

use super::subject::{Batching, Entered, Lane, LaneTerms, Lanes, Told};
use super::sync::atomic::{AtomicUsize, Ordering};
use super::{sync, thread};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Behavior {
    Fine,
    /// Gives up as soon as it has to wait.
    GivesUp,
    /// The connection fails where it leads.
    Fails,
    /// As a leader it waits no longer, if others wait for the replies.
    OwnTimeIsUp,
    /// The first connection that it opens cannot be opened.
    OpensNone,
    /// The connection is lent, and goes back after a trip that it leads, or if no thread waits once it is there.
    Borrows,
    /// Its jobs go by themselves.
    Alone,
    /// Its jobs are of this group.
    Of(u16),
}

/// A job, and how often it was carried out.
struct Job {
    number: usize,
    batching: Batching,
    carried: usize,
    lost: bool,
}

/// What is on the wire.
type Wire = Vec<usize>;
type Entry = super::subject::Entry<Job, Wire>;

struct Harness {
    lanes: Lanes<Job, Wire>,
    most: usize,
    /// Connections that are open.
    open: AtomicUsize,
    /// True if some are lent.
    borrows: bool,
}

/// Each thread has so many jobs carried, by so many lanes at most.
pub(super) fn run<const N: usize>(behaviors: [Behavior; N], most: usize, rounds: usize) {
    let borrows = behaviors.contains(&Behavior::Borrows);
    let harness = Arc::new(Harness { lanes: Lanes::new(), most, open: AtomicUsize::new(0), borrows });
    let work = move |harness: &Harness, n: usize| {
        (0..rounds).for_each(move |round| harness.carry(n * rounds + round, behaviors[n]));
    };
    let mut threads = Vec::new();
    for n in 1..N {
        let harness = Arc::clone(&harness);
        threads.push(thread::spawn(move || work(&harness, n)));
    }
    work(&harness, 0);
    for thread in threads {
        thread.join().unwrap();
    }
    harness.expect_rest();
}

impl Harness {
    /// Fails if a thread still leads, opens a connection or queues.
    fn expect_rest(&self) {
        assert_eq!(self.lanes.take_idle().len(), self.open.load(Ordering::SeqCst), "all are idle");
        let entry = Entry::new(Job { number: usize::MAX, batching: Batching::Any, carried: 0, lost: false });
        let terms = LaneTerms { most: 1, usable: |_: &Wire| true, may_open: || true };
        let entered = self.lanes.enter(&entry, Batching::Any, terms);
        assert!(matches!(entered, Entered::Waits { opens: true, ahead: 0 }), "it is the only one");
    }

    /// The job is carried out once, unless the connection failed or its thread gave up.
    fn carry(&self, number: usize, behavior: Behavior) {
        let batching = match behavior {
            Behavior::Alone => Batching::Alone,
            Behavior::Of(group) => Batching::Group(group),
            _ => Batching::Any,
        };
        let entry = Entry::new(Job { number, batching, carried: 0, lost: false });
        let terms = || LaneTerms { most: self.most, usable: |_: &Wire| true, may_open: || true };
        let mut opens_none = behavior == Behavior::OpensNone;
        let (mut led, mut left, mut woken) = (None, false, false);
        match self.lanes.enter(&entry, batching, terms()) {
            Entered::Leads { lane, .. } => led = Some(lane),
            Entered::Waits { opens, .. } => {
                if opens {
                    self.open(&mut opens_none, behavior);
                }
                let park = || {
                    if woken {
                        match self.lanes.enter_again(&entry, terms()) {
                            Entered::Leads { lane, .. } => {
                                led = Some(lane);
                                return false;
                            }
                            Entered::Waits { opens: true, .. } => self.open(&mut opens_none, behavior),
                            Entered::Waits { opens: false, .. } => {}
                        }
                    }
                    woken = true;
                    if behavior == Behavior::GivesUp {
                        left = self.lanes.leave(&entry);
                        return false;
                    }
                    sync::park();
                    true
                };
                let told = entry.wait(|| false, park);
                if left {
                    assert_eq!(entry.job().carried, 0, "it was not sent");
                    return;
                }
                if led.is_none()
                    && let Some(Told::Lead(lane)) = told.or_else(|| entry.give_up())
                {
                    led = Some(lane);
                }
            }
        }
        if let Some(lane) = led {
            self.lead(lane, &entry, behavior);
        }
        let job = entry.job();
        assert!(entry.is_gone() || job.carried + usize::from(job.lost) == 1, "each has its own reply");
        assert!(job.carried <= 1, "none is carried out twice");
    }

    fn open(&self, fails: &mut bool, behavior: Behavior) {
        if mem::take(fails) {
            self.lanes.opened(None);
            return self.lanes.wake_queued();
        }
        let open = self.open.fetch_add(1, Ordering::SeqCst);
        // One that is lent goes back after its lead has ended.
        assert!(open < self.most || self.borrows, "there are no more than there may be");
        self.lanes.opened(Some(Lane::over(Wire::new())));
        if behavior == Behavior::Borrows {
            self.open.fetch_sub(self.lanes.take_idle().len(), Ordering::SeqCst);
        }
    }

    fn close(&self) {
        self.open.fetch_sub(1, Ordering::SeqCst);
        self.lanes.give_back(None);
    }

    fn lead(&self, mut lane: Lane<Job, Wire>, entry: &Arc<Entry>, behavior: Behavior) {
        if lane.batch.is_empty() {
            assert!(lane.connection.is_empty(), "nothing is on the wire");
            lane.batch.push(Arc::clone(entry));
            let batching = entry.job().batching;
            self.send(&mut lane, batching);
        }
        let mut finished = Vec::new();
        if behavior == Behavior::OwnTimeIsUp && lane.batch.len() > 1 {
            assert!(entry.give_up().is_none());
        } else {
            let fails = behavior == Behavior::Fails;
            assert_eq!(lane.connection.len(), lane.batch.len());
            for (entry, number) in lane.batch.iter().zip(lane.connection.drain(..)) {
                let mut job = entry.job();
                assert_eq!(job.number, number, "no reply to another's job");
                job.carried += usize::from(!fails);
                job.lost = fails;
            }
            mem::swap(&mut finished, &mut lane.batch);
            if fails || behavior == Behavior::Borrows {
                self.close();
                return tell(&finished, entry);
            }
            self.send(&mut lane, Batching::Any);
        }
        if let Some(Lane { batch, .. }) = self.lanes.pass_on(lane) {
            assert!(batch.iter().all(|entry| entry.is_gone()), "no thread waits for these replies");
            self.close();
        }
        tell(&finished, entry);
    }

    fn send(&self, lane: &mut Lane<Job, Wire>, with: Batching) {
        if with != Batching::Alone {
            self.lanes.fill(lane, with);
        }
        let batchings = lane.batch.iter().map(|entry| entry.job().batching);
        assert!(
            lane.batch.len() == 1 || batchings.clone().all(|batching| batching != Batching::Alone),
            "it goes by itself"
        );
        let mut groups = batchings.filter(|batching| matches!(batching, Batching::Group(_)));
        let first = groups.next();
        assert!(groups.all(|group| Some(group) == first), "of several groups one goes in a trip");
        *lane.connection = lane.batch.iter().map(|entry| entry.job().number).collect();
    }
}

fn tell(finished: &[Arc<Entry>], own: &Arc<Entry>) {
    for entry in finished.iter().filter(|entry| !Arc::ptr_eq(entry, own)) {
        entry.done();
    }
}
