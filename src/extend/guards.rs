//! Guards of one locker, for which commands go together, and what a guard knows of its hold.

use std::sync::Arc;
use std::time::Duration;

use proto::values::{Key, Now, Token};

use crate::api::guard::LockGuard;
use crate::api::locker::Locker;
use crate::api::loss_signal::LossSignal;
use crate::report::error::Error;
use crate::report::event::Event;
use crate::report::state::LossReason;
use crate::run::hold::Hold;
use crate::run::thread_holds::{self, HoldKind};
use crate::run::{Engine, Leaving};
use crate::system::clock;
use crate::values::options::LockOptions;
use crate::wait::Place;

/// What a guard knows of its hold.
impl LockGuard {
    pub(crate) fn options(&self) -> &LockOptions {
        &self.hold().options
    }

    /// Notes that this thread has the lock.
    pub(crate) fn note(&self, kind: HoldKind) {
        thread_holds::note(&self.engine().identity, self.hold(), kind);
    }

    /// Notes that this thread has given the lock up, which is released later.
    pub(crate) fn give_up(&self) {
        self.hold().give_up(clock::now());
        thread_holds::forget(self.hold());
    }

    /// Returns why the lock was lost, if that was noticed.
    pub(crate) fn noticed_loss(&self) -> Option<LossReason> {
        self.hold().noticed_loss().map(LossReason::of)
    }

    /// Returns what has the keeper look whether it is lost: see [`loss_signal`](Self::loss_signal). It keeps no guard
    /// from being dropped.
    pub(crate) fn watching(&self) -> impl FnOnce() + Send + use<> {
        let (engine, hold) = (Arc::clone(self.engine()), Arc::clone(self.hold()));
        move || engine.watch(&hold)
    }

    pub(crate) fn refuse_after_fork(&self) -> Result<(), Error> {
        self.engine().refuse_after_fork(self.key())
    }

    /// Has this dropped when this process has the lock no longer, for whatever reason, unless something is already.
    pub(crate) fn ends_with(&mut self, place: impl FnOnce() -> Box<dyn Place>) {
        if let Some(holder) = self.holder() {
            holder.ends_with(place);
        }
    }

    /// Returns true if another thread of this process may go on with the lock: its lease is still to be relied on, and
    /// no thread waits for this very lock.
    pub(super) fn can_be_handed_on(&mut self, now: Now) -> bool {
        let is_to_release = self.holder().is_some();
        let hold = self.hold();
        let is_held_for_long_enough =
            hold.acquired.uptime.after(hold.options.terms.hold_at_least) <= now.uptime;
        let lasts = hold.remaining(now).is_some_and(|left| !left.is_zero());
        is_to_release && lasts && is_held_for_long_enough && !self.engine().queue.is_waited_for(self.key())
    }

    /// Returns what another process goes on with the lock by. The server may be asked once.
    pub(crate) fn token(&self) -> Result<Token, Error> {
        self.refuse_after_fork()?;
        self.engine().token(self.hold())
    }
}

/// Joins the enclosing `with` of this thread on this key, if that is reentrant.
pub(crate) fn enclosing(locker: &Locker, key: &Key) -> Option<LockGuard> {
    LockGuard::enclosing(locker.engine(), key)
}

/// Extends the leases of locks of one locker: see [`LockGuard::extend`] and [`LockGuard::extend_by`].
///
/// # Errors
///
/// The first loss, otherwise the first failure.
pub(crate) fn extend_all(guards: &[LockGuard], lease: Option<Duration>) -> Result<(), Error> {
    // Those of nested calls may have different options.
    guards.iter().try_for_each(|guard| guard.lease(lease).map(drop))?;
    first_failure(on_all(guards, |engine, holds| engine.extend(holds, lease))?)
}

/// Asks the server whether locks of one locker are still held: see [`LockGuard::verify`].
///
/// # Errors
///
/// The first loss, otherwise the first failure.
pub(crate) fn verify_all(guards: &[LockGuard]) -> Result<(), Error> {
    first_failure(on_all(guards, Engine::verify)?)
}

