//! Combining requests: a thread that wants a command sent while another's batch is on its way queues its request for the next batch.
//!
//! This is flat combining (Hendler, Incze, Shavit, Tzafrir: "Flat combining and the synchronization-parallelism tradeoff", 2010) with a
//! server in the place of the shared structure. A thread [joins](Combiner::join) with a job. If no batch is in progress, or too few
//! threads are active to be worth combining, it leads a [`Batch`] at once: it never waits for other requests, and takes those that are
//! queued when it has a connection. Otherwise its request is queued, first in, first out. No thread is a permanent combiner: a batch
//! that ends makes the first queued request the leader of the next, if it was the last in progress, and then hands out the results.
//! The first of the queue alone watches the time: overdue, it leads a batch beside those in progress, unless there are as many as may
//! be; then it leads as soon as one of them ends.
//!
//! Why no thread waits for ever. `all` holds the queue and the number of batches in progress. Each request has its phase under a mutex
//! of its own, which is locked alone or inside `all`; nothing is locked inside it.
//!
//! 1. A request is in the queue exactly while its phase is `Queued`: it is pushed as `Queued`, and what takes it out (a batch that makes
//!    it the leader or sends it, or its own thread at its time limit) changes the phase before it releases `all`.
//! 2. While the queue is not empty, a batch is in progress: joining queues a request only if one is, and the end of a batch, the only
//!    thing that lowers their number, makes the first of the queue the leader of a new one under the same lock of `all` if none
//!    would be left, or if it is overdue. So the end of a batch takes a queued request out at the latest; first in, first out.
//! 3. A batch ends when it is dropped, by a panic too. Its requests are `InFlight` until then and are completed by it, without a
//!    result if there is none. The result of a request whose thread has given up is reported to the leader.
//! 4. Each change of a request's phase by another thread is followed by an unpark of its thread, except that from `Queued` to
//!    `InFlight`, after which its thread has nothing to do. What takes out the first of the queue makes the next the first so. A thread
//!    looks at its phase each time before it parks, and an unpark before a park is kept.
//!
//! No thread depends on another beyond its time limit: a queued request then leads a batch of its own beside those in progress; an
//! in-flight one goes without a result.
//!
//! `tests/models` runs this file on a model checker's mutexes and threads.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::{fmt, mem};

use super::sync::atomic::{AtomicUsize, Ordering};
use super::sync::{Mutex, MutexGuard, PoisonError, Thread, current, park_until};

/// The batches to one server, and the requests that wait for one.
pub(crate) struct Combiner<J, R> {
    /// How many jobs a batch sends at most, its leader's included.
    max_batch: usize,
    /// Beside so many batches no request that is overdue leads one.
    max_in_progress: usize,
    /// How many threads lead, wait, or have not yet seen their result.
    active: AtomicUsize,
    /// How many requests were taken out of the queue by batches.
    dequeued: AtomicUsize,
    all: Mutex<All<J, R>>,
}

struct All<J, R> {
    in_progress: usize,
    queue: VecDeque<Arc<Request<J, R>>>,
}

struct Request<J, R> {
    job: J,
    thread: Thread,
    phase: Mutex<Phase<R>>,
}

enum Phase<R> {
    Queued(Rank),
    /// Its thread is to lead a batch, which is counted already.
    Leader,
    /// In a batch: the job may have been carried out, or be about to be.
    InFlight,
    Completed(Option<R>),
    /// Its thread has the result, or waits no longer.
    Gone,
}

/// The place of a request in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rank {
    Later,
    First,
    /// The first, which has waited as long as it would, and waits for a batch to end.
    Overdue,
}

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitStage {
    /// To be sent.
    Queued(Rank),
    /// For the result.
    InFlight,
}

/// The outcome of joining.
pub(crate) enum Joined<'a, J, R> {
    /// The caller sends its job, and those of other threads as well.
    Leader {
        batch: Batch<'a, J, R>,
        waited: bool,
    },
    Completed(R),
    /// The job was in a batch, and its outcome is unknown: the batch ended without a result, or the caller reached its time limit.
    Abandoned,
}

