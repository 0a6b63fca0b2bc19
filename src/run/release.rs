//! The end of holds: a lock is handed over to the next queued thread of this process, or released, and the next process
//! that waits learns of it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use proto::GiveUp;
use proto::hold::{self, HandedOver, Release};
use proto::lease::Lease;
use proto::task::{Begun, Io};
use proto::values::{Now, Uptime};

use super::drive::Job;
use super::engine::Engine;
use super::held::{Delivery, HeldLock, Holder};
use super::outbox::Outbox;
use super::session::Session;
use super::turns::{Next, Turn};
use crate::report::error::Error;
use crate::report::event::Settlement;
use crate::system::clock;
use crate::wait::WaitMode;

/// A release that has begun.
struct Releasing<'a> {
    lock: HeldLock<'a>,
    turn: Turn<'a>,
    next: Next,
    successor: Option<Box<Successor>>,
}

/// The thread that a lock is handed over to.
struct Successor {
    /// How it waits.
    mode: WaitMode,
    lease: Lease,
}

impl Engine {
    /// Ends locks by the rules that each was acquired by, together, with a few commands and no sleep: each is handed
    /// over to the next thread of this process, or released, and the next process that waits is notified. All replies
    /// come within the time of one command; what cannot go together, or went wrong for one, is done for it alone.
    pub(super) fn release_all(
        self: &Arc<Self>,
        locks: Vec<HeldLock<'_>>,
        now: Now,
    ) -> Vec<Result<Release, Error>> {
        // The last key first: who wants all of them waits for the first.
        let mut taken = Vec::new();
        let begin = |lock| self.begin_release(lock, &mut taken, now);
        let (under_way, mut sessions): (Vec<_>, Vec<_>) = locks.into_iter().rev().map(begin).unzip();
        let ios: Vec<Io> = under_way.iter().map(|_| Io::new(now)).collect();
        let mut jobs = Vec::with_capacity(under_way.len());
        for ((release, io), session) in under_way.iter().zip(&ios).zip(&mut sessions) {
            let rules = Box::pin(release.rules(io, session.command_timeout()));
            jobs.push(Job::new(release.lock.key, Begun::begin(io, rules), session));
        }
        self.drive(&mut jobs, |job| Some(job), now);
        // Reported when each next thread has its lock.
        let outbox = Outbox::default();
        let ended: Vec<_> = jobs.into_iter().map(|job| job.outcome(&outbox)).collect();
        let end = |((release, session), ended)| self.end_release(release, ended, session, now.uptime);
        let mut released: Vec<_> = under_way.into_iter().zip(sessions).zip(ended).map(end).collect();
        outbox.flush(&self.observer);
        released.reverse();
        released
    }

    /// Releases one lock.
    pub(super) fn release(self: &Arc<Self>, lock: HeldLock<'_>, now: Now) -> Result<Release, Error> {
        let (release, mut session) = self.begin_release(lock, &mut Vec::new(), now);
        let (io, outbox) = (Io::new(now), Outbox::default());
        let ended = {
            let rules = pin!(release.rules(&io, session.command_timeout()));
            let mut job = Job::new(release.lock.key, Begun::begin(&io, rules), &mut session);
            job.run(now);
            job.outcome(&outbox)
        };
        let released = self.end_release(release, ended, session, now.uptime);
        outbox.flush(&self.observer);
        released
    }

