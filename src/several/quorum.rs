//! A lock on several independent servers, which its holder has while a majority of them has granted it.

use std::borrow::Borrow;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use super::quorum_guard::{Guards, Held, QuorumGuard};
use crate::backend::Backend;
use crate::clock::{self, Uptime};
use crate::engine::{Engine, MaybeHeld};
use crate::error::Error;
use crate::guard::LockGuard;
use crate::key::Key;
use crate::lock::Lock;
use crate::locker::Locker;
use crate::options::LockOptions;
use crate::protocol::quorum::{self, Terms, Verdict};
use crate::queue::CancelToken;
use crate::thread_holds::{self, HoldKind};

/// How often a pause looks whether a locker was shut down.
const SHUT_DOWN_CHECKED_EVERY: Duration = Duration::from_millis(50);
/// How much longer than a command may take a server's answer is waited for.
const ANSWER_GRACE: Duration = Duration::from_millis(50);
/// How long after a lost reply the key is looked at first; each further time after twice as long.
const FIRST_LOOK: Duration = Duration::from_millis(100);

/// A lock on several independent masters: held while a majority of them has granted it, so that it survives the loss of any minority.
///
/// It asks all servers at the same time, each on a thread of its locker, and is acquired as soon as a majority has granted an ordinary lock and
/// at least half of their leases is left. Otherwise it gives all locks back, and tries again after a random pause: the poll interval on
/// average. A lock that a server grants later is taken in. The servers may be of different versions, each with the protocol of the options
/// ([`Protocol::Auto`](crate::Protocol::Auto): each with its own).
///
/// Use it with [`LockerBuilder::settle_after_restart`](crate::LockerBuilder::settle_after_restart), since a server that restarts without its
/// locks would grant them again. What a quorum does not give is said in [`documentation::limits`](crate::documentation::limits).
/// [`documentation::servers`](crate::documentation::servers) says when it is worth it.
///
/// ```no_run
/// use setnx_lock::{Error, LockOptions, Locker, Protocol, Quorum};
/// use std::time::Duration;
///
/// const LEASE: Duration = Duration::from_secs(15);
/// let open = |url| Locker::builder(url)?.settle_after_restart(LEASE).build();
/// let lockers = [open("redis://10.0.0.1/")?, open("redis://10.0.0.2/")?, open("redis://10.0.0.3/")?];
/// let options = LockOptions::expiring_after(LEASE).protocol(Protocol::Auto);
/// let lock = Quorum::new(lockers, "nightly_report", options)?;
/// lock.with(|held| println!("held for {:?} more", held.remaining()))?;
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Quorum {
    pub(super) key: Key,
    options: LockOptions,
    pub(super) servers: Arc<[Server]>,
    pub(super) terms: Terms,
    cancel_token: Option<CancelToken>,
}

/// One of the servers.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) lock: Lock,
    /// Its address, or its number where that is not known.
    pub(super) name: String,
}

/// Where servers' answers come, each with the number of the server.
pub(super) type Inbox<G> = Receiver<(usize, Result<G, Error>)>;

/// The answers that have come, and whether a majority agrees.
pub(super) struct Answers<G> {
    pub(super) agree: bool,
    pub(super) granted: Vec<(usize, G)>,
    pub(super) refused: Vec<(usize, Error)>,
}

impl Server {
    pub(super) fn engine(&self) -> &Arc<Engine> {
        self.lock.locker().engine()
    }
}

impl Quorum {
    /// Returns the lock of this key on the servers of these lockers: an odd number of them, each of another server. Sends nothing.
    /// [`reentrant`](LockOptions::reentrant) and [`notify_waiters`](LockOptions::notify_waiters) have no effect.
    ///
    /// Cheap for lockers that are kept: the threads are theirs. Each starts at the first call, ends after 5 s without one, and is ended by
    /// [`Locker::shut_down`].
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for no locker, an even number of them, or two with the same address, for options without an expiration, and for what
    /// [`Lock::new`] refuses.
    pub fn new<L: Borrow<Locker>>(
        lockers: impl IntoIterator<Item = L>,
        key: impl Into<Key>,
        options: LockOptions,
    ) -> Result<Self, Error> {
        let key = key.into();
        let server = |(index, locker): (usize, L)| {
            let lock = Lock::new(locker.borrow(), key.clone(), options.in_a_quorum())?;
            let address = locker.borrow().engine().backend.address();
            Ok(Server { lock, name: address.unwrap_or_else(|| format!("server {}", index + 1)) })
        };
        let servers =
            lockers.into_iter().enumerate().map(server).collect::<Result<Arc<[Server]>, Error>>()?;
        let terms = Terms::of(servers.len(), options.expiration.unwrap_or_default(), Duration::ZERO);
        let quorum = Self { key, options, servers, terms, cancel_token: None };
        match quorum.problem() {
            Some(problem) => Err(Error::invalid(quorum.key, problem)),
            None => Ok(quorum),
        }
    }