/// Returns the fencing token of each lock: see [`LockGuard::fencing_token`].
pub(crate) fn fencing_tokens(guards: &[LockGuard]) -> Result<Vec<Result<u64, Error>>, Error> {
    on_all(guards, |engine, holds| engine.fencing_tokens(holds))
}

/// Returns the signal of the first loss among these locks: see [`LockGuard::loss_signal`].
pub(crate) fn loss_signal_of_all(guards: &[LockGuard]) -> LossSignal {
    for guard in guards {
        guard.watching()();
    }
    LossSignal::of_all(guards.iter().map(|guard| Arc::clone(guard.hold())))
}

/// Does something with the holds of one locker, of which there is one at least.
fn on_all<T>(
    guards: &[LockGuard],
    act: impl FnOnce(&Arc<Engine>, &[&Arc<Hold>]) -> Vec<Result<T, Error>>,
) -> Result<Vec<Result<T, Error>>, Error> {
    let Some(first) = guards.first() else { return Ok(Vec::new()) };
    first.refuse_after_fork()?;
    Ok(act(first.engine(), &guards.iter().map(LockGuard::hold).collect::<Vec<_>>()))
}

fn first_failure(outcomes: Vec<Result<(), Error>>) -> Result<(), Error> {
    let mut failures: Vec<Error> = outcomes.into_iter().filter_map(Result::err).collect();
    failures.sort_by_key(|error| !error.is_lost());
    failures.into_iter().next().map_or(Ok(()), Err)
}

/// Begins a hold with other options, at that time, in place of the one that a guard has.
pub(super) fn begin_anew(guard: LockGuard, options: &LockOptions, at: Now) -> LockGuard {
    let engine = Arc::clone(guard.engine());
    let Some(before) = guard.into_acquired() else { unreachable!("it is no nested one, and not released") };
    // The keeper may know it.
    before.hold.go_over(at);
    let acquired = engine.begun_anew(before, options, at);
    LockGuard::new(engine, acquired)
}

/// Has other threads of this process go on with locks of one locker, in one trip: their leases begin anew, and the holds
/// end as by a release. Returns a guard for the next thread, or the one that there was with why that did not go.
pub(super) fn hand_on(guards: Vec<LockGuard>) -> Vec<(LockGuard, Option<Error>)> {
    let Some(first) = guards.first() else { return Vec::new() };
    let handed = first.engine().hand_on(&guards.iter().map(LockGuard::hold).collect::<Vec<_>>());
    let now = clock::now();
    let next = |(guard, handed): (LockGuard, Result<(), Error>)| {
        // What the options say of the time that it is held begins with the thread that gets it.
        let options = guard.options().while_waiting(LockOptions::MAX_EXPIRATION);
        match handed {
            Ok(()) => (begin_anew(guard, &options, now), None),
            Err(error) => (guard, Some(error)),
        }
    };
    guards.into_iter().zip(handed).map(next).collect()
}

/// Releases locks of one locker, in one trip, that the program never had. Returns why some were not released.
pub(crate) fn give_back(guards: Vec<LockGuard>) -> Vec<Error> {
    let Some(engine) = guards.first().map(|first| Arc::clone(first.engine())) else { return Vec::new() };
    let parts = guards.into_iter().filter_map(LockGuard::into_acquired);
    let (holds, holders): (Vec<Arc<Hold>>, Vec<_>) = parts.map(|it| (it.hold, it.holder)).unzip();
    let ending = holds.iter().zip(holders).collect();
    let mut not_released = Vec::new();
    for (hold, released) in engine.end_holds(ending, Leaving::Release) {
        if let Some(error) = released.err().filter(|error| !error.is_lost()) {
            engine.observer.notify(&Event::ReleaseFailed { key: &hold.key, error: &error });
            not_released.push(error);
        }
    }
    not_released
}
