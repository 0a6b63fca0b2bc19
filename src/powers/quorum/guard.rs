//! A lock that is held on a majority of servers.

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{fmt, mem};

use proto::values::{Key, Now, Uptime};

use super::servers::{Answers, Guards, Late, Servers, complete, time_left};
use crate::extend::Losable;
use crate::system::clock;
use crate::system::sync::{Mutex, MutexGuard};
use crate::system::thread;
use crate::{Error, LockGuard, Locker, LossReason, LossSignal};

/// How often a thread that waits for a loss checks the guards.
const LOSS_CHECKED_EVERY: Duration = Duration::from_millis(100);

/// A lock that a majority of servers has granted, as its guard and its signals share it.
struct QuorumHold {
    servers: Servers,
    locks: Mutex<Locks>,
    /// Why it was lost, once that was noticed.
    lost: OnceLock<LossReason>,
}

struct Locks {
    answers: Answers<Arc<LockGuard>>,
    /// `None` once the lock is released, or lost.
    late: Option<Late>,
    /// How many of the guards the keepers check, because there is a signal.
    watched: usize,
}

impl QuorumHold {
    /// Takes in what was granted late, unless the hold has ended: that would not make it whole again. `None` in a
    /// forked child, where a thread that is not there may have them locked (I10).
    fn locks(&self) -> Option<MutexGuard<'_, Locks>> {
        self.servers.refuse_after_fork().ok()?;
        let mut locks = self.locks.lock();
        let Locks { answers, late, .. } = &mut *locks;
        if answers.wants(time_left) {
            let late = late.iter().flat_map(|(inbox, _)| inbox.try_iter());
            late.for_each(|(server, answer)| answers.add(server, answer));
        }
        Some(locks)
    }

    fn guards(&self) -> Guards {
        self.locks().map(|locks| locks.answers.granted.clone()).unwrap_or_default()
    }

    fn remaining(&self) -> Duration {
        self.locks().map(|locks| locks.answers.remaining(time_left)).unwrap_or_default()
    }

    /// Lets the keepers check the keys that they do not check yet.
    fn watch(&self) {
        let Some(mut locks) = self.locks() else { return };
        let count = locks.answers.granted.len();
        let watched = mem::replace(&mut locks.watched, count);
        let new = locks.answers.granted.iter().skip(watched);
        let new: Vec<_> = new.map(|(server, guard)| (*server, guard.watching())).collect();
        drop(locks);
        // A slow server may still be extending its lease.
        for (server, watch) in new {
            self.servers.spawn(server, watch);
        }
    }

    /// Ends the hold. Returns the locks to release.
    fn take_guards(&self) -> Guards {
        let Some(mut locks) = self.locks() else { return Vec::new() };
        locks.watched = 0;
        let ended = (locks.answers.take_grants(), locks.late.take());
        drop(locks);
        for (_, guard) in &ended.0 {
            // The thread may ask for the lock again while a slow server still releases it.
            guard.give_up();
        }
        ended.0
    }
}

impl Losable for QuorumHold {
    fn loss(&self, _: Now) -> Option<LossReason> {
        if self.locks().is_some_and(|locks| locks.watched > 0) {
            self.watch();
        }
        // At one moment: a release takes the guards away.
        if let Some(mut locks) = self.locks()
            && locks.answers.is_held()
            && locks.answers.remaining(time_left).is_zero()
        {
            let noticed = locks.answers.granted.iter().find_map(|(_, guard)| guard.noticed_loss());
            let _ = self.lost.set(noticed.unwrap_or(LossReason::Expired));
            let late = locks.late.take();
            // What is released is reported, to code of the program.
            drop(locks);
            for (server, unwanted) in late.iter().flat_map(|(inbox, _)| inbox.try_iter()) {
                self.servers.spawn(server, move || drop(unwanted));
            }
        }
        self.lost.get().cloned()
    }

    fn is_held(&self) -> bool {
        self.locks().is_some_and(|locks| locks.answers.is_held())
    }

    fn wait(&self, until: Uptime) {
        while self.loss(clock::now()).is_none() && self.is_held() && clock::uptime() < until {
            let left = until.since(clock::uptime()).min(self.remaining());
            thread::sleep(left.min(LOSS_CHECKED_EVERY));
        }
    }
}

// A panic in the program's code leaves nothing here half done: nothing of it runs while the locks are locked.
impl UnwindSafe for QuorumHold {}
impl RefUnwindSafe for QuorumHold {}

/// A lock of a [`Quorum`](crate::Quorum) that is held. It is released when dropped, even by a panic.
///
/// It is held while a majority of the servers has it. With [`auto_extend`](crate::LockOptions::auto_extend), the
/// keeper thread of each locker extends the lease on its server.
#[must_use = "if unused, the lock is released at once"]
pub struct QuorumGuard {
    held: Arc<QuorumHold>,
    /// How long the lock stays held at least, by [`hold_at_least`](crate::LockOptions::hold_at_least).
    held_until: Uptime,
}

