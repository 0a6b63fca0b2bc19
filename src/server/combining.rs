//! Sharing trips to the server: a thread that wants a command sent while another's is under way waits to be taken along by the next.
//!
//! This is flat combining (Hendler, Incze, Shavit, Tzafrir: "Flat combining and the synchronization-parallelism tradeoff", 2010) with a
//! server in the place of the shared structure. Whoever wants something carried [joins](Trips::join). If no trip is under way, or the
//! threads that are about are too few for a crowd, it leads a [`Trip`] at once, waits for nobody, and takes along who is in the queue when it has
//! a connection. Otherwise it goes to the end of the queue and waits. No thread works for the others all the time: a trip that ends
//! has the first in the queue lead the next one, if it was the last, and then hands out the answers.
//!
//! Why nobody waits for ever. `all` is the queue and the number of trips under way; each passenger has its phase under a mutex of its
//! own, which is locked alone or inside `all`, and nothing is locked inside it.
//!
//! 1. A passenger is in the queue exactly while its phase is `Queued`: it is put in as `Queued`, and whoever takes it out (to have it
//!    lead, to take it along, or itself when it has had enough) changes the phase before letting go of `all`.
//! 2. While anybody is in the queue, a trip is under way: joining queues only if one is, and the end of a trip, the only thing that
//!    makes them fewer, has the first of the queue lead a new one under the same hold of `all` if none would be left. So whoever is in
//!    the queue is taken out by the end of a trip, if not sooner; first come, first served.
//! 3. A trip ends when it is dropped, whatever ends it, a panic too. Those that it took along are `Aboard` until then and are answered
//!    by it, with nothing if there is no answer. An answer to one that gave up meanwhile is an orphan, and its leader is told.
//! 4. Each change of a passenger's phase by another is followed by an unpark of its thread, except that from `Queued` to `Aboard`, after
//!    which there is nothing to do for it. It looks at its phase before it parks, each time, and an unpark before a park is kept.
//!
//! Nobody depends on another for longer than it wants to: in the queue, having enough makes it lead a trip of its own beside those under
//! way; aboard, it makes it go without an answer.
//!
//! `tests/models` tries this file on a checker's mutexes and threads.

use std::collections::VecDeque;
use std::sync::Arc;
use std::{fmt, mem};

use super::sync::atomic::{AtomicUsize, Ordering};
use super::sync::{Mutex, MutexGuard, PoisonError, Thread, current};

/// The trips to one server, and who waits to be taken along.
pub(super) struct Trips<J, A> {
    /// How many a trip carries at most, its leader included.
    seats: usize,
    /// How many are about: leading, waiting, or with an answer that they have not seen yet.
    about: AtomicUsize,
    /// How many were taken out of the queue by trips.
    moved: AtomicUsize,
    all: Mutex<All<J, A>>,
}

struct All<J, A> {
    under_way: usize,
    queue: VecDeque<Arc<Passenger<J, A>>>,
}

struct Passenger<J, A> {
    job: J,
    thread: Thread,
    phase: Mutex<Phase<A>>,
}

enum Phase<A> {
    Queued,
    /// It is to lead a trip, which is counted already.
    Leads,
    /// Taken along: what it wants may have been carried out, or be about to be.
    Aboard,
    Answered(Option<A>),
    /// It has what it waited for, or waits no longer.
    Gone,
}

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    ToGo,
    ForTheAnswer,
}

/// What joining came to.
pub(super) enum Joined<'a, J, A> {
    /// The caller carries the job, and those of others as well.
    Leads {
        trip: Trip<'a, J, A>,
        waited: bool,
    },
    Answered(A),
    /// The job was taken along, and what became of it is not known: the trip ended without an answer, or the caller had had enough.
    Unanswered,
}

impl<J, A> Trips<J, A> {
    pub(super) fn new(seats: usize) -> Self {
        Self {
            about: AtomicUsize::new(0),
            seats,
            moved: AtomicUsize::new(0),
            all: Mutex::new(All { under_way: 0, queue: VecDeque::new() }),
        }
    }

