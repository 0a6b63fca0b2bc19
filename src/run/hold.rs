//! A lock that is held, as its guard, its signals and the keeper share
//! it: its lease, whether it was lost, and what is to happen then.

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use std::{io, mem};

use proto::lease::{End, Lease};
use proto::ownership::Loss;
use proto::values::{Key, Now, Protocol, Uptime};

use super::changes::Changes;
use super::life::{Ended, Life, Released};
use super::timer;
use crate::report::event::ProblemKind;
use crate::report::state::LossReason;
use crate::run::sink::EventSink;
use crate::system::clock;
use crate::system::sync::{Mutex, MutexGuard};
use crate::values::contained::{Contained, contained};
use crate::values::options::LockOptions;

/// How often a thread that waits for a loss looks at the wall clock, which may be set.
const CLOCK_CHECKED_EVERY: Duration = Duration::from_secs(1);

/// A lock that is held.
pub(crate) struct Hold {
    pub(crate) key: Key,
    pub(crate) options: LockOptions,
    /// That of its lease, for guards: the lease may be locked.
    pub(crate) protocol: Protocol,
    pub(crate) acquired: Now,
    /// True if the keeper extends its lease, or looks for a loss; else it looks once at most.
    pub(crate) is_kept: AtomicBool,
    /// True if its guard is gone.
    pub(crate) is_dropped: AtomicBool,
    observer: EventSink,
    /// Locked for as long as commands of the hold are on their way, so that they come one after the other.
    state: Mutex<HoldState>,
    /// How many calls wait for it.
    waiting: AtomicUsize,
    /// Locked for a moment.
    status: Mutex<Status>,
    /// Those of all holds of the locker.
    changes: Arc<Changes>,
}

/// What the commands of a hold need.
pub(crate) struct HoldState {
    pub(crate) lease: Lease,
    pub(crate) token: Option<u64>,
    /// When the lease was written.
    pub(crate) began: Uptime,
    /// When the server last said that the lock is held.
    pub(crate) asked: Uptime,
    /// When it could last not be asked, if that has not worked since.
    pub(crate) failed: Option<Uptime>,
    /// When the keeper looks at it next, if it was to do so.
    pub(crate) due: Option<timer::Due>,
    /// False once the keeper has worked, until a call has had its turn: one that waits by then goes first.
    is_keepers_turn: bool,
}

impl HoldState {
    /// Notes that the keeper works now.
    pub(crate) fn is_kept_now(&mut self) {
        self.is_keepers_turn = false;
    }
}

struct Status {
    /// Until when the lock can be relied on; `None` without an expiration.
    end: Option<End>,
    life: Life,
    /// True if the loss is still to be reported.
    unreported: bool,
    on_loss: Vec<Contained<OnLoss>>,
    keeper: KeeperState,
}

/// Whether the keeper could be asked to work on the lock.
enum KeeperState {
    Works,
    /// Why not, to be reported.
    Failed(String),
    Reported,
}

/// What a program does when a lock is lost.
pub(crate) type OnLoss = Box<dyn FnOnce(LossReason) + Send>;

impl Hold {
    pub(crate) fn new(
        key: Key,
        options: LockOptions,
        acquired: Now,
        lease: Lease,
        observer: EventSink,
        changes: Arc<Changes>,
    ) -> Self {
        let status = Status {
            end: lease.end,
            life: Life::Held,
            unreported: false,
            on_loss: Vec::new(),
            keeper: KeeperState::Works,
        };
        let asked = lease.first_asked(acquired.uptime);
        Self {
            key,
            options,
            protocol: lease.protocol,
            acquired,
            is_kept: AtomicBool::new(false),
            is_dropped: AtomicBool::new(false),
            observer,
            state: Mutex::new(HoldState {
                lease,
                token: None,
                began: acquired.uptime,
                asked,
                failed: None,
                due: None,
                is_keepers_turn: true,
            }),
            waiting: AtomicUsize::new(0),
            status: Mutex::new(status),
            changes,
        }
    }