impl QuorumGuard {
    pub(super) fn new(
        servers: Servers,
        answers: Answers<Arc<LockGuard>>,
        late: Late,
        held_until: Uptime,
    ) -> Self {
        let locks = Mutex::new(Locks { answers, late: Some(late), watched: 0 });
        Self { held: Arc::new(QuorumHold { servers, locks, lost: OnceLock::new() }), held_until }
    }

    fn servers(&self) -> &Servers {
        &self.held.servers
    }

    /// Returns the lock's key.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.servers().key
    }

    /// Returns how much longer a majority of leases lasts, minus the [allowance for
    /// clocks](crate::Quorum::max_clock_difference). Does not contact a server.
    ///
    /// Zero if a loss was noticed, and in a forked child.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        if self.held.lost.get().is_some() { Duration::ZERO } else { self.held.remaining() }
    }

    /// Checks that the hold has not ended and that no loss was noticed: see [`LockGuard::ensure_held`]. Call it
    /// before a step that must not happen twice.
    ///
    /// Does not contact a server. After the first failure the lock counts as lost.
    ///
    /// # Errors
    ///
    /// [`Error::NoMajority`] for which [`Error::is_lost`] returns true, with what is known of each server.
    /// [`Error::Forked`] in a forked child.
    pub fn ensure_held(&self) -> Result<(), Error> {
        self.servers().refuse_after_fork()?;
        self.held.loss(clock::now());
        self.refuse_lost()
    }

    /// Fails if a loss was noticed, whatever the clocks say now.
    fn refuse_lost(&self) -> Result<(), Error> {
        if self.held.lost.get().is_none() {
            return Ok(());
        }
        let checked = self.held.guards().into_iter().map(|(server, guard)| (server, guard.ensure_held()));
        let (have, lost): (Vec<_>, Vec<_>) = checked.partition(|(_, checked)| checked.is_ok());
        let have: Vec<usize> = have.into_iter().map(|(server, _)| server).collect();
        let lost = lost.into_iter().filter_map(|(server, checked)| Some((server, checked.err()?))).collect();
        Err(self.servers().no_majority("not held".to_owned(), &have, lost).of_loss())
    }

    /// Extends the lease on all servers at the same time: it begins anew now, and lasts for the expiration of the
    /// options. See [`LockGuard::extend`].
    ///
    /// Waits until a majority has extended it.
    ///
    /// # Errors
    ///
    /// [`Error::NoMajority`] if there was no majority, with the answer of each server. If [`Error::is_lost`]
    /// returns true, the lock is lost: stop the protected work. Otherwise the hold continues for the time that
    /// [`remaining`](Self::remaining) returns. [`Error::Forked`] in a forked child.
    pub fn extend(&self) -> Result<(), Error> {
        self.ask("not extended", |guard| guard.extend())
    }

    /// Asks all servers at the same time whether they still have the lock: see [`LockGuard::verify`].
    ///
    /// Waits until a majority has confirmed it.
    ///
    /// # Errors
    ///
    /// [`Error::NoMajority`] if there was no majority, with the answer of each server. Unless [`Error::is_lost`]
    /// returns true, the state of the lock is unknown. [`Error::Forked`] in a forked child.
    pub fn verify(&self) -> Result<(), Error> {
        self.ask("not verified", |guard| guard.verify())
    }

    fn ask(&self, failed: &str, act: fn(Arc<LockGuard>) -> Result<(), Error>) -> Result<(), Error> {
        self.servers().refuse_after_fork()?;
        self.refuse_lost()?;
        self.agree(self.held.guards(), failed, act)
    }

    /// Acts on the lock of each server, and waits for a majority.
    fn agree(
        &self,
        guards: Guards,
        failed: &str,
        act: impl Fn(Arc<LockGuard>) -> Result<(), Error> + Clone + Send + 'static,
    ) -> Result<(), Error> {
        let (began, asked) = (clock::uptime(), guards.len());
        let inbox = self.servers().each(guards, act);
        let answers = self.servers().gather(&inbox, asked, |()| Duration::MAX);
        if answers.is_held() {
            // A process that ends now would leave the others undone, and they need about as long.
            let now = clock::uptime();
            let at_most = began.after(2 * self.servers().longest(Locker::command_timeout));
            complete(&inbox, now.after(now.since(began)).min(at_most));
            return Ok(());
        }
        let mut lost: Vec<_> = answers.refused.iter().filter_map(|(_, error)| error.loss_reason()).collect();
        let is_lost = asked - lost.len() < self.servers().terms.majority;
        let agreed: Vec<usize> = answers.granted.iter().map(|(server, ())| *server).collect();
        let error = self.servers().no_majority(failed.to_owned(), &agreed, answers.refused);
        if is_lost {
            let _ = self.held.lost.set(lost.pop().unwrap_or(LossReason::Expired));
            return Err(error.of_loss());
        }
        Err(error)
    }

    /// Returns a signal that tells the working threads whether the lock is lost: see [`LockGuard::loss_signal`].
    /// From then on, the keeper thread of each locker checks the key on its server.
    #[must_use]
    pub fn loss_signal(&self) -> LossSignal {
        self.held.watch();
        LossSignal::of(Arc::<QuorumHold>::clone(&self.held))
    }

    /// Releases the lock on all servers at the same time, and reports the outcome: see [`LockGuard::release`].
    ///
    /// Waits for a majority, and then about as long for the other servers.
    ///
    /// # Errors
    ///
    /// [`Error::NoMajority`] if there was no majority, with the answer of each server. If [`Error::is_lost`]
    /// returns true, **another client may have worked at the same time**. Otherwise the lock frees itself when its
    /// leases have ended. [`Error::Forked`] in a forked child, which releases nothing.
    pub fn release(self) -> Result<(), Error> {
        self.release_all()
    }

    /// Releases the lock in the background, and returns at once. The lockers report the outcome on each server: see
    /// [`LockGuard::release_later`]. In a forked child it does nothing.
    pub fn release_later(self) {
        self.release_all_later();
    }

    fn release_all_later(&self) {
        if self.servers().refuse_after_fork().is_err() {
            return;
        }
        let guards = self.held.take_guards();
        if self.held_until > clock::uptime() {
            return drop(self.servers().each(guards, self.releasing()));
        }
        guards.into_iter().filter_map(|(_, guard)| Arc::into_inner(guard)).for_each(LockGuard::release_later);
    }

    fn release_all(&self) -> Result<(), Error> {
        self.servers().refuse_after_fork()?;
        let noticed = self.refuse_lost();
        let released = self.agree(self.held.take_guards(), "not released", self.releasing());
        noticed.and(released)
    }

    /// Returns what releases the lock on one server.
    fn releasing(&self) -> impl Fn(Arc<LockGuard>) -> Result<(), Error> + Clone + Send + 'static + use<> {
        let rest = self.held_until.since(clock::uptime());
        move |guard| {
            // Another thread that has it drops it at once, which releases as well.
            let Some(guard) = Arc::into_inner(guard) else { return Ok(()) };
            if rest.is_zero() {
                return guard.release();
            }
            // It ends earlier by the allowance for clocks.
            guard.extend_by(rest.max(Duration::from_millis(1)) + guard.options().terms.allowance)?;
            guard.leave_to_expire()
        }
    }
}

