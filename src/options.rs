//! The options of a lock: how long it may be held, how long to wait for it, how often to look. Plain values, all
//! `const fn`; what makes no sense is refused when a [`Lock`](crate::Lock) is made of them.

mod polling;

use std::time::Duration;

use crate::version::Version;
pub use polling::Polling;

/// The longest expiration that is accepted: ten years.
pub const LONGEST_EXPIRATION: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// How long a wait lasts unless set: 5 s, as in the gem.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// For how long the lock passes among the threads of a process, unless set, before other processes get a chance.
const DEFAULT_YIELD: Duration = Duration::from_secs(1);

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
    pub(crate) notifies: bool,
    /// After how long the lock is left to other processes for a poll interval.
    pub(crate) yields_every: Duration,
    pub(crate) time_slice: Duration,
}

/// By which commands a lock is taken over and released. All write the same values and honour each other's, and the
/// gem's, on one key; [`documentation::algorithm`](crate::documentation::algorithm) has the rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// [`Watched`](Self::Watched) where the server reported version 2.2 or later when the connection was opened, else
    /// [`Classic`](Self::Classic): on older servers, and where the version is unknown, as on connections of
    /// [`Locker::with_pool`](crate::Locker::with_pool) and without the server check. Decided once for each call. Where the server then
    /// refuses WATCH or MULTI, since this user may not send it, a takeover or a release goes on by the rules of Classic.
    ///
    /// If Ruby programs with redis-objects 1.4.3 or later use the same keys, use [`Ttl`](Self::Ttl): after a crashed Watched or Classic
    /// holder, eight such programs let two of themselves have the lock at once in 9 of 25 rounds, after a Ttl holder in none of 25.
    Auto,
    /// SETNX, GET, GETSET and DEL, as the gem from 0.2.3 to 1.4.1. For every server from Redis 1.2 on. The default, since it sends
    /// what the gem sends.
    ///
    /// It rests on clocks: all clients of a key should use the same expiration, and a release that is late on its way deletes the
    /// next holder's key.
    #[default]
    Classic,
    /// The same, but takes over and releases by WATCH, GET, MULTI and EXEC: a contender that loses a takeover never overwrites the
    /// winner's value, and a release compares the value before it deletes the key, and can prove that no other holder had the lock
    /// meanwhile. For servers from Redis 2.2 on. If Ruby programs with redis-objects 1.4.3 or later use the same keys, use
    /// [`Ttl`](Self::Ttl), for the reason given at [`Auto`](Self::Auto).
    Watched,
    /// As [`Watched`](Self::Watched), and the key has a time to live, one second longer than the expiration, so that the server
    /// itself frees the lock of a crashed holder. For servers from Redis 2.6.12 on, and keys that Ruby programs with redis-objects from
    /// 1.4.2 on use as well. Needs an expiration.
    Ttl,
}

impl Protocol {
    pub(crate) const ALL: [Protocol; 3] = [Protocol::Classic, Protocol::Watched, Protocol::Ttl];

    /// Returns the first version of Redis that has all of its commands.
    #[must_use]
    pub const fn needs(self) -> Version {
        match self {
            // 1.1.94 is the first version it was measured on, shortly before 1.2.
            Protocol::Auto | Protocol::Classic => Version::new(1, 1, 94),
            Protocol::Watched => Version::new(2, 2, 0),
            Protocol::Ttl => Version::new(2, 6, 12),
        }
    }

    /// Returns the protocol to use on a server of this version; unknown is `None`.
    pub(crate) fn on(self, server: Option<Version>) -> Self {
        match self {
            Protocol::Auto if server.is_some_and(|version| version >= Protocol::Watched.needs()) => {
                Protocol::Watched
            }
            Protocol::Auto => Protocol::Classic,
            other => other,
        }
    }

    /// Returns what to do on a server that is older.
    pub(crate) fn instead(self) -> &'static str {
        match self {
            Protocol::Auto | Protocol::Classic => "use a newer server",
            Protocol::Watched => "use Protocol::Auto or Protocol::Classic",
            Protocol::Ttl => "use Protocol::Auto",
        }
    }
}

/// Which locks an expiring lock may take over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Takeover {
    /// Only one whose time has passed (I1).
    Expired,
    /// Whatever the gem reads as a number below now: also `1`, the empty value and what is no number.
    AsTheGem,
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
    /// which process holds the lock: [`Error::Unknown`](crate::Error::Unknown).
    pub const fn held_until_released() -> Self {
        Self {
            expiration: None,
            timeout: Some(DEFAULT_TIMEOUT),
            polling: Polling::every(DEFAULT_POLL_INTERVAL),
            takeover: Takeover::Expired,
            takeover_margin: Duration::ZERO,
            protocol: Protocol::Classic,
            notifies: false,
            yields_every: DEFAULT_YIELD,
            time_slice: DEFAULT_SLICE,
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

    /// Returns the options with another limit for keeping a key from clients that poll, such as the gem. When the lock has passed among the
    /// threads of this process for that long, without a moment in which none of them had it or waited for it, a release gives other
    /// processes a chance: the next thread of this process waits one poll interval before it asks. 1 s unless set; [`Duration::MAX`] is
    /// never. Costs a tenth of the throughput of a key that is never idle, up to a third where several such clients contend
    /// for it, and nothing elsewhere. With [`notify_waiters`](Self::notify_waiters) the time is the mean over all processes that take turns.
    /// The gem has no such option.
    pub const fn yield_to_pollers_every(self, time: Duration) -> Self {
        Self { yields_every: time, ..self }
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
    /// margin by that much more. In [`Protocol::Ttl`] the server frees a key by its own clock, whatever the margin. The margin protects
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

    /// Returns after how long the lock is left to other processes for a poll interval.
    #[must_use]
    pub const fn get_yield_to_pollers_every(&self) -> Duration {
        self.yields_every
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

    /// Returns what is wrong with the options, in words for the user.
    pub(crate) fn problem(&self) -> Option<&'static str> {
        match self.expiration {
            Some(Duration::ZERO) => Some(
                "the expiration is zero, so the lease would be over before it began; give the longest time the work can take",
            ),
            Some(brief) if brief < Duration::from_millis(1) => Some(
                "the expiration is below a millisecond, so the lease would be over before the reply came; give the longest time the work can take",
            ),
            Some(long) if long > LONGEST_EXPIRATION => Some(
                "the expiration is over ten years; for a lock that never expires, use `held_until_released`",
            ),
            _ if self.takeover_margin > LONGEST_EXPIRATION => {
                Some("the takeover margin is over ten years; some seconds make up for clocks")
            }
            None if !self.takeover_margin.is_zero() => Some(
                "a takeover margin does nothing without an expiration, since such a lock takes nothing over; leave it out",
            ),
            None if self.protocol == Protocol::Ttl => Some(
                "the protocol Ttl needs an expiration, since the server is to free the lock; use `expiring_after`, with 1 s for what a gem from 1.4.2 on does without one, or another protocol",
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
        assert!(!options.notifies);
        assert_eq!(options.takeover, Takeover::Expired);
        assert_eq!(options.problem(), None);
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
