//! What a lock is asked for: how long it may be held, how long to wait for it, how often to look. Plain values, all
//! `const fn`; what makes no sense is refused when a [`Lock`](crate::Lock) is made of them.

mod polling;

use std::time::Duration;

use crate::version::Version;
pub use polling::Polling;

/// The longest expiration that is accepted: ten years.
pub const LONGEST_EXPIRATION: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// How long a wait lasts when nothing else is said: 5 s, as in the gem.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a waiter sleeps between two tries when nothing else is said: 0.1 s, as in the gem.
pub const DEFAULT_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How a lock behaves. Cheap to copy; every method is `const`.
///
/// The question that must be answered first is what happens when a holder dies: with
/// [`expiring_after`](Self::expiring_after) others take over, with
/// [`held_until_released`](Self::held_until_released) somebody has to clear the key by hand.
///
/// All clients of one key should use equal options. With different expirations on one key the protocol is weaker: see
/// `docs/limits.md`.
///
/// ```
/// use setnx_lock::LockOptions;
/// use std::time::Duration;
///
/// const OPTIONS: LockOptions =
///     LockOptions::expiring_after(Duration::from_secs(15)).timeout(Duration::from_millis(100));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct LockOptions {
    pub(crate) expiration: Option<Duration>,
    /// `None` waits for ever.
    pub(crate) timeout: Option<Duration>,
    pub(crate) polling: Polling,
    pub(crate) takeover: Takeover,
    pub(crate) takeover_margin: Duration,
    pub(crate) protocol: Protocol,
    /// How often in a row the held lock may pass to another thread.
    pub(crate) hand_over: u32,
    pub(crate) wake_ups: bool,
}

/// By which commands a lock is taken over and given back. All three write the same values and honour each other's, and the
/// gem's, on one key; [`docs/algorithm.md`](crate::documentation::algorithm) has the rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// SETNX, GET, GETSET and DEL, as the gem from 0.2.3 to 1.4.1. For every server from Redis 1.2 on. The default.
    ///
    /// It rests on clocks: all clients of a key should use the same expiration, and a release that comes while somebody else
    /// has the key deletes his.
    #[default]
    Classic,
    /// The same, but takes over and releases by WATCH, GET, MULTI and EXEC: a contender who loses never overwrites the
    /// winner's value, and a release never deletes another's key, and can prove that nobody had the lock meanwhile. For servers
    /// from Redis 2.2 on.
    Watched,
    /// As [`Watched`](Self::Watched), and the key has a time to live, one second longer than the expiration, so that the server
    /// itself frees the lock of a dead holder. For servers from Redis 2.6.12 on, beside gems from 1.4.2 on. Needs an expiration.
    Ttl,
}

impl Protocol {
    pub(crate) const ALL: [Protocol; 3] = [Protocol::Classic, Protocol::Watched, Protocol::Ttl];

    /// Returns the first version of Redis that has all of its commands.
    #[must_use]
    pub const fn needs(self) -> Version {
        match self {
            Protocol::Classic => Version::new(1, 1, 94), // the first of which it was measured, on the way to 1.2
            Protocol::Watched => Version::new(2, 2, 0),
            Protocol::Ttl => Version::new(2, 6, 12),
        }
    }

    /// Returns what to do on a server that is older.
    pub(crate) fn instead(self) -> &'static str {
        match self {
            Protocol::Classic => "use a newer server",
            Protocol::Watched => "use Protocol::Classic",
            Protocol::Ttl => "use Protocol::Watched from 2.2 on, or Protocol::Classic",
        }
    }
}

/// Whose lock an expiring lock may take over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Takeover {
    /// Only one whose time has passed (I1).
    Expired,
    /// Whatever the gem reads as a number below now: also `1`, the empty value and what is no number.
    AsTheGem,
}

impl LockOptions {
    /// Returns options for a lock that is the holder's for `expiration` and may be taken over by others once that and
    /// a second more have passed. Choose it well above the longest time the protected work can take.
    ///
    /// The gem's `expiration:`. Accepted are a millisecond to [`LONGEST_EXPIRATION`].
    pub const fn expiring_after(expiration: Duration) -> Self {
        Self { expiration: Some(expiration), ..Self::held_until_released() }
    }

    /// Returns options for a lock that is held until it is released, however long that takes: when its holder dies,
    /// nobody gets it until somebody calls [`Lock::clear`](crate::Lock::clear).
    ///
    /// The gem's lock without `expiration:`. Its value is `1` and names nobody, so that an answer of the server that got
    /// lost leaves it unknown who holds the lock: [`Error::Unknown`](crate::Error::Unknown).
    pub const fn held_until_released() -> Self {
        Self {
            expiration: None,
            timeout: Some(DEFAULT_TIMEOUT),
            polling: Polling::every(DEFAULT_POLL_INTERVAL),
            takeover: Takeover::Expired,
            takeover_margin: Duration::ZERO,
            protocol: Protocol::Classic,
            hand_over: 0,
            wake_ups: false,
        }
    }

    /// Returns the options with another protocol than [`Protocol::Classic`].
    ///
    /// Gems up to 1.4.1 have the classic one, gems from 1.4.2 on use a time to live; each honours what we write by any of the
    /// three. See `docs/from-ruby.md` for which to choose when.
    pub const fn protocol(self, protocol: Protocol) -> Self {
        Self { protocol, ..self }
    }