    /// Begins to hand a lock over to a thread that is not among those `taken`, or to release it.
    #[inline]
    fn begin_release<'a>(
        &'a self,
        lock: HeldLock<'a>,
        taken: &mut Vec<u64>,
        now: Now,
    ) -> (Releasing<'a>, Session<'a>) {
        let HeldLock { key, options, lease, holder, owed } = &lock;
        let turn = self.turn(self.notifies(options, key), key);
        let next = turn.after(holder, now);
        let mut session = Session::new(self, key, options.protocol, Some(now.uptime));
        // A later attempt does not keep others waiting for a connection.
        if owed.is_none() {
            session = session.held_until(lease.end, now);
        } else {
            session.try_itself();
        }
        let successor = match &next {
            Next::Thread if lease.can_be_handed_over() => {
                let is_like = |mode: &WaitMode| {
                    mode.options().protocol == options.protocol && mode.options().terms.expiration.is_some()
                };
                holder.next(taken, is_like)
            }
            Next::Thread | Next::Any | Next::Pollers => None,
            Next::Listed(taking) => {
                session.take(taking.clone());
                None
            }
        };
        let successor = successor.map(|mode| {
            // As the lock was acquired: that is decided for Auto.
            let lease = Lease::of(&mode.options().terms, lease.protocol, &self.tag(), now);
            Box::new(Successor { mode, lease })
        });
        (Releasing { lock, turn, next, successor }, session)
    }

    /// Has the next waiter get the lock, or learn of the release.
    #[inline]
    fn end_release(
        self: &Arc<Self>,
        release: Releasing<'_>,
        ended: Result<HandedOver, GiveUp>,
        mut session: Session<'_>,
        now: Uptime,
    ) -> Result<Release, Error> {
        let Releasing { lock, turn, next, successor } = release;
        let (key, options) = (lock.key, lock.options);
        let taken = session.take_listed();
        let (outcome, lease, in_doubt) = match ended {
            Ok(HandedOver { release, next, in_doubt }) => (release, next, in_doubt),
            Err(reason) => (Err(reason), None, false),
        };
        let (outcome, holder) = match outcome {
            Ok(release) => (Ok(release), lock.holder),
            Err(reason) => {
                match self.not_released(lock, reason, lease.as_ref(), in_doubt, session) {
                    (error, Some(holder)) => (Err(error), holder),
                    (error, None) => {
                        // A process that was taken from the list is notified, looks, and enters it again.
                        let released = false;
                        let _ = turn.pass_on(&next, released, taken, now);
                        return Err(error);
                    }
                }
            }
        };
        let released = matches!(outcome, Ok(Release::Released { .. }));
        if released {
            self.open_debts.released(key);
        }
        let holder = match lease.zip(successor.as_deref()) {
            Some((lease, Successor { mode, .. })) => {
                match holder.deliver(mode, Delivery { lease, in_doubt }, now) {
                    Ok(()) => return outcome,
                    Err((holder, _)) if in_doubt => holder,
                    Err((holder, Delivery { lease, .. })) => {
                        self.release_unwanted(HeldLock::new(key, options, lease, holder));
                        return outcome;
                    }
                }
            }
            None => holder,
        };
        holder.finish(turn.pass_on(&next, released, taken, now), now);
        if released {
            turn.was_left(&next);
        }
        outcome
    }

    /// Returns the error of a release that gave up, with the holder unless it is tried again. `next`: the lease that
    /// the key may hold instead.
    #[cold]
    fn not_released(
        self: &Arc<Self>,
        lock: HeldLock<'_>,
        reason: GiveUp,
        next: Option<&Lease>,
        in_doubt: bool,
        session: Session<'_>,
    ) -> (Error, Option<Holder>) {
        let (key, before, now) = (lock.key, lock.owed, clock::now());
        // In doubt, the next thread may have it.
        let end = next.filter(|_| in_doubt).unwrap_or(&lock.lease).end;
        let owed = before.unwrap_or_else(|| self.open_debts.enter(key.clone(), end, now));
        let again = if session.may_pass(reason) {
            self.owe_release(lock, owed, reason, next, now)
        } else {
            Err(lock.holder)
        };
        let (if_unknown, if_refused) = if_not_released(end.is_some(), in_doubt, again.is_ok());
        let error = session.error(reason, "").not_released(if_unknown, if_refused);
        self.open_debts.note(owed, &error);
        match before {
            _ if again.is_ok() => {}
            Some(_) => self.settle(key, owed, Settlement::LeftToExpire),
            None => self.open_debts.leave(owed),
        }
        (error, again.err())
    }
}

impl Releasing<'_> {
    async fn rules(&self, io: &Io, command_timeout: Duration) -> Result<HandedOver, GiveUp> {
        let next = self.successor.as_deref().map(|next| &next.lease);
        hold::end(io, &self.lock.lease, next, command_timeout).await
    }
}

/// Returns what it means that a lock was not released: if the reply
/// was lost, and if it was refused. `goes_on`: it is tried again.
fn if_not_released(expires: bool, in_doubt: bool, goes_on: bool) -> (&'static str, &'static str) {
    if goes_on && expires {
        let again = "the release is tried again until the lease ends";
        (again, again)
    } else if goes_on {
        let again = "the release is tried again for at most `retry_for`; the lock has no expiration, so look at the key afterwards, and clear it \
                     if it is still there";
        (again, again)
    } else if in_doubt {
        let may_be = "a waiting thread may have it now; otherwise it frees itself when its lease or that thread's has passed";
        (may_be, may_be)
    } else if expires {
        (
            "if it was not released, it frees itself when its lease has passed",
            "it was not released, and frees itself when its lease has passed",
        )
    } else {
        (
            "it has no expiration, so look at the key, and clear it if it is still there",
            "it was not released and has no expiration, so clear it",
        )
    }
}