    /// Leads a trip if none is under way, or so many threads are no crowd; else waits. `job` is made only then. `park` spends some time,
    /// ended by an unpark, and says whether to go on waiting for that. Neither may panic.
    pub(super) fn join(
        &self,
        job: impl FnOnce() -> J,
        is_crowd: impl Fn(usize) -> bool,
        park: impl FnMut(Waiting) -> bool,
    ) -> Joined<'_, J, A> {
        let about = self.about.fetch_add(1, Ordering::Relaxed) + 1;
        let is_crowd = || is_crowd(about);
        if let Some(trip) = self.lead(&mut self.lock(), is_crowd) {
            return Joined::Leads { trip, waited: false };
        }
        let passenger =
            Arc::new(Passenger { job: job(), thread: current(), phase: Mutex::new(Phase::Queued) });
        let mut all = self.lock();
        if let Some(trip) = self.lead(&mut all, is_crowd) {
            return Joined::Leads { trip, waited: false };
        }
        all.queue.push_back(Arc::clone(&passenger));
        drop(all);
        let joined = self.wait(&passenger, park);
        if !matches!(joined, Joined::Leads { .. }) {
            self.about.fetch_sub(1, Ordering::Relaxed);
        }
        joined
    }

    fn lead(&self, all: &mut All<J, A>, is_crowd: impl Fn() -> bool) -> Option<Trip<'_, J, A>> {
        if all.under_way > 0 && is_crowd() {
            return None;
        }
        all.under_way += 1;
        Some(self.trip())
    }

    /// How many were taken out of the queue by trips so far: whoever was before them in the queue is not there any more.
    pub(super) fn moved(&self) -> usize {
        self.moved.load(Ordering::Relaxed)
    }

    fn trip(&self) -> Trip<'_, J, A> {
        Trip { trips: self, aboard: Vec::new(), over: false }
    }

    fn wait(
        &self,
        passenger: &Arc<Passenger<J, A>>,
        mut park: impl FnMut(Waiting) -> bool,
    ) -> Joined<'_, J, A> {
        let mut enough = None;
        loop {
            let mut all = (enough == Some(Waiting::ToGo)).then(|| self.lock());
            let mut phase = passenger.lock();
            let waiting = match mem::replace(&mut *phase, Phase::Gone) {
                Phase::Leads => return Joined::Leads { trip: self.trip(), waited: true },
                Phase::Answered(Some(answer)) => return Joined::Answered(answer),
                Phase::Answered(None) => return Joined::Unanswered,
                Phase::Aboard if enough == Some(Waiting::ForTheAnswer) => return Joined::Unanswered,
                Phase::Aboard => {
                    *phase = Phase::Aboard;
                    Waiting::ForTheAnswer
                }
                Phase::Queued => {
                    if let Some(all) = &mut all {
                        all.queue.retain(|other| !Arc::ptr_eq(other, passenger));
                        all.under_way += 1;
                        return Joined::Leads { trip: self.trip(), waited: true };
                    }
                    *phase = Phase::Queued;
                    Waiting::ToGo
                }
                Phase::Gone => unreachable!("it waits until it has what it waited for"),
            };
            drop(phase);
            drop(all);
            enough = (!park(waiting)).then_some(waiting);
        }
    }

    fn lock(&self) -> MutexGuard<'_, All<J, A>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<J, A> Passenger<J, A> {
    fn lock(&self) -> MutexGuard<'_, Phase<A>> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A trip under way, and who was taken along. Ends when it is dropped.
pub(super) struct Trip<'a, J, A> {
    trips: &'a Trips<J, A>,
    aboard: Vec<Arc<Passenger<J, A>>>,
    /// Whether it is under way no more.
    over: bool,
}

impl<J, A> Trip<'_, J, A> {
    /// Takes along who is in the queue, as far as there are seats; nobody, once it has ended.
    pub(super) fn take_along(&mut self) {
        if self.over {
            return;
        }
        let mut all = self.trips.lock();
        let seats = self.trips.seats.saturating_sub(1 + self.aboard.len()).min(all.queue.len());
        for passenger in all.queue.drain(..seats) {
            *passenger.lock() = Phase::Aboard;
            self.aboard.push(passenger);
        }
        self.trips.moved.fetch_add(seats, Ordering::Relaxed);
    }

    /// What those aboard want, in the order in which they came.
    pub(super) fn jobs(&self) -> impl Iterator<Item = &J> {
        self.aboard.iter().map(|passenger| &passenger.job)
    }

    /// Has whoever is first in the queue lead the next trip, if this was the last.
    fn pass_on(&mut self) {
        if mem::replace(&mut self.over, true) {
            return;
        }
        let mut all = self.trips.lock();
        all.under_way -= 1;
        if all.under_way > 0 {
            return;
        }
        let Some(next) = all.queue.pop_front() else { return };
        all.under_way += 1;
        *next.lock() = Phase::Leads;
        self.trips.moved.fetch_add(1, Ordering::Relaxed);
        drop(all);
        next.thread.unpark();
    }

    /// Ends the trip, and hands out the answers, which come in the order of the jobs; who is left over gets none. Answers to those that
    /// gave up go to `orphaned`, when everybody has his.
    pub(super) fn end(&mut self, answers: impl IntoIterator<Item = A>, orphaned: impl Fn(&J, &A)) {
        // The next is on its way while we wake the others.
        self.pass_on();
        let (mut answers, mut orphans) = (answers.into_iter(), Vec::new());
        for passenger in self.aboard.drain(..) {
            let answer = answers.next();
            let mut phase = passenger.lock();
            if matches!(*phase, Phase::Aboard) {
                *phase = Phase::Answered(answer);
                drop(phase);
                passenger.thread.unpark();
            } else {
                drop(phase);
                orphans.extend(answer.map(|answer| (passenger, answer)));
            }
        }
        for (passenger, answer) in &orphans {
            orphaned(&passenger.job, answer);
        }
    }
}

impl<J, A> Drop for Trip<'_, J, A> {
    fn drop(&mut self) {
        self.end([], |_, _| ());
        self.trips.about.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<J, A> fmt::Debug for Trips<J, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.lock();
        let (under_way, queued) = (all.under_way, all.queue.len());
        drop(all);
        f.debug_struct("Trips")
            .field("under_way", &under_way)
            .field("queued", &queued)
            .finish_non_exhaustive()
    }
}