impl Drop for QuorumGuard {
    /// Releases the lock. The lockers report failures to the log and their observers.
    fn drop(&mut self) {
        if self.servers().refuse_after_fork().is_err() {
            // I10: in a forked child a thread that is not there may be
            // about to send an answer, which would be waited for.
            mem::forget(Arc::clone(&self.held));
        } else if self.held.is_held() && self.servers().releases_later {
            self.release_all_later();
        } else if self.held.is_held() {
            // A failure has been reported.
            let _ = self.release_all();
        }
    }
}

impl fmt::Debug for QuorumGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuorumGuard")
            .field("key", self.key())
            .field("remaining", &self.remaining())
            .field("granted", &self.held.locks().map(|locks| locks.answers.granted.len()))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LockOptions;
    use crate::net::scripted::ScriptedBackend;
    use std::sync::mpsc;

    #[test]
    fn a_forked_child_touches_nothing_that_may_be_locked() {
        let lockers = [(); 3].map(|()| Locker::over(ScriptedBackend::granting()).in_forked_child());
        let options = LockOptions::expiring_after(Duration::from_secs(10));
        let servers = Servers::of(&lockers, "k".into(), &options).unwrap();
        let (sender, inbox) = mpsc::channel();
        let answers = Answers::of(3, servers.terms);
        let guard = QuorumGuard::new(servers, answers, (inbox, Arc::default()), clock::uptime());
        mem::forget(guard.held.locks.lock());
        let signal = guard.loss_signal();
        assert!(guard.remaining().is_zero() && !signal.is_lost() && !signal.is_held());
        assert!(matches!(guard.ensure_held(), Err(Error::Forked { .. })));
        assert!(format!("{guard:?} {signal:?}").contains("QuorumGuard"));
        let held = Arc::downgrade(&guard.held);
        drop((guard, signal, sender));
        assert!(held.upgrade().is_some(), "the answers are left alone");
    }
}
