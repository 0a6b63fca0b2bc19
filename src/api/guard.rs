//! A lock that is held: its lease and its release.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::{fmt, iter, mem};

use chrono::{DateTime, Utc};
use proto::values::{Key, Protocol};

use crate::api::loss_signal::LossSignal;
use crate::report::error::Error;
use crate::report::state::{LossReason, date};
use crate::run::hold::Hold;
use crate::run::thread_holds;
use crate::run::{Acquired, Engine, Holder, Leaving};
use crate::system::clock;
use crate::values::options::LockOptions;

/// A lock that is held. It is released when dropped, even by a panic.
///
/// The guard can be moved to another thread and dropped there; it occupies no connection. With an expiration it
/// protects the work for a limited time: [`extend`](Self::extend) the lease, or call
/// [`ensure_held`](Self::ensure_held) before a step that must not happen twice. [The
/// guide](crate::documentation::guide#the-lease) explains the lease.
///
/// Dropping the guard can block like [`release`](Self::release), and reports a failure to the log and the observer.
///
/// In a forked child, the copy of a guard releases nothing.
#[must_use = "if unused, the lock is released at once"]
pub struct LockGuard {
    engine: Arc<Engine>,
    hold: Arc<Hold>,
    /// True if an enclosing call releases.
    is_nested: bool,
    /// Taken out at the release; none in a nested call.
    holder: Option<Holder>,
}

impl LockGuard {
    pub(crate) fn new(engine: Arc<Engine>, acquired: Acquired) -> Self {
        let Acquired { hold, holder } = acquired;
        Self { engine, hold, is_nested: false, holder: Some(holder) }
    }

    /// Joins the enclosing `with` of this thread on this key, if that is reentrant.
    pub(crate) fn enclosing(engine: &Arc<Engine>, key: &Key) -> Option<Self> {
        let hold = thread_holds::scoped(&engine.identity, key).filter(|hold| hold.options.reentrant)?;
        let nested = || Self { engine: Arc::clone(engine), hold, is_nested: true, holder: None };
        engine.identity.is_this_process().then(nested)
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Returns the lock's key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.hold.key
    }

