//! The options of a lock: how long it may be held, how long to wait for it, how often to look. Plain values, all
//! `const fn`; what makes no sense is refused when a [`Lock`](crate::Lock) is made of them.

mod holding;
mod polling;
mod problem;
mod protocol;

use std::fmt;
use std::time::Duration;

pub use polling::Polling;
pub use protocol::Protocol;

/// The longest expiration that is accepted: ten years.
pub const LONGEST_EXPIRATION: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// How long a wait lasts unless set: 5 s, as in the gem.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// For how long the lock passes among the threads of a process, unless set, before it is the turn of another that waits for notifications.
const DEFAULT_SLICE: Duration = Duration::from_millis(10);

/// How long a waiter sleeps between two looks unless set: 0.1 s, as in the gem.
pub const DEFAULT_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How a lock behaves. Cheap to copy; every method is `const`.
///
/// The first choice is what happens when a holder crashes: with [`expiring_after`](Self::expiring_after) others take over, with
/// [`held_until_released`](Self::held_until_released) the key has to be cleared by hand.
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
    pub(crate) polling: Polling,
    pub(crate) takeover: Takeover,
    pub(crate) takeover_margin: Duration,
    pub(crate) protocol: Protocol,
    pub(crate) notifies: bool,
    pub(crate) time_slice: Duration,
    /// How often the lock is asked for at most.
    pub(crate) max_attempts: Option<u32>,
    /// How long in all the lease is extended.
    pub(crate) auto_extend: Option<Duration>,
    pub(crate) verify_every: Option<Duration>,
    /// How long after its acquisition the lock may be released.
    pub(crate) hold_at_least: Duration,
    pub(crate) fenced: bool,
    pub(crate) reentrant: bool,
    pub(crate) holder_name: Option<&'static str>,
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
        let unset = Self::held_until_released();
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
        show_if_set!(polling, takeover, takeover_margin, notifies, time_slice, max_attempts);
        show_if_set!(auto_extend, verify_every, hold_at_least, fenced, reentrant, holder_name);
        shown.finish_non_exhaustive()
    }
}

impl LockOptions {
    /// Returns options for a lock that its holder has for `expiration`, and that others may take over when that and
    /// one second more have passed. Choose it well above the longest time the protected work can take.
    ///
    /// The gem's `expiration:`. Accepted are a millisecond to [`LONGEST_EXPIRATION`].
    pub const fn expiring_after(expiration: Duration) -> Self {
        Self { expiration: Some(expiration), ..Self::held_until_released() }
    }

    /// Returns options for a lock that is held until it is released, however long that takes: after its holder has crashed
    /// it stays held until [`Lock::clear`](crate::Lock::clear) is called.
    ///
    /// The gem's lock without `expiration:`. Its value is `1` and names no holder, so after a lost reply it is unknown
    /// which process holds the lock: [`Error::InDoubt`](crate::Error::InDoubt).
    pub const fn held_until_released() -> Self {
        Self {
            expiration: None,
            timeout: Some(DEFAULT_TIMEOUT),
            polling: Polling::every(DEFAULT_POLL_INTERVAL),
            takeover: Takeover::Expired,
            takeover_margin: Duration::ZERO,
            protocol: Protocol::Classic,
            notifies: false,
            time_slice: DEFAULT_SLICE,
            max_attempts: None,
            auto_extend: None,
            verify_every: None,
            hold_at_least: Duration::ZERO,
            fenced: false,
            reentrant: false,
            holder_name: None,
        }
    }