impl<J, R> Combiner<J, R> {
    pub(crate) fn new(max_batch: usize, max_in_progress: usize) -> Self {
        Self {
            max_batch,
            max_in_progress,
            active: AtomicUsize::new(0),
            dequeued: AtomicUsize::new(0),
            all: Mutex::new(All { in_progress: 0, queue: VecDeque::new() }),
        }
    }

    /// Leads a batch if none is in progress, or if combining is not worth while for so many active threads; else waits. `job` is
    /// made only for waiting. `park` spends some time, ended by an unpark, and returns whether to go on waiting in that stage. The first of
    /// the queue that does not is overdue; any other request that does not leads a batch of its own. Neither function may panic.
    pub(crate) fn join(
        &self,
        job: impl FnOnce() -> J,
        is_contended: impl Fn(usize) -> bool,
        park: impl FnMut(WaitStage) -> bool,
    ) -> Joined<'_, J, R> {
        let active = self.active.fetch_add(1, Ordering::Relaxed) + 1;
        let is_contended = || is_contended(active);
        if let Some(batch) = self.lead(&mut self.lock(), is_contended) {
            return Joined::Leader { batch, waited: false };
        }
        let phase = Mutex::new(Phase::Queued(Rank::Later));
        let request = Arc::new(Request { job: job(), thread: current(), phase });
        let mut all = self.lock();
        if let Some(batch) = self.lead(&mut all, is_contended) {
            return Joined::Leader { batch, waited: false };
        }
        if all.queue.is_empty() {
            *request.lock() = Phase::Queued(Rank::First);
        }
        all.queue.push_back(Arc::clone(&request));
        drop(all);
        let joined = self.wait(&request, park);
        if !matches!(joined, Joined::Leader { .. }) {
            self.active.fetch_sub(1, Ordering::Relaxed);
        }
        joined
    }

    fn lead(&self, all: &mut All<J, R>, is_contended: impl Fn() -> bool) -> Option<Batch<'_, J, R>> {
        if all.in_progress > 0 && is_contended() {
            return None;
        }
        all.in_progress += 1;
        Some(self.batch())
    }

    /// Wakes the threads whose requests are queued, so that each looks whether it still has to wait.
    pub(crate) fn wake_queued(&self) {
        self.lock().queue.iter().for_each(|request| request.thread.unpark());
    }

    /// Returns how many requests batches have taken out of the queue so far.
    pub(crate) fn dequeued(&self) -> usize {
        self.dequeued.load(Ordering::Relaxed)
    }

    fn batch(&self) -> Batch<'_, J, R> {
        Batch { combiner: self, in_flight: Vec::new(), ended: false }
    }

    fn wait(&self, request: &Arc<Request<J, R>>, park: impl FnMut(WaitStage) -> bool) -> Joined<'_, J, R> {
        let look = |given_up| {
            let mut all = matches!(given_up, Some(WaitStage::Queued(_))).then(|| self.lock());
            let mut phase = request.lock();
            ControlFlow::Break(match mem::replace(&mut *phase, Phase::Gone) {
                Phase::Leader => Joined::Leader { batch: self.batch(), waited: true },
                Phase::Completed(Some(result)) => Joined::Completed(result),
                Phase::Completed(None) => Joined::Abandoned,
                Phase::InFlight if given_up == Some(WaitStage::InFlight) => Joined::Abandoned,
                Phase::InFlight => {
                    *phase = Phase::InFlight;
                    return ControlFlow::Continue(WaitStage::InFlight);
                }
                Phase::Queued(rank) => match &mut all {
                    Some(all) if given_up == Some(WaitStage::Queued(rank)) => {
                        if rank == Rank::First && all.in_progress >= self.max_in_progress {
                            *phase = Phase::Queued(Rank::Overdue);
                            return ControlFlow::Continue(WaitStage::Queued(Rank::Overdue));
                        }
                        drop(phase);
                        all.queue.retain(|other| !Arc::ptr_eq(other, request));
                        all.note_first();
                        all.in_progress += 1;
                        Joined::Leader { batch: self.batch(), waited: true }
                    }
                    // It has a better rank than it gave up in.
                    _ => {
                        *phase = Phase::Queued(rank);
                        return ControlFlow::Continue(WaitStage::Queued(rank));
                    }
                },
                Phase::Gone => unreachable!("a thread waits only until it has its result"),
            })
        };
        park_until(look, park)
    }

    fn lock(&self) -> MutexGuard<'_, All<J, R>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<J, R> All<J, R> {
    /// Tells the first of the queue that it is.
    fn note_first(&self) {
        let Some(first) = self.queue.front() else { return };
        let mut phase = first.lock();
        if matches!(*phase, Phase::Queued(Rank::Later)) {
            *phase = Phase::Queued(Rank::First);
            drop(phase);
            first.thread.unpark();
        }
    }

    fn first_is_overdue(&self) -> bool {
        self.queue.front().is_some_and(|first| matches!(*first.lock(), Phase::Queued(Rank::Overdue)))
    }
}

