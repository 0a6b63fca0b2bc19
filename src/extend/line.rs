//! A queue by a name: of the threads of this process of which each wants one of several locks, whichever is free. A
//! thread that has one has a place in it as well, which ends with the lock, however that ends; the next learns of it.

use std::fmt;
use std::sync::Arc;

use proto::values::{Key, Now, Uptime};

use super::guards::{give_back, hand_on};
use crate::api::guard::LockGuard;
use crate::api::locker::Locker;
use crate::report::error::Error;
use crate::run::{Call, Engine, Turn};
use crate::system::clock;
use crate::values::options::LockOptions;
use crate::wait::{Hint, HolderTicket, Observation, Place, Ticket, WaitMode, WaitQueue, Wake};

/// What becomes of a lock that could not be handed on.
const LATER: &str = "it is released in the background, or frees itself when its lease has passed";

/// The queue of a name, through one locker or its clones.
#[derive(Clone)]
pub(crate) struct Line {
    queue: Arc<WaitQueue<LockGuard>>,
    name: Key,
    /// Whether other processes that wait are notified, as the options say it.
    notifies: Option<bool>,
}

/// What a thread that has one of the locks has in the queue. The next thread learns when it ends.
struct InLine {
    /// `None` once it has ended.
    ticket: Option<HolderTicket<LockGuard>>,
    /// True if other processes that wait are notified.
    notifies: bool,
}

impl Place for InLine {
    fn name(&self) -> Option<(&Key, bool)> {
        Some((self.ticket.as_ref()?.key(), self.notifies))
    }

    fn end(mut self: Box<Self>, wake: Wake) {
        self.finish(wake);
    }
}

impl InLine {
    fn finish(&mut self, wake: Wake) {
        if let Some(ticket) = self.ticket.take() {
            ticket.finish(wake, clock::uptime());
        }
    }
}

impl Drop for InLine {
    fn drop(&mut self) {
        self.finish(Wake::Hint(Hint::Freed));
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Line").field(&self.name).finish()
    }
}

impl Line {
    pub(crate) fn of(locker: &Locker, name: Key, notifies: Option<bool>) -> Self {
        Self { queue: Arc::clone(locker.lines()), name, notifies }
    }

    /// Returns true if other processes that wait for one of the locks are notified.
    fn is_notified(&self, engine: &Engine, options: &LockOptions) -> bool {
        engine.notifies_at_name(&LockOptions { notifies: self.notifies, ..*options }, &self.name)
    }

