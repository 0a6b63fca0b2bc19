//! The options of a lock: how long it may be held, how long a call waits for it, how often it polls. Plain values,
//! all `const fn`; [`Lock::new`](crate::Lock::new) refuses invalid ones.

mod holding;
mod problem;

use std::fmt;
use std::time::Duration;

use proto::values::{Protocol, Terms};

/// How a lock behaves: its expiration, how long a call waits for it, and the commands that it sends.
///
/// Begin with [`expiring_after`](Self::expiring_after) and refine the result. Every method is `const`, and the
/// options are `Copy`. [`Lock::new`](crate::Lock::new) refuses invalid options with
/// [`Error::Invalid`](crate::Error::Invalid).
///
/// All clients of a key should use the same options. [`Protocol::Classic`] [is
/// weaker](crate::documentation::limits#different-expirations) if the expirations differ.
///
/// ```
/// use setnx_lock::{LockOptions, Protocol};
/// use std::time::Duration;
///
/// // The lease lasts 15 s. A call waits for up to 2 s.
/// const OPTIONS: LockOptions = LockOptions::expiring_after(Duration::from_secs(15))
///     .timeout(Duration::from_secs(2))
///     .protocol(Protocol::Auto);
///
/// // The same, for work that may take up to an hour.
/// const LONG_WORK: LockOptions = OPTIONS.auto_extend(Duration::from_secs(3600));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
pub struct LockOptions {
    /// What the rules know of them.
    pub(crate) terms: Terms,
    /// `None` waits for ever.
    pub(crate) timeout: Option<Duration>,
    pub(crate) protocol: Protocol,
    /// True if releases wake waiters of other processes; `None` leaves it to the protocol.
    pub(crate) notifies: Option<bool>,
    /// True if all clients of the key do.
    pub(crate) all_notify: bool,
    pub(crate) reentrant: bool,
    pub(crate) releases_later: bool,
}

impl fmt::Debug for LockOptions {
    /// Shows the expiration, the timeout and the protocol, and every other option that is set.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unset, Self { terms, .. }) = (Self::without_expiration(), self);
        let mut shown = f.debug_struct("LockOptions");
        shown.field("expiration", &terms.expiration).field("timeout", &self.timeout);
        shown.field("protocol", &self.protocol);
        macro_rules! show_if_set {
            ($of:expr, $unset:expr, $($name:ident),*) => {$(
                if $of.$name != $unset.$name {
                    shown.field(stringify!($name), &$of.$name);
                }
            )*};
        }
        show_if_set!(terms, unset.terms, poll_interval);
        show_if_set!(self, unset, notifies);
        if self.all_notify {
            shown.field("all_clients_notify", &true);
        }
        show_if_set!(terms, unset.terms, max_attempts, auto_extend, hold_at_least);
        show_if_set!(self, unset, reentrant);
        if self.releases_later {
            shown.field("release_later_on_drop", &true);
        }
        show_if_set!(terms, unset.terms, forget_tokens_after);
        shown.finish_non_exhaustive()
    }
}

impl LockOptions {
    /// The longest expiration, ten years.
    pub const MAX_EXPIRATION: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

    /// The timeout unless [set](Self::timeout), 5 s.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

    /// The poll interval unless [set](Self::poll_interval), 0.1 s.
    pub const DEFAULT_POLL_INTERVAL: Duration = Terms::POLL_INTERVAL;

    /// Returns options for a lock whose lease lasts for `expiration`, from 1 ms to
    /// [`MAX_EXPIRATION`](Self::MAX_EXPIRATION).
    ///
    /// Choose it well above the longest time that the work can take, or extend the lease with
    /// [`auto_extend`](Self::auto_extend) or [`LockGuard::extend`](crate::LockGuard::extend). **Work that outlasts
    /// the lease keeps running while another client can take the lock.**
    ///
    /// If the holder crashes, others can acquire the lock at most one second after the lease ends, or half a second
    /// after it in [`Protocol::Ttl`].
    pub const fn expiring_after(expiration: Duration) -> Self {
        Self { terms: Terms::expiring_after(expiration), ..Self::without_expiration() }
    }