impl<J, R> Request<J, R> {
    fn lock(&self) -> MutexGuard<'_, Phase<R>> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A batch in progress, and the requests in it. Ends when it is dropped.
pub(crate) struct Batch<'a, J, R> {
    combiner: &'a Combiner<J, R>,
    in_flight: Vec<Arc<Request<J, R>>>,
    /// Whether it is in progress no more.
    ended: bool,
}

impl<J, R> Batch<'_, J, R> {
    /// Takes requests from the queue, up to the first that does not go with this batch, as far as there is room; none, once it has ended.
    pub(crate) fn fill(&mut self, goes_along: impl Fn(&J) -> bool) {
        if self.ended {
            return;
        }
        let mut all = self.combiner.lock();
        let room = self.combiner.max_batch.saturating_sub(1 + self.in_flight.len());
        let count = all.queue.iter().take(room).take_while(|request| goes_along(&request.job)).count();
        for request in all.queue.drain(..count) {
            *request.lock() = Phase::InFlight;
            self.in_flight.push(request);
        }
        all.note_first();
        self.combiner.dequeued.fetch_add(count, Ordering::Relaxed);
    }

    /// The jobs of the requests in it, in the order in which they were queued.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = &J> {
        self.in_flight.iter().map(|request| &request.job)
    }

    /// Makes the first queued request the leader of the next batch, if this was the last in progress or that request is overdue.
    fn pass_on(&mut self) {
        if mem::replace(&mut self.ended, true) {
            return;
        }
        let mut all = self.combiner.lock();
        all.in_progress -= 1;
        if all.in_progress > 0 && !all.first_is_overdue() {
            return;
        }
        let Some(next) = all.queue.pop_front() else { return };
        all.in_progress += 1;
        *next.lock() = Phase::Leader;
        all.note_first();
        self.combiner.dequeued.fetch_add(1, Ordering::Relaxed);
        drop(all);
        next.thread.unpark();
    }

    /// Ends the batch and hands out the results, which come in the order of the jobs; the jobs left over get none. Results whose
    /// threads have given up go to `abandoned`, after all others.
    pub(crate) fn end(&mut self, results: impl IntoIterator<Item = R>, abandoned: impl Fn(&J, &R)) {
        // The next leader sends while this thread wakes the others.
        self.pass_on();
        let (mut results, mut unclaimed) = (results.into_iter(), Vec::new());
        for request in self.in_flight.drain(..) {
            let result = results.next();
            let mut phase = request.lock();
            if matches!(*phase, Phase::InFlight) {
                *phase = Phase::Completed(result);
                drop(phase);
                request.thread.unpark();
            } else {
                drop(phase);
                unclaimed.extend(result.map(|result| (request, result)));
            }
        }
        for (request, result) in &unclaimed {
            abandoned(&request.job, result);
        }
    }
}

impl<J, R> Drop for Batch<'_, J, R> {
    fn drop(&mut self) {
        self.end([], |_, _| ());
        self.combiner.active.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<J, R> fmt::Debug for Combiner<J, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.lock();
        let (in_progress, queued) = (all.in_progress, all.queue.len());
        drop(all);
        f.debug_struct("Combiner")
            .field("in_progress", &in_progress)
            .field("queued", &queued)
            .finish_non_exhaustive()
    }
}