    /// Returns the options with another timeout: how long [`Lock::lock`](crate::Lock::lock) and
    /// [`Lock::with`](crate::Lock::with) wait at most. [`Duration::ZERO`] is one try without waiting.
    ///
    /// The gem's `timeout:`, 5 s unless given. The gem may sleep up to a poll interval longer and makes no last try at
    /// the deadline; here the wait ends on time, with a last try.
    pub const fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// Returns the options without a timeout: a wait ends when the lock is ours, or with an error that is not about
    /// waiting. While the server cannot be reached, or the pool has no connection to spare, a wait
    /// without a timeout gives up after a while ([`Settings::patience`](crate::Settings::patience); in a pool of one's own, its
    /// `connection_timeout`). The gem has no
    /// such option.
    pub const fn wait_forever(self) -> Self {
        Self { timeout: None, ..self }
    }

    /// Returns the options with another poll interval: how long a waiter pauses between two looks, 0.1 s unless given, with jitter and
    /// back-off left as they are. A waiter pauses less where the deadline or the expiry that it saw comes sooner. At least a millisecond.
    ///
    /// In the gem it is fixed at 0.1 s.
    pub const fn poll_interval(self, interval: Duration) -> Self {
        Self { polling: Polling { interval, ..self.polling }, ..self }
    }

    /// Returns the options with another way of polling: with jitter, say, or with pauses that grow. The gem has no such thing.
    pub const fn polling(self, polling: Polling) -> Self {
        Self { polling, ..self }
    }

    /// Returns the options with hand-over: when another thread of the process waits for the key through the same
    /// [`Locker`](crate::Locker), a release passes the held lock on to it instead of deleting the key, at most `times` times in a row, so
    /// that other processes get their turn; 0, no hand-over, unless given.
    ///
    /// The lease is renewed in the passing, by the rules of the protocol (in Classic one GETSET), so the next holder has all of the
    /// time that its own options say, and a lease that has passed is never handed over. It passes between locks of the same
    /// protocol, both with or both without an expiration. While it goes round, waiters in other processes find the key held; choose
    /// `times` so that as many holds take a small part of what they put up with. The gem has no such thing.
    pub const fn hand_over(self, times: u32) -> Self {
        Self { hand_over: times, ..self }
    }

    /// Returns the options with wake-ups between processes: a release leaves a token in the list `KEY:setnx-lock:wake-up`, for two seconds at
    /// most, and a waiting process takes it with BLPOP on one connection of its own for all its keys. So the next waiter, in whichever
    /// process, tries at once, the one that has waited longest first. For servers from Redis 2.0 on; older ones are polled only.
    ///
    /// All that is lost with a token is a poll interval: gems, and locks without this option, leave none. Needs a locker that knows how to
    /// open a connection: any but one made by [`Locker::with_pool`](crate::Locker::with_pool). The gem has no such thing.
    pub const fn with_wake_ups(self) -> Self {
        Self { wake_ups: true, ..self }
    }

    /// Returns the options with the gem's takeover, which is a bug that some fleets may rely on: an expiring lock takes
    /// over at once whatever it cannot read as a time in the future, **whoever holds it and however alive he is**: a lock
    /// without an expiration (`1`), a lock of a newer gem (an empty value), and bytes that are no number.
    ///
    /// Off by default: such a key is waited for, said once in the log, and named in the timeout error.
    pub const fn stealing_as_the_gem_does(self) -> Self {
        Self { takeover: Takeover::AsTheGem, ..self }
    }

    /// Returns the options with a margin for clocks: an expired lock is left alone for so much longer before it is taken over;
    /// nothing unless given.
    ///
    /// The value in a key names a time one second after its lease, so holder and contender may differ by a second; with a margin
    /// by that much more; in [`Protocol::Ttl`] the server frees a key by its own clock, whatever the margin. It protects those whose locks this one would take over, so give it to all clients of a key. A dead
    /// holder's lock is idle for as much longer. The gem has no such thing, and takes over without it.
    pub const fn takeover_margin(self, takeover_margin: Duration) -> Self {
        Self { takeover_margin, ..self }
    }

    /// Returns what is wrong with the options, in words for the user.
    pub(crate) fn problem(&self) -> Option<&'static str> {
        match self.expiration {
            Some(Duration::ZERO) => Some(
                "the expiration is zero, so the lock would be over before it began; give the longest time the work can take",
            ),
            Some(brief) if brief < Duration::from_millis(1) => Some(
                "the expiration is below a millisecond, so the lock would be over before it came; give the longest time the work can take",
            ),
            Some(long) if long > LONGEST_EXPIRATION => Some(
                "the expiration is over ten years; for a lock that never expires, say `held_until_released`",
            ),
            _ if self.takeover_margin > LONGEST_EXPIRATION => {
                Some("the takeover margin is over ten years; some seconds make up for clocks")
            }
            None if !self.takeover_margin.is_zero() => Some(
                "a takeover margin does nothing without an expiration, since such a lock takes nothing over; leave it out",
            ),
            None if self.protocol == Protocol::Ttl => Some(
                "the protocol Ttl needs an expiration, since the server is to free the lock; say `expiring_after`, with 1 s for what a gem from 1.4.2 on does without one, or use another protocol",
            ),
            _ => self.polling.problem(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_the_gem_s() {
        let options = LockOptions::held_until_released();
        assert_eq!(options.timeout, Some(Duration::from_secs(5)));
        assert_eq!(options.polling, Polling::every(Duration::from_millis(100)));
        assert_eq!((options.hand_over, options.wake_ups), (0, false));
        assert_eq!(options.takeover, Takeover::Expired);
        assert_eq!(options.problem(), None);
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
