//! Where a thread waits for its replies, or for the lead.

use std::sync::Arc;

use super::Lane;
use super::sync::atomic::{AtomicU32, Ordering};
use super::sync::{Mutex, MutexGuard, Thread, current};

const WAITING: u32 = 0;
/// Waiting, and to be unparked.
const PARKED: u32 = 1;
const DONE: u32 = 2;
const LEAD: u32 = 3;
/// Its thread waits no longer.
const GONE: u32 = 4;

/// What a thread shares with the one that has its job sent. One for each thread, used again and again.
pub(crate) struct Entry<J, C> {
    state: AtomicU32,
    thread: Thread,
    job: Mutex<J>,
    /// What its thread is to lead.
    lane: Mutex<Option<Lane<J, C>>>,
}

/// What a thread was told.
pub(crate) enum Told<J, C> {
    /// Its job is done.
    Done,
    /// To lead this lane. If its batch is empty, nothing is on the wire, and the job in no batch.
    Lead(Lane<J, C>),
}

impl<J, C> Entry<J, C> {
    /// An entry of this thread.
    pub(crate) fn new(job: J) -> Arc<Self> {
        Arc::new(Self {
            state: AtomicU32::new(WAITING),
            thread: current(),
            job: Mutex::new(job),
            lane: Mutex::new(None),
        })
    }

    pub(crate) fn job(&self) -> MutexGuard<'_, J> {
        self.job.lock()
    }

    pub(super) fn wake(&self) {
        self.thread.unpark();
    }

    /// Tells its thread that the job is done, if it still waits.
    pub(crate) fn done(&self) {
        self.tell(DONE);
    }

    /// Tells its thread to lead. If that has given up, the lane comes back.
    pub(super) fn give(&self, lane: Lane<J, C>) -> Result<(), Lane<J, C>> {
        *self.lane.lock() = Some(lane);
        if self.tell(LEAD) { Ok(()) } else { self.lane.lock().take().map_or(Ok(()), Err) }
    }

    fn tell(&self, what: u32) -> bool {
        let unless_gone = |state| (state != GONE).then_some(what);
        let told = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, unless_gone);
        if told == Ok(PARKED) {
            self.thread.unpark();
        }
        told.is_ok()
    }

    /// Waits to be told. `spin` spends a moment, and returns whether to do so again before parking; `park` spends some
    /// time, ended by an unpark, and returns whether to go on. `None`: it did not.
    pub(crate) fn wait(
        &self,
        mut spin: impl FnMut() -> bool,
        mut park: impl FnMut() -> bool,
    ) -> Option<Told<J, C>> {
        while self.state.load(Ordering::Acquire) == WAITING && spin() {}
        let _ = self.state.compare_exchange(WAITING, PARKED, Ordering::AcqRel, Ordering::Acquire);
        loop {
            match self.state.load(Ordering::Acquire) {
                PARKED if park() => {}
                PARKED => {
                    let waits =
                        self.state.compare_exchange(PARKED, WAITING, Ordering::AcqRel, Ordering::Acquire);
                    if waits.is_ok() {
                        return None;
                    }
                }
                _ => return Some(self.told()),
            }
        }
    }

    /// Gives up, while its job is in a batch. If it was told something meanwhile, that counts.
    pub(crate) fn give_up(&self) -> Option<Told<J, C>> {
        let gone = self.state.compare_exchange(WAITING, GONE, Ordering::AcqRel, Ordering::Acquire);
        gone.is_err().then(|| self.told())
    }

    /// Gives up at any time: also one that says that it parks.
    pub(crate) fn stop(&self) -> Option<Told<J, C>> {
        let _ = self.state.compare_exchange(PARKED, WAITING, Ordering::AcqRel, Ordering::Acquire);
        self.give_up()
    }

    /// Returns true if its thread waits no longer.
    pub(crate) fn is_gone(&self) -> bool {
        self.state.load(Ordering::Relaxed) == GONE
    }

    fn told(&self) -> Told<J, C> {
        let state = self.state.swap(WAITING, Ordering::AcqRel);
        let lane = if state == LEAD { self.lane.lock().take() } else { None };
        lane.map_or(Told::Done, Told::Lead)
    }
}
