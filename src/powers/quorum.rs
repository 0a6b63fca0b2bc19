//! A lock on several independent servers, held while a majority of them has granted it.

mod guard;
mod servers;

use std::borrow::Borrow;
use std::time::Duration;

use proto::quorum;
use proto::values::{Key, Terms, Uptime};

use crate::extend::HoldKind;
use crate::system::clock;
use crate::system::thread;
use crate::{CancelToken, Error, LockOptions, Locker, RefusalKind};
pub use guard::QuorumGuard;
use servers::Servers;

/// How often a pause checks whether a locker was shut down.
const SHUT_DOWN_CHECKED_EVERY: Duration = Duration::from_millis(50);

/// A lock on several independent masters, held while a majority
/// of them has granted it. It survives the loss of any minority.
///
/// A call asks all servers at the same time. It acquires the lock once a majority has granted
/// leases of which at least half the time is left. Otherwise it gives everything back and
/// tries again after a random pause, on average the poll interval. The servers may have
/// different versions: [`Protocol::Auto`](crate::Protocol::Auto) selects a protocol for each.
///
/// **Build the lockers with [`settle_after_restart`](crate::LockerBuilder::settle_after_restart)**: a server that
/// restarts without its locks would grant them again. [The
/// limits](crate::documentation::limits#a-quorum-of-servers) say what a quorum does not guarantee, and [the
/// topologies](crate::documentation::servers#topologies) when it is worth its cost.
///
/// ```
/// use setnx_lock::{Error, LockOptions, Locker, Protocol, Quorum};
/// use std::time::Duration;
///
/// const LEASE: Duration = Duration::from_secs(15);
/// let open = |url: &str| Locker::builder(url)?.settle_after_restart(LEASE).build();
/// let urls = ["redis://10.0.0.1/", "redis://10.0.0.2/", "redis://10.0.0.3/"];
/// # let servers = [(); 3].map(|()| setnx_lock_testing::TestServer::start());
/// # servers.iter().for_each(|server| server.advance(2 * LEASE));
/// # let urls = servers.each_ref().map(|server| server.url());
/// let lockers = [open(&urls[0])?, open(&urls[1])?, open(&urls[2])?];
/// let options = LockOptions::expiring_after(LEASE).protocol(Protocol::Auto);
/// let lock = Quorum::new(lockers, "nightly_report", options)?;
/// lock.with(|held| println!("held for {:?} more", held.remaining()))?;
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Quorum {
    servers: Servers,
    options: LockOptions,
    cancel_token: Option<CancelToken>,
}

impl Quorum {
    /// Returns the lock of this key on the servers of these lockers,
    /// an odd number of different servers. Contacts no server.
    ///
    /// [`reentrant`](LockOptions::reentrant) and [`notify_waiters`](LockOptions::notify_waiters) have no effect.
    ///
    /// Create the lockers once and keep them. Each runs one thread for its quorums, which starts at the first call,
    /// ends after 5 s without one, and is ended by [`Locker::shut_down`].
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for no locker, an even number of them, two with the same address or with different
    /// [prefixes](crate::LockerBuilder::key_prefix), options without an
    /// expiration, and anything that [`Lock::new`](crate::Lock::new) refuses.
    pub fn new<L: Borrow<Locker>>(
        lockers: impl IntoIterator<Item = L>,
        key: impl Into<Key>,
        options: LockOptions,
    ) -> Result<Self, Error> {
        let lockers: Vec<L> = lockers.into_iter().collect();
        let key = key.into();
        let key = lockers.first().map_or(key.clone(), |first| first.borrow().whole_key(key));
        let servers = Servers::of(lockers, key, &options)?;
        Ok(Self { servers, options, cancel_token: None })
    }

    /// Returns the lock with an allowance for the clocks of clients, which may then differ by one second more than
    /// `allowance`. Zero by default.
    ///
    /// The hold ends this much before its leases.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for more than half of the expiration.
    pub fn max_clock_difference(self, allowance: Duration) -> Result<Self, Error> {
        let terms = Terms { allowance, ..self.options.terms };
        let options = LockOptions { terms, ..self.options };
        let servers = Servers::of(self.servers.lockers(), self.servers.key.clone(), &options)?;
        Ok(Self { servers, options, ..self })
    }

    /// Returns the lock with a [`CancelToken`] that ends its waits.
    #[must_use]
    pub fn cancelled_by(self, token: &CancelToken) -> Self {
        Self { cancel_token: Some(token.clone()), ..self }
    }

    /// Runs `body` while the lock is held, and returns its result.
    ///
    /// Waits up to the timeout of the options. The lock is released afterwards, even if `body` panics. A failed release
    /// is an error only if the lock was lost; any other failure goes to the log and the observers of the lockers.
    ///
    /// # Errors
    ///
    /// Those of [`lock`](Self::lock): `body` has not run. If the lock was lost,
    /// [`Error::NoMajority`] for which [`Error::is_lost`] returns true: `body` has run
    /// and its result is dropped. **Another client may have worked at the same time.**
    pub fn with<R>(&self, body: impl FnOnce(&QuorumGuard) -> R) -> Result<R, Error> {
        self.with_result(|held| Ok(body(held)))
    }

    /// Runs a `body` that can fail while the lock is held, and returns its result: like [`with`](Self::with).
    ///
    /// # Errors
    ///
    /// The body's own error, and those of [`with`](Self::with), converted into the body's error type. If `body`
    /// fails and the lock is lost, the body's error is returned.
    pub fn with_result<T, E: From<Error>>(
        &self,
        body: impl FnOnce(&QuorumGuard) -> Result<T, E>,
    ) -> Result<T, E> {
        let guard = self.acquire(self.options.timeout, HoldKind::Scoped)?;
        let returned = body(&guard)?;
        guard.release().or_else(Error::unless_lost)?;
        Ok(returned)
    }