    /// Returns the options with another protocol than [`Protocol::Classic`].
    ///
    /// Gems up to 1.4.1 use the classic one, gems from 1.4.2 on a time to live; each honours what any of them writes.
    /// [`documentation::from_ruby`](crate::documentation::from_ruby) says which to choose when.
    pub const fn protocol(self, protocol: Protocol) -> Self {
        Self { protocol, ..self }
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
    /// unreachable it gives up after [`LockerBuilder::unreachable_timeout`](crate::LockerBuilder::unreachable_timeout) (in a pool of
    /// another manager, the pool's `connection_timeout`).
    ///
    /// The gem has no such option.
    pub const fn wait_forever(self) -> Self {
        Self { timeout: None, ..self }
    }

    /// Returns the options with a limit for how often a call asks the server for the lock, beside the timeout: it ends with whichever comes
    /// first, and then fails with [`Error::Contended`](crate::Error::Contended). 1 is one attempt, when it is this thread's
    /// turn in the process. At least 1; no limit unless set.
    ///
    /// An attempt is SETNX and what follows it, or a look at the key after a pause. Those of other threads of this process that were queued
    /// ahead do not count. The gem has no such option.
    pub const fn max_attempts(self, attempts: u32) -> Self {
        Self { max_attempts: Some(attempts), ..self }
    }

    /// Returns the options with another poll interval: how long a waiter pauses between two looks, 0.1 s unless set, with jitter and
    /// back-off left as they are. A waiter pauses less where the deadline or the expiry that it saw comes sooner. At least a millisecond.
    ///
    /// In the gem it is fixed at 0.1 s.
    pub const fn poll_interval(self, interval: Duration) -> Self {
        Self { polling: Polling { interval, ..self.polling }, ..self }
    }

    /// Returns the options with another way of polling: with jitter, say, or with pauses that grow. The gem has no such option.
    pub const fn polling(self, polling: Polling) -> Self {
        Self { polling, ..self }
    }

    /// Returns the options with release notifications: a process that waits enters its channel in the key's waiting list
    /// `KEY:setnx-lock:waiters`, and a release takes the first from there and publishes the key on it, so that the process that has
    /// waited longest tries at once. Where no process waits, a release sends one command more, LPOP, in the trip of its DEL. One connection
    /// of the locker listens for all keys. For servers from Redis 2.0 on; older ones are polled only.
    ///
    /// A lost notification costs a poll interval. Gems, and locks without this option, send none. Needs a locker that can
    /// open a connection: any but one made by [`Locker::with_pool`](crate::Locker::with_pool). The gem has no such option.
    pub const fn notify_waiters(self) -> Self {
        Self { notifies: true, ..self }
    }

    /// Returns the options with another time slice: for how long the lock passes among the threads of this process, with
    /// [`notify_waiters`](Self::notify_waiters), before it is the turn of another process that waits. 10 ms unless set; zero is a turn for
    /// each holder. The gem has no such option.
    pub const fn time_slice(self, time: Duration) -> Self {
        Self { time_slice: time, ..self }
    }

    /// Returns the options with the gem's takeover, which is a bug that some fleets may rely on: an expiring lock takes
    /// over at once whatever it cannot read as a time in the future, **also from a living holder**: a lock
    /// without an expiration (`1`), a lock of a newer gem (an empty value), and bytes that are no number.
    ///
    /// Off unless set: such a key is waited for, reported once in the log, and named in the timeout error.
    pub const fn stealing_as_the_gem_does(self) -> Self {
        Self { takeover: Takeover::AsTheGem, ..self }
    }

    /// Returns the options with a margin for clocks: an expired lock is left alone for this much longer before it is taken over;
    /// zero unless set.
    ///
    /// The value in a key names a time one second after its lease, so the clocks of holder and contender may differ by a second; with a
    /// margin by that much more. In [`Protocol::Ttl`] the server frees the keys of Ttl holders by its own clock, whatever the margin. The margin protects
    /// the holders whose locks this one would take over, so set it on all clients of a key. A crashed holder's lock stays held for as
    /// much longer. The gem has no such option, and takes over without it.
    pub const fn takeover_margin(self, takeover_margin: Duration) -> Self {
        Self { takeover_margin, ..self }
    }

    /// Returns the expiration; `None` for a lock that is held until it is released.
    #[must_use]
    pub const fn get_expiration(&self) -> Option<Duration> {
        self.expiration
    }

    /// Returns the timeout; `None` for a wait without one.
    #[must_use]
    pub const fn get_timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Returns how often a call asks for the lock at most; `None` without such a limit.
    #[must_use]
    pub const fn get_max_attempts(&self) -> Option<u32> {
        self.max_attempts
    }

    /// Returns how waiters poll.
    pub const fn get_polling(&self) -> Polling {
        self.polling
    }

    /// Returns the protocol.
    #[must_use]
    pub const fn get_protocol(&self) -> Protocol {
        self.protocol
    }

    /// Returns how much longer than its time an expired lock is left alone.
    #[must_use]
    pub const fn get_takeover_margin(&self) -> Duration {
        self.takeover_margin
    }

    /// Returns for how long the lock passes among the threads of a process while others wait for their turn.
    #[must_use]
    pub const fn get_time_slice(&self) -> Duration {
        self.time_slice
    }

    /// Returns whether a release notifies waiters of other processes.
    #[must_use]
    pub const fn notifies_waiters(&self) -> bool {
        self.notifies
    }

    /// Returns whether the lock takes over as the gem does.
    #[must_use]
    pub const fn steals_as_the_gem_does(&self) -> bool {
        matches!(self.takeover, Takeover::AsTheGem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::version::Version;

    #[test]
    fn defaults_are_the_gem_s() {
        let options = LockOptions::held_until_released();
        assert_eq!(options.timeout, Some(Duration::from_secs(5)));
        assert_eq!(options.polling, Polling::every(Duration::from_millis(100)));
        assert!(!options.notifies);
        assert_eq!(options.takeover, Takeover::Expired);
        assert_eq!(options.problem(), None);
    }

    #[test]
    fn what_a_holder_cannot_do_is_named() {
        const SECOND: Duration = Duration::from_secs(1);
        let problem = |options: LockOptions| options.problem().unwrap_or_default();
        let (expiring, endless) =
            (LockOptions::expiring_after(10 * SECOND), LockOptions::held_until_released());
        let long = expiring.holder_name(concat!(
            "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789",
            "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789",
            "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
        ));
        for (options, words) in [
            (endless.auto_extend(SECOND), "does nothing without"),
            (expiring.auto_extend(9 * SECOND), "less time in all than the expiration"),
            (expiring.auto_extend(Duration::MAX), "for ever"),
            (endless.hold_at_least(SECOND), "needs an expiration"),
            (expiring.hold_at_least(11 * SECOND), "longer than the expiration"),
            (expiring.verify_every(Duration::ZERO), "below a millisecond"),
            (expiring.max_attempts(0), "at least 1"),
            (endless.holder_name("a"), "needs an expiration"),
            (expiring.holder_name(""), "name is empty"),
            (long, "longer than 256 bytes"),
        ] {
            assert!(problem(options).contains(words), "{options:?}: {}", problem(options));
        }
        let all = expiring.auto_extend(10 * SECOND).hold_at_least(10 * SECOND).max_attempts(1);
        let all = all.verify_every(SECOND).holder_name("a").fenced().reentrant();
        assert_eq!(all.problem(), None);
        assert_eq!((all.get_auto_extend(), all.get_hold_at_least()), (Some(10 * SECOND), 10 * SECOND));
        assert_eq!((all.get_verify_every(), all.get_holder_name()), (Some(SECOND), Some("a")));
        assert!(all.is_fenced() && all.is_reentrant() && all.get_max_attempts() == Some(1));
    }

    #[test]
    fn what_is_not_set_is_not_shown() {
        let options = LockOptions::expiring_after(Duration::from_secs(1)).fenced();
        assert_eq!(
            format!("{options:?}"),
            "LockOptions { expiration: Some(1s), timeout: Some(5s), protocol: Classic, fenced: true, .. }"
        );
    }

    #[test]
    fn auto_is_watched_from_2_2_on() {
        let auto = |server| Protocol::Auto.on(server);
        assert_eq!(auto(Some(Version::new(2, 2, 0))), Protocol::Watched);
        assert_eq!(auto(Some(Version::new(2, 1, 9))), Protocol::Classic);
        assert_eq!(auto(None), Protocol::Classic);
        assert_eq!(Protocol::Ttl.on(None), Protocol::Ttl);
    }

    #[test]
    fn options_are_read_back() {
        const SECOND: Duration = Duration::from_secs(1);
        let polling = Polling::every(SECOND).jittered_by(20);
        let options = LockOptions::expiring_after(SECOND).timeout(SECOND * 2).polling(polling);
        let options = options.takeover_margin(SECOND * 4).protocol(Protocol::Watched).notify_waiters();
        assert_eq!((options.get_expiration(), options.get_timeout()), (Some(SECOND), Some(SECOND * 2)));
        assert_eq!(options.get_polling(), polling);
        assert_eq!((options.get_takeover_margin(), options.get_protocol()), (SECOND * 4, Protocol::Watched));
        assert!(options.notifies_waiters() && !options.steals_as_the_gem_does());
        assert_eq!(options.wait_forever().get_timeout(), None);
        assert!(options.stealing_as_the_gem_does().steals_as_the_gem_does());
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
        let options = LockOptions::expiring_after(LONGEST_EXPIRATION);
        assert_eq!(options.problem(), None);
        assert!(problem(options.poll_interval(Duration::from_micros(999))).contains("poll interval"));
        assert_eq!(options.poll_interval(Duration::from_millis(1)).problem(), None);
        let endless = LockOptions::held_until_released();
        assert!(problem(endless.protocol(Protocol::Ttl)).contains("needs an expiration"));
        assert_eq!(endless.protocol(Protocol::Watched).problem(), None);
        assert_eq!(options.protocol(Protocol::Ttl).problem(), None);
        assert!(problem(options.takeover_margin(Duration::MAX)).contains("margin is over ten years"));
        assert!(problem(endless.takeover_margin(Duration::from_secs(1))).contains("margin does nothing"));
    }
}
