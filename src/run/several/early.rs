//! Locks that were acquired while others are waited for: they are kept meanwhile, and given back if another cannot be acquired.

use std::sync::Arc;
use std::time::Duration;

use super::WaitAll;
use crate::report::error::Error;
use crate::report::event::Event;
use crate::run::ending::Leaving;
use crate::run::engine::Engine;
use crate::run::held::Acquired;
use crate::run::hold::Hold;
use crate::values::clock;
use crate::values::options::LockOptions;

/// What part of the expiration may have passed of a lease, when the last lock is acquired, before it is extended.
const FRESH: u32 = 10;

/// How acquiring all has ended.
pub(super) enum InOrder {
    Acquired(Vec<Acquired>),
    /// One was lost while others were waited for; all are given back.
    Lost(Error),
}

impl WaitAll<'_> {
    /// Releases locks that are not wanted any more: those that were waited for, and those behind them. Returns why some were not released.
    pub(super) fn give_back(&self, early: Vec<Acquired>, behind: Vec<Acquired>) -> Vec<Error> {
        let behind = behind.into_iter().map(|acquired| self.keep_early(acquired, true));
        let parts = early.into_iter().chain(behind).map(|Acquired { hold, holder }| (hold, holder));
        let (holds, holders): (Vec<Arc<Hold>>, Vec<_>) = parts.unzip();
        let ending = holds.iter().map(|hold| &**hold).zip(holders);
        let failed = |(hold, released): (&Hold, Result<_, Error>)| {
            let error = released.err().filter(|error| !error.is_lost())?;
            self.call.engine.observer.notify(&Event::ReleaseFailed { key: &hold.key, error: &error });
            Some(error)
        };
        self.call.engine.end_all(ending, Leaving::Release).into_iter().filter_map(failed).collect()
    }

    /// Ends the wait for all, whose locks these are. One may have been lost meanwhile.
    pub(super) fn all_acquired(&self, early: Vec<Acquired>) -> Result<InOrder, Error> {
        if let Some(lost) = self.refresh(&early) {
            let others = self.give_back(early, Vec::new());
            let is_known = others.is_empty();
            let lost = lost.and(others);
            return if is_known { Ok(InOrder::Lost(lost)) } else { Err(lost) };
        }
        let now = clock::now();
        let acquired = |early: Acquired| {
            // The keeper may know it.
            early.hold.finish();
            self.call.engine.begun_anew(early, self.call.options, now)
        };
        Ok(InOrder::Acquired(early.into_iter().map(acquired).collect()))
    }

    /// Begins a hold, and has the keeper extend its lease if the others may take long.
    pub(super) fn keep_early(&self, acquired: Acquired, is_last: bool) -> Acquired {
        let options = self.call.options.while_waiting(LockOptions::MAX_EXPIRATION);
        let at = acquired.hold.acquired;
        let early = self.call.engine.begun_anew(acquired, &options, at);
        let hold = &early.hold;
        let rest = self.call.deadline.map_or(Duration::MAX, |deadline| deadline.since(at.uptime));
        if !is_last && options.expiration.is_some_and(|expiration| rest > expiration / 2) {
            self.call.engine.keep_from_now_on(hold);
        } else if !is_last {
            self.call.engine.look_once(hold);
        }
        early
    }

    /// Extends the leases that have lasted for a while, and has the keeper do no more. Returns why a lock was lost.
    fn refresh(&self, early: &[Acquired]) -> Option<Error> {
        let holds = || early.iter().map(|early| &early.hold);
        if let Some(expiration) = self.call.options.expiration {
            let now = clock::now();
            let is_fresh = |hold: &Hold| {
                let left = hold.remaining(now);
                left.is_some_and(|left| left >= expiration.saturating_sub(expiration / FRESH))
            };
            let stale: Vec<&Arc<Hold>> = holds().filter(|hold| !is_fresh(hold)).collect();
            let extended = self.call.engine.extend(&stale, None);
            if let Some(error) = extended.into_iter().find_map(Result::err) {
                return Some(error);
            }
        }
        // The keeper may have found out what the extensions did not see.
        for hold in holds() {
            hold.own().over = true;
            self.call.engine.forget(hold);
        }
        let now = clock::now();
        holds().find_map(|hold| hold.lost(now).map(|reason| Engine::lost(hold, reason, now)))
    }

    /// Returns the error of a wait for one lock as that of the wait for all.
    pub(super) fn with_whole_wait(&self, mut error: Error) -> Error {
        let whole = clock::uptime().since(self.call.began.uptime);
        match &mut error {
            Error::Contended { details, .. } => details.waited = whole,
            Error::Cancelled { waited, .. } => *waited = whole,
            _ => {}
        }
        error
    }
}
