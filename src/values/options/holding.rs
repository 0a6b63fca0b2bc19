//! What a holder does with its lock: the options that concern a lock once it is held.

use std::time::Duration;

use super::LockOptions;

impl LockOptions {
    /// Returns the options with a lease that a thread of the locker extends while the lock is held: when a third of the expiration has passed,
    /// and again after a failure while the lease lasts. It stops when the lock is released or lost, and `at_most` after the acquisition; from
    /// then on the lease runs out normally. So the expiration can be short and a crashed holder replaced soon, even if some work takes long.
    /// `at_most` is at least the expiration.
    ///
    /// It works while the holder's thread is busy or blocked, and so **it does not notice that the work hangs**: such a lock stays held for
    /// `at_most`. A stopped process (SIGSTOP, a machine that pauses) extends nothing: see
    /// [the guide](crate::documentation::guide#extend-the-lease). A loss is noticed within a third of the expiration
    /// ([`LockGuard::loss_signal`](crate::LockGuard::loss_signal)).
    ///
    /// Acquiring and releasing send nothing more; each extension is as [`LockGuard::extend`](crate::LockGuard::extend), and those of many
    /// locks go together. A forked child extends nothing. The gem has no such option.
    pub const fn auto_extend(self, at_most: Duration) -> Self {
        Self { auto_extend: Some(at_most), ..self }
    }

    /// Returns the options with a minimum hold time. A release before then deletes nothing: the lease ends `time` after the acquisition, and
    /// others can acquire the lock at most one second later. At most the expiration; zero unless set. For a job that several machines start at
    /// about the same time and only one should run: [the guide](crate::documentation::guide#jobs-on-several-machines).
    ///
    /// Such a release sends what an extension sends, with the earlier time. Gems respect it. The `lockAtLeastFor` of other libraries; the gem has no such option.
    pub const fn hold_at_least(self, time: Duration) -> Self {
        Self { hold_at_least: time, ..self }
    }

    /// Returns the options with nested calls: a [`with`](crate::Lock::with) inside another one on the same key, by the same thread and
    /// through the same locker or a clone of it, joins that hold instead of failing, if both have this option. Nothing is sent; the
    /// outermost call releases. Extensions, losses and fencing tokens are those of the one hold.
    ///
    /// Only `with`, and functions with the attribute `locked`: their guard cannot leave the thread. A guard of [`lock`](crate::Lock::lock)
    /// can be released on another thread at any moment, and a nested one would not know. The gem has no such option.
    pub const fn reentrant(self) -> Self {
        Self { reentrant: true, ..self }
    }

    /// Returns the options of a lock on one server of a quorum: given back at once without a majority.
    pub(crate) const fn in_a_quorum(self) -> Self {
        Self { notifies: Some(false), reentrant: false, hold_at_least: Duration::ZERO, ..self }
    }

    /// Returns the options of a lock that is held while others are waited for: its lease is extended, for `at_most` in total.
    pub(crate) const fn while_waiting(self, at_most: Duration) -> Self {
        let auto_extend = if self.expiration.is_some() { Some(at_most) } else { None };
        Self { auto_extend, hold_at_least: Duration::ZERO, ..self }
    }

    /// Returns the options as far as they matter while the lock is waited for.
    pub(crate) const fn of_waiting(self) -> Self {
        Self {
            timeout: None,
            max_attempts: None,
            auto_extend: None,
            hold_at_least: Duration::ZERO,
            reentrant: false,
            ..self
        }
    }
}