    /// Returns options for a lock that is held until it is released.
    ///
    /// If the holder crashes, the lock stays held until [`Lock::clear`](crate::Lock::clear) is called. The value in
    /// the key is `1`, which names no holder. After a lost reply it is therefore unknown who holds the lock, and
    /// the call returns [`Error::InDoubt`](crate::Error::InDoubt).
    ///
    /// Prefer [`expiring_after`](Self::expiring_after): see [the
    /// limits](crate::documentation::limits#locks-without-an-expiration).
    pub const fn without_expiration() -> Self {
        Self {
            terms: Terms::without_expiration(),
            timeout: Some(Self::DEFAULT_TIMEOUT),
            protocol: Protocol::Classic,
            notifies: None,
            all_notify: false,
            reentrant: false,
            releases_later: false,
        }
    }

    /// Sets the protocol, which is [`Protocol::Classic`] by default.
    ///
    /// [`Protocol::Auto`] selects the best protocol that the server supports. Programs with different protocols
    /// exclude each other, within [limits](crate::documentation::limits#mixed-protocols). For locks that Ruby
    /// programs also use, see [which protocol](crate::documentation::from_ruby#which-protocol).
    pub const fn protocol(self, protocol: Protocol) -> Self {
        Self { protocol, ..self }
    }

    /// Sets how long calls such as [`Lock::lock`](crate::Lock::lock) and [`Lock::with`](crate::Lock::with) wait, 5
    /// s by default. With [`Duration::ZERO`] they make one attempt.
    ///
    /// The last attempt is made at the deadline. [`Lock::try_lock_for`](crate::Lock::try_lock_for) ignores this
    /// timeout and takes its own.
    pub const fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// Removes the timeout, so that a call waits until it acquires the lock.
    ///
    /// Other errors still end the wait. While the server is unreachable, the call gives up after
    /// [`LockerBuilder::retry_for`](crate::LockerBuilder::retry_for).
    pub const fn wait_forever(self) -> Self {
        Self { timeout: None, ..self }
    }

    /// Limits the attempts of a call, at least 1. No limit by default.
    ///
    /// The call fails with [`Error::Contended`](crate::Error::Contended) after this many attempts, or at its
    /// timeout if that comes first. An attempt is a request for the lock, or a look at the key after a pause.
    /// Attempts of threads that are queued ahead in this process do not count. With 1, a call waits for its turn in
    /// the process and tries once.
    pub const fn max_attempts(self, attempts: u32) -> Self {
        Self { terms: Terms { max_attempts: Some(attempts), ..self.terms }, ..self }
    }

    /// Sets how long a waiter pauses between two attempts, from 1 ms to ten years. The default is 0.1 s.
    ///
    /// A waiter pauses for less if its deadline, or the end of the lease that it saw, comes sooner.
    pub const fn poll_interval(self, interval: Duration) -> Self {
        Self { terms: Terms { poll_interval: interval, ..self.terms }, ..self }
    }

    /// Turns release notifications on or off. By default they are on in [`Protocol::Auto`] and off in the other
    /// protocols.
    ///
    /// A release notifies the process that has waited longest, which tries at once instead of at its next poll.
    /// Waiters keep polling, so a lost notification costs one poll interval. All Rust clients of the key should use
    /// notifications; Ruby programs send none.
    ///
    /// Notifications need Redis 2.0 or newer, and one more connection, on which the locker listens for all keys.
    /// [`Lock::new`](crate::Lock::new) refuses `true` on a locker made by
    /// [`Locker::with_pool`](crate::Locker::with_pool). Waiting processes are listed in the key
    /// `KEY:setnx-lock:waiters:{KEY}`.
    pub const fn notify_waiters(self, notifies: bool) -> Self {
        Self { notifies: Some(notifies), ..self }
    }