    fn problem(&self) -> Option<String> {
        let Self { options, servers, .. } = self;
        let twin = servers.iter().enumerate().find(|(index, one)| {
            servers[..*index].iter().any(|other| {
                one.name.eq_ignore_ascii_case(&other.name)
                    || Arc::ptr_eq(&one.engine().identity, &other.engine().identity)
            })
        });
        Some(match servers.len() {
            0 => "a quorum of no servers grants nothing; give the lockers of three or five".to_owned(),
            even if even % 2 == 0 => format!(
                "a quorum of {even} servers survives the loss of no more than one of {} does; give an odd number of lockers",
                even - 1
            ),
            _ if let Some((_, Server { name, .. })) = twin => {
                format!("{name} is there twice, so its failure would count double; give each server once")
            }
            _ if options.expiration.is_none() => {
                "a quorum needs an expiration, since a server that is lost cannot release; use `expiring_after`".to_owned()
            }
            _ => return None,
        })
    }

    /// Returns the lock with an allowance for clocks: the hold ends this much before its leases, so that the clocks of clients may differ by
    /// up to a second more than this. Zero unless set: the extra second of each lease is enough for clocks less than a second apart.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for more than half of the expiration.
    pub fn max_clock_difference(self, allowance: Duration) -> Result<Self, Error> {
        let expiration = self.options.expiration.unwrap_or_default();
        if allowance > expiration / 2 {
            let problem = format!(
                "an allowance for clocks of {allowance:?} leaves less than half of the lease of {expiration:?}; set the clocks, or use a longer expiration"
            );
            return Err(Error::invalid(self.key, problem));
        }
        Ok(Self { terms: Terms::of(self.servers.len(), expiration, allowance), ..self })
    }

    /// Returns the lock with a token that ends its waits: see [`CancelToken`].
    #[must_use]
    pub fn cancelled_by(self, token: &CancelToken) -> Self {
        Self { cancel_token: Some(token.clone()), ..self }
    }

    /// Runs `body` while the lock is held and returns what it returns. Waits up to the timeout of the options. The lock is released afterwards,
    /// also when the body panics. If it was lost meanwhile, that is the error, after `body` has run; any other failure of the release goes to
    /// the log and the observers of the lockers.
    ///
    /// # Errors
    ///
    /// Those of [`lock`](Self::lock), and an [`Error::NoMajority`] that [is a loss](Error::is_lost).
    pub fn with<R>(&self, body: impl FnOnce(&QuorumGuard) -> R) -> Result<R, Error> {
        let guard = self.acquire(self.options.timeout, HoldKind::Scoped)?;
        let returned = body(&guard);
        guard.release().or_else(Error::unless_lost)?;
        Ok(returned)
    }

    /// The same as [`with`](Self::with) for a body that can fail: returns its result, and the lock's errors as the body's type of error.
    ///
    /// # Errors
    ///
    /// The body's own, and those of [`with`](Self::with), converted. If the body fails and the lock is lost, its own is returned.
    pub fn try_with<T, E: From<Error>>(
        &self,
        body: impl FnOnce(&QuorumGuard) -> Result<T, E>,
    ) -> Result<T, E> {
        let guard = self.acquire(self.options.timeout, HoldKind::Scoped)?;
        let returned = body(&guard)?;
        guard.release().or_else(Error::unless_lost)?;
        Ok(returned)
    }

    /// Waits for the lock, up to the timeout of the options, and tries once more at the deadline. A server that does not answer is waited for
    /// only where its answer matters, and at most one command timeout.
    ///
    /// # Errors
    ///
    /// [`Error::NoMajority`], with what each server said: after contention until the timeout or the last
    /// [attempt](LockOptions::max_attempts); if no majority could be reached for [`retry_for`](crate::LockerBuilder::retry_for); and at once if
    /// a majority refuses in a way that does not [pass](Error::is_transient). Where a reply was lost, a thread gives the lock back as soon as
    /// the server shows it. [`Error::Cancelled`] if the wait was ended from outside, [`Error::Nested`] inside a [`with`](Self::with) on the
    /// same key by the same thread, [`Error::Forked`] in a forked child.
    pub fn lock(&self) -> Result<QuorumGuard, Error> {
        self.acquire(self.options.timeout, HoldKind::Movable)
    }

