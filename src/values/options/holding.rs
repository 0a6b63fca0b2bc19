//! The options that take effect while a lock is held.

use std::time::Duration;

use proto::values::{Terms, Token, Wall};

use super::LockOptions;

impl LockOptions {
    /// Extends the lease in the background while the lock is held,
    /// until `at_most` after the acquisition. Off by default.
    ///
    /// A thread of the locker, the keeper, extends the lease after a third of the expiration has passed. If an
    /// extension fails, the keeper retries while the lease lasts. The keeper stops when the lock is released or
    /// lost. The last lease ends `at_most` after the acquisition.
    ///
    /// With this option the expiration can be short, so that a crashed holder is replaced soon, even if the work
    /// takes long. It adds no commands to an acquisition or a release. `at_most` must be at least the expiration,
    /// and at most [`MAX_EXPIRATION`](Self::MAX_EXPIRATION).
    ///
    /// **The keeper does not notice that the work hangs**: the lock then stays held for `at_most`. A stopped
    /// process (SIGSTOP, a machine that pauses) extends nothing, and neither does a forked child. The keeper
    /// notices a loss within a third of the expiration: see
    /// [`LockGuard::loss_signal`](crate::LockGuard::loss_signal).
    pub const fn auto_extend(self, at_most: Duration) -> Self {
        Self { terms: Terms { auto_extend: Some(at_most), ..self.terms }, ..self }
    }

    /// Sets the minimum hold time, at most the expiration. Zero by default.
    ///
    /// A lock released sooner stays held until `time` after the acquisition. Its key is then left to expire, and
    /// others can acquire the lock at most one second later.
    ///
    /// Use it for a job that several machines start at about the same time and only one should run: [the
    /// guide](crate::documentation::guide#jobs-on-several-machines). Other libraries call this option
    /// `lockAtLeastFor`.
    pub const fn hold_at_least(self, time: Duration) -> Self {
        Self { terms: Terms { hold_at_least: time, ..self.terms }, ..self }
    }

    /// Has the server forget the counter of [fencing tokens](crate::LockGuard::fencing_token) this long after it was
    /// last used, so that keys of records leave no counter behind. Off by default: counters are kept for ever.
    ///
    /// The next token is 1 then. **So the storage has to forget its greatest token before that**: [the
    /// guide](crate::documentation::guide#fencing-tokens) has the rule. Choose days, not minutes. All clients of the
    /// key have to set the same time.
    ///
    /// `EXPIRE` goes along with the `INCR` of a token, and with each extension of a holder that has one: in the same
    /// trip, in Classic once `GET` has found its value, in a trip of its own. A [lock token](crate::LockToken) carries
    /// the time along. It is rounded up to seconds, and must be at least the expiration. Needs Redis 2.2, since `INCR`
    /// drops a time to live before: [`fencing_token`](crate::LockGuard::fencing_token) fails on an older server, and in
    /// Classic on one whose version is unknown.
    pub const fn forget_tokens_after(self, time: Duration) -> Self {
        Self { terms: Terms { forget_tokens_after: Some(time), ..self.terms }, ..self }
    }

    /// Lets a [`with`](crate::Lock::with) inside another `with` on the same key join it. Off by default: the inner
    /// call fails with [`Error::Nested`](crate::Error::Nested).
    ///
    /// Both locks need this option, the same thread, and the same [`Locker`](crate::Locker)
    /// or a clone of it. The inner call sends nothing, and the outermost call releases.
    /// Extensions, losses and fencing tokens are those of the one hold.
    ///
    /// The option applies to `with`, `with_result` and functions with the attribute `locked`. Guards are not
    /// reentrant, because a guard can be released on another thread at any moment.
    pub const fn reentrant(self) -> Self {
        Self { reentrant: true, ..self }
    }

    /// Has a dropped guard [release in the background](crate::LockGuard::release_later), so that dropping it never waits
    /// for the server, unless the locker was shut down or drained before. Off by default: dropping a guard releases the
    /// lock as [`release`](crate::LockGuard::release) does.
    ///
    /// Applies to guards and permits of all kinds, which are dropped without a call of `release`. A
    /// [`with`](crate::Lock::with) whose body returns still waits for the release.
    pub const fn release_later_on_drop(self) -> Self {
        Self { releases_later: true, ..self }
    }

    /// Returns the options of a lock on one server of a quorum, which is given back at once if there is no
    /// majority.
    pub(crate) const fn in_a_quorum(self) -> Self {
        let terms = Terms { hold_at_least: Duration::ZERO, ..self.terms };
        Self { terms, notifies: Some(false), reentrant: false, releases_later: false, ..self }
    }

    /// Returns the options of a lock that is held during the wait
    /// for others: its lease is extended for `at_most` in total.
    pub(crate) const fn while_waiting(self, at_most: Duration) -> Self {
        let auto_extend = if self.terms.expiration.is_some() { Some(at_most) } else { None };
        Self { terms: Terms { auto_extend, hold_at_least: Duration::ZERO, ..self.terms }, ..self }
    }

    /// Returns the options of a hold that goes on now with a token's: its times count from the acquisition.
    pub(crate) fn resuming(self, token: &Token, now: Wall) -> Self {
        let held = now.since(token.acquired);
        let Self { terms, .. } = self;
        let hold_at_least = terms.hold_at_least.max(token.hold_at_least).saturating_sub(held);
        let limit = token.auto_extend.or(terms.auto_extend);
        let auto_extend = limit.map(|limit| limit.saturating_sub(held));
        let counted = token.fencing_token.is_some();
        let forget_tokens_after = if counted { token.forget_after } else { terms.forget_tokens_after };
        Self { terms: Terms { auto_extend, hold_at_least, forget_tokens_after, ..terms }, ..self }
    }

    /// Returns only the options that matter during the wait for the lock.
    pub(crate) const fn of_waiting(self) -> Self {
        let Terms { expiration, poll_interval, allowance, .. } = self.terms;
        let terms = Terms { expiration, poll_interval, allowance, ..Terms::without_expiration() };
        Self { terms, timeout: None, reentrant: false, releases_later: false, ..self }
    }
}
