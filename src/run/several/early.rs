//! Locks that are held while others are waited for: they are
//! kept meanwhile, and given back if another cannot be acquired.

use std::sync::Arc;
use std::time::Duration;

use proto::several::is_stale;

use super::WaitAll;
use crate::report::error::Error;
use crate::report::event::Event;
use crate::run::ending::Leaving;
use crate::run::engine::Engine;
use crate::run::held::Acquired;
use crate::run::hold::Hold;
use crate::system::clock;
use crate::values::options::LockOptions;

impl WaitAll<'_> {
    /// Releases locks that are granted or held, and not wanted now. One whose command had no reply is owed.
    pub(super) fn give_back(&mut self, locks: &[usize]) {
        let now = clock::now();
        let mut parts = Vec::with_capacity(locks.len());
        for lock in locks {
            self.rules.forget(*lock);
            // What is known of it since says more.
            self.not_released.retain(|error| error.key() != Some(&self.keys[*lock]));
            let in_doubt = self.in_doubt(*lock);
            self.not_released.extend(in_doubt);
            let early = self.early[*lock].take().or_else(|| {
                let mut asked = self.asked[*lock].take()?;
                asked.at = now;
                let is_last = true;
                Some(self.hold_early(self.call.hold(self.call.shared, &mut asked), is_last))
            });
            parts.extend(early.map(|Acquired { hold, holder }| (hold, holder)));
        }
        let (holds, holders): (Vec<Arc<Hold>>, Vec<_>) = parts.into_iter().unzip();
        let ending = holds.iter().map(|hold| &**hold).zip(holders);
        for (hold, released) in self.call.engine.end_holds(ending, Leaving::Release) {
            if let Some(error) = released.err().filter(|error| !error.is_lost()) {
                self.call.engine.observer.notify(&Event::ReleaseFailed { key: &hold.key, error: &error });
                self.not_released.push(error);
            }
        }
    }

    /// Begins the holds anew, as those of all locks.
    pub(super) fn all_held(self) -> Vec<Acquired> {
        let now = clock::now();
        let held = |early: Acquired| {
            // The keeper may know it.
            early.hold.finish();
            self.call.engine.begun_anew(early, self.call.options, now)
        };
        self.early.into_iter().flatten().map(held).collect()
    }

    /// Begins a hold, and has the keeper extend its lease if the others may take long.
    pub(super) fn hold_early(&self, acquired: Acquired, is_last: bool) -> Acquired {
        let options = self.call.options.while_waiting(LockOptions::MAX_EXPIRATION);
        let at = acquired.hold.acquired;
        let early = self.call.engine.begun_anew(acquired, &options, at);
        let hold = &early.hold;
        let rest = self.call.deadline.map_or(Duration::MAX, |deadline| deadline.since(at.uptime));
        if !is_last && options.terms.expiration.is_some_and(|expiration| rest > expiration / 2) {
            self.call.engine.keep_from_now_on(hold);
        } else if !is_last {
            self.call.engine.look_once(hold);
        }
        early
    }

    /// Extends the leases that have lasted for a while, and has the keeper do no more. Returns why a lock was lost.
    pub(super) fn refresh(&self) -> Option<Error> {
        let (engine, holds) = (self.call.engine, || self.early.iter().flatten().map(|early| &early.hold));
        if let Some(expiration) = self.call.options.terms.expiration {
            let now = clock::now();
            let stale: Vec<&Arc<Hold>> =
                holds().filter(|hold| is_stale(hold.remaining(now), expiration)).collect();
            if let Some(error) = engine.extend(&stale, None).into_iter().find_map(Result::err) {
                return Some(error);
            }
        }
        // The keeper may have found out what the extensions did not see.
        for hold in holds() {
            let mut state = hold.state();
            state.over = true;
            engine.forget(&mut state);
        }
        let now = clock::now();
        holds().find_map(|hold| hold.lost(now).map(|reason| Engine::lost(hold, reason, now)))
    }
}