    /// Waits for the lock, up to the timeout of the options, and returns its guard.
    ///
    /// The last attempt is made at the deadline. A server that does not answer delays the call only if its answer
    /// matters, and for at most one command timeout; without a majority, for one more while the lock is given back.
    ///
    /// # Errors
    ///
    /// - [`Error::NoMajority`], with the answer of each server: after contention, or refusals that may pass, until the
    ///   timeout or the last [attempt](LockOptions::max_attempts); if no majority could be reached for
    ///   [`retry_for`](crate::LockerBuilder::retry_for); or at once if a majority refuses for a reason that is not
    ///   [transient](Error::is_transient).
    /// - [`Error::Cancelled`] or [`Error::ShutDown`] if a [`CancelToken`] or [`Locker::shut_down`] ended the wait.
    /// - [`Error::Nested`] inside a [`with`](Self::with) on the same key by the same thread.
    /// - [`Error::Forked`] in a forked child.
    ///
    /// After a lost reply, a background thread releases the lock on that server as soon as the server shows that it was
    /// granted. After that to a GETSET, which may have replaced another client's value, and without an expiration it
    /// does not.
    pub fn lock(&self) -> Result<QuorumGuard, Error> {
        self.acquire(self.options.timeout, HoldKind::Movable)
    }

    /// Tries once to acquire the lock. Returns `None` if other holders leave no majority of servers free.
    ///
    /// # Errors
    ///
    /// Those of [`lock`](Self::lock), except contention, for which it returns `None`.
    pub fn try_lock(&self) -> Result<Option<QuorumGuard>, Error> {
        self.try_lock_for(Duration::ZERO)
    }

    /// Waits for the lock up to `timeout` instead of the timeout of the options. Returns `None` if it was not
    /// acquired in that time, or within the allowed [attempts](LockOptions::max_attempts).
    ///
    /// # Errors
    ///
    /// Those of [`lock`](Self::lock), except contention, for which it returns `None`.
    pub fn try_lock_for(&self, timeout: Duration) -> Result<Option<QuorumGuard>, Error> {
        Error::unless_contended(self.acquire(Some(timeout), HoldKind::Movable))
    }

    fn acquire(&self, timeout: Option<Duration>, kind: HoldKind) -> Result<QuorumGuard, Error> {
        let began = clock::uptime();
        let deadline = timeout.map(|timeout| began.after(timeout));
        let retry_for = self.servers.longest(Locker::retry_for);
        let _registered = self.cancel_token.as_ref().map(CancelToken::register);
        let (mut attempts, mut reached) = (0, began);
        loop {
            self.check(began)?;
            attempts += 1;
            let error = match self.servers.ask_for_locks(began, attempts) {
                Ok((answers, late)) => {
                    for (_, guard) in &answers.granted {
                        guard.note(kind);
                    }
                    let held_until = clock::uptime().after(self.options.terms.hold_at_least);
                    return Ok(QuorumGuard::new(self.servers.clone(), answers, late, held_until));
                }
                Err(error) => error,
            };
            let (now, answers) = (clock::uptime(), is_an_answer(&error));
            reached = if answers { now } else { reached };
            let is_last = deadline.is_some_and(|deadline| now >= deadline)
                || self.options.terms.max_attempts.is_some_and(|most| attempts >= most)
                || !answers && now.since(reached) >= retry_for;
            if is_last || !error.is_transient() {
                if !error.may_hold_lock() {
                    self.check(began)?;
                }
                return Err(error);
            }
            let random = self.servers.lockers().next().map_or(0, Locker::random);
            let until = now.after(quorum::pause(self.options.terms.poll_interval, random));
            self.pause(deadline.map_or(until, |deadline| until.min(deadline)));
        }
    }

    /// Fails if the lock must not be requested.
    fn check(&self, began: Uptime) -> Result<(), Error> {
        self.servers.refuse_after_fork()?;
        let now = clock::now();
        if !now.is_plausible() {
            return Err(Error::clock_unset(self.servers.key.clone(), now.wall));
        }
        if self.is_ended() {
            let (waited, shut_down) = (now.uptime.since(began), self.servers.is_shut_down());
            return Err(Error::ended(self.servers.key.clone(), waited, shut_down));
        }
        if self.servers.by_this_thread() == Some(HoldKind::Scoped) {
            return Err(Error::Nested { key: self.servers.key.clone() });
        }
        Ok(())
    }

    fn is_ended(&self) -> bool {
        self.cancel_token.as_ref().is_some_and(CancelToken::is_cancelled) || self.servers.is_shut_down()
    }

    fn pause(&self, until: Uptime) {
        while clock::uptime() < until && !self.is_ended() {
            thread::park_timeout(until.since(clock::uptime()).min(SHUT_DOWN_CHECKED_EVERY));
        }
    }
}

/// Returns true if the server, or a majority of them, has answered that the lock is held, or refused for now.
fn is_an_answer(error: &Error) -> bool {
    match error {
        Error::Refused { refusal, .. } => refusal.is_transient() && refusal.kind() != RefusalKind::ReadOnly,
        Error::NoMajority { .. } => error.majority(|answer| answer.is_some_and(is_an_answer)),
        error => error.is_contention(),
    }
}

#[cfg(test)]
mod tests;