    /// Promises that all clients of the key notify each other, and turns [notifications](Self::notify_waiters) on. Off
    /// by default.
    ///
    /// Otherwise a process that keeps a key busy leaves it alone for 110 ms of each second, for clients that only poll,
    /// such as Ruby programs: these leave no trace on a key that is never free. With the promise it does not, so that
    /// no thread waits for that. A client that only polls may then wait for as long as the key is busy; it is never a
    /// second holder. On a server without notifications the promise has no effect.
    pub const fn all_clients_notify(self) -> Self {
        Self { notifies: Some(true), all_notify: true, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_the_gem_s() {
        let options = LockOptions::without_expiration();
        assert_eq!(options.timeout, Some(Duration::from_secs(5)));
        assert_eq!(options.terms.poll_interval, Duration::from_millis(100));
        assert_eq!(options.notifies, None);
        assert_eq!(options.problem(), None);
    }

    #[test]
    fn what_a_holder_cannot_do_is_named() {
        const SECOND: Duration = Duration::from_secs(1);
        let problem = |options: LockOptions| options.problem().unwrap_or_default();
        let (expiring, endless) =
            (LockOptions::expiring_after(10 * SECOND), LockOptions::without_expiration());
        for (options, words) in [
            (endless.auto_extend(SECOND), "does nothing without"),
            (expiring.auto_extend(9 * SECOND), "less time in total than the expiration"),
            (expiring.auto_extend(Duration::MAX), "forever"),
            (endless.hold_at_least(SECOND), "needs an expiration"),
            (expiring.hold_at_least(11 * SECOND), "longer than the expiration"),
            (expiring.max_attempts(0), "at least 1"),
            (endless.forget_tokens_after(SECOND), "needs an expiration"),
            (expiring.forget_tokens_after(9 * SECOND), "less than the expiration"),
            (expiring.forget_tokens_after(Duration::MAX), "over ten years"),
        ] {
            assert!(problem(options).contains(words), "{options:?}: {}", problem(options));
        }
        let all = expiring.auto_extend(10 * SECOND).hold_at_least(10 * SECOND).max_attempts(1);
        assert_eq!(all.reentrant().problem(), None);
    }

    #[test]
    fn what_is_not_set_is_not_shown() {
        let options = LockOptions::expiring_after(Duration::from_secs(1)).reentrant();
        assert_eq!(
            format!("{options:?}"),
            "LockOptions { expiration: Some(1s), timeout: Some(5s), protocol: Classic, reentrant: true, .. }"
        );
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let problem = |options: LockOptions| options.problem().unwrap_or_default();
        assert!(problem(LockOptions::expiring_after(Duration::ZERO)).contains("zero"));
        assert!(
            problem(LockOptions::expiring_after(Duration::from_micros(999))).contains("below a millisecond")
        );
        assert_eq!(LockOptions::expiring_after(Duration::from_millis(1)).problem(), None);
        assert!(problem(LockOptions::expiring_after(Duration::MAX)).contains("ten years"));
        let options = LockOptions::expiring_after(LockOptions::MAX_EXPIRATION);
        assert_eq!(options.problem(), None);
        assert!(problem(options.poll_interval(Duration::from_micros(999))).contains("poll interval"));
        assert_eq!(options.poll_interval(Duration::from_millis(1)).problem(), None);
        let endless = LockOptions::without_expiration();
        assert!(problem(endless.protocol(Protocol::Ttl)).contains("needs an expiration"));
        assert_eq!(endless.protocol(Protocol::Watched).problem(), None);
        assert_eq!(options.protocol(Protocol::Ttl).problem(), None);
        assert!(problem(options.poll_interval(Duration::MAX)).contains("ten years"));
    }
}
