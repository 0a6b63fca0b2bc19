//! Locks that go from one process to another by a token.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use setnx_lock::{Error, Lock, LockOptions, LockToken, Protocol};
use world::run::{self, chance, random};
use world::thread;

use super::Client;
use crate::calls::{Holding, left, refused, timed, told, up_to};
use crate::laws::{self, HoldId};

/// The tokens that were given away and not taken yet, as texts: what one process would send to another.
static GIVEN: Mutex<Vec<(String, HoldId, Duration)>> = Mutex::new(Vec::new());

/// How far clocks may be apart, and how long commands take.
const CLOCKS: Duration = Duration::from_secs(1);

impl Client {
    fn handed_over(&self) -> Lock {
        let (options, _) = self.options(self.plan.shared_expiration);
        let options: LockOptions = options.notify_waiters(self.plan.notifies);
        match Lock::new(&self.locker, "handed over", options) {
            Ok(lock) => lock,
            Err(error) => laws::broken(&format!("options are refused: {}", error.chain())),
        }
    }

    /// Acquires a lock, and gives it to whoever resumes it.
    pub(super) fn hand_over(&self) {
        let lock = self.handed_over();
        let guard = match timed("try_lock", self.limits.command, || lock.try_lock()) {
            Ok(Some(guard)) => guard,
            Ok(None) => return,
            Err(error) => return refused("handed over", run::now(), &error),
        };
        let holding = Holding::begin([&guard], None, self.limits);
        let id = holding.id();
        if !holding.work(up_to(self.plan.shared_expiration / 4)) {
            return;
        }
        let until = run::later(left(&guard));
        holding.end();
        // One that fails releases the lock.
        let limit = self.limits.of_release(left(&guard)) + self.limits.command;
        match timed("into_token", limit, || guard.into_token()) {
            Ok(token) => {
                GIVEN.lock().unwrap_or_else(PoisonError::into_inner).push((token.to_string(), id, until));
            }
            Err(error) => told(id, &error),
        }
        laws::forget(id);
    }

    /// Goes on with a lock that was handed over, or releases it.
    pub(super) fn resume(&self) {
        let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
        if given.is_empty() {
            return;
        }
        let at = usize::try_from(random(0..given.len() as u64)).unwrap_or_default();
        let (text, before, until) = given.swap_remove(at);
        drop(given);
        thread::sleep(up_to(self.plan.shared_expiration / 2));
        let token: LockToken =
            text.parse().unwrap_or_else(|error| laws::broken(&format!("{text}: {error:?}")));
        let lock = self.handed_over();
        if chance(4) {
            let outcome =
                timed("release_token", 2 * self.limits.command, || self.locker.release_token(&token));
            return outcome.unwrap_or_else(|error| self.not_used(until, &error));
        }
        match timed("resume", self.limits.command, || lock.resume(&token)) {
            Ok(guard) => {
                let holding = Holding::begin([&guard], None, self.limits);
                laws::same_hold(holding.id(), before);
                holding.work(up_to(self.plan.shared_expiration / 4));
                holding.end().by(|| guard.release());
            }
            Err(error) => self.not_used(until, &error),
        }
    }

    /// A token works once, as long as its lease lasts by the clock of the process that uses it.
    fn not_used(&self, until: Duration, error: &Error) {
        run::note(&format!("token: {}", error.chain()));
        laws::failed(error);
        let is_shut_down = matches!(error, Error::ShutDown { .. });
        // In Classic the loser of a takeover may have overwritten the value that the token names.
        let has_losers = self.plan.protocol == Protocol::Classic || self.plan.others.is_some();
        if self.plan.has_no_faults() && !has_losers && !is_shut_down && run::now() + CLOCKS < until {
            laws::broken(&format!("a token does not work although nothing was wrong: {}", error.chain()));
        }
    }
}