    /// Waits until no command of the hold is on its way, and keeps others from being sent.
    pub(crate) fn state(&self) -> MutexGuard<'_, HoldState> {
        let mut state = self.state.try_lock().unwrap_or_else(|| {
            self.begin_waiting();
            let state = self.state.lock();
            self.end_waiting();
            state
        });
        state.is_keepers_turn = true;
        state
    }

    /// Gives the lock up, and then waits in the same way, which may take longer than the lease lasts. Returns the time.
    pub(crate) fn give_up_and_wait(&self) -> (MutexGuard<'_, HoldState>, Now) {
        let (state, now) = (self.state.try_lock(), clock::now());
        self.give_up(now);
        match state {
            Some(state) => (state, now),
            None => (self.state(), clock::now()),
        }
    }

    /// Notes that a call waits for this hold, or for others before it.
    pub(super) fn begin_waiting(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn end_waiting(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// The same for the keeper. Returns `None` if a command is on its
    /// way, or a call waits that the keeper has gone before already.
    pub(crate) fn state_of_keeper(&self) -> Option<MutexGuard<'_, HoldState>> {
        let state = self.state.try_lock()?;
        let is_its_turn = state.is_keepers_turn || self.waiting.load(Ordering::Relaxed) == 0;
        is_its_turn.then_some(state)
    }

    /// Until when the lock can be relied on; `None` without an expiration.
    pub(crate) fn end(&self) -> Option<End> {
        self.status.lock().end
    }

    /// How long it can still be relied on: no longer if it is lost.
    pub(crate) fn remaining(&self, now: Now) -> Option<Duration> {
        let status = self.status.lock();
        match status.life {
            Life::Lost(_) => Some(Duration::ZERO),
            _ => status.end.map(|end| end.remaining(now)),
        }
    }

    /// Sets until when the lock can be relied on.
    pub(crate) fn rely_until(&self, end: Option<End>) {
        let mut status = self.status.lock();
        status.end = end;
        drop(status);
        self.changes.note();
    }

    /// Goes on in the life of the hold, if there is a next state. Returns why the lock is lost, if that was noticed by
    /// now.
    #[inline]
    fn go_on(&self, next: impl FnOnce(&Life, Option<End>) -> Option<Life>) -> Option<Loss> {
        let mut status = self.status.lock();
        let Some(next) = next(&status.life, status.end) else { return status.life.loss().cloned() };
        status.unreported = next.loss().is_some();
        let unused = if matches!(next, Life::Over) { mem::take(&mut status.on_loss) } else { Vec::new() };
        status.life = next;
        let loss = status.life.loss().cloned();
        drop(status);
        self.changes.note();
        // Without the mutex: they are the program's.
        drop(unused);
        loss
    }

    /// Returns why the lock is not held any more, as far as was noticed: also that its lease has passed, which is final
    /// then. The loss is reported by [`report`](Self::report).
    pub(crate) fn lost(&self, now: Now) -> Option<Loss> {
        self.go_on(|life, end| life.at(now, end))
    }

    /// Returns why the lock was lost, if that was noticed, whatever the clocks say by now.
    pub(crate) fn noticed_loss(&self) -> Option<Loss> {
        self.status.lock().life.loss().cloned()
    }

    /// Notes that its program has given it up now.
    pub(crate) fn give_up(&self, now: Now) {
        self.go_on(|life, _| life.given_up(now));
    }

    /// Returns when its program has given it up, if it has not been released since.
    pub(super) fn given_up(&self) -> Option<Now> {
        self.status.lock().life.since_given_up()
    }

    /// Notes that the lock is lost. Only the first loss counts, which is returned. [`report`](Self::report) reports it.
    pub(crate) fn lose(&self, reason: &Loss) -> Option<Loss> {
        self.go_on(|life, end| life.lost(reason, end))
    }

    /// Notes what its end has come to: see [`Life::ended`].
    ///
    /// # Errors
    ///
    /// Why the lock was lost, by its end or before. [`report`](Self::report) reports that.
    pub(super) fn finish(&self, released: Option<&Released>, now: Now) -> Result<Ended, Loss> {
        let mut outcome = Err(Loss::Expired);
        self.go_on(|life, end| {
            let ending = life.ended(released, self.acquired, end, now);
            outcome = ending.outcome;
            ending.next
        });
        outcome
    }

    /// Notes that the lock goes on with another hold.
    pub(crate) fn go_over(&self, now: Now) {
        let _ = self.finish(Some(&None), now);
    }

    /// Returns true if it is neither lost, as far as was noticed, nor given up.
    pub(crate) fn is_held(&self) -> bool {
        self.status.lock().life.is_held()
    }

    /// Notes whether the keeper could be asked to work on the lock. [`report`](Self::report) reports a failure, once
    /// until it could: an observer may extend the lease, which asks again.
    pub(crate) fn note_kept(&self, asked: Result<(), io::Error>) {
        let keeper = &mut self.status.lock().keeper;
        match (asked, &keeper) {
            (Ok(()), _) => *keeper = KeeperState::Works,
            (Err(error), KeeperState::Works) => {
                *keeper = KeeperState::Failed(format!("cannot start a thread: {error}"));
            }
            (Err(_), KeeperState::Failed(_) | KeeperState::Reported) => {}
        }
    }

    /// Reports that the keeper could not be asked, and a loss, and does what is to happen at a loss, each once. Called
    /// while nothing is locked: the program may do anything then, such as dropping a guard.
    pub(crate) fn report(&self) {
        let mut status = self.status.lock();
        if let KeeperState::Failed(reason) = &mut status.keeper {
            let reason = mem::take(reason);
            status.keeper = KeeperState::Reported;
            drop(status);
            let kind = ProblemKind::KeeperUnavailable;
            let details = format!("is neither extended nor looked at: {reason}");
            self.observer.problem(Some(&self.key), kind, details);
            status = self.status.lock();
        }
        let Life::Lost(reason) = status.life.clone() else { return };
        let unreported = mem::take(&mut status.unreported);
        let on_loss = mem::take(&mut status.on_loss);
        drop(status);
        let act = {
            let reason = reason.clone();
            move || {
                for act in on_loss.into_iter().filter_map(Contained::take) {
                    // A panic keeps neither the lock from being released nor the keeper from its work (I10).
                    contained(|| act(LossReason::of(reason.clone())));
                }
            }
        };
        if unreported {
            let held = clock::uptime().since(self.acquired.uptime);
            self.observer.lost(&self.key, LossReason::of(reason), held, act);
        } else {
            act();
        }
    }

    /// Has this done when the lock is lost; if it was released, never.
    pub(crate) fn on_loss(&self, act: OnLoss) {
        let act = Contained::new(act);
        let mut status = self.status.lock();
        if !matches!(status.life, Life::Over) {
            status.on_loss.push(act);
        }
    }
}

/// Waits until one of the locks, which are of one locker, is lost or released, and at most until then.
pub(crate) fn wait_for_loss(holds: &[Arc<Hold>], until: Uptime) {
    let Some(first) = holds.first() else { return };
    let mut waiting = first.changes.wait();
    loop {
        let now = clock::now();
        if now.uptime >= until || holds.iter().any(|hold| hold.lost(now).is_some() || !hold.is_held()) {
            return;
        }
        let left = holds.iter().filter_map(|hold| hold.remaining(now)).min();
        // A little more: a wait that ends a microsecond early would be repeated.
        let left = left.map_or(Duration::MAX, |left| left + Duration::from_micros(50));
        waiting.sleep(until.since(now.uptime).min(left).min(CLOCK_CHECKED_EVERY));
    }
}

// A panic in the user's code leaves nothing here half done: it is called while nothing is locked.
impl UnwindSafe for Hold {}
impl RefUnwindSafe for Hold {}
