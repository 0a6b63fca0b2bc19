//! A lock that is held. Knows its lease and how to release it; does not know how it was declared.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::{fmt, iter, mem, slice};

use chrono::{DateTime, Utc};

use crate::api::loss_signal::LossSignal;
use crate::report::error::Error;
use crate::report::event::Event;
use crate::rules::ownership::LossReason;
use crate::run::hold::Hold;
use crate::run::{Acquired, Delivery, Ended, Engine, Leaving};
use crate::values::clock;
use crate::values::key::Key;
use crate::values::options::{LockOptions, Protocol};
use crate::wait::HolderTicket;

/// A lock that is held: released when dropped, also by a panic.
///
/// It can be moved to another thread and dropped there. It holds no connection. With an expiration it is a promise for a
/// limited time: [`extend`](Self::extend) it, or call [`ensure_held`](Self::ensure_held) before a step that must not happen twice.
/// [The guide](crate::documentation::guide#the-lease) explains what a holder can do.
///
/// A process that is forked while it holds a lock has two guards of it; the child's releases nothing.
#[must_use = "if unused, the lock is released at once"]
pub struct LockGuard {
    engine: Arc<Engine>,
    hold: Arc<Hold>,
    /// Whether an enclosing call releases.
    is_nested: bool,
    /// Taken out at the release; none in a nested call.
    holder: Option<HolderTicket<Delivery>>,
}

impl LockGuard {
    pub(crate) fn new(engine: Arc<Engine>, acquired: Acquired) -> Self {
        let Acquired { hold, holder } = acquired;
        Self { engine, hold, is_nested: false, holder: Some(holder) }
    }

    /// Joins a hold of the same thread.
    pub(crate) fn nested(engine: Arc<Engine>, hold: Arc<Hold>) -> Self {
        Self { engine, hold, is_nested: true, holder: None }
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

    /// Returns the protocol that the lock was acquired by and is released by: never [`Protocol::Auto`], which was decided then.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.hold.protocol
    }

