//! Leading: of several processes one does the work, again and again, until it is told to stop.

use std::time::Duration;

use proto::values::{Key, Terms, Uptime};

use crate::extend::HoldKind;
use crate::system::clock;
use crate::system::thread;
use crate::{CancelToken, Error, Event, Lock, LockGuard, LockOptions, Locker};

/// How long the pause after a failure is, or after a term that was not longer: at first, and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];
/// How late a pause notices that the locker was shut down.
const NOTICED_AFTER: Duration = Duration::from_millis(50);

impl Lock {
    /// Waits for the lock, runs `body` while it is held, and begins again when `body` returns, until `stop` is
    /// cancelled. So of several processes that call it one leads at a time, and another follows it.
    ///
    /// Waits for as long as it takes, whatever the timeout of the options. While `body` runs, a background thread
    /// extends the lease, for ever unless the options have an [`auto_extend`](LockOptions::auto_extend). `body` has to
    /// end soon when it leads no more: when its guard's [`loss_signal`](LockGuard::loss_signal) says so, or `stop` is
    /// cancelled. The lock is released when `body` returns or panics.
    ///
    /// Whatever fails is tried again after a pause, which grows from 0.1 s to 1 s while it fails, or while `body`
    /// returns within a second: an unreachable server, a failover, a refusal, a loss. [`Event::LeadershipFailed`]
    /// reports why. [`Event::LeadershipBegan`] and [`Event::LeadershipEnded`] tell when this process leads;
    /// [`holder`](Self::holder) names the leader, if lockers have names.
    ///
    /// If the leader crashes, another that waits leads at most 1.1 s after its lease has ended; if it ends
    /// in order, within a poll interval of 0.1 s, or at once with
    /// [notifications](LockOptions::notify_waiters). One that is in its pause may take a second more. `stop`
    /// takes the place of the lock's own [`CancelToken`], and [`max_attempts`](LockOptions::max_attempts)
    /// has no effect. [The guide](crate::documentation::guide#lead) has an example.
    ///
    /// # Errors
    ///
    /// None once `stop` is cancelled, or the locker is shut down, which does not end a `body` that runs. Otherwise what
    /// no later attempt can change: [`Error::Invalid`] without an expiration, [`Error::Nested`] inside a
    /// [`with`](Self::with) of this thread on the key, and [`Error::Forked`].
    pub fn lead(&self, stop: &CancelToken, mut body: impl FnMut(&LockGuard)) -> Result<(), Error> {
        if self.options.terms.expiration.is_none() {
            let problem = "it has no expiration, so no process could follow a leader that crashes; use `expiring_after`";
            return Err(Error::invalid(self.key().clone(), problem));
        }
        let (lock, locker) = (self.leading(stop), self.locker());
        let mut pause = Duration::ZERO;
        loop {
            match lock.acquire(&lock.options, Some(HoldKind::Scoped)) {
                Ok(held) => {
                    let term = Term::begin(locker, &self.key);
                    // Dropped before the term.
                    let held = held;
                    body(&held);
                    locker.refuse_after_fork(self.key())?;
                    if term.lasted() > PAUSES[1] {
                        pause = Duration::ZERO;
                    }
                    // The term ends after the release, whatever a dropped guard does. A loss has been reported.
                    let _ = held.leave();
                }
                Err(Error::Cancelled { .. } | Error::ShutDown { .. }) => return Ok(()),
                Err(error @ (Error::Invalid { .. } | Error::Nested { .. } | Error::Forked { .. })) => {
                    return Err(error);
                }
                Err(error) => {
                    locker.notify(&Event::LeadershipFailed { key: self.key(), error: &error });
                }
            }
            pause = (2 * pause).clamp(PAUSES[0], PAUSES[1]);
            pause_until(clock::uptime().after(pause), || stop.is_cancelled() || locker.is_shut_down());
        }
    }

    /// Returns the lock as it is led.
    fn leading(&self, stop: &CancelToken) -> Self {
        let options = self.options.wait_forever();
        let options = if options.terms.auto_extend.is_none() {
            options.auto_extend(LockOptions::MAX_EXPIRATION)
        } else {
            options
        };
        let terms = Terms { max_attempts: None, ..options.terms };
        let cancel_token = Some(stop.clone());
        Self { options: LockOptions { terms, ..options }, cancel_token, ..self.clone() }
    }
}

/// The time for which a process leads. It ends after the guard, also by a panic.
struct Term<'a> {
    locker: &'a Locker,
    key: &'a Key,
    began: Uptime,
}

impl<'a> Term<'a> {
    fn begin(locker: &'a Locker, key: &'a Key) -> Self {
        locker.notify(&Event::LeadershipBegan { key });
        Self { locker, key, began: clock::uptime() }
    }

    fn lasted(&self) -> Duration {
        clock::uptime().since(self.began)
    }
}

impl Drop for Term<'_> {
    fn drop(&mut self) {
        if self.locker.refuse_after_fork(self.key).is_ok() {
            self.locker.notify(&Event::LeadershipEnded { key: self.key, led: self.lasted() });
        }
    }
}

fn pause_until(until: Uptime, is_over: impl Fn() -> bool) {
    while !is_over() {
        let left = until.since(clock::uptime());
        if left.is_zero() {
            return;
        }
        thread::sleep(left.min(NOTICED_AFTER));
    }
}