    /// Returns the protocol of this hold. It is never [`Protocol::Auto`], but the protocol that Auto selected.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.hold.protocol
    }

    /// Returns how much longer the lock can be relied on, by the clock that allows less. Does not contact the
    /// server.
    ///
    /// Zero if the lease has ended or a loss was noticed. Otherwise `None` without an expiration.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.hold.remaining(clock::now())
    }

    /// Returns the end of the lease by the wall clock; `None` without an expiration. Does not contact the server.
    ///
    /// The value in the key names a later time: one second later, or ten seconds in [`Protocol::Ttl`].
    #[must_use]
    pub fn expires_at(&self) -> Option<DateTime<Utc>> {
        self.hold.end().and_then(|end| date(end.wall))
    }

    /// Checks that the lease has not ended and that no loss was
    /// noticed. Call it before a step that must not happen twice.
    ///
    /// It reads the clocks and does not contact the server, so a key that was cleared is noticed only if something
    /// else has read it: see [`verify`](Self::verify). Without an expiration a lease never ends. After the first
    /// failure the lock counts as lost.
    ///
    /// Time can pass between this call and the step; only a [fencing token](Self::fencing_token) covers that gap.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lease has ended according to the wall clock or the monotonic clock, or if the server
    /// has shown that the lock is lost. Another holder may have it.
    pub fn ensure_held(&self) -> Result<(), Error> {
        let now = clock::now();
        let Some(reason) = self.hold.lost(now) else { return Ok(()) };
        self.hold.report();
        Err(Engine::lost(&self.hold, reason, now))
    }

    /// Extends the lease: it begins anew now, and lasts for the expiration of the options.
    ///
    /// Can be called from any thread, as often as needed. Takes at most one command timeout,
    /// after an unfinished command of this guard. With
    /// [`auto_extend`](LockOptions::auto_extend) a background thread extends the lease instead.
    ///
    /// In Classic the lease can be extended only before it ends. In Watched and Ttl
    /// it can also be extended afterwards, if the key still holds this holder's
    /// value and no loss was noticed: that proves that no other client had the lock.
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`] if the lock is no longer held: stop the protected work.
    /// - [`Error::Unavailable`] or [`Error::Refused`] if the lease was not extended: the old lease continues.
    /// - [`Error::InDoubt`] if the reply was lost and reading the key did not settle it: rely on whichever lease
    ///   ends first, the old one or the new one.
    /// - [`Error::Invalid`] without an expiration.
    /// - [`Error::Forked`] in a forked child.
    pub fn extend(&self) -> Result<(), Error> {
        self.lease(None)?;
        self.one(|engine, hold| engine.extend(hold, None))
    }

    /// Starts a new lease that lasts for `lease` from now, from 1 ms to [`LockOptions::MAX_EXPIRATION`]. It may end
    /// before the present lease. Otherwise like [`extend`](Self::extend).
    ///
    /// In Classic, the loser of a takeover can cut short a lease that is longer than the expiration
    /// ([limits](crate::documentation::limits#different-expirations)).
    ///
    /// # Errors
    ///
    /// Those of [`extend`](Self::extend), and [`Error::Invalid`] if `lease` is out of range.
    pub fn extend_by(&self, lease: Duration) -> Result<(), Error> {
        let lease = self.lease(Some(lease))?;
        self.one(|engine, hold| engine.extend(hold, Some(lease)))
    }

    /// Does something with this lock alone.
    fn one<T>(
        &self,
        act: impl FnOnce(&Arc<Engine>, &[&Arc<Hold>]) -> Vec<Result<T, Error>>,
    ) -> Result<T, Error> {
        self.engine.refuse_after_fork(&self.hold.key)?;
        act(&self.engine, &[&self.hold]).pop().unwrap_or_else(|| unreachable!("each hold has its outcome"))
    }

    /// Returns the lease of an extension: the one that is asked for, or the expiration.
    pub(crate) fn lease(&self, asked: Option<Duration>) -> Result<Duration, Error> {
        let Some(expiration) = self.hold.options.terms.expiration else { return Err(self.no_lease()) };
        let lease = asked.unwrap_or(expiration);
        let problem = if lease < Duration::from_millis(1) {
            "the lease is to be extended by less than a millisecond; give the time that the work still needs"
        } else if lease > LockOptions::MAX_EXPIRATION {
            "the lease is to be extended by over ten years; give the time that the work still needs"
        } else {
            return Ok(lease);
        };
        Err(Error::invalid(self.hold.key.clone(), problem))
    }

    fn no_lease(&self) -> Error {
        let problem = "it has no expiration, so there is no lease to extend: it is held until it is released";
        Error::invalid(self.hold.key.clone(), problem)
    }

    /// Asks the server whether the lock is still held, usually with
    /// one command, and waits for at most one command timeout.
    ///
    /// The lease can end while the reply is on its way, so call [`ensure_held`](Self::ensure_held) afterwards.
    /// Without an expiration the value in the key is `1`, which names no holder.
    ///
    /// A contender that loses a takeover, or asks just as the lock is released, can overwrite the holder's value
    /// without having the lock. For 0.7 s after the acquisition, and while the lease lasts, the value of a Ruby client
    /// (gem 1.4.1 and older) counts as such a loser's; in Classic, any time in the future. The call then writes the
    /// holder's value again ([limits](crate::documentation::limits#different-expirations)).
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`] if the lock is no longer held.
    /// - [`Error::Unavailable`], [`Error::Refused`] or [`Error::Forked`]: the state of the lock is unknown.
    pub fn verify(&self) -> Result<(), Error> {
        self.one(Engine::verify)
    }

    /// Returns a signal that tells the working threads whether the lock is lost.
    ///
    /// From then on, the keeper thread reads the key every third of the expiration, unless an extension has
    /// confirmed the lock meanwhile. It never checks a lock without an expiration. The call first waits for an
    /// unfinished command of this guard.
    #[must_use]
    pub fn loss_signal(&self) -> LossSignal {
        self.engine.watch(&self.hold);
        LossSignal::of_all(iter::once(Arc::clone(&self.hold)))
    }

    /// Calls `act` when the lock is lost, or at once if it is lost already. After a timely release `act` never
    /// runs.
    ///
    /// If a call notices the loss, `act` runs on its thread, before the call returns. If the
    /// keeper notices it, which reads the key as it does for a [signal](Self::loss_signal),
    /// `act` runs on a thread of its own, after what was noticed before: a slow `act` delays
    /// the `act` of other locks, but no lease. A panic in `act` is caught and dropped.
    pub fn on_loss(&self, act: impl FnOnce(LossReason) + Send + 'static) {
        self.engine.on_loss(&self.hold, Box::new(act));
    }

    /// Returns the fencing token of this hold: a number greater than the token of every earlier holder of the key.
    ///
    /// A storage that keeps the greatest token it has seen, and refuses smaller ones, is protected from the late
    /// writes of an earlier holder. [The guide](crate::documentation::guide#fencing-tokens) has an example.
    ///
    /// The first call takes a token from the counter `KEY:setnx-lock:fence:{KEY}`; later
    /// calls return the same token, even after a loss. Some numbers are skipped; tokens still
    /// increase. **Never delete the counter while the storage keeps tokens**: the count then
    /// begins anew, and the storage refuses tokens until they pass the greatest it has seen.
    ///
    /// Behind Sentinels and in a cluster the upper 21 of 53 bits are the epoch of the server's configuration, so that
    /// no number comes again [over a failover](crate::documentation::servers#numbers-over-a-failover). The first token
    /// after one takes four round trips in Classic, six in Watched and Ttl.
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`] if the first call finds that the lock is no longer held. In Classic that includes a lease
    ///   that ends before the reply is read.
    /// - [`Error::Refused`] if the counter holds no number, if the user may not raise it by a transaction, or if it
    ///   changes again and again, as in a failover.
    /// - [`Error::Invalid`] if its number is not positive or has more than 53 bits, if the numbers
    ///   of the epoch are used up, if the server cannot [forget](LockOptions::forget_tokens_after)
    ///   it, and in a cluster for a key with a brace and no hash tag.
    /// - [`Error::Unavailable`], or [`Error::Forked`] in a forked child.
    pub fn fencing_token(&self) -> Result<u64, Error> {
        self.one(|engine, hold| engine.fencing_tokens(hold))
    }

    /// Ends the hold without releasing the lock. Sends nothing.
    ///
    /// The key expires at the end of the lease, which is no longer extended, and others can acquire the lock at
    /// most one second later. A lock without an expiration stays held until it is cleared.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lease has ended or a loss was noticed. [`Error::Forked`] in a forked child.
    pub fn leave_to_expire(mut self) -> Result<(), Error> {
        self.end_hold(Leaving::ToExpire)
    }

    /// Releases the lock and reports the outcome.
    ///
    /// Takes at most one command timeout, after waiting for a free connection. That wait ends with the lease; without
    /// an expiration it lasts as long as the server answers. On your own pool it counts towards the command timeout.
    ///
    /// After the lease has ended, a Classic release deletes nothing and returns [`Error::Lost`]; one that had to wait
    /// for a connection until then deletes nothing either, but that is no loss. A Watched or Ttl release still deletes
    /// the key if it holds this holder's value.
    ///
    /// If another thread of this process is queued for the key through the same
    /// [`Locker`](crate::Locker), the lock is handed to that thread. Otherwise, with
    /// [notifications](LockOptions::notify_waiters), a waiting process is notified.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lock was lost while it was held: a loss was noticed before, the key is missing or another
    /// client's, or the lease had ended and the server did not prove that no other client had the lock. **Another
    /// client may have worked at the same time.**
    ///
    /// The other errors need no action if the lock has an expiration. A background thread tries the release again until
    /// the lease ends, and reports how that ends as [`Event::Settled`](crate::Event::Settled); without success the
    /// lock frees itself. Without an expiration it tries for at most [`retry_for`](crate::LockerBuilder::retry_for). It
    /// stops when the locker is shut down or its last clone dropped. It does not try again after a refusal that stays,
    /// nor after a lost reply in Classic, without an expiration or on a [full
    /// server](crate::documentation::limits#a-full-server), where nothing shows whose lock it would delete.
    ///
    /// - [`Error::InDoubt`] if the reply to the deletion was lost.
    /// - [`Error::Unavailable`] if there was no connection, or no reply to the read before the deletion.
    /// - [`Error::Refused`] if the server refuses.
    /// - [`Error::Forked`] in a forked child, which releases nothing.
    pub fn release(mut self) -> Result<(), Error> {
        self.end_hold(Leaving::Release)
    }

    /// Releases the lock in the background, and returns at once: for threads that must not wait for the server.
    ///
    /// A thread of the locker sends what [`release`](Self::release) sends, right away, for all such locks of a node
    /// together. Until then the lock stays held, within its lease: a `try_lock` right after it often still finds it held. Threads
    /// of this process that wait for it are told, or get it handed over. The outcome is reported as [`Event::Released`](crate::Event::Released),
    /// [`Event::ReleaseFailed`](crate::Event::ReleaseFailed) or [`Event::Lost`](crate::Event::Lost);
    /// [`Locker::drain`](crate::Locker::drain) waits for it. If no thread can be started, and after the locker was
    /// shut down, drained, or dropped with all its clones and locks, this call releases the lock itself. In a forked child it does nothing.
    ///
    /// In async programs a release by `spawn_blocking` can wait behind calls that wait for locks, until the lease has
    /// ended; this one cannot. [`release_later_on_drop`](LockOptions::release_later_on_drop) has a dropped guard do the
    /// same.
    pub fn release_later(mut self) {
        self.end_later();
    }

    fn end_later(&mut self) {
        let Some(holder) = self.holder.take() else { return };
        if self.engine.identity.is_this_process() {
            self.engine.release_later(&self.hold, holder);
        } else {
            mem::forget(holder);
        }
    }

    /// Ends the hold of a call with a body. Only a loss is an error: any other failure has been reported as an
    /// event.
    pub(crate) fn leave(self) -> Result<(), Error> {
        self.release().or_else(Error::unless_lost)
    }

    pub(crate) fn end_hold(&mut self, leaving: Leaving) -> Result<(), Error> {
        let Some(holder) = self.holder.take() else { return Ok(()) };
        let Self { engine, hold, .. } = self;
        if !engine.identity.is_this_process() {
            return Err(forked(hold, holder));
        }
        let ended = engine.end_hold(hold, holder, leaving);
        engine.report_end(hold, leaving, &ended);
        ended.map(drop)
    }

    /// Returns what releases the lock; `None` in a nested call, and once it is released.
    pub(crate) fn holder(&mut self) -> Option<&mut Holder> {
        self.holder.as_mut()
    }

    /// Returns the hold, for another guard. The lock is not released.
    pub(crate) fn into_acquired(mut self) -> Option<Acquired> {
        Some(Acquired { hold: Arc::clone(&self.hold), holder: self.holder.take()? })
    }

    /// Has holds of one locker that began together ended in the background, unless they have ended before or are nested.
    pub(crate) fn end_all_later(guards: &mut [Self]) {
        // The last key first, as a release of all: a writer waits for the first.
        guards.iter_mut().rev().for_each(Self::end_later);
    }

    /// Ends holds of one locker that began together, unless they have ended before or are nested.
    pub(crate) fn end_all(guards: &mut [Self], leaving: Leaving) -> Result<(), Error> {
        let Some(of_one) = guards.iter().find(|guard| guard.holder.is_some()) else { return Ok(()) };
        let engine = Arc::clone(&of_one.engine);
        let holds = guards.iter_mut().filter_map(|Self { hold, holder, .. }| Some((&*hold, holder.take()?)));
        if !engine.identity.is_this_process() {
            return Error::of_all(holds.map(|(hold, holder)| Err(forked(hold, holder))));
        }
        let ended = engine.end_holds(holds.collect(), leaving);
        for (hold, ended) in &ended {
            engine.report_end(hold, leaving, ended);
        }
        Error::of_all(ended.into_iter().map(|(_, ended)| ended.map(drop)))
    }
}

/// I10: the parent holds the lock, and its connections and its queue are not the child's to use.
#[cold]
fn forked(hold: &Hold, holder: Holder) -> Error {
    mem::forget(holder);
    Error::Forked { key: hold.key.clone() }
}

impl Drop for LockGuard {
    /// Releases the lock, and reports a failure to the log and the
    /// observer: dropping never fails and never panics (I10).
    fn drop(&mut self) {
        if self.hold.options.releases_later {
            self.end_later();
        } else if self.holder.is_some() {
            // A failure has been reported.
            let _ = self.end_hold(Leaving::Release);
        }
        if !self.is_nested {
            self.hold.is_dropped.store(true, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("key", &self.hold.key)
            .field("protocol", &self.hold.protocol)
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