    /// Returns how long the lock can still be relied on, by the clock that allows less: zero if the lease has passed or a loss was noticed,
    /// otherwise `None` without an expiration. Asks no server.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.hold.remaining(clock::now())
    }

    /// Returns when the lease ends, by the wall clock; `None` without an expiration. The value in the key names a
    /// later time: by one second, the gem's guard against clocks that differ, and by ten in Ttl.
    #[must_use]
    pub fn expires_at(&self) -> Option<DateTime<Utc>> {
        self.hold.end().and_then(|end| end.wall.date())
    }

    /// Checks that the lease has not passed and that no loss was noticed, for use before a step that must not happen twice. Without an
    /// expiration a lease never passes. Asks the clocks, not the server, so a key that was cleared is noticed only if something else has
    /// asked: see [`verify`](Self::verify). Once it has failed, the lock counts as lost.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lease has passed by either clock, or the server has shown that the lock is lost: another holder may have it by
    /// now.
    pub fn ensure_held(&self) -> Result<(), Error> {
        let now = clock::now();
        let Some(reason) = self.hold.lost(now) else { return Ok(()) };
        self.hold.report();
        Err(Engine::lost(&self.hold, reason, now))
    }

    /// Extends the lease: it begins anew now, and lasts for the expiration of the options. Can be called from any thread, as often as
    /// needed. Two trips, and at most the time of one command for both; an extension that is on its way already is waited for first. With a
    /// [`holder_name`](crate::LockerBuilder::holder_name) one more.
    ///
    /// In Classic GET, and at once GETSET if the key holds this holder's value, within the lease only. In Watched and Ttl a transaction that
    /// changes the key only if it still holds that value; that is a proof, so these extend even after the lease has passed, as long as the key
    /// still holds that value and no loss was noticed. With [`auto_extend`](crate::LockOptions::auto_extend) a thread does it.
    ///
    /// The gem has no such thing. Gems see the later time and wait.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lock is not held any more: stop the protected work. [`Error::Unavailable`]
    /// and [`Error::Refused`] if it was not extended: the lease goes on until its old end. [`Error::InDoubt`] if the reply was
    /// lost and reading the key did not settle it: the old lease counts, and no longer. [`Error::Invalid`] without an expiration.
    /// [`Error::Forked`] in a forked child.
    pub fn extend(&self) -> Result<(), Error> {
        let lease = self.lease(None)?;
        self.one(|engine, hold| engine.extend(hold, Some(lease)))
    }

    /// Like [`extend`](Self::extend), with a lease of `lease` that begins now and may end before the present one: a millisecond to
    /// [`LockOptions::MAX_EXPIRATION`](crate::LockOptions::MAX_EXPIRATION).
    ///
    /// In Classic all clients of a key should use one expiration; a longer lease can be cut short by the loser of a takeover
    /// ([`documentation::limits`](crate::documentation::limits)).
    ///
    /// # Errors
    ///
    /// Those of [`extend`](Self::extend), and [`Error::Invalid`] for any other time.
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

    /// Returns the time that an extension takes: what is asked for, or the expiration.
    pub(crate) fn lease(&self, asked: Option<Duration>) -> Result<Duration, Error> {
        let Some(expiration) = self.hold.options.expiration else { return Err(self.no_lease()) };
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

    /// Asks the server whether the lock is still held, with one GET, and waits for the reply at most the time of one command.
    ///
    /// With an expiration the key names this holder. In Classic a contender that loses a takeover can overwrite that value, so a time close to
    /// this holder's counts as its own while the lease lasts. In Watched and Ttl only a Ruby client's value is recognised this way; another
    /// program's Classic value counts as a loss. The answer describes the past; [`ensure_held`](Self::ensure_held) knows the time that is left.
    /// Without an expiration the value is `1`, which names no holder.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lock is not held any more. [`Error::Unavailable`], [`Error::Refused`], or
    /// [`Error::Forked`]: nothing is known then.
    pub fn verify(&self) -> Result<(), Error> {
        self.one(|engine, hold| engine.verify(hold))
    }

    /// Returns a signal that tells the working threads when the lock is lost. From then on the keeper thread sends one GET every third of the
    /// expiration, unless an extension has confirmed the lock; without an expiration it does not look. Waits for a command of this hold that is
    /// on its way.
    #[must_use]
    pub fn loss_signal(&self) -> LossSignal {
        self.engine.watch(&self.hold);
        LossSignal::of_all(iter::once(Arc::clone(&self.hold)))
    }

    /// Calls `act` when the lock is lost, and at once if it is; never once the lock is released. Runs on the thread that notices the loss,
    /// usually the locker's keeper thread, which looks at the key as for a [signal](Self::loss_signal). It should be quick; a panic in it is
    /// dropped.
    pub fn on_loss(&self, act: impl FnOnce(LossReason) + Send + 'static) {
        self.engine.on_loss(&self.hold, Box::new(act));
    }

    /// Returns this hold's fencing token: a number that is greater than that of every earlier holder of the key, for a storage that refuses
    /// writes with a smaller one than it has seen. The first call takes one, with INCR of `KEY:setnx-lock:fence` (in Watched and Ttl within a
    /// transaction that watches the lock's key: two trips), later ones return the same.
    /// [The guide](crate::documentation::guide#fencing-tokens) has an example.
    ///
    /// If the counter is deleted, tokens start again at 1, and the storage refuses them until they pass the greatest it has seen. A token that
    /// was taken is returned even after a loss; the storage has to refuse it.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if a token is to be taken and the lock is not held any more: in Classic a token counts only
    /// if the lease still lasts when the reply is read. [`Error::Refused`] if the counter holds no number, [`Error::Invalid`] if that is not
    /// positive. [`Error::Unavailable`], [`Error::Forked`].
    pub fn fencing_token(&self) -> Result<u64, Error> {
        self.one(|engine, hold| engine.fencing_tokens(hold))
    }

    /// Ends the hold without releasing: the key is left to expire at the end of the lease, and others can take it over at most a second later; it is
    /// extended no more. Sends nothing. A lock without an expiration stays held until it is cleared.
    ///
    /// The gem has no such thing.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lease has ended or a loss was noticed. [`Error::Forked`] in a forked child.
    pub fn leave_to_expire(mut self) -> Result<(), Error> {
        self.end(Leaving::Keep)
    }

    /// Releases the lock, by the rules of its [protocol](Self::protocol). In Classic one DEL, and only while the lease has not passed; after
    /// that the key is left to its holder of then. In Watched and Ttl a look at the key, and a transaction that deletes this holder's value,
    /// even after the lease. Takes at most one command timeout, after waiting for a connection that other threads use: until the lease ends;
    /// without an expiration, as long as the server answers; on a pool of your own, within that command timeout.
    ///
    /// If another thread of this process is queued for the key, through the same [`Locker`](crate::Locker), the lock is handed over: this
    /// holder's value is replaced by one of that thread, by GETSET or by a transaction, and the thread is woken. With
    /// [notifications](crate::LockOptions::notify_waiters) the trip of a deletion also asks whether another process waits; if one does, a
    /// second trip notifies it.
    ///
    /// The gem's release at the end of a block, which reports nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the lock was lost while it was held: the key is missing or another client's, or the lease had ended before and the
    /// server did not prove that no other client had the lock. **Another client may have worked at the same time.**
    ///
    /// [`Error::InDoubt`] if the reply to the deletion was lost, [`Error::Unavailable`] if the look got none, or without a
    /// connection, [`Error::Refused`] if the server refuses. In each case an expiring lock frees itself, and nothing is sent
    /// again. [`Error::Forked`] in a forked child, which releases nothing.
    pub fn release(mut self) -> Result<(), Error> {
        self.end(Leaving::Release)
    }

    /// Ends the hold of a call with a body. Only a loss is an error: any other failure has been reported as an event.
    pub(crate) fn leave(self) -> Result<(), Error> {
        self.release().or_else(Error::unless_lost)
    }

    fn end(&mut self, leaving: Leaving) -> Result<(), Error> {
        Self::end_all(slice::from_mut(self), leaving)
    }

    /// Ends holds of one locker that began together, unless they have ended before or are nested.
    pub(crate) fn end_all(guards: &mut [Self], leaving: Leaving) -> Result<(), Error> {
        let Some(of_one) = guards.iter().find(|guard| guard.holder.is_some()) else { return Ok(()) };
        let engine = Arc::clone(&of_one.engine);
        let holds = guards.iter_mut().filter_map(|Self { hold, holder, .. }| Some((&**hold, holder.take()?)));
        if !engine.identity.is_this_process() {
            // I10: the parent holds the lock, and its connections and its queue are not the child's to use.
            let forked = |(hold, holder): (&Hold, _)| {
                mem::forget(holder);
                Err(Error::Forked { key: Some(hold.key.clone()) })
            };
            return Error::of_all(holds.map(forked));
        }
        let ended = engine.end(holds.rev(), leaving);
        for (hold, ended) in &ended {
            let key = &hold.key;
            engine.observer.notify(&match ended {
                Ok(Ended { held, certified, left_to_expire, outlived_lease }) => Event::Released {
                    key,
                    held: *held,
                    certified: *certified,
                    left_to_expire: *left_to_expire,
                    outlived_lease: *outlived_lease,
                },
                // It has been reported.
                Err(error) if error.is_lost() => continue,
                Err(error) => Event::ReleaseFailed { key, error },
            });
        }
        Error::of_all(ended.into_iter().map(|(_, ended)| ended.map(drop)))
    }
}

impl Drop for LockGuard {
    /// Releases, and reports a failure to the log and the observer: dropping never fails and never panics (I10).
    fn drop(&mut self) {
        if self.holder.is_some() {
            // A failure has been reported.
            let _ = self.end(Leaving::Release);
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