    /// Returns the turns of the processes at the locks.
    pub(crate) fn turn<'a>(&'a self, call: &'a Call<'_>) -> Turn<'a> {
        let notifies = self.is_notified(call.engine, call.options);
        call.engine.turn_at_name(notifies, call.options, &self.name)
    }

    /// Looks at all locks, as a process that waits to be notified, if something is to be done with the waiting list.
    pub(crate) fn look_listed(
        &self,
        call: &Call<'_>,
        all: &Arc<[Key]>,
    ) -> Option<Result<Vec<Option<Vec<u8>>>, Error>> {
        call.look_listed(&self.turn(call), &self.name, all)
    }

    pub(crate) fn name(&self) -> &Key {
        &self.name
    }

    /// Returns true if no thread has one of the locks or waits for one.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_open_to(&self.name)
    }

    /// Queues this thread as the last.
    pub(crate) fn join(&self, call: &Call<'_>) -> Ticket<LockGuard> {
        let notifies = self.is_notified(call.engine, call.options);
        self.queue.join(&self.name, WaitMode::of(call.options, notifies))
    }

    /// Leaves the queue with one of the locks, which has the place from now on. The next thread learns whether another
    /// is free; returns the hint if there is none.
    pub(crate) fn enter(
        &self,
        ticket: Ticket<LockGuard>,
        guard: &mut LockGuard,
        seen: &Observation,
        another_is_free: bool,
    ) -> Option<Hint> {
        let (place, unused) = ticket.enter_with_one(seen, another_is_free);
        self.give(guard, || place);
        unused
    }

    /// Gives a place to a lock that this thread has got without being queued.
    pub(crate) fn place(&self, guard: &mut LockGuard, at: Uptime) {
        self.give(guard, || self.queue.hold_one_of(&self.name, at));
    }

    fn give(&self, guard: &mut LockGuard, place: impl FnOnce() -> HolderTicket<LockGuard>) {
        let notifies = self.is_notified(guard.engine(), guard.options());
        guard.ends_with(|| Box::new(InLine { ticket: Some(place()), notifies }));
    }

    /// Tells the first thread that one of the locks may be free. Returns whether there is one.
    pub(crate) fn notify(&self, hint: Hint) -> bool {
        self.queue.notify(&self.name, hint)
    }

    /// Tells the first thread, or the process that has waited longest, that one of the locks may be free.
    pub(crate) fn wake_next(&self, call: &Call<'_>) {
        if !self.notify(Hint::Freed) {
            let notified = true;
            self.turn(call).gone(notified, call.returns_by());
        }
    }

    /// Returns true if the locks pass among the threads of this process now, and no other is to get one first.
    fn may_hand_on(&self, guard: &LockGuard, now: Now) -> bool {
        let notifies = self.is_notified(guard.engine(), guard.options());
        let turn = guard.engine().turn_at_name(notifies, guard.options(), &self.name);
        turn.leave(false, now).is_none() && turn.is_in_slice(self.queue.slice(&self.name), now)
    }

    /// Releases one of the locks: the first thread that sleeps gets it, if it can be handed on.
    pub(crate) fn release(&self, guard: LockGuard) -> Result<(), Error> {
        if !self.is_waited_for(&guard) {
            return guard.release();
        }
        let mut kept = vec![guard];
        let handed_on = self.hand_on(&mut kept);
        kept.pop().map_or(handed_on, LockGuard::release)
    }

    /// Returns true if a thread waits for the locks of this one's name. I10: in a forked child none does, and one that is
    /// not there may have the queue's mutex.
    fn is_waited_for(&self, guard: &LockGuard) -> bool {
        guard.refuse_after_fork().is_ok() && self.queue.is_waited_for(&self.name)
    }

    /// Hands locks on to threads that sleep, the last first, in one trip. What is left in the list is to be released.
    ///
    /// # Errors
    ///
    /// The server could not be asked, which has taken the time of a release: the background thread releases the lock.
    pub(crate) fn hand_on(&self, guards: &mut Vec<LockGuard>) -> Result<(), Error> {
        let now = clock::now();
        let hands_on = |first: &LockGuard| self.is_waited_for(first) && self.may_hand_on(first, now);
        if !guards.first().is_some_and(hands_on) {
            return Ok(());
        }
        let (mut taken, mut modes, mut handed) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(guard) = guards.pop_if(|guard| guard.can_be_handed_on(now)) {
            let options = guard.options();
            let (protocol, terms) = (options.protocol, options.terms);
            let is_like = |mode: &WaitMode| {
                mode.options().protocol == protocol && mode.options().terms.expiration == terms.expiration
            };
            let Some(mode) = self.queue.next(&self.name, &mut taken, is_like) else {
                guards.push(guard);
                break;
            };
            modes.push(mode);
            handed.push(guard);
        }
        let mut failed = Vec::new();
        for (mode, (guard, error)) in modes.iter().zip(hand_on(handed)) {
            match error {
                None => {
                    // The thread may have gone meanwhile. A failure is reported.
                    let delivered = self.queue.deliver(&self.name, mode, guard, now.uptime);
                    drop(delivered.map_err(|unwanted| give_back(vec![unwanted])));
                }
                // The server was asked; a release says the same.
                Some(error) if error.is_lost() => guards.push(guard),
                Some(error) => {
                    guard.release_later();
                    failed.push(error.not_released(LATER, LATER));
                }
            }
        }
        Error::of_all(failed.into_iter().map(Err))
    }
}