    /// Tries once: returns `None` if other holders have so many servers that no majority is left.
    ///
    /// # Errors
    ///
    /// Those of [`lock`](Self::lock), except contention, which is `None` here.
    pub fn try_lock(&self) -> Result<Option<QuorumGuard>, Error> {
        self.try_lock_for(Duration::ZERO)
    }

    /// Waits for the lock up to `timeout`, whatever the options say. Returns `None` if it was not acquired in that time, or in the allowed
    /// attempts.
    ///
    /// # Errors
    ///
    /// Those of [`lock`](Self::lock), except contention, which is `None` here.
    pub fn try_lock_for(&self, timeout: Duration) -> Result<Option<QuorumGuard>, Error> {
        match self.acquire(Some(timeout), HoldKind::Movable) {
            Ok(guard) => Ok(Some(guard)),
            Err(error) if error.is_contention() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn acquire(&self, timeout: Option<Duration>, kind: HoldKind) -> Result<QuorumGuard, Error> {
        let began = clock::uptime();
        let deadline = timeout.map(|timeout| began.after(timeout));
        let retry_for = self.longest(|backend| backend.retry_for());
        let _registered = self.cancel_token.as_ref().map(CancelToken::register);
        let (mut attempts, mut reached) = (0, began);
        loop {
            self.check(began)?;
            attempts += 1;
            let error = match self.ask_for_locks(began, attempts) {
                Ok(held) => {
                    for (server, guard) in held.guards() {
                        thread_holds::note(&self.servers[server].engine().identity, guard.hold(), kind);
                    }
                    return Ok(QuorumGuard::new(self.clone(), held));
                }
                Err(error) => error,
            };
            let (now, is_contention) = (clock::uptime(), error.is_contention());
            reached = if is_contention { now } else { reached };
            let is_last = deadline.is_some_and(|deadline| now >= deadline)
                || self.options.max_attempts.is_some_and(|most| attempts >= most)
                || !is_contention && now.since(reached) >= retry_for;
            if is_last || !error.is_transient() {
                return Err(error);
            }
            let random = self.servers[0].engine().identity.next_nonce().seed();
            let until = now.after(quorum::pause(self.options.poll_interval, random));
            self.pause(deadline.map_or(until, |deadline| until.min(deadline)));
        }
    }

    /// Fails where the lock is not to be asked for.
    fn check(&self, began: Uptime) -> Result<(), Error> {
        self.refuse_after_fork()?;
        if self.is_ended() {
            let (waited, shut_down) = (clock::uptime().since(began), self.is_shut_down());
            return Err(Error::Cancelled { key: self.key.clone(), waited, shut_down });
        }
        let kind = |server: &Server| thread_holds::by_this_thread(&server.engine().identity, &self.key);
        if self.servers.iter().any(|server| kind(server) == Some(HoldKind::Scoped)) {
            return Err(Error::Nested { key: self.key.clone() });
        }
        Ok(())
    }

    pub(super) fn refuse_after_fork(&self) -> Result<(), Error> {
        if self.servers.iter().all(|server| server.engine().identity.is_this_process()) {
            Ok(())
        } else {
            Err(Error::Forked { key: Some(self.key.clone()) })
        }
    }

    fn is_shut_down(&self) -> bool {
        self.servers.iter().any(|server| server.engine().queue.is_closed())
    }

    fn is_ended(&self) -> bool {
        self.cancel_token.as_ref().is_some_and(CancelToken::is_cancelled) || self.is_shut_down()
    }

    fn pause(&self, until: Uptime) {
        while clock::uptime() < until && !self.is_ended() {
            thread::park_timeout(until.since(clock::uptime()).min(SHUT_DOWN_CHECKED_EVERY));
        }
    }

    fn longest(&self, time: impl Fn(&dyn Backend) -> Duration) -> Duration {
        self.servers.iter().map(|server| time(&*server.engine().backend)).max().unwrap_or_default()
    }

    /// Asks all servers for the lock, at the same time. Without a majority all is given back.
    fn ask_for_locks(&self, began: Uptime, attempts: u32) -> Result<Arc<Held>, Error> {
        let (sender, inbox) = mpsc::channel();
        let wanted = Arc::new(());
        for (index, Server { lock, .. }) in self.servers.iter().enumerate() {
            let (asked, sender, wanted) = (lock.clone(), sender.clone(), Arc::downgrade(&wanted));
            lock.locker().spawn(Duration::ZERO, move || {
                if wanted.strong_count() > 0 {
                    let (answer, maybe) = asked.try_once();
                    // A lock that nobody wants any more is released with the answer.
                    drop(sender.send((index, answer)));
                    if let Some(maybe) = maybe {
                        give_back(&asked, maybe, FIRST_LOOK);
                    }
                }
            });
        }
        drop(sender);
        let left = |guard: &LockGuard| guard.remaining().unwrap_or_default();
        let Answers { agree, granted, refused } = self.gather(&inbox, self.servers.len(), left);
        // One that is too old by now has come too late.
        let in_time = granted.iter().filter(|(_, guard)| self.terms.spare(left(guard)).is_some());
        let agreed: Vec<usize> = in_time.map(|(server, _)| *server).collect();
        let guards = granted.into_iter().map(|(server, guard)| (server, Arc::new(guard))).collect();
        if agree {
            return Ok(Arc::new(Held::new(self.terms, guards, (inbox, wanted))));
        }
        drop((inbox, wanted));
        let given_back = self.each(guards, |guard| {
            drop(guard);
            Ok(())
        });
        // A process that ends now would leave the locks.
        complete(&given_back, self.answered_by());
        let time = clock::uptime().since(began);
        let plural = if attempts == 1 { "attempt" } else { "attempts" };
        Err(self.no_majority(format!("not acquired in {time:.1?} and {attempts} {plural}"), &agreed, refused))
    }

    /// Does something with each of these locks, on its server's thread. Returns where the answers come.
    pub(super) fn each(&self, guards: Guards, act: fn(Arc<LockGuard>) -> Result<(), Error>) -> Inbox<()> {
        let (sender, inbox) = mpsc::channel();
        for (index, guard) in guards {
            let (sender, locker) = (sender.clone(), self.servers[index].lock.locker());
            locker.spawn(Duration::ZERO, move || drop(sender.send((index, act(guard)))));
        }
        inbox
    }

    /// Waits for the answers of as many servers, at most one command timeout, until a majority agrees or cannot agree any more, by what is left
    /// of each grant.
    pub(super) fn gather<G>(
        &self,
        inbox: &Inbox<G>,
        mut asked: usize,
        left: impl Fn(&G) -> Duration,
    ) -> Answers<G> {
        let (began, mut by) = (clock::uptime(), self.answered_by());
        let (mut granted, mut refused, mut has_failed) = (Vec::new(), Vec::new(), false);
        loop {
            let now = clock::uptime();
            let open = if now < by { asked - granted.len() - refused.len() } else { 0 };
            let at_most = match self.terms.judge(granted.iter().map(|(_, grant)| left(grant)), open) {
                Verdict::Open(time) => time,
                // The error is to say what the others answer; they need about as long.
                Verdict::Failed if open > 0 => {
                    by = if has_failed { by } else { by.min(now.after(now.since(began))) };
                    has_failed = true;
                    Duration::MAX
                }
                verdict => return Answers { agree: verdict == Verdict::Agreed, granted, refused },
            };
            match inbox.recv_timeout(by.since(now).min(at_most)) {
                Ok((server, Ok(grant))) => granted.push((server, grant)),
                Ok((server, Err(error))) => refused.push((server, error)),
                Err(RecvTimeoutError::Disconnected) => asked = granted.len() + refused.len(),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Returns until when answers to what is asked now are waited for.
    fn answered_by(&self) -> Uptime {
        clock::uptime().after(self.longest(|backend| backend.command_timeout())).after(ANSWER_GRACE)
    }

    /// Returns the error of a question to which only these servers have agreed, with what the others said.
    pub(super) fn no_majority(
        &self,
        failed: String,
        agreed: &[usize],
        mut refused: Vec<(usize, Error)>,
    ) -> Error {
        let other = |(index, server): (usize, &Server)| {
            let at = refused.iter().position(|(other, _)| *other == index);
            (server.name.clone(), at.map(|at| refused.swap_remove(at).1))
        };
        let others = self.servers.iter().enumerate().filter(|(index, _)| !agreed.contains(index));
        let (key, answers) = (self.key.clone(), others.map(other).collect());
        Error::NoMajority { key, failed, agreed: agreed.len(), lost: false, answers }
    }
}

/// Waits until each of those asked has answered, and at most until then.
pub(super) fn complete(inbox: &Inbox<()>, by: Uptime) {
    while inbox.recv_timeout(by.since(clock::uptime())).is_ok() {}
}

/// Releases a lock that may be held, once the server shows it; looks at the key until the lease has ended.
fn give_back(lock: &Lock, maybe: MaybeHeld, delay: Duration) {
    let engine = lock.locker().engine();
    if !engine.queue.is_closed() && !engine.release_if_held(&maybe) {
        let again = lock.clone();
        lock.locker().spawn(delay, move || give_back(&again, maybe, delay * 2));
    }
}

#[cfg(test)]
mod tests;
