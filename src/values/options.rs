//! The options of a lock: how long it may be held, how long to wait for it, how often to look. Plain values, all
//! `const fn`; what is invalid is refused when a [`Lock`](crate::Lock) is made of them.

mod holding;
mod problem;
mod protocol;

use std::fmt;
use std::time::Duration;

use crate::values::version::Version;

pub use protocol::Protocol;

/// How a lock behaves. Cheap to copy; every method is `const`.
///
/// The first choice is what happens when a holder crashes: with [`expiring_after`](Self::expiring_after) others take over, with
/// [`without_expiration`](Self::without_expiration) the key has to be cleared by hand.
///
/// All clients of one key should use equal options. With different expirations on one key the protocol is weaker:
/// [`documentation::limits`](crate::documentation::limits).
///
/// ```
/// use setnx_lock::{LockOptions, Protocol};
/// use std::time::Duration;
///
/// const OPTIONS: LockOptions = LockOptions::expiring_after(Duration::from_secs(15))
///     .timeout(Duration::from_millis(100))
///     .protocol(Protocol::Auto);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
pub struct LockOptions {
    pub(crate) expiration: Option<Duration>,
    /// `None` waits for ever.
    pub(crate) timeout: Option<Duration>,
    /// How long a waiter sleeps between two looks.
    pub(crate) poll_interval: Duration,
    pub(crate) takeover: Takeover,
    pub(crate) protocol: Protocol,
    /// Whether releases wake waiters of other processes; `None` is that of the protocol.
    pub(crate) notifies: Option<bool>,
    /// How often the lock is asked for at most.
    pub(crate) max_attempts: Option<u32>,
    /// How long the lease is extended in total.
    pub(crate) auto_extend: Option<Duration>,
    /// How long after its acquisition the lock may be released.
    pub(crate) hold_at_least: Duration,
    pub(crate) reentrant: bool,
    /// How much earlier a lease ends, so that clocks may differ by more than the extra second; only in a quorum.
    pub(crate) allowance: Duration,
}

/// Which locks an expiring lock may take over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Takeover {
    /// Only one whose time has passed (I1).
    Expired,
    /// Whatever the gem reads as a number below now: also `1`, the empty value and what is no number.
    AsTheGem,
}

impl fmt::Debug for LockOptions {
    /// Shows the expiration, the timeout and the protocol, and of the others those that are set.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unset = Self::without_expiration();
        let mut shown = f.debug_struct("LockOptions");
        shown.field("expiration", &self.expiration).field("timeout", &self.timeout);
        shown.field("protocol", &self.protocol);
        macro_rules! show_if_set {
            ($($name:ident),*) => {$(
                if self.$name != unset.$name {
                    shown.field(stringify!($name), &self.$name);
                }
            )*};
        }
        show_if_set!(poll_interval, takeover, notifies, max_attempts, auto_extend, hold_at_least, reentrant);
        shown.finish_non_exhaustive()
    }
}

impl LockOptions {
    /// The longest expiration: ten years.
    pub const MAX_EXPIRATION: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

    /// How long a wait lasts unless set: 5 s, as in the gem.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

    /// How long a waiter sleeps between two looks unless set: 0.1 s, as in the gem.
    pub const DEFAULT_POLL_INTERVAL: Duration = Duration::from_millis(100);

    /// Returns options for a lock that its holder has for `expiration`. After a crash others can acquire it at most one second later (half a
    /// second in Ttl). Choose it well above the longest time the protected work can take.
    ///
    /// The gem's `expiration:`. Accepted are a millisecond to [`MAX_EXPIRATION`](Self::MAX_EXPIRATION).
    pub const fn expiring_after(expiration: Duration) -> Self {
        Self { expiration: Some(expiration), ..Self::without_expiration() }
    }

    /// Returns options for a lock that is held until it is released, however long that takes: after its holder has crashed
    /// it stays held until [`Lock::clear`](crate::Lock::clear) is called.
    ///
    /// The gem's lock without `expiration:`. Its value is `1` and names no holder, so after a lost reply it is unknown
    /// which process holds the lock: [`Error::InDoubt`](crate::Error::InDoubt).
    pub const fn without_expiration() -> Self {
        Self {
            expiration: None,
            timeout: Some(Self::DEFAULT_TIMEOUT),
            poll_interval: Self::DEFAULT_POLL_INTERVAL,
            takeover: Takeover::Expired,
            protocol: Protocol::Classic,
            notifies: None,
            max_attempts: None,
            auto_extend: None,
            hold_at_least: Duration::ZERO,
            reentrant: false,
            allowance: Duration::ZERO,
        }
    }

    /// Returns the options with this protocol; [`Protocol::Classic`] unless set.
    ///
    /// [`Protocol::Auto`] is the best that the server has. Gems up to 1.4.1 use the classic one, gems from 1.4.2 on a time to live; each
    /// honours what any of them writes ([`documentation::from_ruby`](crate::documentation::from_ruby)).
    pub const fn protocol(self, protocol: Protocol) -> Self {
        Self { protocol, ..self }
    }

    /// Returns the options as they are on a server of this version: with the protocol that Auto is there.
    pub(crate) fn on(&self, server: Option<Version>) -> Self {
        Self { protocol: self.protocol.on(server, self.expiration.is_some()), ..*self }
    }

    /// Returns the options with another timeout: how long [`Lock::lock`](crate::Lock::lock) and
    /// [`Lock::with`](crate::Lock::with) wait at most, 5 s unless set. [`Duration::ZERO`] is one attempt without waiting.
    ///
    /// The gem's `timeout:`. The gem may sleep up to a poll interval longer and makes no last attempt at
    /// the deadline; here the wait ends on time, with a last attempt.
    pub const fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// Returns the options without a timeout: a wait ends with the lock, or with an error that is not contention. While the server is
    /// unreachable it gives up after [`LockerBuilder::retry_for`](crate::LockerBuilder::retry_for).
    ///
    /// The gem has no such option.
    pub const fn wait_forever(self) -> Self {
        Self { timeout: None, ..self }
    }

    /// Returns the options with a limit for the attempts of a call, in addition to the timeout; whichever comes first ends it with
    /// [`Error::Contended`](crate::Error::Contended). With 1 it tries once, when it is this thread's turn in the process. At least 1; no limit
    /// unless set.
    ///
    /// An attempt is SETNX and what follows it, or a look at the key after a pause. Those of other threads of this process that were queued
    /// ahead do not count. The gem has no such option.
    pub const fn max_attempts(self, attempts: u32) -> Self {
        Self { max_attempts: Some(attempts), ..self }
    }

    /// Returns the options with another poll interval: how long a waiter pauses between two looks, 0.1 s unless set. A waiter pauses less
    /// where the deadline or the expiry that it saw comes sooner. A millisecond to ten years.
    ///
    /// In the gem it is fixed at 0.1 s.
    pub const fn poll_interval(self, interval: Duration) -> Self {
        Self { poll_interval: interval, ..self }
    }

    /// Returns the options with release notifications or without. Unless set, a lock in [`Protocol::Auto`] has them, and a lock in another
    /// protocol has none. They need a server that reports version 2.0 or later, and a locker that can open a connection: any but one made by
    /// [`Locker::with_pool`](crate::Locker::with_pool).
    ///
    /// A process that waits enters its channel in the key's waiting list `KEY:setnx-lock:waiters`. A release takes the first channel from that
    /// list and publishes the key there, so that the process that has waited longest tries at once, not at its next look. Where no process
    /// waits, a release sends one command more, LPOP, in the trip of its DEL. One connection of the locker listens for all keys.
    ///
    /// A lost notification costs a poll interval. Gems, and locks without notifications, send none. The gem has no such option.
    pub const fn notify_waiters(self, notifies: bool) -> Self {
        Self { notifies: Some(notifies), ..self }
    }

    /// Returns the options with the gem's takeover, which is a bug that some fleets may rely on: an expiring lock takes
    /// over at once whatever it cannot read as a time in the future, **also from a living holder**: a lock
    /// without an expiration (`1`), a lock of a newer gem (an empty value), and bytes that are no number.
    ///
    /// Off unless set: such a key is waited for, reported once in the log, and named in the timeout error.
    pub const fn stealing_as_the_gem_does(self) -> Self {
        Self { takeover: Takeover::AsTheGem, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_the_gem_s() {
        let options = LockOptions::without_expiration();
        assert_eq!(options.timeout, Some(Duration::from_secs(5)));
        assert_eq!(options.poll_interval, Duration::from_millis(100));
        assert_eq!(options.notifies, None);
        assert_eq!(options.takeover, Takeover::Expired);
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
            (expiring.auto_extend(Duration::MAX), "for ever"),
            (endless.hold_at_least(SECOND), "needs an expiration"),
            (expiring.hold_at_least(11 * SECOND), "longer than the expiration"),
            (expiring.max_attempts(0), "at least 1"),
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
    fn auto_is_watched_from_2_2_on() {
        let auto = |server, expires| Protocol::Auto.on(server, expires);
        assert_eq!(auto(Some(Version::new(2, 6, 12)), true), Protocol::Ttl);
        assert_eq!(auto(Some(Version::new(2, 6, 12)), false), Protocol::Watched);
        assert_eq!(auto(Some(Version::new(2, 6, 11)), true), Protocol::Watched);
        assert_eq!(auto(Some(Version::new(2, 2, 0)), true), Protocol::Watched);
        assert_eq!(auto(Some(Version::new(2, 1, 9)), true), Protocol::Classic);
        assert_eq!(auto(None, true), Protocol::Classic);
        assert_eq!(Protocol::Ttl.on(None, true), Protocol::Ttl);
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
